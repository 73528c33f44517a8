"""EDGE. An agent's part in probing: answers others, carries out the hub's orders, tells what it measured.

It joins `probe` to the agent: the link's rate comes from the node's own facts, a sample goes out with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from topology.agent.probe import ProbeRunner, ProbeServer
from topology.agent.rdma_probe import RdmaProbe
from topology.agent.settings import AgentSettings
from topology.facts import agent_pb2 as wire
from topology.facts.report import NodeFacts, ReachSample

BYTES_PER_MBIT: float = 125_000.0


class Prober:
    """`facts` are the node's newest, if any; `report` takes them with a measurement added."""

    def __init__(
        self, settings: AgentSettings, facts: Callable[[], NodeFacts | None], report: Callable[[NodeFacts], None]
    ) -> None:
        """Listens at once. Raises BadInput for an address that cannot be had."""
        self._server = ProbeServer(settings.probe_listen)
        host = settings.probe_host
        self.address = f"[{host}]:{self._server.port}" if ":" in host else f"{host}:{self._server.port}"
        self._facts, self._report = facts, report
        self.rdma = RdmaProbe(settings, facts) if settings.rdma_probe else None
        self.runner = ProbeRunner(self._measured, lambda: link_bytes_per_s(facts()), self.rdma)

    def take(self, orders: wire.ProbeOrders) -> None:
        """From the hub."""
        self.runner.take(orders)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self.runner.run()
        finally:
            if self.rdma is not None:
                await self.rdma.close()

    def close(self) -> None:
        """No longer answers."""
        self._server.close()

    def _measured(self, sample: ReachSample) -> None:
        facts = self._facts()
        if facts is not None:
            self._report(replace(facts, reach=(sample,)))


def link_bytes_per_s(facts: NodeFacts | None) -> float | None:
    """The slowest active port of the node, in bytes a second: which one a probe takes is not known. None: no port."""
    ports = [port for nic in facts.nics for port in nic.ports] if facts is not None else []
    rates = [port.rate_mbps for port in ports if port.active and port.rate_mbps]
    return min(rates) * BYTES_PER_MBIT if rates else None
