"""A network that a source describes as a tree: switches under switches, hosts under the lowest, tiers by height.

It decides what is a leaf, a spine and a core switch, and hands zone and region down. Readers for Slurm, topograph and
HyperNodes fill it; it never knows their formats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from topology.graph.link_types import HOP
from topology.graph.parts import MAX_DEPTH, GraphPart, PartKind, Topology, TopologyBuilder, bad

_TIERS: Final = {1: PartKind.LEAF, 2: PartKind.SPINE}


@dataclass(slots=True)
class _Node:
    line: int
    inside: str = ""
    zone: str = ""
    region: str = ""
    domain: str = ""
    tier: int = 0
    vague: bool = False  # a switch whose tier nobody can know


@dataclass(slots=True)
class NetworkTree:
    """Collects; `finish` works out the tiers. Everything is refused with the line that says it."""

    build: TopologyBuilder
    switches: dict[str, _Node] = field(default_factory=dict)
    hosts: dict[str, _Node] = field(default_factory=dict)

    def switch(self, name: str, line: int) -> _Node:
        """The switch of this name, made when it is first said."""
        if name in self.hosts:
            raise bad(line, "name", name, f"it is a host on line {self.hosts[name].line}, and cannot be a switch too")
        return self.switches.setdefault(name, _Node(line))

    def host(self, name: str, line: int) -> _Node:
        """The host of this name, made when it is first said."""
        if name in self.switches:
            raise bad(
                line, "name", name, f"it is a switch on line {self.switches[name].line}, and cannot be a host too"
            )
        return self.hosts.setdefault(name, _Node(line))

    def put(self, name: str, below: _Node, switch: str, line: int) -> None:
        """Says that a host or a switch stands under a switch. A second, different one above it is refused."""
        if below.inside not in ("", switch):
            raise bad(line, f"what {name} stands under", switch, f"it is {below.inside} already; a tree has one way up")
        below.inside = switch

    def finish(self) -> Topology:
        """Parts and links, tiers from below: a switch with hosts, or with nothing under it, is a leaf."""
        self._heights()
        for name in sorted(self.switches, key=lambda name: -self.switches[name].tier):
            node = self.switches[name]
            kind = PartKind.SWITCH if node.vague else _TIERS.get(node.tier, PartKind.CORE)
            zone, region = self._where(node)
            self.build.part(GraphPart(name, kind, node.inside, zone=zone, region=region), node.line)
        for name, node in self.hosts.items():
            zone, region = self._where(node)
            part = GraphPart(name, PartKind.HOST, node.inside, domain=node.domain, zone=zone, region=region)
            self.build.part(part, node.line)
        for name, node in [*self.switches.items(), *self.hosts.items()]:
            if node.inside:
                self.build.link(node.inside, name, HOP, node.line)
        return self.build.build()

    def _heights(self) -> None:
        for name, node in self.switches.items():
            node.tier = max(node.tier, 1)
            seen = {name}
            while node.inside:
                if node.inside in seen:
                    raise bad(node.line, "what contains", node.inside, f"it contains itself, by way of {name}")
                seen.add(node.inside)
                above = self.switches[node.inside]
                if above.tier > node.tier:
                    break  # it was reached before, and so was everything above it
                above.tier = node.tier + 1
                if above.tier > MAX_DEPTH:
                    raise bad(node.line, "nesting above", name, f"it is deeper than {MAX_DEPTH}")
                node = above

    def _where(self, node: _Node) -> tuple[str, str]:
        zone, region, steps = node.zone, node.region, 0
        while node.inside and steps < MAX_DEPTH:
            node, steps = self.switches[node.inside], steps + 1
            zone, region = zone or node.zone, region or node.region
        return zone, region
