"""Probe orders from the hub's knowledge, and agents' answers into reach: two probers over loopback."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from admission.controller.probe_orders import ProbeOrders
from tests.scheduler.clusters import node
from tests.topology.list_watch_server import until
from topology.agent.prober import Prober
from topology.agent.settings import AgentSettings
from topology.clock import wall_time_s
from topology.cluster.state import ClusterState
from topology.facts import agent_pb2 as wire
from topology.facts import wire as facts_wire
from topology.facts.report import NodeFacts, NodeState, NvmlState, ReachSample
from topology.hub.state import HubState

FACTS = NodeFacts(state=NodeState(collected_at_s=1.0, topology_generation=1, nvml=NvmlState.OK))


class _Lines:
    """The hub's streams: orders by node; a node that is not connected takes none."""

    def __init__(self) -> None:
        self.sent: dict[str, wire.ProbeOrders] = {}
        self.away: set[str] = set()

    def order(self, node: str, orders: wire.ProbeOrders) -> bool:
        if node in self.away:
            return False
        self.sent[node] = orders
        return True


def report(agents: HubState, name: str, facts: NodeFacts, address: str | None) -> None:
    stream = agents.hello(1, wire.Hello(node=name, protocol=1, boot_id="b", probe_address=address), 0.0)
    agents.report(name, stream, wire.AgentMessage(sequence=2, full=facts_wire.full_message(facts)), 0.0)


async def test_an_order_becomes_reach() -> None:
    state, lines, reported = ClusterState(), _Lines(), list[NodeFacts]()
    state.apply_nodes([(None, node(name, zone="z1", leaf="l1")) for name in ("n1", "n2", "n3")])
    agents = HubState()
    probers = {
        name: Prober(
            AgentSettings(node_name=name, probe_listen="127.0.0.1:0", probe_host="127.0.0.1"),
            lambda: FACTS,
            reported.append,
        )
        for name in ("n1", "n2")
    }
    try:
        for name, prober in probers.items():
            report(agents, name, FACTS, prober.address)
        report(agents, "n3", FACTS, None)  # answers no probes
        orders = ProbeOrders(lines, agents, state, every_s=300.0, size_bytes=4096)
        lines.away = {"n1", "n2"}
        assert orders.turn(1.0) == []
        lines.away = set()
        [order] = orders.turn(2.0)
        assert {order.node, order.peer} == {"n1", "n2"}
        [sent] = lines.sent[order.node].orders
        assert (sent.size_bytes, sent.transport, sent.address) == (4096, "tcp", probers[order.peer].address)
        prober = probers[order.node]
        prober.take(wire.ProbeOrders(orders=[replace_link(sent)]))
        running = asyncio.create_task(prober.run())
        await until(lambda: bool(reported))
        running.cancel()
        [facts] = reported
        state.apply_facts(order.node, FACTS, facts)
        orders.heard(order.node, FACTS, facts)
        now = wall_time_s() + 10
        found = state.snapshot(now, 0.0).table.reach.between(0, 1, 4096)
        assert found.basis.startswith("measured 1")
        assert found.us == facts.reach[0].p99_us
        assert [o.node for o in orders.turn(3.0)] == []  # not due again
    finally:
        for each in probers.values():
            each.close()


def replace_link(order: wire.ProbeOrder) -> wire.ProbeOrder:
    """A few rounds only: without a known port the budget is a thousandth of 1 Gb/s."""
    short = wire.ProbeOrder()
    short.CopyFrom(order)
    short.count = 4
    return short


def rdma_facts(**given: object) -> NodeFacts:
    """A node whose agent has a program for probes over RDMA."""
    return replace(FACTS, state=replace(FACTS.state, rdma_probe_port=18515, **given))  # type: ignore[arg-type]


def rdma_orders(*facts: NodeFacts) -> tuple[_Lines, ProbeOrders]:
    state, agents, lines = ClusterState(), HubState(), _Lines()
    for number, each in enumerate(facts, start=1):
        state.apply_nodes([(None, node(f"n{number}", zone="z1", leaf="l1", rdma=True))])
        report(agents, f"n{number}", each, f"10.0.0.{number}:8084")
    return lines, ProbeOrders(lines, agents, state, every_s=300.0, size_bytes=4096)


def test_over_rdma_the_peers_program_is_started_first() -> None:
    lines, orders = rdma_orders(rdma_facts(), rdma_facts())
    [order] = orders.turn(1.0)
    assert list(lines.sent) == [order.peer, order.node]
    [serve], [measure] = lines.sent[order.peer].orders, lines.sent[order.node].orders
    assert (serve.serve, serve.peer, serve.transport) == (True, order.node, "rdma")
    assert (measure.serve, measure.peer, measure.transport) == (False, order.peer, "rdma")
    assert measure.address == f"10.0.0.{order.peer[1:]}:18515"
    assert (serve.size_bytes, serve.count) == (measure.size_bytes, measure.count) == (4096, 100)


def test_a_peer_that_cannot_be_told_is_not_probed() -> None:
    lines, orders = rdma_orders(rdma_facts(), rdma_facts())
    lines.away = {"n1", "n2"}
    assert orders.turn(1.0) == []
    lines.away = set()
    assert len(orders.turn(2.0)) == 1


def test_over_rdma_both_sides_need_a_program_and_gpudirect() -> None:
    assert rdma_orders(rdma_facts(), FACTS)[1].turn(1.0) == []
    # Without GPUDirect a page goes through host memory twice, which the program does not measure.
    assert rdma_orders(rdma_facts(), rdma_facts(nvidia_peermem=False, dma_buf=False))[1].turn(1.0) == []
    assert len(rdma_orders(rdma_facts(), rdma_facts(nvidia_peermem=False, dma_buf=True))[1].turn(1.0)) == 1


def test_what_was_measured_over_rdma_counts_where_pages_go_over_rdma() -> None:
    state = ClusterState()
    state.apply_nodes([(None, node(name, zone="z1", leaf="l1", rdma=True)) for name in ("n1", "n2")])
    at_s = wall_time_s()
    sample = ReachSample(
        peer="n2",
        size_bytes=65536,
        p50_us=5.0,
        p99_us=7.0,
        p999_us=9.0,
        count=100,
        transport="rdma",
        measured_at_s=at_s,
    )
    state.apply_facts("n1", FACTS, replace(FACTS, reach=(sample,)))
    found = state.snapshot(at_s + 42, 0.0).table.reach.between(0, 1, 65536)
    assert (found.us, found.basis) == (7.0, "measured 42s ago")
    assert "RDMA" in found.path
    over_tcp = replace(sample, transport="tcp", p99_us=90.0)
    other = ClusterState()
    other.apply_nodes([(None, node(name, zone="z1", leaf="l1", rdma=True)) for name in ("n1", "n2")])
    other.apply_facts("n1", FACTS, replace(FACTS, reach=(over_tcp,)))
    assert other.snapshot(at_s + 42, 0.0).table.reach.between(0, 1, 65536).basis == "modelled"


def test_where_pages_go_over_rdma_nothing_is_ordered_without_a_program() -> None:
    state = ClusterState()
    state.apply_nodes([(None, node(name, zone="z1", leaf="l1", rdma=True)) for name in ("n1", "n2")])
    agents = HubState()
    for name in ("n1", "n2"):
        report(agents, name, replace(FACTS), "127.0.0.1:1")
    assert ProbeOrders(_Lines(), agents, state, every_s=300.0, size_bytes=4096).turn(1.0) == []
