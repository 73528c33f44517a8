"""Facts of silent agents in a running controller's state: marked, then left out, and back with the next report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from admission.controller.agent_ages import AgentAges
from scheduler.explain.annotation import placement_block
from scheduler.explain.events import held_event, news_key
from scheduler.explain.wording import agents_of, silent_agents
from scheduler.planning.plan import plan
from tests.scheduler.clusters import gang, node
from tests.topology.node_facts import two_gpus
from topology.cluster.agent_facts import AgentsView
from topology.cluster.agent_links import AgentLinks
from topology.cluster.state import ClusterState
from topology.facts import agent_pb2 as wire
from topology.facts import wire as facts_wire
from topology.facts.age import Aged, AgeLimits, FactPart, Freshness
from topology.facts.report import Distance, Fabric, FabricState, Nic, NicPort, NodeFacts, NvmlState
from topology.hub.state import HubState
from topology.objects import Metadata, Pod, PodSpec
from topology.reach.link_rows import Hardware

WALL_S = 1_796_000_000.0


class Told:
    """Events that were posted: (pod, reason, text)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def post(self, involved: Any, type_: str, reason: str, text: str, **_: Any) -> None:
        assert type_ == "Warning"
        self.events.append((involved.name, reason, text))


def in_domain(facts: NodeFacts) -> NodeFacts:
    fabric = Fabric(state=FabricState.COMPLETED, status=0, cluster_uuid="rack", clique_id=1)
    return replace(facts, gpus=tuple(replace(gpu, fabric=fabric) for gpu in facts.gpus))


class Place:
    """Two nodes in two zones, which an agent on each says to be in one NVLink domain."""

    def __init__(self) -> None:
        self.state, self.reported, self.changes = ClusterState(), Told(), 0
        self.state.apply_nodes([(None, node(f"n{i}", gpus=2, zone=f"z{i}")) for i in (1, 2)])
        self.agents = HubState(AgeLimits(stale_s=45, expired_s=300), on_change=self._on_change)
        self.ages = AgentAges(self.agents, self.state, self.reported, self._changed)  # type: ignore[arg-type]
        self.streams: dict[str, tuple[int, int]] = {}
        for name in ("n1", "n2"):
            self.report(name, in_domain(two_gpus()), 1000.0)

    def _changed(self) -> None:
        self.changes += 1

    def _on_change(self, name: str, before: NodeFacts | None, now: NodeFacts) -> None:
        self.state.apply_facts(name, before, now)

    def report(self, name: str, facts: NodeFacts, now_s: float) -> None:
        stream, sequence = self.streams.get(name, (0, 1))
        if not stream:
            stream = self.agents.hello(1, wire.Hello(node=name, protocol=1, boot_id="b"), now_s)
        message = wire.AgentMessage(sequence=sequence + 1, full=facts_wire.full_message(facts))
        self.agents.report(name, stream, message, now_s)
        self.streams[name] = stream, sequence + 1

    def read(self, now_s: float) -> None:
        self.ages.read(now_s, WALL_S + now_s)

    def domains(self) -> list[str]:
        return [chain.fabric for chain in self.state.table().chains]


def test_stale_facts_are_used_and_expired_ones_are_not() -> None:
    place = Place()
    table, version = place.state.table(), place.state.version
    assert place.domains() == ["rack.1", "rack.1"]
    place.read(1045.0)
    assert place.state.version == version
    place.read(1046.0)
    place.report("n2", in_domain(two_gpus()), 1047.0)
    place.read(1048.0)
    assert place.state.table() is table  # marked, and nothing made anew
    assert place.changes == 0
    [age] = place.state.snapshot(WALL_S + 1060.0, 0.0).agent_ages(["n1", "n2"])
    assert agents_of([age]) == "agent of n1 60s old, stale"
    place.read(1300.0)
    assert place.domains() == ["", "rack.1"]  # n1 by its labels, n2 as before
    assert place.changes == 1
    table, version = place.state.table(), place.state.version
    place.read(1305.0)
    assert (place.state.table(), place.state.version) == (table, version)  # nothing new, no work


def test_the_next_report_counts_at_once() -> None:
    place = Place()
    place.read(1400.0)
    assert place.domains() == ["", ""]
    place.report("n1", in_domain(two_gpus()), 1401.0)
    place.read(1402.0)
    assert place.domains() == ["rack.1", ""]
    assert place.state.snapshot(WALL_S, 0.0).agent_ages(["n1"]) == ()


def test_what_changes_meanwhile_counts_once_the_agent_is_heard() -> None:
    place = Place()
    place.read(1400.0)
    place.report("n1", two_gpus(), 1401.0)  # in no domain any more
    place.read(1402.0)
    place.report("n2", in_domain(two_gpus()), 1403.0)
    place.read(1404.0)
    assert place.domains() == ["", "rack.1"]


def test_an_agent_whose_nvml_is_lost_expires_though_it_reports() -> None:
    place = Place()
    lost = in_domain(two_gpus())
    state = replace(lost.state, nvml=NvmlState.LOST, nvml_good_at_s=lost.state.collected_at_s - 400)
    place.report("n1", replace(lost, state=state), 1010.0)
    place.read(1010.0)
    assert place.domains() == ["", "rack.1"]
    [age] = place.state.snapshot(WALL_S + 1010.0, 0.0).agent_ages(["n1"])
    assert agents_of([age]) == "GPUs of n1 6m40s old, expired: not used"


def networked(facts: NodeFacts, *, lost_for_s: float = 0.0, no_sysfs_for_s: float = 0.0) -> NodeFacts:
    """Two GPUs, each beside an RDMA card of 400 Gb/s: rails 0 and 1."""
    nics = tuple(
        Nic(
            name=f"mlx5_{i}",
            rdma=True,
            ports=(NicPort(port=1, active=True, rate_mbps=400_000),),
            gpus=tuple((gpu.uuid, Distance.PIX if at == i else Distance.SYS) for at, gpu in enumerate(facts.gpus)),
        )
        for i in range(2)
    )
    state, at_s = facts.state, facts.state.collected_at_s
    if lost_for_s:
        state = replace(state, nvml=NvmlState.LOST, nvml_good_at_s=at_s - lost_for_s)
    if no_sysfs_for_s:
        state = replace(state, network_good_at_s=at_s - no_sysfs_for_s)
    return replace(facts, state=state, nics=nics)


@pytest.mark.parametrize(
    ("lost_for_s", "no_sysfs_for_s", "domain", "rails", "value"),
    [
        (10, 0, "rack.1", (0, 1), "GPUs of n1 10s old, stale"),
        (400, 0, "", (0, 1), "GPUs of n1 6m40s old, expired: not used"),
        (0, 400, "rack.1", None, "network cards of n1 6m40s old, expired: not used"),
        (400, 400, "", None, "GPUs and network cards of n1 6m40s old, expired: not used"),
    ],
)
def test_a_lost_source_costs_only_what_it_told(
    lost_for_s: float,
    no_sysfs_for_s: float,
    domain: str,
    rails: tuple[int, int] | None,
    value: str,
) -> None:
    place = Place()
    whole = networked(in_domain(two_gpus()))
    place.report("n1", whole, 1005.0)
    place.report("n1", networked(whole, lost_for_s=lost_for_s, no_sysfs_for_s=no_sysfs_for_s), 1010.0)
    place.read(1010.0)
    assert place.domains() == [domain, "rack.1"]
    table = place.state.table()
    links = table.gpus_of(0).links
    assert (links.rails if links is not None and links.rails_known else None) == rails
    [age] = place.state.snapshot(WALL_S + 1010.0, 0.0).agent_ages(["n1"])
    assert agents_of([age]) == value
    place.report("n1", whole, 1020.0)
    place.read(1020.0)
    assert place.domains() == ["rack.1", "rack.1"]
    assert place.state.snapshot(WALL_S + 1020.0, 0.0).agent_ages(["n1"]) == ()


def test_links_out_of_the_node_are_sysfs_word_and_those_inside_nvmls() -> None:
    view, old = AgentsView(), Aged(Freshness.EXPIRED, 0.0)
    view.hear("n1", networked(in_domain(two_gpus())))
    every = AgentLinks(Hardware.NVLINK3_SWITCH, Hardware.RDMA_400G, "rack.1")
    assert view.links["n1"] == every
    assert view.grow_old({"n1": {FactPart.GPUS: old}})
    assert view.links["n1"] == AgentLinks(outer=Hardware.RDMA_400G)
    assert view.grow_old({"n1": {FactPart.NETWORK: old}})
    assert view.links["n1"] == replace(every, outer=None)
    assert view.grow_old({"n1": {FactPart.NETWORK: old, FactPart.GPUS: old}})
    assert (view.links, view.devices) == ({}, {})
    assert view.grow_old({"n1": {FactPart.PODS: old}})
    assert view.links["n1"] == every
    assert not view.grow_old({"n1": {}})


def test_a_report_counts_by_what_it_changes() -> None:
    view, facts = AgentsView(), networked(in_domain(two_gpus()))

    def with_memory(**given: Any) -> NodeFacts:
        return replace(facts, memory=tuple(replace(reading, **given) for reading in facts.memory))

    assert view.hear("n1", facts)
    assert not view.hear("n1", with_memory(used_bytes=7))
    assert view.hear("n1", with_memory(total_bytes=40 * 2**30))
    assert view.hear("n1", facts)
    assert view.hear("n1", replace(facts, state=replace(facts.state, nvidia_peermem=False, dma_buf=False)))
    assert view.links["n1"].outer is Hardware.RDMA_NO_GPUDIRECT
    assert view.hear("n1", facts)
    heard = view.pods_heard
    assert not view.hear("n1", replace(facts, pods=None))
    assert view.pods_heard == heard + 1
    assert view.in_use == {}
    view.forget("n1")
    assert view.hear("n1", replace(facts, pods=None))  # known again, though its objects are the same


def test_the_event_names_what_expired() -> None:
    place = Place()
    meta = Metadata(
        name="d", namespace="t", uid="u", labels={"isochrone.dev/gang": "chat", "isochrone.dev/phase": "decode"}
    )
    place.state.apply_pods([(None, Pod(metadata=meta, spec=PodSpec(node_name="n1")))])
    place.report("n1", networked(in_domain(two_gpus()), no_sysfs_for_s=400), 1010.0)
    place.read(1010.0)
    place.read(1011.0)
    assert [text for _, _, text in place.reported.events] == [
        "No word of the network from the agent of n1 for 6m40s: what was seen there (network cards, rails, GPUDirect) "
        "no longer counts, node labels and the model do. Pod left running"
    ]


def test_a_silent_node_stays_expired_until_it_is_gone() -> None:
    place = Place()
    place.read(1400.0)
    assert sorted(place.agents.forget_silent(4601.0)) == ["n1", "n2"]
    place.read(4602.0)
    assert place.domains() == ["", ""]
    place.state.apply_nodes([(node("n1", gpus=2, zone="z1"), None)])
    place.read(4603.0)
    assert list(place.state.snapshot(WALL_S, 0.0).aged) == ["n2"]


def test_pods_that_run_on_a_silent_node_are_told() -> None:
    place = Place()
    labels = {"isochrone.dev/gang": "chat", "isochrone.dev/phase": "decode"}
    for name in ("n1", "n2"):
        meta = Metadata(name=f"on-{name}", namespace="t", uid=f"u-{name}", labels=labels)
        place.state.apply_pods([(None, Pod(metadata=meta, spec=PodSpec(node_name=name)))])
    place.report("n2", in_domain(two_gpus()), 1290.0)
    place.read(1301.0)
    [(pod, reason, text)] = place.reported.events
    assert (pod, reason) == ("on-n1", "FactsStale")
    assert text == (
        "No facts from the agent of n1 for 5m1s: what was seen there (cards, NVLinks, NVLink domain, network cards, "
        "rails, GPUDirect) no longer counts, node labels and the model do. Pod left running"
    )


def test_a_held_gang_says_that_the_nearest_node_is_silent() -> None:
    place = Place()
    # 2 ms between zones: too far by labels, though near enough in the NVLink domain that both agents saw.
    asked = gang(gpus=2)
    assert len(plan(asked, place.state.snapshot(WALL_S + 1000, 0.0)).places) == 2
    place.read(1310.0)
    held = plan(asked, place.state.snapshot(WALL_S + 1310, 0.0))
    decision = next(iter(held.decisions.values()))
    assert decision.chosen is None
    assert "expired: not used" in placement_block(decision, held)
    assert news_key(held, decision) != news_key(held, replace(decision, agents=()))
    assert "n1" in silent_agents(decision.silent)
    assert held_event(held, decision)[0] == "ReachExceeded"


@pytest.mark.parametrize(("stale_s", "expired_s"), [(45, 300), (3, 9)])
def test_looks_are_at_least_three_within_what_is_fresh(stale_s: float, expired_s: float) -> None:
    ages = AgentAges(HubState(AgeLimits(stale_s, expired_s)), ClusterState(), Told(), lambda: None)  # type: ignore[arg-type]
    assert ages.every_s <= min(5.0, stale_s / 3)
