"""What a network's graph says about hosts: their domains, by which reach compares thousands, and the ways between them.

Made once when a topology is read, and far smaller than it: hosts and adapters are looked up, only switches are a graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from topology.graph.link_types import HOP
from topology.graph.parts import NETWORK_SWITCHES, GraphLink, GraphPart, PartKind, Topology, enclosing
from topology.reach.domains import DomainChain

_HOST, _NIC, _LEAF, _SPINE = (kind.value for kind in (PartKind.HOST, PartKind.NIC, PartKind.LEAF, PartKind.SPINE))
BEYOND_SPINES = "core switches"
"""What joins the spines of a zone, where only domains are known."""


def domain_chains(topology: Topology) -> dict[str, DomainChain]:
    """Zone, spine, leaf and NVLink domain of every host, as the reach model takes them.

    A machine with a cable in each of several leaves (rails) shares a leaf with whoever has one in any of them, so
    leaves that a machine joins count as one.
    """
    kinds = topology.kinds
    group = _rails(topology, kinds)
    chains: dict[str, DomainChain] = {}
    for host in topology.of_kind(PartKind.HOST):
        up = list(enclosing(topology.graph, host.name))
        leaf = next((name for name in up if kinds[name] == _LEAF), group.get(host.name, ""))
        spine = next((name for name in up if kinds[name] == _SPINE), "")
        where = f"{host.region}/{host.zone}"
        chains[host.name] = DomainChain(
            zone=where,
            spine=f"{where}/{spine}" if spine else "",
            leaf=f"{where}/{group.get(leaf, leaf)}" if leaf else "",
            fabric=host.domain,
        )
    return chains


def _rails(topology: Topology, kinds: dict[str, str]) -> dict[str, str]:
    """Hosts and leaves to the leaf that stands for their group (the first by name): all leaves that one host joins."""
    inside = nx.get_node_attributes(topology.graph, "inside")
    joined: nx.Graph[str] = nx.Graph()
    for pair in topology.pairs:
        for end, other in (pair, pair[::-1]):
            host = end if kinds[end] == _HOST else inside.get(end) if kinds[end] == _NIC else ""
            if host and kinds[other] == _LEAF:
                joined.add_edge(host, other)
    found: dict[str, str] = {}
    for group in nx.connected_components(joined):
        found |= dict.fromkeys(group, min(name for name in group if kinds[name] == _LEAF))
    return found


@dataclass(frozen=True, slots=True)
class NetworkMap:
    """`switches` by name, with their `kind`; `cables`: host to adapter ("" where that is not said) to switches."""

    switches: nx.Graph[str]
    cables: Mapping[str, Mapping[str, tuple[str, ...]]]

    @classmethod
    def of(cls, topology: Topology) -> NetworkMap:
        """The map of a network."""
        graph, kinds = topology.graph, topology.kinds
        values = {kind.value for kind in NETWORK_SWITCHES}
        switches: nx.Graph[str] = nx.Graph()
        switches.add_nodes_from((name, {"kind": kind}) for name, kind in kinds.items() if kind in values)
        cables: dict[str, dict[str, tuple[str, ...]]] = {}
        for a, b in topology.pairs:
            if graph.edges[a, b]["kind"] != HOP or not (a in switches or b in switches):
                continue  # inside a machine, or from one to the next
            if a in switches and b in switches:
                switches.add_edge(a, b)
                continue
            end, switch = (b, a) if a in switches else (a, b)
            part = graph.nodes[end]
            adapter = part.get("device", end) if kinds[end] == _NIC else ""
            of_host = cables.setdefault(part.get("inside", end) if adapter else end, {})
            of_host[adapter] = (*of_host.get(adapter, ()), switch)
        return cls(nx.freeze(switches), cables)

    @classmethod
    def of_chains(cls, chains: Mapping[str, DomainChain]) -> NetworkMap:
        """The map of hosts of one zone of which only the domains are known: what two share joins them."""
        parts: dict[str, GraphPart] = {}
        links = []
        for host, chain in chains.items():
            parts[host] = GraphPart(host, PartKind.HOST)
            below = host
            for kind, value in ((PartKind.LEAF, chain.leaf), (PartKind.SPINE, chain.spine), (PartKind.CORE, "")):
                name = f"{kind.value} {value.removeprefix(f'{chain.zone}/')}" if value else ""
                if kind is PartKind.CORE:
                    name = BEYOND_SPINES
                if name:
                    parts[name] = GraphPart(name, kind)
                    links.append(GraphLink(below, name, HOP))
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
        return tuple(map(self._reported, names, equal))

    def _only(self, host: str, adapter: str) -> str | None:
        """The one switch that a host's adapter, or the whole host, has cables to."""
        cables = self.cables.get(host, {})
        ends = set(cables.get(adapter) or _all(cables.values()))
        return ends.pop() if len(ends) == 1 else None

    def _reported(self, name: str, equal: int) -> str:
        kind: str = self.switches.nodes[name]["kind"]
        named = name if name.startswith(kind) else f"{kind} {name}"
        return named if equal == 1 else f"{named} (one of {equal})"


def _all(each: Iterable[tuple[str, ...]]) -> list[str]:
    return [switch for switches in each for switch in switches]
