"""Case files in which several gangs, or one over some time, are planned: kinds `arrivals`, `churn` and `blip`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from scheduler.model.decision import Outcome, Plan
from scheduler.model.reason import reason_of
from scheduler.model.request import GangRequest, Partner
from scheduler.planning.plan import plan
from tests.scheduler.case_files import of_kind
from tests.scheduler.clusters import gang, node, pod, snapshot_from
from topology.cluster.snapshot import Assumed, Snapshot
from topology.cluster.state import ClusterState
from topology.labels import DECODE, PREFILL
from topology.objects import Container, Metadata, Node, NodeCondition, Pod, PodSpec, Resources
from topology.resources import GPU


def with_gang(snapshot: Snapshot, made: Plan) -> Snapshot:
    """The snapshot with a planned gang in it."""
    members = {m.uid: m for m in made.request.members}
    return snapshot.with_assumed({uid: Assumed(there, members[uid].amounts) for uid, there in made.places.items()})


@pytest.mark.parametrize("case", of_kind("arrivals"))
def test_gangs_whose_pods_come_mixed_up(case: dict[str, Any]) -> None:
    asked, expect = case["input"], case["expect"]
    for order, runs in zip(asked["orders"], expect["runs"], strict=True):
        snapshot, here, made = snapshot_from(asked), dict[str, list[str]](), dict[str, Plan]()
        for name in order:
            of, phase = name.split("-")
            here.setdefault(of, []).append(phase)
            members = tuple(pod(f"{of}-{p}", p, asked["gpus"]) for p in here[of])
            made[of] = plan(replace(gang(), name=of, members=members), snapshot)
            snapshot = with_gang(snapshot, made[of])
        (other,) = {"a", "b"} - {runs}
        assert len(made[runs].places) == 2
        assert not made[other].places
        assert int(snapshot.used[:, snapshot.table.column[GPU]].sum()) == expect["taken"]
        last = plan(replace(gang(), name=other, members=made[other].request.members), snapshot)
        assert last.outcome in (Outcome.HELD, Outcome.WAITING_FOR_PARTNER)
        if last.outcome == Outcome.HELD:
            assert reason_of(last) == expect["other"]


@pytest.mark.parametrize("case", of_kind("churn"))
def test_gangs_that_come_and_go(case: dict[str, Any]) -> None:
    asked, expect = case["input"], case["expect"]
    sizes = asked["sizes"] * asked["rounds"]
    snapshot, now_s = snapshot_from(asked), 0
    waiting, running = dict[str, int](), dict[str, tuple[int, list[str]]]()
    starts, finished = dict[str, int](), 0
    while finished < len(sizes):
        for name, (ends_s, uids) in list(running.items()):
            if ends_s <= now_s:
                snapshot = snapshot.without_assumed(uids)
                del running[name]
                finished += 1
        if now_s % asked["every_s"] == 0 and (number := now_s // asked["every_s"]) < len(sizes):
            waiting[f"g{number:02}"] = sizes[number]
        for name, size in list(waiting.items()):
            prefill = size // 2
            made = plan(
                gang(prefill, size - prefill, 1, minimum=(prefill, size - prefill), name=name), snapshot, advise=False
            )
            if made.places:
                snapshot = with_gang(snapshot, made)
                running[name], starts[name] = (now_s + asked["runs_s"], list(made.places)), now_s
                del waiting[name]
        # Pods of one GPU in one zone: a gang fits exactly when as many GPUs are free as it has pods.
        free = int(snapshot.free[:, snapshot.table.column[GPU]].sum())
        assert min(waiting.values(), default=99) > free, f"at {now_s} s {free} GPUs are free, waiting {waiting}"
        now_s += asked["cycle_s"]
    assert finished == expect["finished"]
    assert {name: starts[name] for name in expect["starts"]} == expect["starts"]
    assert not snapshot.assumed
    assert int(snapshot.used.sum()) == 0


@pytest.mark.parametrize("case", of_kind("blip"))
def test_a_node_that_is_away_for_a_moment(case: dict[str, Any]) -> None:
    asked, expect = case["input"], case["expect"]
    state, nodes = ClusterState(), {name: node(name, gpus=asked["gpus"], zone=z) for name, z in asked["nodes"].items()}
    state.apply_nodes((None, each) for each in nodes.values())
    state.apply_pods((None, running(name, where)) for name, where in asked["running"].items())

    def joins() -> Plan:
        there = [
            Partner(f"uid-{name}", name, PREFILL if PREFILL in name else DECODE, (where,))
            for name, where in asked["running"].items()
        ]
        request = GangRequest("prod", "chat", (pod(asked["joiner"], DECODE, 2),), tuple(there))
        return plan(request, state.snapshot(0.0, 0.0))

    def taken() -> dict[str, int]:
        snapshot = state.snapshot(0.0, 0.0)
        column = snapshot.used[:, snapshot.table.column[GPU]]
        return dict(zip(snapshot.table.names, column.tolist(), strict=True))

    before = joins()
    assert list(before.places.values()) == [expect["before"]]
    assert taken() == expect["taken"]
    gone = nodes[asked["blip"]]
    state.apply_nodes([(gone, not_ready(gone))])
    meanwhile = joins()
    assert list(meanwhile.places.values()) == [expect["meanwhile"]]
    assert meanwhile.worst is not None
    assert meanwhile.worst.reach.us == pytest.approx(expect["meanwhile_us"], abs=0.01)
    assert taken() == expect["taken"]
    state.apply_nodes([(not_ready(gone), gone)])
    after = joins()
    assert list(after.places.values()) == [expect["after"]]
    assert after.cost == before.cost
    assert taken() == expect["taken"]


def running(name: str, where: str) -> Pod:
    """A bound pod of 2 GPUs."""
    engine = Container(name="engine", resources=Resources(requests={GPU: "2"}, limits={GPU: "2"}))
    return Pod(
        metadata=Metadata(name=name, namespace="prod", uid=f"uid-{name}"),
        spec=PodSpec(node_name=where, containers=(engine,)),
    )


def not_ready(of: Node) -> Node:
    """The node without its readiness."""
    away = (NodeCondition(type="Ready", status="False"),)
    return msgspec.structs.replace(of, status=msgspec.structs.replace(of.status, conditions=away))
