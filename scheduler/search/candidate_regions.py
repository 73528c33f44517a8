"""Which nodes are worth a joint search for a gang: all of them on a small cluster, else the most promising domains.

One pass over node arrays per level of domain (node, NVLink fabric, leaf, spine, zone); what a search then costs does
not grow with the cluster. What is left out here is not lost: a search over everything follows where none of these
regions holds the gang.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.search.cluster_view import ClusterView, loss_of_a_slot
from scheduler.search.demand import Demand
from scheduler.search.objective import Floats
from topology.cluster.snapshot import Mask, capacity_for

Ints = NDArray[np.int64]

WIDEST = 128
"""Nodes in one region; more for gangs of more pods than that."""

_MOST = 2
"""Regions searched, one per level of domain: the tightest matter most, and their best few are much alike."""


@dataclass(frozen=True, slots=True)
class Region:
    """Node indices in name order. `whole`: nothing outside can hold a pod of the gang."""

    nodes: Ints
    whole: bool


def regions(view: ClusterView, demands: Sequence[Demand], slots: Ints, near: Floats | None) -> Iterator[Region]:
    """Regions to search, the most promising first. `slots`: how many pods of each demand a node takes, (demands, N).
    `near` is the cost in reach of each node to partners, if any."""
    able = np.flatnonzero((slots > 0).any(axis=0))
    widest = _widest(demands)
    if one_region(able, demands):
        yield Region(able, whole=True)
        return
    if near is not None:
        # Partners stand where they stand: the nodes nearest to them, and of those where the least is lost.
        loss = loss_of_a_slot(view.usable, view.gpus, max(demand.gpus for demand in demands))
        yield Region(np.sort(able[np.lexsort((able, loss[able], near[able]))][:widest]), whole=False)
        return
    for nodes in domains(view, able, demands, slots, most=_MOST):
        yield Region(_at_most(nodes, widest, view, demands, slots), whole=False)


def one_region(able: Ints, demands: Sequence[Demand]) -> bool:
    """Whether the nodes that can hold any of these pods are so few that all of them are one region."""
    return len(able) <= _widest(demands)


def _widest(demands: Sequence[Demand]) -> int:
    return max(WIDEST, 2 * sum(demand.count for demand in demands))


def domains(view: ClusterView, able: Ints, demands: Sequence[Demand], slots: Ints, *, most: int) -> Iterator[Ints]:
    """Nodes of the domains that can hold the gang, as far as counting tells, tightest level first; at most so many, and
    all nodes where there are none."""
    reach, found = view.table.reach, 0
    for node in alone(view, demands, slots)[: max(1, most // 2)]:
        yield np.array([node])
        found += 1
    by_width = _by_width(demands, slots)
    for level in (reach.fabric, reach.leaf, reach.spine, reach.zone):
        domain = level[able]
        inside = able[domain >= 0]
        domain = domain[domain >= 0]
        if not len(inside):
            continue
        size = int(domain.max()) + 1
        fits = np.ones(size, dtype=bool)
        for demand, capacity in zip(demands, slots, strict=True):
            fits &= np.bincount(domain, weights=capacity[inside], minlength=size) >= demand.count
        loss = np.zeros(size)
        for gpus, (count, capacity) in by_width.items():
            share, enough = _least_loss(domain, size, view.gpus[inside], capacity[inside], gpus, count, view.usable)
            fits &= enough
            loss += share
        order = np.flatnonzero(fits)
        order = order[np.argsort(loss[order], kind="stable")][: min(max(1, most // 2), most - found)]
        for best in order.tolist():
            yield inside[domain == best]
            found += 1
        if found >= most:
            return
    if not found:
        yield able


def alone(view: ClusterView, demands: Sequence[Demand], slots: Ints) -> list[int]:
    """Nodes that can hold the whole gang, those that lose least first."""
    need = np.sum([demand.request * demand.count for demand in demands], axis=0)
    may = np.logical_and.reduce([capacity >= demand.count for demand, capacity in zip(demands, slots, strict=True)])
    nodes = np.flatnonzero(may)
    nodes = nodes[capacity_for(view.free[nodes], need) > 0]
    gpus = sum(demand.gpus * demand.count for demand in demands)
    loss = view.usable[view.gpus[nodes]] - view.usable[view.gpus[nodes] - gpus]
    order: list[int] = nodes[np.lexsort((nodes, loss))].tolist()
    return order


def _by_width(demands: Sequence[Demand], slots: Ints) -> dict[int, tuple[int, Ints]]:
    """Pods of one width compete for the same room: how many there are, and the room for them."""
    merged: dict[int, tuple[int, Ints]] = {}
    for demand, capacity in zip(demands, slots, strict=True):
        count, known = merged.get(demand.gpus, (0, capacity))
        merged[demand.gpus] = count + demand.count, np.maximum(known, capacity)
    return merged


def _least_loss(
    domain: NDArray[np.integer],
    size: int,
    free_gpus: NDArray[np.int64],
    capacity: NDArray[np.int64],
    gpus: int,
    count: int,
    usable: Floats,
) -> tuple[Floats, Mask]:
    """Per domain about what `count` pods lose there at least, and whether there is room for them: (size,) each."""
    width = len(usable)
    per_free = np.bincount(domain * width + free_gpus, weights=capacity, minlength=size * width).reshape(size, width)
    loss = loss_of_a_slot(usable, np.arange(width), gpus)
    order = np.argsort(loss, kind="stable")
    taken = np.minimum(np.cumsum(per_free[:, order], axis=1), count)
    share = np.diff(taken, axis=1, prepend=0) @ loss[order]
    return share, taken[:, -1] >= count


def _at_most(nodes: Ints, widest: int, view: ClusterView, demands: Sequence[Demand], slots: Ints) -> Ints:
    """The nodes of a large domain that lie in its roomiest parts (nodes of one kind), and lose least there."""
    if len(nodes) <= widest:
        return nodes
    kinds = view.table.reach.kind[nodes]
    capacity = np.minimum.reduce(
        [np.bincount(kinds, weights=s[nodes], minlength=len(view.table.reach.first)) for s in slots]
    )
    loss = loss_of_a_slot(view.usable, view.gpus[nodes], max(demand.gpus for demand in demands))
    chosen: Ints = np.sort(nodes[np.lexsort((nodes, loss, kinds, -capacity[kinds]))][:widest])
    return chosen
