"""Places for a gang in which every pod needs one partner near it, on a cluster too large to weigh all nodes together.

Nodes within the bound of each other form cliques: a node alone, a leaf, a zone. A clique takes one pod of each phase
and then whoever fits, of the phase that has more pods left, so that the rarer one lasts for the cliques to come. What
then remains goes anywhere near a pod of the other phase. Counting says where there is no plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.search.bulk_fill import Filling, Load, Yard
from scheduler.search.reach_cliques import MOST_KINDS, clique_numbers, kinds_within
from topology.cluster.isochrone_sets import nearest_us
from topology.cluster.snapshot import Mask, room_for
from topology.labels import DECODE, PHASES, PREFILL

Ints = NDArray[np.int64]

_ROUNDS = 8


def fill_nearest(yard: Yard, loads: Sequence[Load]) -> list[list[int]] | None:
    """Node indices for each load, every pod within the limit of one of the other phase; None where this finds none:
    that proves nothing. Tight cliques first, since they are nearer; then wide ones, which waste least; then with no
    more of one phase in a clique than of the other, for cliques that have room for few."""
    for wide, paired in ((False, False), (True, False), (False, True)):
        filling = Filling(yard, loads)
        for clique in _cliques(filling, wide=wide):
            while _fill_one(filling, clique, paired=paired) and paired:
                pass
            if not any(_left(filling)):
                break
        if _rest(filling) and _sound(filling):
            return filling.places
        filling.undo()
    return None


def cannot(yard: Yard, loads: Sequence[Load]) -> bool:
    """Whether counting alone proves that there is no plan."""
    filling = Filling(yard, loads)
    everywhere, able = np.arange(len(yard.table)), _able(filling)
    for index, load in enumerate(loads):
        if int(filling.slots(index, everywhere)[able[load.phase]].sum()) < load.count:
            return True
    either, pods = able[PREFILL] | able[DECODE], sum(load.count for load in loads)
    smallest, wanted = np.min([load.need for load in loads], axis=0), sum(load.gpus * load.count for load in loads)
    room, gpus = np.where(either, room_for(yard.free, smallest), 0), np.where(either, yard.gpus, 0)
    if int(room.sum()) < pods or int(gpus.sum()) < wanted:
        return True
    # Without partners each clique that is used has a pod of each phase: no more cliques than pods of the rarer one.
    rarer = min(sum(load.count for load in loads if load.phase == phase) for phase in PHASES)
    alone = not any(np.isfinite(load.nearest_us).any() for load in loads)
    if not rarer or not alone or len(yard.table.reach.first) > MOST_KINDS:
        return False
    cliques = clique_numbers(yard.table, kinds_within(yard.table, yard.limit_us, yard.size_bytes))
    if cliques is None:
        return False
    return any(
        int(np.sort(np.bincount(cliques, weights=has))[-rarer:].sum()) < most
        for has, most in ((room, pods), (gpus, wanted))
    )


def _able(filling: Filling) -> dict[str, Mask]:
    """Nodes for each phase, (N,), as far as room for a pod of the other one near them goes."""
    yard, loads = filling.yard, filling.loads
    everywhere = np.arange(len(yard.table))
    slots = [filling.slots(i, everywhere) > 0 for i in range(len(loads))]
    able = {phase: np.zeros(len(everywhere), dtype=bool) for phase in PHASES}
    both = np.zeros(len(everywhere), dtype=bool)  # room for a pod of each phase at once
    for i, load in enumerate(loads):
        able[load.phase] = able[load.phase] | slots[i]
        for j, other in enumerate(loads):
            if load.phase < other.phase:
                both |= slots[i] & slots[j] & (room_for(yard.free, load.need + other.need) > 0)
    for _ in range(_ROUNDS):
        before = [int(mask.sum()) for mask in able.values()]
        for phase in able:
            there = able[DECODE if phase == PREFILL else PREFILL]
            us = nearest_us(yard.table, np.flatnonzero(there & both), yard.size_bytes, np.flatnonzero(there & ~both))
            near = (us <= yard.limit_us) | _near_partners(filling, phase)
            able[phase] = able[phase] & near
        if before == [int(mask.sum()) for mask in able.values()]:
            break
    return able


def _near_partners(filling: Filling, phase: str) -> Mask:
    """Nodes with a partner of this phase's pods near them, (N,)."""
    near = np.zeros(len(filling.yard.table), dtype=bool)
    for load in filling.loads:
        if load.phase == phase:
            near |= load.nearest_us <= filling.yard.limit_us
    return near


def _left(filling: Filling) -> list[int]:
    """Pods of each load without a place."""
    return [load.count - len(nodes) for load, nodes in zip(filling.loads, filling.places, strict=True)]


def _cliques(filling: Filling, *, wide: bool) -> Iterator[Ints]:
    """Nodes within the limit of each other: single nodes, fabrics, leaves, spines and zones, or the other way round;
    of one level the roomiest first."""
    yard, reach = filling.yard, filling.yard.table.reach
    able, everywhere = _able(filling), np.arange(len(yard.table))
    nodes = np.flatnonzero(able[PREFILL] | able[DECODE])
    slots = np.max([filling.slots(i, everywhere) for i in range(len(filling.loads))], axis=0)
    both = np.flatnonzero(able[PREFILL] & able[DECODE] & (reach.self_us(yard.size_bytes) <= yard.limit_us))
    levels: list[Iterator[Ints]] = [(both[i : i + 1] for i in np.lexsort((both, yard.gpus[both])).tolist())]
    levels += [
        _domains(filling, nodes, slots, of_all) for of_all in (reach.fabric, reach.leaf, reach.spine, reach.zone)
    ]
    for level in reversed(levels) if wide else levels:
        yield from level


def _domains(filling: Filling, nodes: Ints, slots: Ints, of_all: NDArray[np.integer]) -> Iterator[Ints]:
    domain = of_all[nodes]
    nodes, domain = nodes[domain >= 0], domain[domain >= 0]
    if not len(nodes):
        return
    room = np.bincount(domain, weights=slots[nodes])
    for number in np.argsort(-room, kind="stable").tolist():
        inside = nodes[domain == number]
        if len(inside) > 1:
            yield _clique(filling, inside)


def _clique(filling: Filling, nodes: Ints) -> Ints:
    """The nodes of a domain that are within the limit of each other: kind by kind, the roomiest first."""
    yard, reach = filling.yard, filling.yard.table.reach
    kinds, of = np.unique(reach.kind[nodes], return_inverse=True)
    of = of.reshape(-1)
    within = kinds_within(yard.table, yard.limit_us, yard.size_bytes, kinds)
    chosen: list[int] = []
    for kind in np.argsort(-np.bincount(of, weights=yard.gpus[nodes]), kind="stable").tolist():
        if all(within[kind, other] and within[other, kind] for other in [kind, *chosen]):
            chosen.append(kind)
    kept: Ints = nodes[np.isin(of, chosen)]
    return kept


def _fill_one(filling: Filling, clique: Ints, *, paired: bool) -> bool:
    """A pod of each phase into a clique, then, unless `paired`, as many as fit; whether a pair found places."""
    left = _left(filling)
    prefill, decode = ([i for i, n in enumerate(left) if n and filling.loads[i].phase == p] for p in PHASES)
    if not prefill or not decode or not len(clique):
        return False
    for first in prefill:
        placed = _one(filling, first, clique)
        if placed is None:
            continue
        if any(_one(filling, second, clique) is not None for second in decode):
            break
        filling.take_back(first, placed)
    else:
        return False
    while not paired:
        left = _left(filling)
        of_phase = dict.fromkeys(PHASES, 0)
        for n, load in zip(left, filling.loads, strict=True):
            of_phase[load.phase] += n
        order = sorted((i for i, n in enumerate(left) if n), key=lambda i: (-of_phase[filling.loads[i].phase], i))
        if not any(_one(filling, index, clique) is not None for index in order):
            break
    return True


def _one(filling: Filling, index: int, nodes: Ints) -> int | None:
    """One pod of a load onto the node of these where the least is lost; which it is."""
    able = nodes[filling.slots(index, nodes) > 0]
    for at in np.lexsort((able, filling.loss(index, able))).tolist():
        if filling.put(index, int(able[at]), 1):
            return int(able[at])
    return None


def _rest(filling: Filling) -> bool:
    """Whoever is left goes near a pod of the other phase, or near a partner; whether all found places."""
    for index, left in enumerate(_left(filling)):
        if not left:
            continue
        near = np.flatnonzero(_has_partner(filling, filling.loads[index].phase))
        slots = filling.slots(index, near)
        near, slots = near[slots > 0], slots[slots > 0]
        for at in np.lexsort((near, filling.loss(index, near))).tolist():
            left -= filling.put(index, int(near[at]), min(left, int(slots[at])))
            if not left:
                break
        else:
            return False
    return True


def _has_partner(filling: Filling, phase: str) -> Mask:
    """Nodes near a pod of the other phase that has a place, (N,)."""
    yard = filling.yard
    there = {n for load, at in zip(filling.loads, filling.places, strict=True) if load.phase != phase for n in at}
    us = nearest_us(yard.table, np.array(sorted(there), dtype=np.int64), yard.size_bytes)
    return (us <= yard.limit_us) | _near_partners(filling, phase)


def _sound(filling: Filling) -> bool:
    """Every pod has its partner."""
    near = {load.phase: _has_partner(filling, load.phase) for load in filling.loads}
    pairs = zip(filling.loads, filling.places, strict=True)
    return all(near[load.phase][np.array(nodes, dtype=np.int64)].all() for load, nodes in pairs)
