"""How GPU memory is promised to the two phases: which nodes have cards for a pod, and how much each lacks.

Decode is guaranteed: it counts with its peak. A prefill pod counts with its request, and its peak above that comes out
of head-room that all prefill peaks of a card share, since a peak is given back. Promises end where the reserve begins,
promises and peaks together at the peak limit; both shares are settings. The rule for one card is in
`topology.gpus.gpu_row`; this file says the same of thousands of nodes at once. Pure: arrays in, arrays out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.model.policy import Policy
from scheduler.model.verdict import GPU_BYTES, GPUS, Verdict, VerdictCode
from topology.gpus.forms import QGPU, VOLCANO_VGPU
from topology.gpus.gpu_request import GpuRequest
from topology.gpus.gpu_row import PHASE_BIT, WHOLE_MILLI, Limits, choose, put_all, serves
from topology.gpus.table import GpuTable
from topology.labels import PREFILL

MIB: Final = 2**20

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """A request for cards, with the phase that decides how its peak counts, and how far cards may be planned."""

    request: GpuRequest
    phase: str
    limits: Limits


def gpu_need(request: GpuRequest | None, phase: str, policy: Policy) -> GpuNeed | None:
    """What must be looked at card by card, or None where amounts say it all: plain GPUs, instances without memory."""
    if request is None or request.plain:
        return None
    if request.profiles and not (request.memory_mib or request.peak_mib):
        return None
    return GpuNeed(request, phase, limits_of(policy))


def gpu_phrase(need: GpuNeed | None) -> str:
    """What a node has none of, where no card of it will do: `GPU for KAI fraction`."""
    return f"GPU for {need.request.form}" if need is not None else "GPU"


def limits_of(policy: Policy) -> Limits:
    """The two shares of a card that plans keep to, in thousandths; peaks never reach into the reserve."""
    planned = 1000 - round(policy.memory_reserve * 1000)
    return Limits(planned_milli=planned, peak_milli=min(planned, round(policy.peak_limit * 1000)))


def usable_mib(total_mib: int, reserved_mib: int | None) -> int:
    """Memory of a card that pods can have: the total less what the driver keeps, where it says so; never negative.

    Source: nvmlDeviceGetMemoryInfo_v2, where total = used + free + reserved.
    """
    return max(0, total_mib - (reserved_mib or 0))


def plannable_phrase(total_mib: int, reserved_mib: int | None, limits: Limits) -> str:
    """Which subtractions lead to what may be promised: `13543 MiB of 16384 MiB (450 MiB kept by the driver, 15 %
    reserve)`."""
    plannable = usable_mib(total_mib, reserved_mib) * limits.planned_milli // 1000
    retained = f"{reserved_mib} MiB kept by the driver, " if reserved_mib else ""
    return f"{plannable} MiB of {total_mib} MiB ({retained}{(1000 - limits.planned_milli) / 10:g} % reserve)"


@dataclass(frozen=True, slots=True)
class GpuFit:
    """A request against the nodes asked. `able` (n, G): the card can take one GPU's worth. `free` (n, G): it could, but
    for memory. `need_mib` and `capacity_mib` (n, G): what the pod needs there and what may still be promised to it;
    `most_mib` (n, G): what could be promised on an empty card."""

    able: Mask
    free: Mask
    need_mib: Ints
    capacity_mib: Ints
    most_mib: Ints
    count: int
    none: Mask
    """Nodes without a card that is given out in the pod's form, (n,): waiting does not help there."""
    together: Mask | None = None
    """Nodes whose cards take all containers of the pod at once, (n,), where several ask; the rest is then about the one
    that asks for most."""

    @property
    def fits(self) -> Mask:
        """Nodes with enough cards, (n,)."""
        enough: Mask = self.able.sum(axis=1) >= self.count
        return enough if self.together is None else enough & self.together

    @property
    def but_for_memory(self) -> Mask:
        """Nodes with enough cards, whatever memory these have, (n,)."""
        enough: Mask = self.free.sum(axis=1) >= self.count
        return enough

    def best(self) -> tuple[Ints, Ints]:
        """(need, room) in MiB of the card that is in the way, (n,): with the `count` best cards of a node the last."""
        rows = np.arange(len(self.able))
        if self.able.shape[1] < self.count:
            return np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        gap = np.where(self.free, self.need_mib - self.capacity_mib, np.iinfo(np.int64).max)
        last = np.argsort(gap, axis=1, kind="stable")[:, self.count - 1]
        return self.need_mib[rows, last], np.maximum(self.capacity_mib[rows, last], 0)


def gpu_fit(gpus: GpuTable, need: GpuNeed, nodes: Ints | None = None) -> GpuFit:
    """Judge nodes (all by default) card by card for one request."""
    at = np.arange(len(gpus.model)) if nodes is None else nodes
    request, limits = need.request, need.limits
    if request.profiles:
        return _instances(gpus, need, at)
    if request.parts:
        return _of_containers(gpus, need, at)
    # `take` gathers rows twice as fast as an index does, and this is asked for every pod.
    capacity, users = gpus.memory_mib.take(at, axis=0), gpus.users.take(at, axis=0)
    compute, planned = gpus.left_compute.take(at, axis=0), gpus.static.share_mib(limits.planned_milli).take(at, axis=0)
    none = (gpus.static.count[at] == 0) | ~_serving(gpus, request.form, at)
    free = (users >= 0) & ~none[:, None]
    parts = np.ones(len(at), dtype=np.int64)
    if request.whole:
        replicas = gpus.static.replicas[at]
        replica = (replicas > 1) & ~gpus.static.listed[at]
        parts = np.where(replica, replicas, 1)
        free &= replica[:, None] | (users == 0)
        free &= compute >= np.where(replica, WHOLE_MILLI // np.maximum(replicas, 1), 0)[:, None]
        least = np.where(replica, 0, max(request.compute_milli, int(request.form != QGPU.name)))[:, None]
        free &= compute >= least
    else:
        free &= compute >= max(request.compute_milli, int(request.form != QGPU.name))
    if request.compute_milli == WHOLE_MILLI and request.form == VOLCANO_VGPU.name:
        free &= users == 0
    asked, burst = _claims(need, capacity, parts)
    held = capacity - gpus.left_mib.take(at, axis=0)
    spare, peak = planned - held, gpus.prefill_peak_mib.take(at, axis=0)
    if burst.any() or peak.any():
        peak = np.maximum(peak, burst)
        most_at_peak = gpus.static.share_mib(limits.peak_milli)[at]
        spare = np.where(peak > 0, np.minimum(spare, most_at_peak - held - peak), spare)
    if not request.isolates and (bit := PHASE_BIT.get(need.phase, 0)):
        free &= (gpus.phases[at] & ~bit) == 0
    if request.pinned:
        free &= _pinned(gpus, request.pinned, at)
    known = capacity > 0
    enough = ((asked <= spare) & known) | ((asked == 0) & (burst == 0))
    most = gpus.static.share_mib(limits.peak_milli)[at] if need.phase == PREFILL and request.peak_mib else planned
    # Also where nobody tells the memory of a free card: it is there, and what it holds is what is not known.
    return GpuFit(free & enough, free, asked, spare, most - burst, request.count, none)


def _of_containers(gpus: GpuTable, need: GpuNeed, at: Ints) -> GpuFit:
    """Each container alone for all nodes at once; where each fits, all of them card by card."""
    parts = need.request.parts
    fits = [gpu_fit(gpus, replace(need, request=part), at) for part in parts]
    most = max(range(len(parts)), key=lambda i: (parts[i].whole, parts[i].memory_mib, parts[i].memory_milli))
    alone = np.logical_and.reduce([fit.fits for fit in fits])
    together = alone.copy()
    for i in np.flatnonzero(alone).tolist():
        together[i] = _pods_on(gpus, need, int(at[i]), 1) > 0
    # Where each fits by itself they lack room for all of their memory at once.
    all_mib = np.sum([fit.need_mib for fit in fits], axis=0)
    need_mib = np.where((alone & ~together)[:, None], all_mib, fits[most].need_mib)
    return replace(fits[most], need_mib=need_mib, together=together)


def _pods_on(gpus: GpuTable, need: GpuNeed, node: int, most: int) -> int:
    """How many pods the cards of one node take, placed one after the other, at most so many."""
    devices, row = gpus.static.devices[node], gpus.row(node)
    for placed in range(most):
        chosen = choose(devices, row, need.request, need.phase, need.limits)
        if chosen is None:
            return placed
        row = put_all(devices, row, chosen, need.request, need.phase)
    return most


def _serving(gpus: GpuTable, form: str, at: Ints) -> Mask:
    answers = np.array([serves(kind, form) for kind in gpus.static.kinds], dtype=bool)
    serving: Mask = answers[gpus.static.kind[at]]
    return serving


def _claims(need: GpuNeed, capacity: Ints, replicas: Ints) -> tuple[Ints, Ints]:
    """(guaranteed, burst above it) of each card, MiB: the same as `topology.gpus.gpu_row.claim`."""
    request = need.request
    nothing = np.broadcast_to(np.int64(0), capacity.shape)
    asked = np.broadcast_to(np.int64(request.memory_mib), capacity.shape)
    if request.memory_milli and not request.memory_mib:
        asked = -(-capacity * request.memory_milli // 1000)
    parts = replicas[:, None]
    if not request.memory_mib and (replicas > 1).any():
        asked = np.where((parts > 1) & (asked == 0), capacity // parts, asked)
    if need.phase == PREFILL:
        return asked, np.maximum(request.peak_mib - asked, 0) if request.peak_mib else nothing
    return np.maximum(asked, request.peak_mib) if request.peak_mib else asked, nothing


def _pinned(gpus: GpuTable, pinned: tuple[str, ...], at: Ints) -> Mask:
    mask = np.zeros((len(at), gpus.static.width), dtype=bool)
    for row, node in enumerate(at.tolist()):
        for gpu, uuid in enumerate(gpus.static.devices[node].uuids):
            mask[row, gpu] = uuid in pinned
    return mask


def _instances(gpus: GpuTable, need: GpuNeed, at: Ints) -> GpuFit:
    """MIG instances are cards of their own: the memory a pod names must fit into each, reserve left out. How many are
    free is a matter of amounts, so one column a node says it all."""
    request = need.request
    wanted = max(request.memory_mib, request.peak_mib)
    spare = np.zeros((len(at), 1), dtype=np.int64)
    for row, node in enumerate(at.tolist()):
        offered = dict(gpus.static.devices[node].instances)
        each = [offered.get(name, 0) for name, _ in request.profiles]
        spare[row, 0] = min(each) * need.limits.planned_milli // 1000
    asked = np.full_like(spare, wanted)
    free = spare > 0
    return GpuFit(free & (asked <= spare), free, asked, spare, spare, 1, spare[:, 0] == 0)


def gpu_slots(gpus: GpuTable, need: GpuNeed, nodes: Ints | None = None) -> Ints:
    """How many pods of this need the cards of each node can take, (n,); a thousand where cards set no limit."""
    at = np.arange(len(gpus.model)) if nodes is None else nodes
    fit, request = gpu_fit(gpus, need, at), need.request
    if request.profiles:
        return np.where(fit.fits, 1000, 0).astype(np.int64)
    if request.parts:
        fitting = zip(at.tolist(), fit.fits.tolist(), strict=True)
        return np.array([_pods_on(gpus, need, node, 1000) if fits else 0 for node, fits in fitting], dtype=np.int64)
    each = fit.able.astype(np.int64)
    replicas = gpus.static.replicas[at]
    replica = request.whole & (replicas > 1) & ~gpus.static.listed[at]
    if not request.whole or replica.any():
        many = np.where(fit.need_mib > 0, np.maximum(fit.capacity_mib, 0) // np.maximum(fit.need_mib, 1), 1000)
        if request.whole:
            parts = WHOLE_MILLI // np.maximum(replicas, 1)
            many = np.where(replica[:, None], np.minimum(many, gpus.left_compute[at] // parts[:, None]), 1)
        elif request.compute_milli:
            many = np.minimum(many, gpus.left_compute[at] // request.compute_milli)
        each *= np.minimum(many, 1000)
    if request.count == 1:
        slots: Ints = each.sum(axis=1)
        return slots
    # Each pod needs `count` different cards: k pods fit if the cards give k x count parts, at most k from one card.
    slots = np.zeros(len(at), dtype=np.int64)
    for pods in range(1, int(each.sum(axis=1).max(initial=0)) // request.count + 1):
        slots[np.minimum(each, pods).sum(axis=1) >= pods * request.count] = pods
    return slots


def short_of_gpus(names: Sequence[str], nodes: Ints, fit: GpuFit, within: Mask, code: VerdictCode, at: Ints) -> Verdict:
    """The nearest miss among the positions `at`, whose cards will not do: within reach first, then the smallest gap,
    then by name. In bytes of GPU memory where that alone is short, else in cards."""
    if code is VerdictCode.INSUFFICIENT_MEMORY:
        need, spare = fit.best()
        need, spare, unit = need[at] * MIB, spare[at] * MIB, GPU_BYTES
        could = within[at] & (fit.free[at] & (fit.need_mib[at] <= fit.most_mib[at])).any(axis=1)
    else:
        need, unit = np.full(len(at), fit.count, dtype=np.int64), GPUS
        spare = fit.able[at].sum(axis=1)
        could = within[at] & (fit.able.shape[1] >= fit.count)
    best = int(np.lexsort((nodes[at], need - spare, ~within[at], ~could))[0])
    return Verdict(
        code, names[nodes[at][best]], float(need[best]), float(spare[best]), unit, suffices=bool(could[best])
    )
