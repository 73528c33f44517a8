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
from topology.cluster_state import ClusterState
from topology.facts import agent_pb2 as wire
from topology.facts import wire as facts_wire
from topology.facts.hub_state import HubState
from topology.facts.report import NodeFacts, NodeState, NvmlState

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
    state, lines, told = ClusterState(), _Lines(), list[NodeFacts]()
    state.apply_nodes([(None, node(name, zone="z1", leaf="l1")) for name in ("n1", "n2", "n3")])
    agents = HubState()
    probers = {
        name: Prober(
            AgentSettings(node_name=name, probe_listen="127.0.0.1:0", probe_host="127.0.0.1"),
            lambda: FACTS,
            told.append,
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
        await until(lambda: bool(told))
        running.cancel()
        [facts] = told
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


def test_where_pages_go_over_rdma_nothing_is_ordered() -> None:
    state = ClusterState()
    state.apply_nodes([(None, node(name, zone="z1", leaf="l1", rdma=True)) for name in ("n1", "n2")])
    agents = HubState()
    for name in ("n1", "n2"):
        report(agents, name, replace(FACTS), "127.0.0.1:1")
    assert ProbeOrders(_Lines(), agents, state, every_s=300.0, size_bytes=4096).turn(1.0) == []
