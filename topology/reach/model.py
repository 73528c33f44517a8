"""Reach: the expected one-way p99 time of one message between two nodes, in microseconds, and how it is made up.

Rules of this file. (1) No shortest path: a node's domains are a chain, so reach is a comparison of integer columns,
one pass over all nodes at once. (2) Between two nodes the worst GPU pair counts. (3) Reach is symmetric. (4) Every
value can say how it came about; here all are modelled, `measured_reach` lays over it what was measured.

Model: latency of the narrowest link, plus extra switch tiers, plus message size over that link's bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from topology.labels import DEFAULT_REACH_SIZE_BYTES, GPU_PRODUCT, GPUDIRECT, RDMA_AVAILABLE, RDMA_CAPABLE, TRANSPORT
from topology.objects import Node
from topology.reach.domains import DomainChain
from topology.reach.link_rows import ROWS, Hardware
from topology.reach.links import CROSS_ZONE_US, LINKS, SWITCH_HOP_US, TCP_TIER_US, Link, LinkKind
from topology.reach.measured_values import RDMA, TCP, Sample

NO_DOMAIN = -1
ROWS_BYTES = 16 * 2**20
"""Memory for computed rows of reach: 400 rows at 5,000 nodes; a row costs microseconds to compute again."""
_NVSWITCH_PRODUCTS = ("SXM", "HBM3", "HGX", "GB200", "GB300", "B200", "B300", "H200", "GH200")


@dataclass(frozen=True, slots=True)
class Reach:
    """One value between two placements. `basis` is `modelled` or `measured 42s ago`; `path` is for people.

    `measured` is the sample it rests on: size, percentile, count and time.
    """

    us: float
    path: str
    basis: str = "modelled"
    measured: Sample | None = None


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """What one node's links are like, from its labels and resources.

    `inner` and `outer` are which hardware they are, where that is known: inside the node, and RDMA out of it.
    """

    rdma: bool
    nvswitch: bool
    inner: Hardware | None = None
    outer: Hardware | None = None

    @property
    def inner_link(self) -> Link:
        """What its worst GPU pair costs."""
        return ROWS[self.inner].link if self.inner else LINKS[LinkKind.NVLINK if self.nvswitch else LinkKind.PCIE_SYS]

    @property
    def outer_link(self) -> Link:
        """What RDMA out of it costs; of no meaning without RDMA."""
        return ROWS[self.outer].link if self.outer else LINKS[LinkKind.RDMA]


def links_of(node: Node) -> NodeLinks:
    """Transport and inner link kind of a node.

    RDMA is believed when a label or an allocatable RDMA/EFA resource says so, else the slower TCP is assumed. The
    inner link is NVSwitch for board products known to have one, else PCIe across sockets (its worst GPU pair).
    """
    meta = node.metadata
    value = meta.label(TRANSPORT)
    if value in ("rdma", "tcp"):
        rdma = value == "rdma"
    else:
        rdma = meta.label(RDMA_CAPABLE) == "true" or meta.label(RDMA_AVAILABLE) == "true"
        rdma = rdma or any(
            name.startswith("rdma/") or name == "vpc.amazonaws.com/efa" for name in node.status.allocatable or {}
        )
    product = meta.label(GPU_PRODUCT).upper()
    outer = Hardware.RDMA_NO_GPUDIRECT if rdma and meta.label(GPUDIRECT) == "false" else None
    return NodeLinks(rdma=rdma, nvswitch=any(word in product for word in _NVSWITCH_PRODUCTS), outer=outer)


def retained(width: int) -> int:
    """How many rows of so many numbers a cache may keep."""
    return max(16, min(4096, ROWS_BYTES // (8 * max(width, 1))))


def _codes(values: Sequence[str]) -> NDArray[np.int32]:
    """Names to integers; the empty name becomes NO_DOMAIN, which never equals another node's."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(v, len(known)) if v else NO_DOMAIN for v in values], dtype=np.int32)


class ReachModel:
    """Reach between any two of N nodes, by column index. Immutable; arrays are never written after construction."""

    def __init__(self, chains: Sequence[DomainChain], links: Sequence[NodeLinks]) -> None:
        self.zone = _codes([c.zone or "/" for c in chains])
        self.spine = _codes([c.spine for c in chains])
        self.leaf = _codes([c.leaf for c in chains])
        self.fabric = _codes([c.fabric for c in chains])
        self.rdma = np.array([link.rdma for link in links], dtype=bool)
        self.nvswitch = np.array([link.nvswitch for link in links], dtype=bool)
        inner, outer = [link.inner_link for link in links], [link.outer_link for link in links]
        self._inner = np.array([(link.latency_us, link.bytes_per_us) for link in inner]).reshape(-1, 2)
        self._outer = np.array([(link.latency_us, link.bytes_per_us) for link in outer]).reshape(-1, 2)
        self._staged = np.array([link.outer is Hardware.RDMA_NO_GPUDIRECT for link in links], dtype=bool)
        hardware = [_codes([each.source for each in side]) for side in (inner, outer)]
        columns = np.stack([self.zone, self.spine, self.leaf, self.fabric, self.rdma, self.nvswitch, *hardware])
        # Nodes of one kind can be swapped without changing any reach: a search need try only one of them.
        _, first, kind = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        self.first: NDArray[np.int64] = first  # one node of each kind
        self.kind: NDArray[np.int64] = kind.reshape(-1)
        self._row = lru_cache(maxsize=retained(len(self.kind)))(self._compute_row)
        self._self = lru_cache(maxsize=16)(self._compute_self)
        self._kind_row = lru_cache(maxsize=retained(len(first)))(self._compute_kind_row)

    def __len__(self) -> int:
        return len(self.zone)

    def row_us(self, node: int, size_bytes: int) -> NDArray[np.float64]:
        """Reach from one node to all N nodes (itself included), shape (N,), microseconds. Do not write to it."""
        return self._row(node, size_bytes)

    def kind_row_us(self, kind: int, size_bytes: int) -> NDArray[np.float64]:
        """Reach from a node of one kind to another node of each kind, shape (kinds,), microseconds. Do not write to it.

        With the reach of a node to itself (`self_us`) this is all of reach, in far fewer numbers than nodes.
        """
        return self._kind_row(kind, size_bytes)

    def self_us(self, size_bytes: int) -> NDArray[np.float64]:
        """Reach of every node to itself by its worst GPU pair, shape (N,), microseconds. Do not write to it."""
        return self._self(size_bytes)

    def between(self, a: int, b: int, size_bytes: int) -> Reach:
        """Reach of one pair with its path in words."""
        return Reach(us=float(self.row_us(a, size_bytes)[b]), path=self._path(a, b))

    def transports(self, a: int, b: int) -> frozenset[str] | None:
        """Which measurements are about the path that the pair's pages take, None: any. "" is a source that is silent.

        Inside an NVLink fabric pages go over NVLink, and a probe over the network is about another path.
        """
        if a == b or self.zone[a] != self.zone[b]:
            return None
        if self.fabric[a] == self.fabric[b] != NO_DOMAIN:
            return frozenset([""])
        return frozenset(["", RDMA if self.rdma[a] and self.rdma[b] else TCP])

    def _compute_self(self, size_bytes: int) -> NDArray[np.float64]:
        own: NDArray[np.float64] = self._inner[:, 0] + size_bytes / self._inner[:, 1]
        own.setflags(write=False)
        return own

    def _compute_row(self, node: int, size_bytes: int) -> NDArray[np.float64]:
        row = self.kind_row_us(int(self.kind[node]), size_bytes)[self.kind]
        row[node] = self.self_us(size_bytes)[node]
        row.setflags(write=False)
        return row

    def _compute_kind_row(self, kind: int, size_bytes: int) -> NDArray[np.float64]:
        tcp, outer = LINKS[LinkKind.TCP], self._outer[self.first]
        same_leaf = self._shares(self.leaf, kind)
        same_spine = self._shares(self.spine, kind)
        # Tiers crossed: 0 inside a leaf, 1 inside a spine, 2 beyond (or unknown, which is read as the worse).
        tiers = np.where(same_leaf, 0, np.where(same_spine, 1, 2))
        both_rdma = self.rdma[self.first] & self.rdma[self.first[kind]]
        latency_us, narrow = np.maximum(outer[:, 0], outer[kind, 0]), np.minimum(outer[:, 1], outer[kind, 1])
        over_rdma = latency_us + (1 + 2 * tiers) * SWITCH_HOP_US + size_bytes / narrow
        over_tcp = tcp.latency_us + tiers * TCP_TIER_US + size_bytes / tcp.bytes_per_us
        row = np.where(both_rdma, over_rdma, over_tcp)
        zone = self.zone[self.first]
        beyond_page = max(0, size_bytes - DEFAULT_REACH_SIZE_BYTES)
        row = np.where(zone != zone[kind], CROSS_ZONE_US + beyond_page / tcp.bytes_per_us, row)
        fabric = LINKS[LinkKind.NVLINK_FABRIC]
        in_fabric = self._shares(self.fabric, kind)
        row = np.where(in_fabric, fabric.latency_us + SWITCH_HOP_US + size_bytes / fabric.bytes_per_us, row)
        row.setflags(write=False)
        return row

    def _shares(self, column: NDArray[np.int32], kind: int) -> NDArray[np.bool_]:
        """Kinds in the same domain as this one, shape (kinds,); an unknown domain is shared with nobody."""
        of_kind = column[self.first]
        if of_kind[kind] == NO_DOMAIN:
            return np.zeros(len(of_kind), dtype=bool)
        shared: NDArray[np.bool_] = of_kind == of_kind[kind]
        return shared

    def _path(self, a: int, b: int) -> str:
        if a == b:
            return f"same node, {(LinkKind.NVLINK if self.nvswitch[a] else LinkKind.PCIE_SYS).value}"
        if self.fabric[a] != NO_DOMAIN and self.fabric[a] == self.fabric[b]:
            return f"same {LinkKind.NVLINK_FABRIC.value}"
        if self.zone[a] != self.zone[b]:
            return "other zone, not measured"
        kind = (LinkKind.RDMA if self.rdma[a] and self.rdma[b] else LinkKind.TCP).value
        if kind == LinkKind.RDMA.value and (self._staged[a] or self._staged[b]):
            kind = Hardware.RDMA_NO_GPUDIRECT.value
        if self.leaf[a] != NO_DOMAIN and self.leaf[a] == self.leaf[b]:
            return f"same leaf, {kind}"
        if self.spine[a] != NO_DOMAIN and self.spine[a] == self.spine[b]:
            return f"same spine, {kind}"
        return f"same zone, {kind}"
