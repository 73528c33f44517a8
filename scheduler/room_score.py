"""What the room left is worth in points: the harm of every placement under one block of weights, part by part.

Nodes in the same state are looked at once. Points are integers in billionths, cut to whole thousandths of a point,
except the last step of the order, which is smaller than any real difference and makes every node's points distinct.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.decision import NANO
from scheduler.harm import Harm, harm
from scheduler.policy import Packing, Policy, RoomWeights, Weight
from topology.fragmentation import Room
from topology.pod_mix import Mix
from topology.pod_shape import PodShape
from topology.remainder import WHOLE_MILLI

Nano = NDArray[np.int64]

QUANTUM = 1_000_000
"""A thousandth of a point, in billionths: what two nodes must differ by to differ at all."""

WIDEST_HOST = 8
"""GPUs of a wide host; narrower ones are compared with it."""


LOSSES = ("remainder", "fragmentation", "balance", "scarcity")
ROOM_PARTS = (*LOSSES, "packing")
"""The parts by name, each a weight of `RoomWeights`."""


@dataclass(frozen=True, slots=True)
class RoomPoints:
    """Points by part, in billionths, (n,) each, in the order of the nodes asked about. `card_left` (n,) is what is
    left, before, on the GPU that a sharing pod is best put on (-1: none chosen). A node without room has no points."""

    parts: dict[str, Nano]
    card_left: Nano


def weights_for(pod: PodShape, policy: Policy) -> RoomWeights:
    """The block for this kind of pod. One that asks for memory of cards shares them."""
    if not pod.gpus:
        return policy.without_gpu
    if pod.profile:
        return policy.instances
    return policy.sharing if pod.milli < WHOLE_MILLI else policy.whole


def room_points(
    room: Room, pod: PodShape, mix: Mix, weights: RoomWeights, model_gpus: Nano | None = None
) -> RoomPoints:
    """Points of every node of `room` for one more `pod`; on each, of the GPU that is best for it. `model_gpus` is as in
    `harm`."""
    first, same = room.states()
    states = room.take(first)
    rows = harm(states, pod, mix, model_gpus)
    each = max(pod.gpus, 1)
    by_row = {name: lost(getattr(rows, name) / each, getattr(weights, name)) for name in LOSSES}
    by_row["packing"] = _packed(rows, states, pod, weights.packing)
    best = _best(rows, np.sum(list(by_row.values()), axis=0))
    at = rows.node[best]
    parts = {name: _spread(points[best], at, len(first), 0)[same] for name, points in by_row.items()}
    return RoomPoints(parts, _spread(rows.card_left[best], at, len(first), -1)[same])


def _spread(values: Nano, at: Nano, count: int, other: int) -> Nano:
    found = np.full(count, other, dtype=np.int64)
    found[at] = values
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


def _packed(rows: Harm, room: Room, pod: PodShape, packing: Packing) -> Nano:
    lost = packing.per_gpu * rows.gpus_left
    cores = rows.cores_left if not pod.gpus else np.where(rows.gpus_left > 0, rows.cores_left, 0.0)
    lost += packing.per_core * np.maximum(cores, 0.0)
    if packing.per_gpu_less:
        less = np.maximum(WIDEST_HOST - (room.gpu_milli >= 0).sum(axis=1), 0)
        lost += packing.per_gpu_less * less[rows.node]
    return cut(packing.of - lost, packing.of)


def _best(rows: Harm, points: Nano) -> Nano:
    """The row of most points of every node; among equals the one that leaves least on the GPU."""
    order = np.lexsort((rows.card_left, -points, rows.node))
    first = np.ones(len(order), dtype=bool)
    first[1:] = rows.node[order][1:] != rows.node[order][:-1]
    best: Nano = order[first]
    return best
