"""What the room left is worth in points: the harm of every placement under one block of weights, part by part.

Nodes in the same state are looked at once. Points are integers in billionths, cut to whole thousandths of a point,
except the last step of the order, which is smaller than any real difference and makes every node's points distinct.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.placement_cost import PlacementCost, placement_cost
from scheduler.model.decision import NANO
from scheduler.model.policy import CapacityWeights, Policy, Weight
from topology.fragmentation.pod_mix import Mix
from topology.fragmentation.pod_shape import PodShape
from topology.fragmentation.remainder import WHOLE_MILLI
from topology.fragmentation.unusable import FreeCapacity

Nano = NDArray[np.int64]

QUANTUM = 1_000_000
"""A thousandth of a point, in billionths: what two nodes must differ by to differ at all."""

MOST_STATES = 8_192
"""States that are remembered for one kind of pod: half a megabyte."""

CAPACITY_PARTS = ("remainder", "fragmentation", "balance", "scarcity", "width")
"""The parts by name, each a weight of `CapacityWeights` and a loss of `PlacementCost`."""


@dataclass(frozen=True, slots=True)
class CapacityPoints:
    """Points by part, in billionths, (n,) each, in the order of the nodes asked about. `gpu_left` (n,) is what is
    left, before, on the GPU that a sharing pod is best put on (-1: none chosen). A node without room has no points."""

    parts: dict[str, Nano]
    gpu_left: Nano


def weights_for(pod: PodShape, policy: Policy) -> CapacityWeights:
    """The block for this kind of pod. One that asks for memory of cards shares them."""
    if not pod.gpus:
        return policy.without_gpu
    if pod.profile:
        return policy.instances
    return policy.sharing if pod.milli < WHOLE_MILLI else policy.whole


def capacity_points(
    capacity: FreeCapacity, pod: PodShape, mix: Mix, weights: CapacityWeights, model_gpus: Nano | None = None
) -> CapacityPoints:
    """Points of every node of `capacity` for one more `pod`; on each, of the GPU that is best for it. `model_gpus` is
    as in `placement_cost`.

    States are remembered with the mix: few nodes change between two calls, and of many pods one asks like the other.
    """
    gpus = b"" if model_gpus is None else model_gpus.tobytes()
    found = mix.retained((_States, pod, weights, capacity.models, gpus), _States).of(
        capacity.marks(), lambda first: _by_state(capacity.take(first), pod, mix, weights, model_gpus)
    )
    return CapacityPoints(dict(zip(CAPACITY_PARTS, found, strict=False)), found[-1])


class _States:
    """Points by state: marks, ascending, and a row for each part, with `gpu_left` as the last."""

    def __init__(self) -> None:
        self._known: tuple[NDArray[np.uint64], Nano] = (
            np.zeros(0, np.uint64),
            np.zeros((len(CAPACITY_PARTS) + 1, 0), np.int64),
        )

    def of(self, marks: NDArray[np.uint64], work_out: Callable[[Nano], Nano]) -> Nano:
        """Rows for nodes in these states, (parts + 1, n). `work_out` is asked about one node of every new state."""
        known, rows = self._known
        at = np.searchsorted(known, marks)
        met = at < len(known)
        met[met] = known[at[met]] == marks[met]
        if not met.all():
            new = np.flatnonzero(~met)
            fresh, first = np.unique(marks[new], return_index=True)
            if len(known) + len(fresh) > MOST_STATES:
                return self._afresh(marks, work_out)
            known, rows = np.concatenate([known, fresh]), np.concatenate([rows, work_out(new[first])], axis=1)
            order = np.argsort(known)
            self._known = known, rows = known[order], rows[:, order]
            at = np.searchsorted(known, marks)
        found: Nano = rows[:, at]
        return found

    def _afresh(self, marks: NDArray[np.uint64], work_out: Callable[[Nano], Nano]) -> Nano:
        fresh, first, same = np.unique(marks, return_index=True, return_inverse=True)
        rows = work_out(first.astype(np.int64))
        self._known = fresh, rows
        found: Nano = rows[:, same.reshape(-1)]
        return found


def _by_state(states: FreeCapacity, pod: PodShape, mix: Mix, weights: CapacityWeights, model_gpus: Nano | None) -> Nano:
    """Points by part of one node of every state, and last what is left on the card, (parts + 1, states)."""
    # Which node of a state is looked at must change no bit of a sum.
    states = replace(states, gpu_milli=np.sort(states.gpu_milli, axis=1))
    rows = placement_cost(states, pod, mix, model_gpus)
    each = max(pod.gpus, 1)
    by_row = [lost(getattr(rows, name) / each, getattr(weights, name)) for name in CAPACITY_PARTS]
    best = _best(rows, np.sum(by_row, axis=0))
    found = np.zeros((len(by_row) + 1, len(states)), dtype=np.int64)
    found[-1] = -1
    at = rows.node[best]
    for i, values in enumerate((*by_row, rows.gpu_left)):
        found[i, at] = values[best]
    return found


def cut(points: NDArray[np.float64], of: float) -> Nano:
    """Points to billionths, 0 to `of`, cut to whole thousandths of a point."""
    # The little extra keeps 0.2 of 60 points at 12.000: floating point makes it 11.999... before it is cut.
    quanta: Nano = np.floor(np.clip(points, 0.0, of) * (NANO // QUANTUM) + 1e-6).astype(np.int64)
    return quanta * QUANTUM


def order_points(place: Nano, places: int, of: float, within: NDArray[np.bool_] | None = None) -> Nano:
    """Points of the order of names, (n,), falling from `of` to near 0. Nodes that are not `within` have the last step
    alone: less than a thousandth of a point, distinct for every place."""
    whole = cut((1.0 - place / max(places, 1)) * (of - QUANTUM / NANO), of)
    if within is not None:
        whole = np.where(within, whole, 0)
    return whole + (places - place) * ((QUANTUM - 1) // max(places, 1))


def lost(gpus: NDArray[np.float64], weight: Weight) -> Nano:
    """Points of a part by what is lost, in GPUs, (n,)."""
    return cut(weight.start - weight.per_gpu * gpus, weight.of)


def _best(rows: PlacementCost, points: Nano) -> Nano:
    """The row of most points of every node; among equals the one that leaves least on the GPU."""
    order = np.lexsort((rows.gpu_left, -points, rows.node))
    first = np.ones(len(order), dtype=bool)
    first[1:] = rows.node[order][1:] != rows.node[order][:-1]
    best: Nano = order[first]
    return best
