"""The mix of pods that a cluster is asked to run, learned as they are seen: what the room left must be good for.

Rules of this file. (1) Every live pod with GPUs counts, placed or waiting; one that goes is taken out again. (2) The
mix handed out is frozen and the same object until a fifth of the pods has changed, so what is computed from it can be
kept. (3) Typical pods are those of Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent" (USENIX ATC 2023): the most frequent shapes that together make up 95 %, ties by larger
resources.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topology.fragmentation.pod_shape import PodShape
from topology.fragmentation.remainder import WHOLE_MILLI, remainder_worth

TYPICAL_PERCENT = 95
"""Share of the pods that the typical shapes cover (the same source)."""

MOST_SHAPES = 1024
"""Different shapes that are counted; a further one is learned when another is gone."""

REFRESH_PERCENT = 20
"""The mix is measured anew when this share of its pods came or went: a stale mix costs less than measuring at each."""

_MOST_GPUS = 64
_MOST_CACHED = 16


class GpuMix:
    """A mix against cards of one memory size: asks as shares of such a card. Arrays over the typical GPU shapes (M,),
    ascending by ask, and over their distinct asks (A,)."""

    def __init__(self, shapes: Sequence[PodShape], counts: NDArray[np.int64], typical: int, gpu_mib: int) -> None:
        requests = np.array([s.share_of(gpu_mib) for s in shapes], dtype=np.int64)
        gpus = np.array([s.gpus for s in shapes], dtype=np.int64)
        cpu = np.array([s.cpu_milli for s in shapes], dtype=np.int64)
        self.total = int(counts[:typical].sum())
        """Typical pods of all kinds; those without a GPU count too."""
        on_gpu = np.flatnonzero(gpus[:typical] > 0)
        on_gpu = on_gpu[np.argsort(requests[on_gpu], kind="stable")]
        self.places = on_gpu
        """Indices of these shapes in the mix."""
        self.cpu_milli, self.gpus, self.counts = cpu[on_gpu], gpus[on_gpu], counts[on_gpu]
        self.requests, self.starts = np.unique(requests[on_gpu], return_index=True)
        self.ask_of = np.searchsorted(self.requests, requests[on_gpu])
        demand = float((counts * gpus * np.minimum(requests, WHOLE_MILLI)).sum()) / WHOLE_MILLI
        self.cpu_per_gpu_milli = float((counts * cpu)[gpus > 0].sum()) / demand if demand else 0.0
        """CPU that the mix asks for with one GPU; 0 without GPU pods."""
        self._sizes: dict[int, int] = {}
        for at in np.flatnonzero((gpus > 0) & (requests < WHOLE_MILLI)).tolist():
            self._sizes[int(requests[at])] = self._sizes.get(int(requests[at]), 0) + int(counts[at] * gpus[at])
        self._worth: NDArray[np.float64] | None = None

    @property
    def worth(self) -> NDArray[np.float64]:
        """What 0 to 1000 milli left are worth, in GPUs, shape (1001,). Solved once, when first asked for."""
        if self._worth is None:
            self._worth = remainder_worth(self._sizes)
            self._worth.setflags(write=False)
        return self._worth


def _rank(counted: tuple[PodShape, int]) -> tuple[int, int, int, int, int, tuple[str, ...], str]:
    shape, count = counted
    return -count, -shape.cpu_milli, -shape.milli, -shape.gpu_mib, -shape.gpus, shape.models, shape.profile


class Mix:
    """A mix as it was measured. Frozen but for what is computed from it and kept."""

    def __init__(self, counted: Iterable[tuple[PodShape, int]] = ()) -> None:
        ordered = sorted(((s, c) for s, c in counted if c > 0), key=_rank)
        self.shapes: tuple[PodShape, ...] = tuple(s for s, _ in ordered)
        """All shapes, the most frequent first, ties by larger resources."""
        self.counts = np.array([c for _, c in ordered], dtype=np.int64)
        self.profiles: dict[str, float] = {}
        """MIG instances that its pods ask for, by profile."""
        for shape, count in ordered:
            if shape.profile:
                self.profiles[shape.profile] = self.profiles.get(shape.profile, 0.0) + count * shape.gpus
        self.pods = int(self.counts.sum())
        reached = np.cumsum(self.counts) * 100 >= TYPICAL_PERCENT * self.pods
        self.typical = int(np.argmax(reached)) + 1 if self.pods else 0
        """How many of them, from the front, are typical."""
        self._devices: dict[int, GpuMix] = {}
        self._allowed: dict[tuple[str, ...], NDArray[np.bool_] | None] = {}
        self._scarcity: dict[tuple[object, ...], NDArray[np.float64]] = {}
        self._cached: dict[Hashable, Any] = {}

    def retained(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What somebody works out from this mix bit by bit, one a key: made when first asked for, gone with the mix."""
        found = self._cached.get(key)
        if found is None:
            if len(self._cached) >= _MOST_CACHED:
                self._cached.clear()
            found = self._cached[key] = make()
        return found

    def on_gpu(self, gpu_mib: int) -> GpuMix:
        """The mix against cards with so much memory, 0 for unknown."""
        found = self._devices.get(gpu_mib)
        if found is None:
            if len(self._devices) >= _MOST_GPUS:
                self._devices.clear()
            found = self._devices[gpu_mib] = GpuMix(self.shapes, self.counts, self.typical, gpu_mib)
        return found

    def allowed(self, models: tuple[str, ...]) -> NDArray[np.bool_] | None:
        """Which typical shape accepts which model, (typical, models); None if every shape accepts every model."""
        if models not in self._allowed:
            if len(self._allowed) >= _MOST_GPUS:
                self._allowed.clear()
            shapes = self.shapes[: self.typical]
            table = np.array([[not s.models or m in s.models for m in models] for s in shapes], dtype=bool)
            self._allowed[models] = None if table.all() else table
        return self._allowed[models]

    def scarcity(self, models: tuple[str, ...], gpus: NDArray[np.int64]) -> NDArray[np.float64]:
        """How wanted each model is, shape (models,): demand of pods that cannot take every model, over what the cluster
        has of it; 1 is as much as the average GPU is wanted. `gpus` (models,): cards of each.

        A pod's demand is spread over its models as the cluster has them.
        """
        key = (models, gpus.tobytes())
        if key not in self._scarcity:
            if len(self._scarcity) >= _MOST_GPUS:
                self._scarcity.clear()
            self._scarcity[key] = self._wanted(models, gpus)
        return self._scarcity[key]

    def _wanted(self, models: tuple[str, ...], gpus: NDArray[np.int64]) -> NDArray[np.float64]:
        wanted, everything = np.zeros(len(models)), 0.0
        masks: dict[tuple[str, ...], NDArray[np.float64]] = {}
        for shape, count in zip(self.shapes, self.counts.tolist(), strict=True):
            demand = count * shape.gpus * min(shape.milli or WHOLE_MILLI, WHOLE_MILLI) / WHOLE_MILLI
            everything += demand
            if shape.models and demand:
                if shape.models not in masks:
                    has = np.array([m in shape.models for m in models]) * gpus
                    masks[shape.models] = has / max(float(has.sum()), 1.0)
                wanted += demand * masks[shape.models]
        have = np.maximum(gpus, 1)
        scarce: NDArray[np.float64] = wanted / have * float(gpus.sum()) / max(everything, 1e-9)
        return scarce


NO_MIX = Mix()
"""Of a cluster that no pod was seen in: nothing is fragmented, every remainder is worth nothing."""


class PodMix:
    """Counts of pods by shape, and the mix measured from them."""

    def __init__(self) -> None:
        self._counts: dict[PodShape, int] = {}
        self._changes = 0
        self._pods = 0
        self._mix = NO_MIX

    def add(self, shape: PodShape) -> None:
        """A pod came. One that asks for no GPU uses none of what is left of them, here or there: it is not counted."""
        if shape.gpus and (shape in self._counts or len(self._counts) < MOST_SHAPES):
            self._counts[shape] = self._counts.get(shape, 0) + 1
            self._pods += 1
            self._changes += 1

    def remove(self, shape: PodShape) -> None:
        """A pod went; one whose shape was not learned is no error."""
        count = self._counts.get(shape, 0)
        if not count:
            return
        if count == 1:
            del self._counts[shape]
        else:
            self._counts[shape] = count - 1
        self._pods -= 1
        self._changes += 1

    def current(self) -> Mix:
        """The mix: measured anew if enough changed, else the same object as before."""
        if self._changes and self._changes * 100 >= REFRESH_PERCENT * self._mix.pods:
            self._mix = Mix(self._counts.items())
            self._changes = 0
        return self._mix
