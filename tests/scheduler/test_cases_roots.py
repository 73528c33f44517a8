"""Case files of kind `roots`, and PCI roots by themselves: which GPUs are under one, and what that is worth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler.evaluate.pci_affinity import root_fit, split_share
from scheduler.explain.annotation import placement_block
from scheduler.model.decision import NANO
from scheduler.model.gang_group import Group, group_of
from scheduler.model.request import GangRequest
from scheduler.planning.plan import plan
from tests.scheduler.case_files import of_kind
from tests.scheduler.clusters import gang, node
from topology.cluster.state import ClusterState
from topology.facts.report import (
    Distance,
    Gpu,
    GpuPair,
    Holding,
    NodeFacts,
    NodeState,
    NvLink,
    NvmlState,
    PodDevices,
    Remote,
)
from topology.gpus.gpu_request import whole_gpus
from topology.gpus.roots import RootCapacity, gpus_in_use, whole_in_use
from topology.gpus.sets import GpuLinks
from topology.labels import PREFILL
from topology.objects import Container, Metadata, Pod, PodSpec, Resources


def facts(name: str, roots: Sequence[int], in_use: Sequence[int] = (), *, nvswitch: bool = False) -> NodeFacts:
    links = (NvLink(link=0, active=True, remote=Remote.SWITCH),) if nvswitch else ()
    uuids = [f"GPU-{name}-{i}" for i in range(len(roots))]
    holding = Holding(
        namespace="x", pod="p", container="c", resource="nvidia.com/gpu", device_ids=tuple(uuids[i] for i in in_use)
    )
    return NodeFacts(
        state=NodeState(collected_at_s=0.0, topology_generation=1, nvml=NvmlState.OK),
        gpus=tuple(Gpu(uuid=uuid, index=i, nvlinks=links) for i, uuid in enumerate(uuids)),
        pairs=tuple(
            GpuPair(a=uuids[a], b=uuids[b], distance=Distance.PHB if roots[a] == roots[b] else Distance.SYS)
            for a, b in itertools.combinations(range(len(roots)), 2)
        ),
        pods=PodDevices(collected_at_s=0.0, holdings=(holding,) if in_use else ()),
    )


def holder(name: str, on: str, gpus: int) -> Pod:
    asked = Resources(limits={"nvidia.com/gpu": gpus})
    spec = PodSpec(node_name=on, containers=(Container(name="c", resources=asked),))
    return Pod(metadata=Metadata(name=name, namespace="x", uid=f"u-{name}"), spec=spec)


def state_of(nodes: Mapping[str, Any]) -> ClusterState:
    state = ClusterState()
    state.apply_nodes([(None, node(name, zone="z", spine="s", leaf="l")) for name in nodes])
    for name, given in nodes.items():
        state.apply_pods([(None, holder(f"old-{name}", name, len(given["in_use"])))])
        if "roots" in given:
            reported = facts(name, given["roots"], given["in_use"], nvswitch=given.get("nvswitch", False))
            state.apply_facts(name, None, reported)
    return state


def asked_for(given: Mapping[str, Any]) -> GangRequest:
    equivalent = gang(**given)
    members = tuple(replace(member, gpu=whole_gpus(given["gpus"])) for member in equivalent.members)
    return replace(equivalent, members=members, min_prefill=given["prefill"], min_decode=given["decode"])


@pytest.mark.parametrize("case", of_kind("roots"))
def test_a_case_of_roots(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    made = plan(asked_for(given["gang"]), state_of(given["nodes"]).snapshot(0.0, 0.0))
    assert set(made.places.values()) == {expect["node"]}
    first = next(d for d in made.decisions.values() if d.request.phase == PREFILL)
    assert first.candidate is not None
    assert first.candidate.roots == (tuple(expect["roots"]) if "roots" in expect else None)
    if "reach_points" in expect:
        [reach] = [part for part in first.candidate.parts if part.name == "reach"]
        assert reach.points_nano / NANO == pytest.approx(expect["reach_points"], abs=0.01)
    value = [
        line.split(maxsplit=1)[1] for line in placement_block(first, made).splitlines() if line.startswith("roots")
    ]
    assert value == ([expect["said"]] if expect["said"] else [])
    if "prefill_gpus" in expect:
        alone = {d.request.name: d.pick.gpus for d in made.decisions.values() if d.pick is not None}
        assert alone[first.request.name] == tuple(expect["prefill_gpus"])


def test_a_torn_plan_costs_what_the_policy_says() -> None:
    nodes = {"n1": {"roots": [0, 0, 0, 0, 1, 1, 1, 1], "in_use": [6, 7]}}
    asked = asked_for({"prefill": 2, "decode": 4, "gpus": 1})
    split_groups = plan(asked, state_of(nodes).snapshot(0.0, 0.0))
    whole = plan(asked, state_of({"n1": nodes["n1"] | {"in_use": [3, 7]}}).snapshot(0.0, 0.0))
    assert split_groups.terms is not None
    assert split_groups.terms.split_groups == 0.5
    assert split_groups.cost - whole.cost == pytest.approx(4.0)  # half of 8 points


def test_a_gang_is_not_torn_from_its_node_for_its_roots() -> None:
    """On n1 one pair is across the roots (26 us); on two nodes of the leaf it would be 79 us over TCP."""
    nodes = {name: {"roots": [0, 0, 1, 1, 1, 1, 1, 1], "in_use": [1, 3, 4, 5, 6, 7]} for name in ("n1", "n2")}
    made = plan(asked_for({"prefill": 1, "decode": 1, "gpus": 1}), state_of(nodes).snapshot(0.0, 0.0))
    assert set(made.places.values()) == {"n1"}
    assert made.terms is not None
    assert made.terms.split_groups == 1.0


@pytest.mark.parametrize(
    ("prefill", "decode", "group"),
    [
        ([1, 1], [1, 1, 1, 1], Group(3, 2)),
        ([4], [4], Group(8, 1)),
        ([1, 1, 1], [2], Group(5, 1)),  # three prefill pods of one GPU beside one decode pod of two
        ([1, 1], [1, 1, 1], Group(3, 2)),  # the larger share counts for both
        ([1], [], None),
        ([0], [0], None),
    ],
)
def test_groups(prefill: list[int], decode: list[int], group: Group | None) -> None:
    assert group_of(prefill, decode) == group


def test_what_a_node_has_room_for() -> None:
    capacity = RootCapacity(np.array([1, 3]), np.array([[4, 2], [0, 1]]))
    fit = root_fit(capacity, 5, Group(3, 2))
    assert [fit.of(node) for node in range(5)] == [None, (1, 2), None, None, None]
    assert fit.lost(np.array([0, 1, 3])).tolist() == [0.0, 0.5, 0.0]
    gpus_at = {1: {"prefill": [1, 1], "decode": [1, 1, 1, 1]}, 2: {"prefill": [1], "decode": [1]}}
    assert split_share(capacity, gpus_at, 3) == pytest.approx(1 / 3)  # of node 2 nobody knows the roots


def test_roots_are_told_by_links() -> None:
    def roots(*rows: str) -> tuple[int, ...]:
        return GpuLinks(tuple(tuple(row.split()) for row in rows)).roots

    assert roots("X PIX SYS SYS", "PIX X SYS SYS", "SYS SYS X NODE", "SYS SYS NODE X") == (0, 0, 2, 2)
    assert roots("X PHB NODE NODE", "PHB X NODE NODE", "NODE NODE X PHB", "NODE NODE PHB X") == (0, 0, 2, 2)
    assert roots("X PIX PHB", "PIX X PHB", "PHB PHB X") == ()  # one root
    assert roots("X SYS", "SYS X") == ()  # each by itself: no pair is under one
    assert roots("X NV4 NV4", "NV4 X NV4", "NV4 NV4 X") == ()
    assert roots("X PIX unknown", "PIX X SYS", "unknown SYS X") == ()


def test_gpus_in_use_by_uuid_or_index() -> None:
    reported = facts("n", [0, 0, 1, 1])
    assert gpus_in_use(replace(reported, pods=None)) is None

    def held(*ids: str, resource: str = "nvidia.com/gpu") -> PodDevices:
        one = Holding(namespace="x", pod="p", container="c", resource=resource, device_ids=ids)
        return PodDevices(collected_at_s=0.0, holdings=(one,))

    assert gpus_in_use(replace(reported, pods=held("3", "GPU-n-1"))) == ("GPU-n-1", "GPU-n-3")
    assert gpus_in_use(replace(reported, pods=held("GPU-of-nobody"))) == ()
    assert gpus_in_use(replace(reported, pods=held("MIG-1", resource="nvidia.com/mig-1g.10gb"))) == ()


def test_whole_gpus_in_use_are_the_kubelets_then_the_lowest() -> None:
    state = state_of({"n1": {"roots": [0, 0, 1, 1], "in_use": []}})
    state.apply_nodes([(None, node("n1", gpus=4))])
    devices = state.table().gpus_of(0)
    assert whole_in_use(devices, 1, ("GPU-n1-2",)) == (False, False, True, False)
    assert whole_in_use(devices, 2, ("GPU-n1-2",)) == (True, False, True, False)  # one is planned, not there yet
    assert whole_in_use(devices, 0, ("GPU-n1-2",)) == (False,) * 4  # its pod is gone
    assert whole_in_use(devices, 9, ()) == (True,) * 4


def test_room_by_root_follows_pods_and_kubelets() -> None:
    state = state_of({"n1": {"roots": [0, 0, 1, 1], "in_use": [3]}, "n2": {"in_use": []}})
    state.apply_nodes([(None, node("n1", gpus=4))])

    def free() -> list[list[int]]:
        capacity = state.snapshot(0.0, 0.0).root_capacity()
        assert capacity.nodes.tolist() == [0]
        return [[n for n in row if n] for row in capacity.free.tolist()]

    assert free() == [[2, 1]]
    state.assume("u", "n1", {"nvidia.com/gpu": 1})
    assert free() == [[1, 1]]  # the lowest that remains
    state.unassume("u")
    table = state.table()
    state.apply_facts("n1", None, facts("n1", [0, 0, 1, 1], [0]))
    assert free() == [[1, 2]]
    assert state.table() is table  # which pod has which GPU changes no node table
    state.apply_facts("n1", None, replace(facts("n1", [0, 0, 1, 1]), pods=None))
    assert free() == [[1, 2]]  # nobody says: the lowest
