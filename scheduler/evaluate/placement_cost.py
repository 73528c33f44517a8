"""What placing a pod does to the room that remains: every node at once, in named losses, each in GPUs.

Rules of this file. (1) A loss is the value after minus the value before; below zero the placement mends something.
(2) Where a pod shares a GPU, every GPU of a node that has room is a row of its own; else a node has one row.

`remainder`: GPU left over minus what it is worth to the mix (topology/fragmentation/remainder.py). `fragmentation`: the
FGD measure (topology/fragmentation/unusable.py). `balance`: GPUs that no CPU is left for, or CPU that no GPU is left
for, at the CPU that the mix asks for with one GPU. `scarcity`: GPUs of a model that others cannot do without. `width`:
GPUs that the host has less than a wide one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topology.fragmentation.pod_mix import Mix
from topology.fragmentation.pod_shape import PodShape
from topology.fragmentation.remainder import WHOLE_MILLI
from topology.fragmentation.unusable import FreeCapacity, by_gpu, fragmented_gpus

Gpus = NDArray[np.float64]

WIDEST_HOST = 8
"""GPUs of a wide host; narrower ones are compared with it."""


@dataclass(frozen=True, slots=True)
class PlacementCost:
    """Losses per row, in GPUs, shape (R,). `node` (R,) is the position of the row's node in the room asked about.

    `gpu_left` (R,): what is left on the shared GPU before (-1 where none is chosen).
    """

    node: NDArray[np.int64]
    gpu_left: NDArray[np.int64]
    remainder: Gpus
    fragmentation: Gpus
    balance: Gpus
    scarcity: Gpus
    width: Gpus


def placement_cost(
    capacity: FreeCapacity, pod: PodShape, mix: Mix, model_gpus: NDArray[np.int64] | None = None
) -> PlacementCost:
    """The losses of placing `pod` on every node of `capacity`; nodes whose GPUs have no room for it have no row.

    `model_gpus` (models,): how many GPUs of each model the cluster has; without it no model is scarce. CPU and memory
    are the caller's to check: a node is taken as one that fits.
    """
    found = [_on_gpus(capacity, rows, gpu_mib, pod, mix) for gpu_mib, rows in by_gpu(capacity)]
    if len(found) == 1:
        rows = found[0]
    else:
        none = np.zeros(0, dtype=np.int64)
        of: dict[str, Any] = {
            f.name: np.concatenate([none, *(getattr(h, f.name) for h in found)]) for f in fields(PlacementCost)
        }
        for name in ("node", "gpu_left"):
            of[name] = of[name].astype(np.int64)
        rows = PlacementCost(**of)
    if not pod.gpus or model_gpus is None or not len(model_gpus):
        return rows
    share = np.array([pod.share_of(int(size)) for size in capacity.gpu_mib]) if pod.gpu_mib else pod.milli
    wanted = mix.scarcity(capacity.models, model_gpus)[capacity.model] * pod.gpus * share / WHOLE_MILLI
    return replace(rows, scarcity=wanted[rows.node])


def _on_gpus(capacity: FreeCapacity, rows: NDArray[np.int64], gpu_mib: int, pod: PodShape, mix: Mix) -> PlacementCost:
    before = capacity if len(rows) == len(capacity) else capacity.take(rows)
    demand = pod.share_of(gpu_mib)
    of, after, gpu_left = _after(before, pod, demand)
    both = FreeCapacity(
        np.concatenate([before.cpu_milli, after.cpu_milli]),
        np.concatenate([before.gpu_milli, after.gpu_milli]),
        np.concatenate([before.model, after.model]),
        capacity.models,
        np.concatenate([before.gpu_mib, after.gpu_mib]),
    )
    count = len(before)
    left = np.maximum(both.gpu_milli, 0).sum(axis=1) / WHOLE_MILLI
    fragmented = fragmented_gpus(both, mix)
    devices = mix.on_gpu(gpu_mib)
    skewed = _skewed(left, both.cpu_milli, devices.cpu_per_gpu_milli)
    lost = np.zeros(len(of))
    if 0 < demand < WHOLE_MILLI and mix.pods:
        held = np.minimum(np.maximum(both.gpu_milli, 0), WHOLE_MILLI)
        waste = left - devices.worth[held].sum(axis=1)
        lost = waste[count:] - waste[:count][of]
    return PlacementCost(
        node=rows[of],
        gpu_left=gpu_left,
        remainder=lost,
        fragmentation=fragmented[count:] - fragmented[:count][of],
        balance=skewed[count:] - skewed[:count][of],
        scarcity=np.zeros(len(of)),
        width=np.maximum(WIDEST_HOST - (after.gpu_milli >= 0).sum(axis=1), 0).astype(np.float64),
    )


def _skewed(gpus: Gpus, cpu_milli: NDArray[np.int64], per_gpu: float) -> Gpus:
    """GPUs without CPU, or CPU without GPUs in GPUs; 0 while the mix asks for no CPU."""
    if per_gpu <= 0:
        return np.zeros(len(gpus))
    skewed: Gpus = np.abs(gpus - np.maximum(cpu_milli, 0) / per_gpu)
    return skewed


def _after(
    capacity: FreeCapacity, pod: PodShape, demand: int
) -> tuple[NDArray[np.int64], FreeCapacity, NDArray[np.int64]]:
    """The rows: position of the node, the room afterwards, what was left on the GPU that is shared."""
    cpu = capacity.cpu_milli - pod.cpu_milli
    if not pod.gpus:
        every = np.arange(len(capacity))
        after = FreeCapacity(cpu, capacity.gpu_milli, capacity.model, capacity.models, capacity.gpu_mib)
        return every, after, np.full(len(capacity), -1, dtype=np.int64)
    if pod.gpus == 1 and demand < WHOLE_MILLI:
        return _after_sharing(capacity, cpu, demand)
    # Several GPUs, or a whole one: the fullest that have room, the first among equals.
    fits = capacity.gpu_milli >= demand
    enough = np.flatnonzero(fits.sum(axis=1) >= pod.gpus)
    devices = np.where(fits[enough], capacity.gpu_milli[enough], np.iinfo(np.int64).max)
    taken = np.argsort(devices, axis=1, kind="stable")[:, : pod.gpus]
    left = capacity.gpu_milli[enough].copy()
    np.put_along_axis(left, taken, np.take_along_axis(left, taken, axis=1) - demand, axis=1)
    after = FreeCapacity(cpu[enough], left, capacity.model[enough], capacity.models, capacity.gpu_mib[enough])
    return enough, after, np.full(len(enough), -1, dtype=np.int64)


def _after_sharing(
    capacity: FreeCapacity, cpu: NDArray[np.int64], demand: int
) -> tuple[NDArray[np.int64], FreeCapacity, NDArray[np.int64]]:
    """One row for every different amount left on a node's GPUs that is enough."""
    devices = np.sort(capacity.gpu_milli, axis=1)
    fits = devices >= demand
    fits[:, 1:] &= devices[:, 1:] != devices[:, :-1]
    of, gpu = np.nonzero(fits)
    had = devices[of, gpu]
    left = devices[of]
    left[np.arange(len(of)), gpu] -= demand
    return of, FreeCapacity(cpu[of], left, capacity.model[of], capacity.models, capacity.gpu_mib[of]), had
