"""EDGE. Sends probe orders to agents, every few seconds, as the plan of turns says.

It asks only nodes whose agents answer probes and were heard lately, and only for paths on which a probe counts: over
TCP, or over RDMA where both sides have a program and a device for it.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Final, Protocol

from topology.clock import monotonic_s
from topology.cluster.state import ClusterState
from topology.facts import agent_pb2 as wire
from topology.facts.age import FactPart, Freshness
from topology.facts.report import NodeFacts
from topology.hub.state import HubState
from topology.measured.probe_plan import Order, ProbePlan
from topology.reach.domains import DomainChain
from topology.reach.measured_values import RDMA, TCP

TURN_S: Final = 5.0
ROUNDS: Final = 100


class ProbeChannel(Protocol):
    """What is needed of `hub.ProbeChannel`."""

    def order(self, node: str, orders: wire.ProbeOrders) -> bool:
        """Sends orders; False if the agent is not there."""


class ProbeOrders:
    """Turns of probes for one hub."""

    def __init__(
        self, hub: ProbeChannel, agents: HubState, state: ClusterState, *, every_s: float, size_bytes: int
    ) -> None:
        self._hub, self._agents, self._state, self._size = hub, agents, state, size_bytes
        self._plan = ProbePlan(every_s, self._counts)
        self._met: dict[str, _ProbeEnd] = {}
        self.sent = 0

    def turn(self, now_s: float) -> list[Order]:
        """One turn: the orders that went out."""
        table = self._state.table()
        self._met = {}
        chains: dict[str, DomainChain] = {}
        for name in self._agents.nodes():
            known = self._agents.known(name)
            reported = self._agents.facts(name, now_s)
            if known is None or reported is None or not known.probe_address or name not in table.index:
                continue
            if reported[1][FactPart.NETWORK].freshness is Freshness.FRESH:  # a lost driver does not stop a probe
                self._met[name] = _end(known.probe_address, reported[0])
                chains[name] = table.chains[table.index[name]]
        sent = []
        for order in self._plan.due(chains, now_s):
            if self._give(order):
                sent.append(order)
            else:
                self._plan.failed(order.node, order.peer)
        self.sent += len(sent)
        return sent

    def _give(self, order: Order) -> bool:
        """Over RDMA the peer's program is started first; nobody meets it if the second order does not go out, and it
        ends by itself."""
        transport = self._transport(order.node, order.peer)
        if transport is None:
            return False
        there = self._met[order.peer]
        address = there.rdma if transport == RDMA else there.tcp
        message = wire.ProbeOrder(
            peer=order.peer, address=address, size_bytes=self._size, count=ROUNDS, transport=transport
        )
        if transport == RDMA:
            serve = wire.ProbeOrder(
                peer=order.node, serve=True, size_bytes=self._size, count=ROUNDS, transport=transport
            )
            if not self._hub.order(order.peer, wire.ProbeOrders(orders=[serve])):
                return False
        return self._hub.order(order.node, wire.ProbeOrders(orders=[message]))

    def heard(self, node: str, before: NodeFacts | None, now: NodeFacts) -> None:
        """A report: probes whose samples are new in it are under way no longer."""
        known = set(before.reach) if before is not None else set()
        for sample in now.reach:
            if sample not in known:
                self._plan.done(node, sample.peer)

    async def run(self) -> None:
        """Until cancelled. Without turns where probes are off."""
        while math.isfinite(self._plan.every_s):
            self.turn(monotonic_s())
            await asyncio.sleep(TURN_S)

    def _counts(self, a: str, b: str) -> bool:
        return self._transport(a, b) is not None

    def _transport(self, a: str, b: str) -> str | None:
        """Over what a probe of this pair would count; None if none would, or if it cannot be made."""
        table = self._state.table()
        counted = table.reach.transports(table.index[a], table.index[b])
        if counted is None or TCP in counted:
            return TCP
        return RDMA if RDMA in counted and self._met[a].rdma and self._met[b].rdma else None


@dataclass(frozen=True, slots=True)
class _ProbeEnd:
    """Where a node can be met; `rdma` is empty where it has no program or no device for it, or where pages would go
    another way than the program's: through host memory, without GPUDirect."""

    tcp: str
    rdma: str = ""


def _end(address: str, facts: NodeFacts) -> _ProbeEnd:
    port, host = facts.state.rdma_probe_port, address.rpartition(":")[0]
    return _ProbeEnd(address, f"{host}:{port}" if port and facts.state.gpudirect is not False else "")
