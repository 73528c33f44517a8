"""The isochrone sets of a plan, and how a set is written as one node-label requirement.

A pair of sets (prefill, decode) is sound when every node of one is within the bound of every node of the other. The
largest sound pair around planned nodes is found by closing: all nodes that every planned prefill node reaches, then all
nodes that every one of those reaches. The planned nodes are inside by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topology.cluster.snapshot import Mask, NodeTable
from topology.labels import ACCELERATOR, HOSTNAME, LEAF, NVLINK_CLIQUE, SPINE, ZONE

MAX_HOSTNAMES = 128
"""At most this many hostnames in one requirement: what an affinity term carries without making pods unwieldy."""

_DOMAIN_KEYS = (ZONE, SPINE, LEAF, NVLINK_CLIQUE, ACCELERATOR)


@dataclass(frozen=True, slots=True)
class NodeSet:
    """A set of nodes as `key In values`, with the nodes it means now."""

    key: str
    values: tuple[str, ...]
    nodes: int

    def show(self) -> str:
        """For people: `topology.kubernetes.io/zone in (z1)`; long lists are cut with a count."""
        shown = ", ".join(self.values[:3])
        more = f" and {len(self.values) - 3} more" if len(self.values) > 3 else ""
        return f"{self.key} in ({shown}{more})"


def near_all(table: NodeTable, members: NDArray[np.int64], bound_us: float, size_bytes: int) -> Mask:
    """Nodes within the bound of every member, shape (N,); all nodes when there are no members."""
    reach = table.reach
    members = _distinct(members)
    near = np.ones(len(reach.first), dtype=bool)  # by kind, for nodes that are not members themselves
    near_but_own = near.copy()  # for the only member of its kind, which has no twin to be near to
    for kind, count in _kinds(table, members):
        within = reach.kind_row_us(kind, size_bytes) <= bound_us
        near &= within
        if count == 1:
            within = within.copy()
            within[kind] = True
        near_but_own &= within
    mask: Mask = near[reach.kind]
    mask[members] = near_but_own[reach.kind[members]] & (reach.self_us(size_bytes)[members] <= bound_us)
    return mask


def nearest_us(
    table: NodeTable, members: NDArray[np.int64], size_bytes: int, others: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """Every node's reach to the nearest member, itself included if it is one, shape (N,); infinity without members.

    `others` are members too, but no neighbours to themselves: nodes with room for one pod, say, and not for two.
    """
    reach = table.reach
    everyone = np.union1d(members, np.empty(0, dtype=np.int64) if others is None else others)
    nearest, nearest_but_own = _by_kind(table, everyone, size_bytes, np.minimum, np.inf)
    best: NDArray[np.float64] = nearest[reach.kind]
    best[everyone] = nearest_but_own[reach.kind[everyone]]
    best[members] = np.minimum(best[members], reach.self_us(size_bytes)[members])
    return best


def farthest_us(table: NodeTable, members: NDArray[np.int64], size_bytes: int) -> NDArray[np.float64]:
    """Every node's reach to the farthest member, a member's to itself too, shape (N,); 0 without members."""
    reach = table.reach
    members = _distinct(members)
    farthest, farthest_but_own = _by_kind(table, members, size_bytes, np.maximum, 0.0)
    worst: NDArray[np.float64] = farthest[reach.kind]
    worst[members] = np.maximum(farthest_but_own[reach.kind[members]], reach.self_us(size_bytes)[members])
    return worst


def isochrone_masks(
    table: NodeTable, prefill: Sequence[int], decode: Sequence[int], bound_us: float, size_bytes: int
) -> tuple[Mask, Mask]:
    """The larger of the two closures around the planned nodes: (prefill mask, decode mask), each shape (N,).

    With one side empty, that side is everything the other side reaches.
    """
    p, d = (_distinct(np.array(side, dtype=np.int64)) for side in (prefill, decode))

    def close(first: NDArray[np.int64]) -> tuple[Mask, Mask]:
        other = near_all(table, first, bound_us, size_bytes)
        return near_all(table, np.flatnonzero(other), bound_us, size_bytes), other

    pairs = []
    if len(p):
        pairs.append(close(p))
    if len(d) and not np.array_equal(p, d):
        decode_mask, prefill_mask = close(d)
        pairs.append((prefill_mask, decode_mask))
    if not pairs:
        everywhere = np.ones(len(table), dtype=bool)
        return everywhere, everywhere
    return max(pairs, key=lambda pair: min(int(pair[0].sum()), int(pair[1].sum())))


# complexity: candidates in order of preference, the first that covers wins
def as_requirement(table: NodeTable, allowed: Mask, planned: Sequence[int]) -> NodeSet | None:
    """The allowed nodes as one requirement that holds the planned ones, with as few values as possible.

    A domain label is used when whole domains lie inside the set; else hostnames, the planned nodes first. None when a
    planned node has no hostname label: it cannot be planned by name.
    """
    wanted = sorted(set(planned))
    best: NodeSet | None = None
    for key in _DOMAIN_KEYS:
        group, values = table.label_groups(key)
        labelled = group >= 0
        if not wanted or not values or not labelled[wanted].all():
            continue
        whole = np.bincount(group[labelled & ~allowed], minlength=len(values)) == 0
        if not whole[group[wanted]].all() or whole.sum() > MAX_HOSTNAMES:
            continue
        covered = int(whole[group[labelled]].sum())
        if best is None or (covered, -int(whole.sum())) > (best.nodes, -len(best.values)):
            best = NodeSet(key=key, values=tuple(values[i] for i in np.flatnonzero(whole)), nodes=covered)
    hostnames = table.hostnames
    if not all(hostnames[i] for i in wanted):
        return best
    # Two nodes may carry one hostname: it may be named only if both are allowed.
    group, names = table.label_groups(HOSTNAME)
    named = group >= 0
    whole = np.bincount(group[named & ~allowed], minlength=len(names)) == 0
    if not whole[group[wanted]].all():
        return best
    capacity = max(0, MAX_HOSTNAMES - len(wanted))
    inside = np.flatnonzero(allowed & named)
    inside = inside[whole[group[inside]]][: capacity + len(wanted)]  # no more can be named
    others = [i for i in inside.tolist() if i not in wanted][:capacity]
    if best is None or len(wanted) + len(others) > best.nodes:
        chosen = [*wanted, *others]
        return NodeSet(key=HOSTNAME, values=tuple(sorted({hostnames[i] for i in chosen})), nodes=len(chosen))
    return best


def _by_kind(
    table: NodeTable, members: NDArray[np.int64], size_bytes: int, fold: np.ufunc, nobody_us: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Reach of a node of each kind to the members (distinct), folded, (kinds,): as one who is no member, and as one who
    is, to the others; `nobody_us` where there are none."""
    reach = table.reach
    to_all = np.full(len(reach.first), nobody_us)
    to_others = to_all.copy()
    for kind, count in _kinds(table, members):
        row = reach.kind_row_us(kind, size_bytes)
        to_all = fold(to_all, row)
        if count == 1:
            row = row.copy()
            row[kind] = nobody_us
        to_others = fold(to_others, row)
    return to_all, to_others


def _distinct(nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each of these nodes once, ascending."""
    once: NDArray[np.int64] = np.flatnonzero(np.bincount(nodes))
    return once


def _kinds(table: NodeTable, members: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The kinds of these nodes, ascending, and how many there are of each."""
    counts = np.bincount(table.reach.kind[members])
    there = np.flatnonzero(counts)
    return list(zip(there.tolist(), counts[there].tolist(), strict=True))
