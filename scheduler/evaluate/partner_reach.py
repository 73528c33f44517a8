"""Where the other phase already is: how far every node is from it, by the gang's pairing.

A partner that was released and not yet bound may stand on any of its nodes: it counts at the worst of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.model.request import Partner, ReachBound
from topology.cluster.isochrone_sets import farthest_us
from topology.cluster.snapshot import NodeTable
from topology.labels import DECODE, PREFILL

Floats = NDArray[np.float64]
Named = Sequence[tuple[str, int]]  # pod name, node index; several entries for a partner that is not bound


def other_phase(phase: str) -> str:
    """The phase that a pod of this one is paired with."""
    return DECODE if phase == PREFILL else PREFILL


def nodes_of(partners: Sequence[Partner], phase: str, table: NodeTable) -> list[NDArray[np.int64]]:
    """Node indices of each partner of a phase; partners on nodes that are not known are left out."""
    of_phase = [partner for partner in partners if partner.phase == phase]
    known = known_nodes(of_phase, table)
    return [np.array(nodes, dtype=np.int64) for partner in of_phase if (nodes := known[partner.nodes])]


def known_nodes(partners: Sequence[Partner], table: NodeTable) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Indices of the nodes that the table knows, ascending, by the names; released pods of one phase share theirs."""
    index = table.index
    return {names: tuple(sorted(index[n] for n in names if n in index)) for names in {p.nodes for p in partners}}


class PartnerReach(NamedTuple):
    """How far every node is from the partners of the other phase: from the farthest, in sum and from the nearest, (N,)
    each in microseconds, and how many partners that is."""

    worst: Floats
    total: Floats
    nearest: Floats
    pods: int


def seen_from(table: NodeTable, partners: Sequence[NDArray[np.int64]], size_bytes: int) -> PartnerReach:
    """What partners mean for every node; each is given by the nodes that it may stand on.

    Nodes of one kind are equally far from all others, so it costs what there are kinds, not what there are partners.
    """
    if not partners:
        nobody = np.zeros(len(table))
        return PartnerReach(nobody, nobody, np.full(len(table), np.inf), 0)
    reach, kinds = table.reach, len(table.reach.first)
    worst, nearest, total = np.zeros(kinds), np.full(kinds, np.inf), np.zeros(kinds)
    others_worst, others_nearest, equivalents = worst.copy(), nearest.copy(), np.zeros(kinds)
    single = np.array([nodes[0] for nodes in partners if len(nodes) == 1], dtype=np.int64)
    nodes, pods = np.unique(single, return_counts=True)
    there, of, equivalent = np.unique(reach.kind[nodes], return_inverse=True, return_counts=True)
    weight = np.bincount(of.reshape(-1), weights=pods, minlength=len(there))
    for kind, count, often in zip(there.tolist(), equivalent.tolist(), weight.tolist(), strict=True):
        row = reach.kind_row_us(kind, size_bytes)
        worst, nearest, total = np.maximum(worst, row), np.minimum(nearest, row), total + often * row
        equivalents[kind] = row[kind]
        far, near = row.copy(), row.copy()
        if count == 1:  # the one of its kind: it has no twin to be far from
            far[kind], near[kind] = 0.0, np.inf
        others_worst, others_nearest = np.maximum(others_worst, far), np.minimum(others_nearest, near)
    found = [values[reach.kind] for values in (worst, total, nearest)]
    # A node sees whom it has itself over its own links, and the others of its kind as everybody does.
    own, mine = reach.self_us(size_bytes)[nodes], reach.kind[nodes]
    found[0][nodes] = np.maximum(others_worst[mine], own)
    found[1][nodes] += pods * (own - equivalents[mine])
    found[2][nodes] = np.minimum(others_nearest[mine], own)
    several = Counter(tuple(nodes.tolist()) for nodes in partners if len(nodes) > 1)
    for where, count in several.items():  # released pods of one phase share their nodes
        row = farthest_us(table, np.array(where, dtype=np.int64), size_bytes)
        found = [np.maximum(found[0], row), found[1] + count * row, np.minimum(found[2], row)]
    return PartnerReach(found[0], found[1], found[2], len(partners))


def reach_to(table: NodeTable, named: Named, bound: ReachBound) -> Floats:
    """How far every node is from these partners, shape (N,): from the farthest, or with `nearest` from the nearest."""
    if not bound.nearest:
        return farthest_us(table, np.array([node for _, node in named], dtype=np.int64), bound.size_bytes)
    by_name: dict[str, list[int]] = {}
    for name, node in named:
        by_name.setdefault(name, []).append(node)
    nodes = [np.array(sorted(n), dtype=np.int64) for n in by_name.values()]
    return seen_from(table, nodes, bound.size_bytes).nearest


def partner_of(table: NodeTable, node: int, named: Named, bound: ReachBound) -> tuple[str, int]:
    """The partner that decides for a pod on this node, and where it is: the farthest, or with `nearest` the nearest.

    Ties go to the first name.
    """
    row = table.reach.row_us(node, bound.size_bytes)
    if not bound.nearest:
        return min(named, key=lambda p: (-row[p[1]], p[0]))
    worst: dict[str, int] = {}
    for name, at in named:
        if name not in worst or row[at] > row[worst[name]]:
            worst[name] = at
    return min(worst.items(), key=lambda p: (row[p[1]], p[0]))


class Deciding:
    """`partner_of` for many nodes: a gang of thousands asks it for every pod."""

    def __init__(self, table: NodeTable, named: Named, bound: ReachBound) -> None:
        self._table, self._bound = table, bound
        self._named = sorted(named, key=lambda p: p[0])
        self._nodes = np.array([node for _, node in self._named], dtype=np.int64)
        names = [name for name, _ in self._named]
        self._starts = np.array([i for i, name in enumerate(names) if not i or names[i - 1] != name], dtype=np.int64)
        self._known: dict[int, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._named)

    def of(self, node: int) -> Named:
        """The partner that decides for a pod on this node, and where it is; nobody without partners."""
        if not len(self._nodes):
            return ()
        if node not in self._known:
            us = self._table.reach.row_us(node, self._bound.size_bytes)[self._nodes]
            if not self._bound.nearest:
                at = int(np.argmax(us))
            else:
                one = int(np.argmin(np.maximum.reduceat(us, self._starts)))
                start = int(self._starts[one])
                end = int(self._starts[one + 1]) if one + 1 < len(self._starts) else len(us)
                at = start + int(np.argmax(us[start:end]))
            self._known[node] = self._named[at]
        return (self._known[node],)
