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

from topology.gpus.capacity import NodeGpus
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
from topology.gpus.gpu_request import GpuRequest
from topology.labels import DECODE, PREFILL

PHASE_BIT: Final = {PREFILL: 1, DECODE: 2}
WHOLE_MILLI: Final = 1000


class Limits(NamedTuple):
    """How much of a card may be planned, in thousandths of its memory: promised at all, and with prefill peaks."""

    planned_milli: int
    peak_milli: int


EVERYTHING: Final = Limits(1000, 1000)
"""For what is held already: a reserve is for plans, not for facts."""


class GpuRow(NamedTuple):
    """What is left on each card of a node, all tuples of one length."""

    left_mib: tuple[int, ...]
    left_compute: tuple[int, ...]  # thousandths of the card's compute that no form has claimed
    peak_mib: tuple[int, ...]  # the largest prefill burst above requests, kept free once for all of them
    users: tuple[int, ...]  # pods on the card; -1 once a pod has it whole
    phases: tuple[int, ...]  # bits of PHASE_BIT: who is there


def empty_row(devices: NodeGpus) -> GpuRow:
    """Nobody is on the node. A broken card has nothing left."""
    count = len(devices.memory_mib)
    healthy = devices.healthy
    return GpuRow(
        left_mib=devices.memory_mib,
        left_compute=tuple(WHOLE_MILLI if ok else 0 for ok in healthy),
        peak_mib=(0,) * count,
        users=tuple(0 if ok else -1 for ok in healthy),
        phases=(0,) * count,
    )


def left_milli(devices: NodeGpus, row: GpuRow) -> tuple[int, ...]:
    """Free share of each card in thousandths: the lesser of the compute and the memory left; 1000 only if nobody is
    there, 0 where a pod has it whole."""
    shares = []
    for capacity, left, compute, users in zip(
        devices.memory_mib, row.left_mib, row.left_compute, row.users, strict=True
    ):
        if users <= 0:
            shares.append(WHOLE_MILLI if users == 0 else 0)
        else:
            memory = WHOLE_MILLI * max(left, 0) // capacity if capacity else WHOLE_MILLI
            shares.append(max(0, min(compute, memory)))
    return tuple(shares)


def need_mib(request: GpuRequest, capacity_mib: int) -> int:
    """Memory a pod asks for on a card of this size, rounded up; 0 where it says nothing."""
    return request.memory_mib or -(-capacity_mib * request.memory_milli // 1000)


def is_replica(devices: NodeGpus, request: GpuRequest) -> bool:
    """Whether the node counts each card several times, so that a whole GPU of the request is a part of one."""
    return request.whole and devices.replicas > 1 and not devices.listed


def claim(request: GpuRequest, phase: str, capacity_mib: int, replicas: int = 1) -> tuple[int, int]:
    """(guaranteed, burst above it) in MiB on a card of this size: only prefill has a burst. One of several replicas
    that names no memory counts with its part."""
    asked = need_mib(request, capacity_mib)
    if replicas > 1 and not asked:
        asked = capacity_mib // replicas
    if phase == PREFILL:
        return asked, max(0, request.peak_mib - asked)
    return max(asked, request.peak_mib), 0


def left_mib(devices: NodeGpus, row: GpuRow, gpu: int, burst_mib: int, limits: Limits) -> int:
    """MiB that may still be promised on a card to a pod with this burst; negative where too much is promised."""
    capacity = devices.memory_mib[gpu]
    held = capacity - row.left_mib[gpu]
    spare, peak = capacity * limits.planned_milli // 1000 - held, max(row.peak_mib[gpu], burst_mib)
    return min(spare, capacity * limits.peak_milli // 1000 - held - peak) if peak else spare


def serves(kind: str, form: str) -> bool:
    """Whether cards given out in one form can be asked for in another: each sharing plugin knows its own, whole GPUs
    are had from plain and from HAMi nodes, and what only an annotation says fits any card."""
    if form == VOLCANO_NUMBER.name:
        return kind == VOLCANO_SHARE.name
    if form in (HAMI.name, VOLCANO_VGPU.name, VOLCANO_SHARE.name, QGPU.name):
        return kind == form
    return form != WHOLE.name or kind in (WHOLE.name, HAMI.name)


# complexity: the whole rule for one GPU in one place
def fits(devices: NodeGpus, row: GpuRow, gpu: int, request: GpuRequest, phase: str, limits: Limits) -> bool:
    """Whether one card can take one GPU's worth of the request."""
    capacity, users = devices.memory_mib[gpu], row.users[gpu]
    if not serves(devices.kind, request.form):
        return False
    if users < 0 or not devices.healthy[gpu] or (request.pinned and devices.uuids[gpu] not in request.pinned):
        return False
    replica = is_replica(devices, request)
    asked, burst = claim(request, phase, capacity, devices.replicas if replica else 1)
    if request.whole and not replica and users:
        return False
    if (asked or burst) and (not capacity or asked > left_mib(devices, row, gpu, burst, limits)):
        return False
    if replica:
        return row.left_compute[gpu] >= WHOLE_MILLI // devices.replicas and _apart(request, phase, row.phases[gpu])
    if request.compute_milli > row.left_compute[gpu]:
        return False
    return _owner_takes(request, row, gpu) and _apart(request, phase, row.phases[gpu])


def _owner_takes(request: GpuRequest, row: GpuRow, gpu: int) -> bool:
    """Two rules of Volcano's vGPU (and HAMi, its origin): all cores means alone, and a card without cores left takes
    nobody. Source: volcano-sh/volcano vgpu/utils.go, checkNodeGPUSharingPredicateAndScore."""
    if request.form == QGPU.name:
        return True
    if request.compute_milli == WHOLE_MILLI and row.users[gpu] and request.form == VOLCANO_VGPU.name:
        return False
    return row.left_compute[gpu] > 0


def _apart(request: GpuRequest, phase: str, there: int) -> bool:
    return request.isolates or not PHASE_BIT.get(phase) or not there & ~PHASE_BIT[phase]


def put(devices: NodeGpus, row: GpuRow, gpu: int, request: GpuRequest, phase: str, mib: int | None = None) -> GpuRow:
    """The row with one GPU's worth of the request on a card; `mib` where the memory given is known better."""
    capacity = devices.memory_mib[gpu]
    replica = is_replica(devices, request)
    asked, burst = claim(request, phase, capacity, devices.replicas if replica else 1)
    compute, users = request.compute_milli, row.users[gpu] + 1
    if replica:
        compute = WHOLE_MILLI // devices.replicas
    elif request.whole:
        asked, compute, users = row.left_mib[gpu], WHOLE_MILLI, -1
    held = asked if mib is None else max(mib, 0)
    return GpuRow(
        left_mib=_set(row.left_mib, gpu, row.left_mib[gpu] - held),
        left_compute=_set(row.left_compute, gpu, max(0, row.left_compute[gpu] - compute)),
        peak_mib=_set(row.peak_mib, gpu, max(row.peak_mib[gpu], burst)),
        users=_set(row.users, gpu, users if row.users[gpu] >= 0 else -1),
        phases=_set(row.phases, gpu, row.phases[gpu] | PHASE_BIT.get(phase, 0)),
    )


def _set(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def choose(devices: NodeGpus, row: GpuRow, request: GpuRequest, phase: str, limits: Limits) -> tuple[int, ...] | None:
    """The cards that the form's owner would give the pod, by its own rule; None where too few fit. A prediction unless
    the pod pins its cards. With `parts` the containers choose one after the other, and may have a card in common."""
    if request.parts:
        chosen: list[int] = []
        for part in request.parts:
            mine = choose(devices, row, part, phase, limits)
            if mine is None:
                return None
            row = put_all(devices, row, mine, part, phase)
            chosen += mine
        return tuple(chosen)
    able = able_gpus(devices, row, request, phase, limits)
    if len(able) < request.count:
        return None
    if request.count == 1:
        return (min(able, key=_order(row, request.picks)),)
    return tuple(sorted(able, key=_order(row, request.picks))[: request.count])


# complexity: `fits` unrolled over a row; called for each allocation on each node
def able_gpus(devices: NodeGpus, row: GpuRow, request: GpuRequest, phase: str, limits: Limits) -> list[int]:
    """The cards that `fits` says yes to. What every node of a cluster is asked for each hold, so the rules are here in
    one loop for cards of one size; a node with replicas, or a pod that pins its cards, is asked card by card."""
    count = len(devices.memory_mib)
    if is_replica(devices, request) or request.pinned:
        return [i for i in range(count) if fits(devices, row, i, request, phase, limits)]
    if not serves(devices.kind, request.form):
        return []
    others = 0 if request.isolates else sum(PHASE_BIT.values()) - PHASE_BIT.get(phase, 0) if phase in PHASE_BIT else 0
    alone = request.whole or (request.compute_milli == WHOLE_MILLI and request.form == VOLCANO_VGPU.name)
    compute = max(request.compute_milli, 0 if request.form == QGPU.name else 1)
    able, size, asked, burst, planned, peaked = [], -1, 0, 0, 0, 0
    for gpu in range(count):
        users, capacity = row.users[gpu], devices.memory_mib[gpu]
        if users < 0 or (users and alone) or row.left_compute[gpu] < compute or not devices.healthy[gpu]:
            continue
        if others & row.phases[gpu]:
            continue
        if capacity != size:
            size = capacity
            asked, burst = claim(request, phase, capacity)
            planned, peaked = capacity * limits.planned_milli // 1000, capacity * limits.peak_milli // 1000
        if asked or burst:
            held, peak = capacity - row.left_mib[gpu], max(row.peak_mib[gpu], burst)
            spare = min(planned - held, peaked - held - peak) if peak else planned - held
            if not capacity or asked > spare:
                continue
        able.append(gpu)
    return able


def _order(row: GpuRow, picks: str) -> Callable[[int], tuple[int, int]]:
    if picks == LOWEST:
        return lambda i: (0, i)
    if picks == HIGHEST:
        return lambda i: (0, -i)
    sign = -1 if picks == EMPTIEST else 1
    return lambda i: (sign * row.left_mib[i], i)


def put_all(devices: NodeGpus, row: GpuRow, chosen: Sequence[int], request: GpuRequest, phase: str) -> GpuRow:
    """`put` on the cards that were chosen, in that order."""
    each = [part for part in request.parts or (request,) for _ in range(part.count)]
    for at, gpu in enumerate(chosen):
        row = put(devices, row, gpu, each[min(at, len(each) - 1)], phase)
    return row
