"""The everyday case of a search: one node that takes the whole gang at the least that any plan can cost.

A cluster fills up like this, gang by gang, where pods are alike. Nobody need search for it, and whoever does finds this
very node (tests/scheduler/test_single_node.py asks both), because:

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

from scheduler.search.candidate_regions import alone, one_region
from scheduler.search.cluster_view import ClusterView
from scheduler.search.demand import Demand
from scheduler.search.objective import Objective, least_loss
from topology.cluster.snapshot import capacity_for

_KINDS = 64
"""Kinds of nodes that are compared with each other; where there are more, the search is asked at once."""


def single_node(
    view: ClusterView, demands: Sequence[Demand], slots: NDArray[np.int64], objective: Objective
) -> int | None:
    """The node, or None where only a search can tell. `demands` are all pods, in the order in which a search places
    them; `slots` is as in `regions`."""
    # Free GPUs of a node that would do; none where narrow pods and wide ones are expected.
    taken = sum(demand.gpus * demand.count for demand in demands)
    cheap = {gpus for gpus in range(taken, len(view.usable)) if _loses_least(gpus, demands, view.usable)}
    if not cheap:
        return None
    able = np.flatnonzero((slots > 0).any(axis=0))
    whole = one_region(able, demands)
    nodes = _first_by_name(view, demands, slots) if whole else alone(view, demands, slots)[:1]
    if not nodes or int(view.gpus[nodes[0]]) not in cheap:
        return None
    between = _least_between(view, able, nodes[0])
    if between is None:
        return None
    least_us, next_us = between
    inside_us = float(view.table.reach.self_us(view.size_bytes)[nodes[0]])
    if inside_us != least_us or least_us > view.limit_us:
        return None
    return nodes[0] if not whole or objective.distinguishes(least_us, next_us) else None


def _first_by_name(view: ClusterView, demands: Sequence[Demand], slots: NDArray[np.int64]) -> list[int]:
    """The first node with room for a pod of the first demand, if it holds all pods; else none."""
    request = np.sum([demand.request * demand.count for demand in demands], axis=0)
    return [
        node
        for node in np.flatnonzero(slots[0] > 0)[:1].tolist()
        if all(capacity[node] >= demand.count for demand, capacity in zip(demands, slots, strict=True))
        and capacity_for(view.free[[node]], request)[0] > 0
    ]


def _least_between(view: ClusterView, able: NDArray[np.int64], node: int) -> tuple[float, float] | None:
    """The least reach in us between or inside nodes with room, and the least from one node to another of them; None
    where they are of too many kinds to compare."""
    reach, size = view.table.reach, view.size_bytes
    kinds = np.flatnonzero(np.bincount(reach.kind[able]))
    if len(kinds) > _KINDS:
        return None
    rows = [reach.kind_row_us(kind, size)[kinds] for kind in kinds.tolist()]
    least_us = min(float(np.min(rows)), float(reach.self_us(size)[able].min()))
    return least_us, float(reach.kind_row_us(int(reach.kind[node]), size)[kinds].min())


def _loses_least(gpus: int, demands: Sequence[Demand], usable: NDArray[np.float64]) -> bool:
    """Whether each pod, one after the other on a node of so many free GPUs, takes the least that it takes anywhere."""
    for demand, least in zip(demands, least_loss(usable, [each.gpus for each in demands]), strict=True):
        for _ in range(demand.count):
            if usable[gpus] - usable[gpus - demand.gpus] != least:
                return False
            gpus -= demand.gpus
    return True
