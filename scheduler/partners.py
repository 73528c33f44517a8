"""Where the other phase already is: how far every node is from it, by the gang's pairing.

A partner that was released and not yet bound may stand on any of its nodes: it counts at the worst of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.request import Partner, ReachBound
from topology.labels import DECODE, PREFILL
from topology.reach.isochrone_sets import farthest_us
from topology.snapshot import NodeTable

Floats = NDArray[np.float64]
Named = Sequence[tuple[str, int]]  # pod name, node index; several entries for a partner that is not bound


def other_phase(phase: str) -> str:
    """The phase that a pod of this one is paired with."""
    return DECODE if phase == PREFILL else PREFILL


def nodes_of(partners: Sequence[Partner], phase: str, table: NodeTable) -> list[NDArray[np.int64]]:
    """Node indices of each partner of a phase; partners on nodes that are not known are left out."""
    found = []
    for partner in partners:
        nodes = sorted(table.index[n] for n in partner.nodes if n in table.index)
        if partner.phase == phase and nodes:
            found.append(np.array(nodes, dtype=np.int64))
    return found


def reach_of_each(table: NodeTable, partners: Sequence[NDArray[np.int64]], size_bytes: int) -> Floats:
    """Every node's reach to each partner, shape (partners, N), microseconds."""
    known: dict[bytes, Floats] = {}  # released pods of one phase share their nodes
    rows = []
    for nodes in partners:
        key = nodes.tobytes()
        if key not in known:
            one = len(nodes) == 1
            row = table.reach.row_us(int(nodes[0]), size_bytes) if one else farthest_us(table, nodes, size_bytes)
            known[key] = row
        rows.append(known[key])
    return np.array(rows).reshape(len(rows), len(table))


def reach_to(table: NodeTable, named: Named, bound: ReachBound) -> Floats:
    """How far every node is from these partners, shape (N,): from the farthest, or with `nearest` from the nearest."""
    if not bound.nearest:
        return farthest_us(table, np.array([node for _, node in named], dtype=np.int64), bound.size_bytes)
    by_name: dict[str, list[int]] = {}
    for name, node in named:
        by_name.setdefault(name, []).append(node)
    nodes = [np.array(sorted(n), dtype=np.int64) for n in by_name.values()]
    nearest: Floats = reach_of_each(table, nodes, bound.size_bytes).min(axis=0)
    return nearest


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
