"""The switches of a network and what hangs on each: the part of a topology's graph that ways between hosts go by.

Made once when a topology is read and far smaller than it: hosts and adapters are looked up, only switches are a graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from topology.graph.link_words import HOP
from topology.graph.parts import NETWORK_SWITCHES, Link, Part, PartKind, Topology
from topology.reach.domains import DomainChain

_ADAPTER = PartKind.NIC.value
BEYOND_SPINES = "core switches"
"""What joins the spines of a zone, where only domains are known."""


@dataclass(frozen=True, slots=True)
class NetworkMap:
    """`switches` by name, with their `kind`; `cables`: host to adapter ("" where that is not said) to switches."""

    switches: nx.Graph[str]
    cables: Mapping[str, Mapping[str, tuple[str, ...]]]

    @classmethod
    def of(cls, topology: Topology) -> NetworkMap:
        """The map of a network."""
        graph, kinds = topology.graph, topology.kinds
        words = {kind.value for kind in NETWORK_SWITCHES}
        switches: nx.Graph[str] = nx.Graph()
        switches.add_nodes_from((name, {"kind": kind}) for name, kind in kinds.items() if kind in words)
        cables: dict[str, dict[str, tuple[str, ...]]] = {}
        for a, b in topology.pairs:
            if graph.edges[a, b]["kind"] != HOP:
                continue
            if a in switches and b in switches:
                switches.add_edge(a, b)
                continue
            end, switch = (b, a) if a in switches else (a, b)
            part = graph.nodes[end]
            adapter = part.get("device", end) if kinds[end] == _ADAPTER else ""
            of_host = cables.setdefault(part.get("inside", end) if adapter else end, {})
            of_host[adapter] = (*of_host.get(adapter, ()), switch)
        return cls(nx.freeze(switches), cables)

    @classmethod
    def of_chains(cls, chains: Mapping[str, DomainChain]) -> NetworkMap:
        """The map of hosts of one zone of which only the domains are known: what two share joins them."""
        parts: dict[str, Part] = {}
        links = []
        for host, chain in chains.items():
            parts[host] = Part(host, PartKind.HOST)
            below = host
            for kind, value in ((PartKind.LEAF, chain.leaf), (PartKind.SPINE, chain.spine), (PartKind.CORE, "")):
                name = f"{kind.value} {value.removeprefix(f'{chain.zone}/')}" if value else ""
                if kind is PartKind.CORE:
                    name = BEYOND_SPINES
                if name:
                    parts[name] = Part(name, kind)
                    links.append(Link(below, name, HOP))
                    below = name
        return cls.of(Topology.of("domains", parts.values(), links))

    def way(self, here: str, there: str, adapters: tuple[str, str] = ("", "")) -> tuple[str, ...]:
        """The switches between two hosts, in order. Nothing where the map does not say it, or several ways out of a
        host are possible; of switches that are equally near one is named, and how many there are.

        `adapters`: which adapter of each host is used, where that is known.
        """
        first, last = self._only(here, adapters[0]), self._only(there, adapters[1])
        if first is None or last is None or not nx.has_path(self.switches, first, last):
            return ()
        names = nx.shortest_path(self.switches, first, last)
        beside = zip(names, names[2:], strict=False)
        equal = [1, *(sum(1 for _ in nx.common_neighbors(self.switches, *pair)) for pair in beside), 1]
        return tuple(map(self._said, names, equal))

    def _only(self, host: str, adapter: str) -> str | None:
        """The one switch that a host's adapter, or the whole host, has cables to."""
        cables = self.cables.get(host, {})
        ends = set(cables.get(adapter) or _all(cables.values()))
        return ends.pop() if len(ends) == 1 else None

    def _said(self, name: str, equal: int) -> str:
        kind: str = self.switches.nodes[name]["kind"]
        named = name if name.startswith(kind) else f"{kind} {name}"
        return named if equal == 1 else f"{named} (one of {equal})"


def _all(each: Iterable[tuple[str, ...]]) -> list[str]:
    return [switch for switches in each for switch in switches]
