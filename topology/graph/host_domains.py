"""Network domains of hosts, read off a topology's graph: the columns by which reach compares thousands of nodes.

Worked out once when a topology is read; nothing here runs inside a request.
"""

from __future__ import annotations

import networkx as nx

from topology.graph.parts import PartKind, Topology, enclosing
from topology.reach.domains import DomainChain

_HOST, _NIC, _LEAF, _SPINE = (kind.value for kind in (PartKind.HOST, PartKind.NIC, PartKind.LEAF, PartKind.SPINE))


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
