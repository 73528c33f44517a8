"""The everyday case of a search: one node that takes the whole gang at the least that any plan can cost.

A cluster fills up like this, gang by gang, where pods are alike. Nobody need search for it, and whoever does finds this
very node (tests/scheduler/test_one_node.py asks both), because:

(1) No plan has a smaller worst or mean reach than the smallest of all between two nodes and inside one, and none loses
fewer GPUs than each of its pods loses where that is least. A node that has all of these is the best there is, by the
bounds that the joint search itself prunes with. (2) Of equal nodes that search starts on the first by name, and once a
pod is there, every other node is farther: it stays. In a cluster of several regions it starts on the node that can hold
all and loses least.

Wherever anything else counts (partners, cards, PCI roots, rails, the size of sets) only the search can tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.search.candidate_regions import Wanted, alone, one_region
from scheduler.search.objective import Objective, least_loss
from topology.cluster.snapshot import Amount2D, room_for
from topology.reach.model import ReachModel

_KINDS = 64
"""Kinds of nodes that are compared with each other; where there are more, the search is asked at once."""


def one_node(
    reach: ReachModel,
    size_bytes: int,
    limit_us: float,
    free: Amount2D,
    free_gpus: NDArray[np.int64],
    wanted: Sequence[Wanted],
    objective: Objective,
) -> int | None:
    """The node, or None where only a search can tell. `wanted` are all pods, in the order in which a search places
    them; the rest is as in `regions`."""
    usable = objective.usable(int(free_gpus.max(initial=0)))
    # Free GPUs of a node that would do; none where narrow pods and wide ones are expected.
    taken = sum(want.gpus * want.count for want in wanted)
    cheap = {gpus for gpus in range(taken, len(usable)) if _loses_least(gpus, wanted, usable)}
    if not cheap:
        return None
    able = np.flatnonzero(np.logical_or.reduce([want.slots > 0 for want in wanted]))
    whole = one_region(able, wanted)
    if whole:
        first = np.flatnonzero(wanted[0].slots > 0)[:1].tolist()
        need = np.sum([want.need * want.count for want in wanted], axis=0)
        nodes = [n for n in first if all(w.slots[n] >= w.count for w in wanted) and room_for(free[[n]], need)[0] > 0]
    else:
        nodes = alone(free, free_gpus, wanted, usable)[:1]
    if not nodes or int(free_gpus[nodes[0]]) not in cheap:
        return None
    node, kinds = nodes[0], np.flatnonzero(np.bincount(reach.kind[able]))
    if len(kinds) > _KINDS:
        return None
    inside = reach.self_us(size_bytes)
    rows = [reach.kind_row_us(kind, size_bytes)[kinds] for kind in kinds.tolist()]
    least_us = min(float(np.min(rows)), float(inside[able].min()))
    if float(inside[node]) != least_us or least_us > limit_us:
        return None
    next_us = float(reach.kind_row_us(int(reach.kind[node]), size_bytes)[kinds].min())
    return node if not whole or objective.tells_apart(least_us, next_us) else None


def _loses_least(gpus: int, wanted: Sequence[Wanted], usable: NDArray[np.float64]) -> bool:
    """Whether each pod, one after the other on a node of so many free GPUs, takes the least that it takes anywhere."""
    for want, least in zip(wanted, least_loss(usable, [want.gpus for want in wanted]), strict=True):
        for _ in range(want.count):
            if usable[gpus] - usable[gpus - want.gpus] != least:
                return False
            gpus -= want.gpus
    return True
