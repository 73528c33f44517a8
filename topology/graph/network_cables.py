"""A network that a source describes by its cables: which port of which switch is joined to what.

It decides tiers from what hangs on a switch (hosts: leaf; leaves: spine; spines: core) and where a host stands: inside
a leaf if all its cables end there, in no single one where a machine has a cable in each of several (rails).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from topology.graph.link_types import HOP
from topology.graph.parts import GraphPart, PartKind, Topology, TopologyBuilder, bad

_TIERS: Final = {1: PartKind.LEAF, 2: PartKind.SPINE, 3: PartKind.CORE}
MAX_CABLES: Final = 200_000


@dataclass(slots=True)
class NetworkCables:
    """Collects switches, hosts, adapters and cables; `finish` works out the rest."""

    build: TopologyBuilder
    switches: dict[str, int] = field(default_factory=dict)  # name to tier, 0 if the source does not say
    hosts: dict[str, str] = field(default_factory=dict)  # name to NVLink domain
    nics: dict[str, tuple[str, str]] = field(default_factory=dict)  # name to host (or none) and device
    _cables: dict[tuple[str, str], int] = field(default_factory=dict)

    def cable(self, a: str, b: str, line: int, count: int = 1) -> None:
        """So many cables between two switches, or a switch and a host or an adapter."""
        if len(self._cables) >= MAX_CABLES:
            raise bad(line, "number of cables", f"above {MAX_CABLES}", "split the file")
        pair = (min(a, b), max(a, b))
        self._cables[pair] = self._cables.get(pair, 0) + count

    def finish(self) -> Topology:
        """Parts and links, in the order they were said."""
        near: dict[str, dict[str, None]] = {}
        for a, b in self._cables:
            near.setdefault(a, {})[b] = None
            near.setdefault(b, {})[a] = None
        self._tiers(near)
        for name, tier in self.switches.items():
            self.build.part(GraphPart(name, _TIERS.get(tier, PartKind.CORE if tier else PartKind.SWITCH)))
        leaves: dict[str, set[str]] = {host: set() for host in self.hosts}
        for end, others in near.items():
            host = self.nics[end][0] if end in self.nics else end
            if host in leaves:
                leaves[host].update(other for other in others if other in self.switches)
        for host, domain in self.hosts.items():
            inside = next(iter(leaves[host])) if len(leaves[host]) == 1 else ""
            self.build.part(GraphPart(host, PartKind.HOST, inside, domain=domain))
        for name, (host, device) in self.nics.items():
            self.build.part(GraphPart(name, PartKind.NIC, host, device=device))
        for (a, b), count in self._cables.items():
            self.build.link(a, b, HOP, count=count)
        return self.build.build()

    def _tiers(self, near: dict[str, dict[str, None]]) -> None:
        """Breadth first from the switches that carry a host; a tier that the source says stays."""
        wave = [
            name
            for name in self.switches
            if any(other in self.hosts or (other in self.nics and self.nics[other][0]) for other in near.get(name, ()))
        ]
        found = dict.fromkeys(wave, 1)
        while wave:
            above = [other for name in wave for other in near[name] if other in self.switches and other not in found]
            found.update(dict.fromkeys(above, found[wave[0]] + 1))
            wave = list(dict.fromkeys(above))
        for name, tier in self.switches.items():
            self.switches[name] = tier or found.get(name, 0)
