"""A judge of places that knows nothing of the planner: shortest paths in a graph, and a book of GPUs by node.

Reach is worked out anew from the numbers of docs/reach.md: the switches on the shortest path between two hosts in a
networkx graph of hosts, leaves, spines and the core of a zone, and what a page takes on the slowest link.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import networkx as nx

PAGE_BYTES = 65_536
NEVER_MEASURED_US = 2_000.0
RDMA_US, RDMA_SWITCH_US, RDMA_BYTES_PER_US = 22.0, 0.6, 35_900.0
TCP_US, TCP_TIER_US, TCP_BYTES_PER_US = 74.0, 40.0, 12_500.0
NVLINK_US, NVLINK_BYTES_PER_US = 8.0, 348_000.0
PCIE_US, PCIE_BYTES_PER_US = 20.0, 11_300.0


@dataclass(frozen=True, slots=True)
class Host:
    """One node as the graph sees it."""

    name: str
    zone: str
    spine: str
    leaf: str
    rdma: bool
    nvswitch: bool
    gpus: int = 8


@dataclass(frozen=True, slots=True)
class Stood:
    """A pod that has a node: whose, which phase, how many GPUs."""

    gang: str
    phase: str
    node: str
    gpus: int


class Oracle:
    """The graph, and who stands where."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self.hosts = hosts
        self.pods: dict[str, Stood] = {}
        graph: nx.Graph[object] = nx.Graph()
        for host in self.hosts.values():
            chain = [
                host.name,
                ("leaf", host.zone, host.spine, host.leaf),
                ("spine", host.zone, host.spine),
                ("core", host.zone),
            ]
            nx.add_path(graph, chain)
        switches = dict(nx.all_pairs_shortest_path_length(graph))
        self._switches: dict[str, dict[str, int]] = {
            a: {b: int(n) - 1 for b, n in row.items()} for a, row in switches.items()
        }

    def reach_us(self, a: str, b: str) -> float:
        """One-way time for a page between the worst GPU pair of two hosts."""
        one, other = self.hosts[a], self.hosts[b]
        if a == b:
            if one.nvswitch:
                return NVLINK_US + PAGE_BYTES / NVLINK_BYTES_PER_US
            return PCIE_US + PAGE_BYTES / PCIE_BYTES_PER_US
        if b not in self._switches[a]:
            return NEVER_MEASURED_US
        switches = self._switches[a][b]
        if one.rdma and other.rdma:
            return RDMA_US + switches * RDMA_SWITCH_US + PAGE_BYTES / RDMA_BYTES_PER_US
        return TCP_US + (switches - 1) // 2 * TCP_TIER_US + PAGE_BYTES / TCP_BYTES_PER_US

    def free(self, node: str) -> int:
        """GPUs of a node that no pod has."""
        return self.hosts[node].gpus - sum(p.gpus for p in self.pods.values() if p.node == node)

    def booked_twice(self, more: Iterable[tuple[str, int]] = ()) -> int:
        """GPUs beyond what nodes have, with `more` (node, GPUs) on top of who stands there."""
        taken: dict[str, int] = defaultdict(int)
        for node, gpus in [*((p.node, p.gpus) for p in self.pods.values()), *more]:
            taken[node] += gpus
        return sum(max(0, gpus - self.hosts[node].gpus) for node, gpus in taken.items())

    def pairs_beyond(self, gang: str, bound_us: float) -> int:
        """Prefill-decode pairs of a gang that stand farther apart than its bound."""
        of = {p: [q.node for q in self.pods.values() if q.gang == gang and q.phase == p] for p in ("prefill", "decode")}
        return sum(self.reach_us(a, b) > bound_us for a, b in product(of["prefill"], of["decode"]))

    def alone(self, gang: str, uids: Iterable[str], bound_us: float) -> int:
        """Of these pods those without any partner of the gang within the bound."""
        found = 0
        for uid in uids:
            mine = self.pods[uid]
            others = [p.node for p in self.pods.values() if p.gang == gang and p.phase != mine.phase]
            found += not any(self.reach_us(mine.node, other) <= bound_us for other in others)
        return found


@cache
def hosts() -> tuple[Host, ...]:
    """Two zones of two spines of three leaves of three nodes: leaves with RDMA and without, nodes with NVSwitch and
    without."""
    made = []
    for number, (zone, spine, leaf, _) in enumerate(product("12", "12", "123", range(3))):
        made.append(
            Host(
                name=f"n{number:02}",
                zone=f"z{zone}",
                spine=f"s{zone}{spine}",
                leaf=f"l{zone}{spine}{leaf}",
                rdma=leaf != "3",
                nvswitch=number % 4 > 0,
            )
        )
    return tuple(made)
