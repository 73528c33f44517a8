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

from scheduler.search.objective import Floats, Objective
from topology.cluster.snapshot import Amount2D, Mask, NodeTable, room_for

WIDEST = 128
"""Nodes in one region; more for gangs of more pods than that."""

_MOST = 2
"""Regions searched, one per level of domain: the tightest matter most, and their best few are much alike."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """`count` pods of one need (R,), and how many of them each node takes (N,): none where they may not go."""

    need: Amount2D
    gpus: int
    count: int
    slots: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Region:
    """Node indices in name order. `whole`: nothing outside can hold a pod of the gang."""

    nodes: NDArray[np.int64]
    whole: bool


def regions(
    table: NodeTable,
    free: Amount2D,
    free_gpus: NDArray[np.int64],
    wanted: Sequence[Wanted],
    near: Floats | None,
    objective: Objective,
) -> Iterator[Region]:
    """Regions to search, the most promising first. `near` is the cost in reach of each node to partners, if any."""
    slots = [want.slots for want in wanted]
    able = np.flatnonzero(np.logical_or.reduce([s > 0 for s in slots])) if slots else np.empty(0, dtype=np.int64)
    widest = _widest(wanted)
    if one_region(able, wanted):
        yield Region(able, whole=True)
        return
    usable = objective.usable(int(free_gpus.max(initial=0)))
    if near is not None:
        # Partners stand where they stand: the nodes nearest to them, and of those where the least is lost.
        loss = loss_of_a_slot(usable, free_gpus, max(want.gpus for want in wanted))
        yield Region(np.sort(able[np.lexsort((able, loss[able], near[able]))][:widest]), whole=False)
        return
    for nodes in domains(table, able, free, free_gpus, wanted, usable, most=_MOST):
        yield Region(_at_most(nodes, widest, table, slots, usable, free_gpus, wanted), whole=False)


def one_region(able: NDArray[np.int64], wanted: Sequence[Wanted]) -> bool:
    """Whether the nodes that can hold any of these pods are so few that all of them are one region."""
    return len(able) <= _widest(wanted)


def _widest(wanted: Sequence[Wanted]) -> int:
    return max(WIDEST, 2 * sum(want.count for want in wanted))


def domains(
    table: NodeTable,
    able: NDArray[np.int64],
    free: Amount2D,
    free_gpus: NDArray[np.int64],
    wanted: Sequence[Wanted],
    usable: Floats,
    *,
    most: int,
) -> Iterator[NDArray[np.int64]]:
    """Nodes of the domains that can hold the gang, as far as counting tells, tightest level first; at most so many, and
    all nodes where there are none."""
    reach, found, slots = table.reach, 0, [want.slots for want in wanted]
    for node in alone(free, free_gpus, wanted, usable)[: max(1, most // 2)]:
        yield np.array([node])
        found += 1
    by_width = _by_width(slots, wanted)
    for level in (reach.fabric, reach.leaf, reach.spine, reach.zone):
        domain = level[able]
        inside = able[domain >= 0]
        domain = domain[domain >= 0]
        if not len(inside):
            continue
        size = int(domain.max()) + 1
        fits = np.ones(size, dtype=bool)
        for want, room in zip(wanted, slots, strict=True):
            fits &= np.bincount(domain, weights=room[inside], minlength=size) >= want.count
        loss = np.zeros(size)
        for gpus, (count, room) in by_width.items():
            share, enough = _least_loss(domain, size, free_gpus[inside], room[inside], gpus, count, usable)
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


def alone(free: Amount2D, free_gpus: NDArray[np.int64], wanted: Sequence[Wanted], usable: Floats) -> list[int]:
    """Nodes that can hold the whole gang, those that lose least first."""
    need = np.sum([want.need * want.count for want in wanted], axis=0)
    may = np.logical_and.reduce([want.slots >= want.count for want in wanted])
    nodes = np.flatnonzero(may)
    nodes = nodes[room_for(free[nodes], need) > 0]
    gpus = sum(want.gpus * want.count for want in wanted)
    loss = usable[free_gpus[nodes]] - usable[free_gpus[nodes] - gpus]
    order: list[int] = nodes[np.lexsort((nodes, loss))].tolist()
    return order


def _by_width(slots: Sequence[NDArray[np.int64]], wanted: Sequence[Wanted]) -> dict[int, tuple[int, NDArray[np.int64]]]:
    """Pods of one width compete for the same room: how many there are, and the room for them."""
    merged: dict[int, tuple[int, NDArray[np.int64]]] = {}
    for want, room in zip(wanted, slots, strict=True):
        count, known = merged.get(want.gpus, (0, room))
        merged[want.gpus] = count + want.count, np.maximum(known, room)
    return merged


def loss_of_a_slot(usable: Floats, free_gpus: NDArray[np.int64], gpus: int) -> Floats:
    """GPUs that expected pods lose per pod of so many GPUs, with the node filled up by such pods, shape (n,)."""
    each = max(gpus, 1)
    fit = np.arange(len(usable)) // each
    lost = usable - usable[np.arange(len(usable)) - fit * each] if gpus else np.zeros(len(usable))
    loss: Floats = (lost / np.maximum(fit, 1))[free_gpus]
    return loss


def _least_loss(
    domain: NDArray[np.integer],
    size: int,
    free_gpus: NDArray[np.int64],
    room: NDArray[np.int64],
    gpus: int,
    count: int,
    usable: Floats,
) -> tuple[Floats, Mask]:
    """Per domain about what `count` pods lose there at least, and whether there is room for them: (size,) each."""
    width = len(usable)
    per_free = np.bincount(domain * width + free_gpus, weights=room, minlength=size * width).reshape(size, width)
    loss = loss_of_a_slot(usable, np.arange(width), gpus)
    order = np.argsort(loss, kind="stable")
    taken = np.minimum(np.cumsum(per_free[:, order], axis=1), count)
    share = np.diff(taken, axis=1, prepend=0) @ loss[order]
    return share, taken[:, -1] >= count


def _at_most(
    nodes: NDArray[np.int64],
    widest: int,
    table: NodeTable,
    slots: Sequence[NDArray[np.int64]],
    usable: Floats,
    free_gpus: NDArray[np.int64],
    wanted: Sequence[Wanted],
) -> NDArray[np.int64]:
    """The nodes of a large domain that lie in its roomiest parts (nodes of one kind), and lose least there."""
    if len(nodes) <= widest:
        return nodes
    kinds = table.reach.kind[nodes]
    room = np.minimum.reduce([np.bincount(kinds, weights=s[nodes], minlength=len(table.reach.first)) for s in slots])
    loss = loss_of_a_slot(usable, free_gpus[nodes], max(want.gpus for want in wanted))
    chosen: NDArray[np.int64] = np.sort(nodes[np.lexsort((nodes, loss, kinds, -room[kinds]))][:widest])
    return chosen
