"""Places for a gang in which every pod needs one partner near it, on a cluster too large to weigh all nodes together.

Nodes within the bound of each other form cliques: a node alone, a leaf, a zone. A clique takes one pod of each phase
and then whoever fits, of the phase that has more pods left, so that the rarer one lasts for the cliques to come. What
then remains goes anywhere near a pod of the other phase. Counting says where there is no plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.search.bulk_fill import Assignment
from scheduler.search.cluster_view import ClusterView
from scheduler.search.demand import Demand
from scheduler.search.reach_cliques import MOST_KINDS, clique_numbers, kinds_within
from topology.cluster.isochrone_sets import nearest_us
from topology.cluster.snapshot import Mask, capacity_for
from topology.labels import DECODE, PHASES, PREFILL

Ints = NDArray[np.int64]

_ROUNDS = 8


def fill_nearest(view: ClusterView, demands: Sequence[Demand]) -> list[list[int]] | None:
    """Node indices for each demand, every pod within the limit of one of the other phase; None where this finds none:
    that proves nothing. Tight cliques first, since they are nearer; then wide ones, which waste least; then with no
    more of one phase in a clique than of the other, for cliques that have room for few."""
    for wide, paired in ((False, False), (True, False), (False, True)):
        filling = Assignment(view, demands)
        for clique in _cliques(filling, wide=wide):
            while _fill_one(filling, clique, paired=paired) and paired:
                pass
            if not any(_left(filling)):
                break
        if _rest(filling) and _sound(filling):
            return filling.places
        filling.undo()
    return None


def cannot(view: ClusterView, demands: Sequence[Demand]) -> bool:
    """Whether counting alone proves that there is no plan."""
    filling = Assignment(view, demands)
    everywhere, able = np.arange(len(view.table)), _able(filling)
    for index, demand in enumerate(demands):
        if int(filling.slots(index, everywhere)[able[demand.phase]].sum()) < demand.count:
            return True
    either, pods = able[PREFILL] | able[DECODE], sum(demand.count for demand in demands)
    smallest = np.min([demand.request for demand in demands], axis=0)
    wanted = sum(demand.gpus * demand.count for demand in demands)
    capacity, gpus = np.where(either, capacity_for(view.free, smallest), 0), np.where(either, view.gpus, 0)
    if int(capacity.sum()) < pods or int(gpus.sum()) < wanted:
        return True
    return _too_few_cliques(view, demands, ((capacity, pods), (gpus, wanted)))


def _too_few_cliques(view: ClusterView, demands: Sequence[Demand], amounts: Sequence[tuple[Ints, int]]) -> bool:
    """Whether the gang is too much for as many cliques as it can use. Without partners each clique that is used has a
    pod of each phase: no more cliques than pods of the rarer one. `amounts`: what each node has, and what is needed."""
    rarer = min(sum(demand.count for demand in demands if demand.phase == phase) for phase in PHASES)
    alone = not any(np.isfinite(view.partners[demand.phase].nearest).any() for demand in demands)
    if not rarer or not alone or len(view.table.reach.first) > MOST_KINDS:
        return False
    cliques = clique_numbers(view.table, kinds_within(view.table, view.limit_us, view.size_bytes))
    if cliques is None:
        return False
    return any(int(np.sort(np.bincount(cliques, weights=has))[-rarer:].sum()) < needed for has, needed in amounts)


def _able(filling: Assignment) -> dict[str, Mask]:
    """Nodes for each phase, (N,), as far as room for a pod of the other one near them goes."""
    view, demands = filling.view, filling.demands
    everywhere = np.arange(len(view.table))
    slots = [filling.slots(i, everywhere) > 0 for i in range(len(demands))]
    able = {phase: np.zeros(len(everywhere), dtype=bool) for phase in PHASES}
    both = np.zeros(len(everywhere), dtype=bool)  # room for a pod of each phase at once
    for i, demand in enumerate(demands):
        able[demand.phase] = able[demand.phase] | slots[i]
        for j, other in enumerate(demands):
            if demand.phase < other.phase:
                both |= slots[i] & slots[j] & (capacity_for(view.free, demand.request + other.request) > 0)
    for _ in range(_ROUNDS):
        before = [int(mask.sum()) for mask in able.values()]
        for phase in able:
            there = able[DECODE if phase == PREFILL else PREFILL]
            us = nearest_us(view.table, np.flatnonzero(there & both), view.size_bytes, np.flatnonzero(there & ~both))
            near = (us <= view.limit_us) | _near_partners(filling, phase)
            able[phase] = able[phase] & near
        if before == [int(mask.sum()) for mask in able.values()]:
            break
    return able


def _near_partners(filling: Assignment, phase: str) -> Mask:
    """Nodes with a partner of this phase's pods near them, (N,)."""
    view = filling.view
    if all(demand.phase != phase for demand in filling.demands):
        return np.zeros(len(view.table), dtype=bool)
    near: Mask = view.partners[phase].nearest <= view.limit_us
    return near


def _left(filling: Assignment) -> list[int]:
    """Pods of each demand without a place."""
    return [demand.count - len(nodes) for demand, nodes in zip(filling.demands, filling.places, strict=True)]


def _cliques(filling: Assignment, *, wide: bool) -> Iterator[Ints]:
    """Nodes within the limit of each other: single nodes, fabrics, leaves, spines and zones, or the other way round;
    of one level the roomiest first."""
    view, reach = filling.view, filling.view.table.reach
    able, everywhere = _able(filling), np.arange(len(view.table))
    nodes = np.flatnonzero(able[PREFILL] | able[DECODE])
    slots = np.max([filling.slots(i, everywhere) for i in range(len(filling.demands))], axis=0)
    both = np.flatnonzero(able[PREFILL] & able[DECODE] & (reach.self_us(view.size_bytes) <= view.limit_us))
    levels: list[Iterator[Ints]] = [(both[i : i + 1] for i in np.lexsort((both, view.gpus[both])).tolist())]
    levels += [
        _domains(filling, nodes, slots, of_all) for of_all in (reach.fabric, reach.leaf, reach.spine, reach.zone)
    ]
    for level in reversed(levels) if wide else levels:
        yield from level


def _domains(filling: Assignment, nodes: Ints, slots: Ints, of_all: NDArray[np.integer]) -> Iterator[Ints]:
    domain = of_all[nodes]
    nodes, domain = nodes[domain >= 0], domain[domain >= 0]
    if not len(nodes):
        return
    capacity = np.bincount(domain, weights=slots[nodes])
    for number in np.argsort(-capacity, kind="stable").tolist():
        inside = nodes[domain == number]
        if len(inside) > 1:
            yield _clique(filling, inside)


def _clique(filling: Assignment, nodes: Ints) -> Ints:
    """The nodes of a domain that are within the limit of each other: kind by kind, the roomiest first."""
    view, reach = filling.view, filling.view.table.reach
    kinds, of = np.unique(reach.kind[nodes], return_inverse=True)
    of = of.reshape(-1)
    within = kinds_within(view.table, view.limit_us, view.size_bytes, kinds)
    chosen: list[int] = []
    for kind in np.argsort(-np.bincount(of, weights=view.gpus[nodes]), kind="stable").tolist():
        if all(within[kind, other] and within[other, kind] for other in [kind, *chosen]):
            chosen.append(kind)
    retained: Ints = nodes[np.isin(of, chosen)]
    return retained


def _fill_one(filling: Assignment, clique: Ints, *, paired: bool) -> bool:
    """A pod of each phase into a clique, then, unless `paired`, as many as fit; whether a pair found places."""
    if not len(clique) or not _pair(filling, clique):
        return False
    while not paired and any(_one(filling, index, clique) is not None for index in _most_left_first(filling)):
        pass
    return True


def _pair(filling: Assignment, clique: Ints) -> bool:
    """A pod of each phase into a clique, the first two demands that fit together; whether there were such."""
    left = _left(filling)
    prefill, decode = ([i for i, n in enumerate(left) if n and filling.demands[i].phase == p] for p in PHASES)
    for first in prefill if decode else ():
        placed = _one(filling, first, clique)
        if placed is None:
            continue
        if any(_one(filling, second, clique) is not None for second in decode):
            return True
        filling.take_back(first, placed)
    return False


def _most_left_first(filling: Assignment) -> list[int]:
    """Demands with pods left, those of the phase that has more of them first."""
    left = _left(filling)
    of_phase = dict.fromkeys(PHASES, 0)
    for n, demand in zip(left, filling.demands, strict=True):
        of_phase[demand.phase] += n
    return sorted((i for i, n in enumerate(left) if n), key=lambda i: (-of_phase[filling.demands[i].phase], i))


def _one(filling: Assignment, index: int, nodes: Ints) -> int | None:
    """One pod of a demand onto the node of these where the least is lost; which it is."""
    able = nodes[filling.slots(index, nodes) > 0]
    for at in np.lexsort((able, filling.loss(index, able))).tolist():
        if filling.put(index, int(able[at]), 1):
            return int(able[at])
    return None


def _rest(filling: Assignment) -> bool:
    """Whoever is left goes near a pod of the other phase, or near a partner; whether all found places."""
    for index, left in enumerate(_left(filling)):
        if not left:
            continue
        near = np.flatnonzero(_has_partner(filling, filling.demands[index].phase))
        slots = filling.slots(index, near)
        near, slots = near[slots > 0], slots[slots > 0]
        for at in np.lexsort((near, filling.loss(index, near))).tolist():
            left -= filling.put(index, int(near[at]), min(left, int(slots[at])))
            if not left:
                break
        else:
            return False
    return True


def _has_partner(filling: Assignment, phase: str) -> Mask:
    """Nodes near a pod of the other phase that has a place, (N,)."""
    view = filling.view
    there = {n for demand, at in zip(filling.demands, filling.places, strict=True) if demand.phase != phase for n in at}
    us = nearest_us(view.table, np.array(sorted(there), dtype=np.int64), view.size_bytes)
    return (us <= view.limit_us) | _near_partners(filling, phase)


def _sound(filling: Assignment) -> bool:
    """Every pod has its partner."""
    near = {demand.phase: _has_partner(filling, demand.phase) for demand in filling.demands}
    pairs = zip(filling.demands, filling.places, strict=True)
    return all(near[demand.phase][np.array(nodes, dtype=np.int64)].all() for demand, nodes in pairs)
