"""Which hardware a node's links are, from what its agent reports: NVLink generation, NIC rate, GPUDirect.

It only refines what labels say: a fact that is not known leaves the coarser row in place. Inside a node the worst GPU
pair counts, so NVLink is believed only if every GPU has an active link to a switch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from topology.facts.report import NodeFacts, Remote
from topology.reach.domains import DomainChain
from topology.reach.link_rows import Hardware
from topology.reach.model import NodeLinks

_SWITCHED: Final = {"3": Hardware.NVLINK3_SWITCH, "4": Hardware.NVLINK4_SWITCH}
"""By the major version of NVLink. Of newer ones nobody published a pair's times, so their coarse row stays."""
FAST_MBPS: Final = 350_000
SLOW_MBPS: Final = 90_000


@dataclass(frozen=True, slots=True)
class AgentLinks:
    """What an agent saw: inside the node, and RDMA out of it, if the node has RDMA at all."""

    inner: Hardware | None = None
    outer: Hardware | None = None
    fabric: str | None = None  # multi-node NVLink domain as GPU feature discovery writes it; "" is: not usable

    def without(self, *, gpus: bool, network: bool) -> AgentLinks:
        """The same without what NVML told, without what sysfs told of the network, or without both."""
        if not gpus and not network:
            return self
        return AgentLinks(
            inner=None if gpus else self.inner,
            outer=None if network else self.outer,
            fabric=None if gpus else self.fabric,
        )

    def refine(self, links: NodeLinks) -> NodeLinks:
        """The node's links with what was seen in place of what is only known by kind."""
        outer = self.outer if links.rdma else None
        return replace(links, inner=self.inner or links.inner, outer=outer or links.outer)

    def refine_chain(self, chain: DomainChain) -> DomainChain:
        """The node's domains: the driver's NVLink domain where labels name none, and none where it is not usable.

        A label that names one is not replaced: nodes without an agent have the label alone, and must stay together.
        """
        if self.fabric is None or (self.fabric and chain.fabric):
            return chain
        return replace(chain, fabric=self.fabric)


def agent_links(facts: NodeFacts) -> AgentLinks:
    """From one agent's facts."""
    return AgentLinks(_inner(facts), _outer(facts), _fabric(facts))


def _fabric(facts: NodeFacts) -> str | None:
    """Cluster uuid and clique id together (a clique id alone repeats between racks), if all GPUs agree.

    "" while a GPU's fabric is starting, failed or unhealthy; None where the driver says nothing or has no cluster.
    """
    reported = [gpu.fabric for gpu in facts.gpus if gpu.fabric is not None]
    if any(fabric.why_unusable for fabric in reported):
        return ""
    domains = {fabric.domain for fabric in reported}
    if len(domains) > 1:
        return ""
    domain = domains.pop() if domains else None
    return f"{domain[0]}.{domain[1]}" if domain else None


def _inner(facts: NodeFacts) -> Hardware | None:
    versions = set()
    for gpu in facts.gpus:
        switched = [link.version for link in gpu.nvlinks if link.active and link.remote is Remote.SWITCH]
        versions.add(switched[0].partition(".")[0] if switched and switched[0] else "")
    return _SWITCHED.get(versions.pop()) if len(versions) == 1 else None


def _outer(facts: NodeFacts) -> Hardware | None:
    if facts.state.gpudirect is False:
        return Hardware.RDMA_NO_GPUDIRECT
    rates = [port.rate_mbps for nic in facts.nics if nic.rdma for port in nic.ports if port.active and port.rate_mbps]
    if not rates:
        return None
    if min(rates) >= FAST_MBPS:
        return Hardware.RDMA_400G
    return Hardware.RDMA_100G if SLOW_MBPS <= min(rates) < FAST_MBPS else None
