"""The cards of one node as they fill up: what is left of each, and which of them a pod would get.

Rules of this file. (1) A row is never changed: placing a pod gives a new one, so a search may step back. (2) Decode,
and every pod without a phase, counts with its peak. A prefill pod counts with its request; of several prefill peaks on
one card the largest is kept free for all of them, since a peak is given back. (3) A plan
fills a card up to its `Limits`; what is held already counts without them. (4) Prefill and decode share a card
only where the form keeps their memory apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from topology.gpus.asked import GpuRequest
from topology.gpus.capacity import NodeCards
from topology.gpus.forms import (
    EMPTIEST,
    HAMI,
    HIGHEST,
    LOWEST,
    QGPU,
    VOLCANO_NUMBER,
    VOLCANO_SHARE,
    VOLCANO_VGPU,
    WHOLE,
)
from topology.labels import DECODE, PREFILL

PHASE_BIT: Final = {PREFILL: 1, DECODE: 2}
WHOLE_MILLI: Final = 1000


class Limits(NamedTuple):
    """How much of a card may be planned, in thousandths of its memory: promised at all, and with prefill peaks."""

    planned_milli: int
    peak_milli: int


EVERYTHING: Final = Limits(1000, 1000)
"""For what is held already: a reserve is for plans, not for facts."""


class CardRow(NamedTuple):
    """What is left on each card of a node, all tuples of one length."""

    left_mib: tuple[int, ...]
    left_compute: tuple[int, ...]  # thousandths of the card's compute that no form has claimed
    peak_mib: tuple[int, ...]  # the largest prefill burst above requests, kept free once for all of them
    users: tuple[int, ...]  # pods on the card; -1 once a pod has it whole
    phases: tuple[int, ...]  # bits of PHASE_BIT: who is there


def empty_row(cards: NodeCards) -> CardRow:
    """Nobody is on the node. A broken card has nothing left."""
    count = len(cards.memory_mib)
    healthy = cards.healthy
    return CardRow(
        left_mib=cards.memory_mib,
        left_compute=tuple(WHOLE_MILLI if ok else 0 for ok in healthy),
        peak_mib=(0,) * count,
        users=tuple(0 if ok else -1 for ok in healthy),
        phases=(0,) * count,
    )


def left_milli(cards: NodeCards, row: CardRow) -> tuple[int, ...]:
    """Free share of each card in thousandths: the lesser of the compute and the memory left; 1000 only if nobody is
    there, 0 where a pod has it whole."""
    shares = []
    for capacity, left, compute, users in zip(cards.memory_mib, row.left_mib, row.left_compute, row.users, strict=True):
        if users <= 0:
            shares.append(WHOLE_MILLI if users == 0 else 0)
        else:
            memory = WHOLE_MILLI * max(left, 0) // capacity if capacity else WHOLE_MILLI
            shares.append(max(0, min(compute, memory)))
    return tuple(shares)


def need_mib(request: GpuRequest, capacity_mib: int) -> int:
    """Memory a pod asks for on a card of this size, rounded up; 0 where it says nothing."""
    return request.memory_mib or -(-capacity_mib * request.memory_milli // 1000)


def is_replica(cards: NodeCards, request: GpuRequest) -> bool:
    """Whether the node counts each card several times, so that a whole GPU of the request is a part of one."""
    return request.whole and cards.replicas > 1 and not cards.listed


def claim(request: GpuRequest, phase: str, capacity_mib: int, replicas: int = 1) -> tuple[int, int]:
    """(guaranteed, burst above it) in MiB on a card of this size: only prefill has a burst. One of several replicas
    that names no memory counts with its part."""
    asked = need_mib(request, capacity_mib)
    if replicas > 1 and not asked:
        asked = capacity_mib // replicas
    if phase == PREFILL:
        return asked, max(0, request.peak_mib - asked)
    return max(asked, request.peak_mib), 0


def room_mib(cards: NodeCards, row: CardRow, card: int, burst_mib: int, limits: Limits) -> int:
    """MiB that may still be promised on a card to a pod with this burst; negative where too much is promised."""
    capacity = cards.memory_mib[card]
    held = capacity - row.left_mib[card]
    room, peak = capacity * limits.planned_milli // 1000 - held, max(row.peak_mib[card], burst_mib)
    return min(room, capacity * limits.peak_milli // 1000 - held - peak) if peak else room


def serves(kind: str, form: str) -> bool:
    """Whether cards given out in one form can be asked for in another: each sharing plugin knows its own, whole GPUs
    are had from plain and from HAMi nodes, and what only an annotation says fits any card."""
    if form == VOLCANO_NUMBER.name:
        return kind == VOLCANO_SHARE.name
    if form in (HAMI.name, VOLCANO_VGPU.name, VOLCANO_SHARE.name, QGPU.name):
        return kind == form
    return form != WHOLE.name or kind in (WHOLE.name, HAMI.name)


def fits(cards: NodeCards, row: CardRow, card: int, request: GpuRequest, phase: str, limits: Limits) -> bool:
    """Whether one card can take one GPU's worth of the request."""
    capacity, users = cards.memory_mib[card], row.users[card]
    if not serves(cards.kind, request.form):
        return False
    if users < 0 or not cards.healthy[card] or (request.pinned and cards.uuids[card] not in request.pinned):
        return False
    replica = is_replica(cards, request)
    asked, burst = claim(request, phase, capacity, cards.replicas if replica else 1)
    if request.whole and not replica and users:
        return False
    if (asked or burst) and (not capacity or asked > room_mib(cards, row, card, burst, limits)):
        return False
    if replica:
        return row.left_compute[card] >= WHOLE_MILLI // cards.replicas and _apart(request, phase, row.phases[card])
    if request.compute_milli > row.left_compute[card]:
        return False
    return _owner_takes(request, row, card) and _apart(request, phase, row.phases[card])


def _owner_takes(request: GpuRequest, row: CardRow, card: int) -> bool:
    """Two rules of Volcano's vGPU (and HAMi, its origin): all cores means alone, and a card without cores left takes
    nobody. Source: volcano-sh/volcano vgpu/utils.go, checkNodeGPUSharingPredicateAndScore."""
    if request.form == QGPU.name:
        return True
    if request.compute_milli == WHOLE_MILLI and row.users[card] and request.form == VOLCANO_VGPU.name:
        return False
    return row.left_compute[card] > 0


def _apart(request: GpuRequest, phase: str, there: int) -> bool:
    return request.isolates or not PHASE_BIT.get(phase) or not there & ~PHASE_BIT[phase]


def put(cards: NodeCards, row: CardRow, card: int, request: GpuRequest, phase: str, mib: int | None = None) -> CardRow:
    """The row with one GPU's worth of the request on a card; `mib` where the memory given is known better."""
    capacity = cards.memory_mib[card]
    replica = is_replica(cards, request)
    asked, burst = claim(request, phase, capacity, cards.replicas if replica else 1)
    compute, users = request.compute_milli, row.users[card] + 1
    if replica:
        compute = WHOLE_MILLI // cards.replicas
    elif request.whole:
        asked, compute, users = row.left_mib[card], WHOLE_MILLI, -1
    held = asked if mib is None else max(mib, 0)
    return CardRow(
        left_mib=_set(row.left_mib, card, row.left_mib[card] - held),
        left_compute=_set(row.left_compute, card, max(0, row.left_compute[card] - compute)),
        peak_mib=_set(row.peak_mib, card, max(row.peak_mib[card], burst)),
        users=_set(row.users, card, users if row.users[card] >= 0 else -1),
        phases=_set(row.phases, card, row.phases[card] | PHASE_BIT.get(phase, 0)),
    )


def _set(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def choose(cards: NodeCards, row: CardRow, request: GpuRequest, phase: str, limits: Limits) -> tuple[int, ...] | None:
    """The cards that the form's owner would give the pod, by its own rule; None where too few fit. A prediction unless
    the pod pins its cards. With `parts` the containers choose one after the other, and may have a card in common."""
    if request.parts:
        chosen: list[int] = []
        for part in request.parts:
            mine = choose(cards, row, part, phase, limits)
            if mine is None:
                return None
            row = put_all(cards, row, mine, part, phase)
            chosen += mine
        return tuple(chosen)
    able = able_cards(cards, row, request, phase, limits)
    if len(able) < request.count:
        return None
    if request.count == 1:
        return (min(able, key=_order(row, request.picks)),)
    return tuple(sorted(able, key=_order(row, request.picks))[: request.count])


def able_cards(cards: NodeCards, row: CardRow, request: GpuRequest, phase: str, limits: Limits) -> list[int]:
    """The cards that `fits` says yes to. What every node of a cluster is asked for each hold, so the rules are here in
    one loop for cards of one size; a node with replicas, or a pod that pins its cards, is asked card by card."""
    count = len(cards.memory_mib)
    if is_replica(cards, request) or request.pinned:
        return [i for i in range(count) if fits(cards, row, i, request, phase, limits)]
    if not serves(cards.kind, request.form):
        return []
    others = 0 if request.isolates else sum(PHASE_BIT.values()) - PHASE_BIT.get(phase, 0) if phase in PHASE_BIT else 0
    alone = request.whole or (request.compute_milli == WHOLE_MILLI and request.form == VOLCANO_VGPU.name)
    compute = max(request.compute_milli, 0 if request.form == QGPU.name else 1)
    able, size, asked, burst, planned, peaked = [], -1, 0, 0, 0, 0
    for card in range(count):
        users, capacity = row.users[card], cards.memory_mib[card]
        if users < 0 or (users and alone) or row.left_compute[card] < compute or not cards.healthy[card]:
            continue
        if others & row.phases[card]:
            continue
        if capacity != size:
            size = capacity
            asked, burst = claim(request, phase, capacity)
            planned, peaked = capacity * limits.planned_milli // 1000, capacity * limits.peak_milli // 1000
        if asked or burst:
            held, peak = capacity - row.left_mib[card], max(row.peak_mib[card], burst)
            room = min(planned - held, peaked - held - peak) if peak else planned - held
            if not capacity or asked > room:
                continue
        able.append(card)
    return able


def _order(row: CardRow, picks: str) -> Callable[[int], tuple[int, int]]:
    if picks == LOWEST:
        return lambda i: (0, i)
    if picks == HIGHEST:
        return lambda i: (0, -i)
    sign = -1 if picks == EMPTIEST else 1
    return lambda i: (sign * row.left_mib[i], i)


def put_all(cards: NodeCards, row: CardRow, chosen: Sequence[int], request: GpuRequest, phase: str) -> CardRow:
    """`put` on the cards that were chosen, in that order."""
    each = [part for part in request.parts or (request,) for _ in range(part.count)]
    for at, card in enumerate(chosen):
        row = put(cards, row, card, each[min(at, len(each) - 1)], phase)
    return row
