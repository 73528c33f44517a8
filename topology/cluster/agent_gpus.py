"""The cards of a node as its agent sees them: what pods can have of each, which are split, how they are joined.

It refines what the node says of itself (topology/gpus/capacity.py): the driver's own part of the memory is known only
here, and so is a card in MIG mode that the list of whole GPUs still counts. Readings that change by the second are not
kept, so that a node table lives as long as its hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from topology.facts.report import Distance, Gpu, Health, MemoryKind, NodeFacts, Remote
from topology.gpus.capacity import NodeGpus
from topology.gpus.forms import WHOLE
from topology.gpus.mig_seen import SeenMig, seen_mig
from topology.gpus.sets import MOST_GPUS, GpuLinks
from topology.graph.link_types import PIX, SELF, UNKNOWN, nvlink

_MIB: Final = 2**20
_STEP_MIB: Final = 64
"""The driver's part is rounded up to this: it moves by a few MiB, for which no table of nodes should be made anew."""

_WORD: Final = {Distance.SAME: PIX}
_NEAR: Final = (Distance.SAME, Distance.PIX, Distance.PXB)
"""A network card this near is beside the GPU: their traffic does not cross the host bridge."""


@dataclass(frozen=True, slots=True)
class AgentGpus:
    """GPUs by index. `usable_mib` is 0 where no memory is told; `split` are those in MIG mode."""

    uuids: tuple[str, ...] = ()
    usable_mib: tuple[int, ...] = ()
    split: tuple[bool, ...] = ()
    healthy: tuple[bool, ...] = ()
    links: GpuLinks | None = None
    mig: SeenMig | None = None

    @property
    def all_split(self) -> bool:
        """No whole GPU is left."""
        return bool(self.split) and all(self.split)

    def without(self, *, gpus: bool, network: bool) -> AgentGpus:
        """The same without what NVML told, without what sysfs told of the network, or without both. Which card is
        beside which network card is sysfs's word: without NVML it still counts, for as many cards as were seen."""
        if not gpus and not network:
            return self
        links = self.links
        if links is not None and network:
            links = replace(links, rails=(), rails_known=False)
        if not gpus:
            return replace(self, links=links)
        if links is not None:
            links = replace(links, link_types=tuple(tuple(UNKNOWN for _ in row) for row in links.link_types), numa=())
        return AgentGpus(links=None if network else links)

    # complexity: each fact of an agent may be there or not
    def refine(self, devices: NodeGpus) -> NodeGpus:
        """The node's cards with what was seen: memory by UUID, or by index where the node gives out whole GPUs."""
        if devices.listed:
            seen = dict(zip(self.uuids, self.usable_mib, strict=True))
            memory = tuple(
                min(mib, seen.get(uuid) or mib) for uuid, mib in zip(devices.uuids, devices.memory_mib, strict=True)
            )
            return replace(devices, memory_mib=memory)
        if not self.uuids:
            plain = devices.kind == WHOLE.name and devices.replicas <= 1
            same = self.links is not None and len(self.links.link_types) == len(devices.memory_mib)
            return replace(devices, links=self.links) if plain and same else devices
        whole = [i for i, split in enumerate(self.split) if not split and self.healthy[i]]
        if devices.kind != WHOLE.name or devices.replicas > 1 or len(whole) != len(devices.memory_mib):
            return devices
        links = self.links if len(whole) == len(self.uuids) else None
        return replace(
            devices,
            memory_mib=tuple(self.usable_mib[i] or devices.memory_mib[at] for at, i in enumerate(whole)),
            uuids=tuple(self.uuids[i] for i in whole),
            links=links,
        )


def agent_gpus(facts: NodeFacts) -> AgentGpus:
    """From one agent's facts; nothing where it sees no GPU."""
    gpus = sorted(facts.gpus, key=lambda g: (g.index is None, g.index, g.uuid))
    reported = {m.uuid: m for m in facts.memory}
    usable = []
    for gpu in gpus:
        memory = reported.get(gpu.uuid)
        total = 0 if memory is None or memory.total_bytes is None else memory.total_bytes // _MIB
        retained = 0 if memory is None or memory.reserved_bytes is None else -(-memory.reserved_bytes // _MIB)
        usable.append(max(0, total - -(-retained // _STEP_MIB) * _STEP_MIB))
    total_mib = {
        uuid: m.total_bytes // _MIB for uuid, m in reported.items() if m.total_bytes and m.kind is MemoryKind.DEDICATED
    }
    return AgentGpus(
        uuids=tuple(gpu.uuid for gpu in gpus),
        usable_mib=tuple(usable),
        split=tuple(gpu.mig is not None and gpu.mig.enabled for gpu in gpus),
        healthy=tuple(gpu.health is Health.HEALTHY for gpu in gpus),
        links=_links(facts, gpus) if len(gpus) <= MOST_GPUS else None,
        mig=seen_mig(gpus, total_mib),
    )


# complexity: each fact of an agent may be there or not
def _links(facts: NodeFacts, gpus: list[Gpu]) -> GpuLinks:
    pairs = {frozenset((p.a, p.b)): p.distance for p in facts.pairs}
    link_types = tuple(
        tuple(SELF if a is b else _word(a, b, pairs.get(frozenset((a.uuid, b.uuid)))) for b in gpus) for a in gpus
    )
    nics = sorted((n for n in facts.nics if n.rdma), key=lambda n: n.name)
    live = [n for n in nics if any(port.active for port in n.ports)]
    rails: list[int | None] = []
    for gpu in gpus:
        near = [
            (_NEAR.index(distance), rail)
            for rail, nic in enumerate(nics)
            if nic in live
            for uuid, distance in nic.gpus
            if uuid == gpu.uuid and distance in _NEAR
        ]
        rails.append(min(near)[1] if near else None)
    return GpuLinks(link_types, tuple(gpu.numa_node for gpu in gpus), tuple(rails), rails_known=bool(nics))


def _word(a: Gpu, b: Gpu, distance: Distance | None) -> str:
    """NVLink where both have links to a switch or to each other, else PCIe; of two counts the smaller one."""
    direct = sum(1 for link in a.nvlinks if link.active and link.remote_bus_id == b.bus_id and b.bus_id)
    switched = [sum(1 for link in g.nvlinks if link.active and link.remote is Remote.SWITCH) for g in (a, b)]
    if direct or min(switched):
        return nvlink(direct or min(switched))
    return UNKNOWN if distance is None else _WORD.get(distance, distance.value)
