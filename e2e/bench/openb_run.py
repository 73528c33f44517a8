"""One run over the openb trace: one pod at a time, nothing refused that fits, nothing ever leaves.

The two scorers see the same cluster, the same arrivals and the same order of names. FGD is given the mix of the whole
list beforehand, as its authors do; ours learns it from the pods that have arrived.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from e2e.bench.openb_trace import Nodes, PodKind
from scheduler.evaluate.capacity_score import capacity_points, order_points, weights_for
from scheduler.model.policy import Policy
from topology.fragmentation.pod_mix import Mix, PodMix
from topology.fragmentation.pod_shape import PodShape
from topology.fragmentation.remainder import WHOLE_MILLI
from topology.fragmentation.unusable import FreeCapacity, fragmented_gpus

Ints = NDArray[np.int64]
NO_PLACE: Final = -1


class Scorer(Protocol):
    """Judges nodes for a pod: the highest score wins, the first name among equals."""

    def seen(self, shape: PodShape) -> None:
        """A pod of this shape has arrived."""

    def version(self) -> object:
        """Scores of unchanged nodes hold while this is the same object."""

    def scores(self, capacity: FreeCapacity, shape: PodShape, place: Ints) -> tuple[Ints, Ints]:
        """Score of every node (n,), and what is left on the GPU to share (-1: none)."""


@dataclass(slots=True)
class Ours:
    """The product's own scorer with the weights that ship."""

    model_gpus: Ints
    places: int
    policy: Policy
    mix: PodMix

    def seen(self, shape: PodShape) -> None:
        self.mix.add(shape)

    def version(self) -> object:
        return self.mix.current()

    def scores(self, capacity: FreeCapacity, shape: PodShape, place: Ints) -> tuple[Ints, Ints]:
        weights = weights_for(shape, self.policy)
        points = capacity_points(capacity, shape, self.mix.current(), weights, self.model_gpus)
        total = np.sum(list(points.parts.values()), axis=0) + order_points(place, self.places, weights.order)
        return total, points.gpu_left


@dataclass(frozen=True, slots=True)
class Fgd:
    """Fragmentation gradient descent as published: 0 to 100 by the sigmoid of what F falls by, cut to whole numbers."""

    mix: Mix

    def seen(self, shape: PodShape) -> None:
        """Knows the mix already."""

    def version(self) -> object:
        return self.mix

    def scores(self, capacity: FreeCapacity, shape: PodShape, place: Ints) -> tuple[Ints, Ints]:
        before = fragmented_gpus(capacity, self.mix)
        cpu = capacity.cpu_milli - shape.cpu_milli
        best, gpu_left = np.full(len(capacity), -1, dtype=np.int64), np.full(len(capacity), -1, dtype=np.int64)
        shared = shape.gpus == 1 and shape.milli < WHOLE_MILLI
        for gpu in range(capacity.gpu_milli.shape[1] if shared else 1):
            if shared:
                left = capacity.gpu_milli.copy()
                fits = left[:, gpu] >= shape.milli
                left[:, gpu] -= shape.milli
            else:
                fits, left = np.ones(len(capacity), dtype=bool), _first_free_taken(capacity.gpu_milli, shape.gpus)
            rows = np.flatnonzero(fits)
            if not len(rows):
                continue
            after = FreeCapacity(cpu[rows], left[rows], capacity.model[rows], capacity.models, capacity.gpu_mib[rows])
            fell = before[rows] - fragmented_gpus(after, self.mix)
            score = np.floor(100.0 / (1.0 + np.exp(-fell))).astype(np.int64)
            better = rows[score > best[rows]]
            best[rows] = np.maximum(best[rows], score)
            if shared:
                gpu_left[better] = capacity.gpu_milli[better, gpu]
        return best, gpu_left


def _first_free_taken(gpu_milli: Ints, gpus: int) -> Ints:
    free = gpu_milli >= WHOLE_MILLI
    taken = free & (np.cumsum(free, axis=1) <= gpus)
    return np.where(taken, gpu_milli - WHOLE_MILLI, gpu_milli)


@dataclass(frozen=True, slots=True)
class Curve:
    """After every arrival: GPU arrived and allocated in milli, and fragmented in GPUs by the list's own mix; where the
    pod went (-1: nowhere) and on which GPU (-1: none, or several)."""

    arrived_milli: Ints
    allocated_milli: Ints
    fragmented_gpus: NDArray[np.float64]
    node: Ints
    gpu: Ints
    capacity_milli: int

    def by_percent(self, values: NDArray[np.float64]) -> Mapping[int, float]:
        """The mean of `values`, in GPUs, as percent of the cluster over arrivals of the same whole percent."""
        percent = np.rint(self.arrived_milli * 100 / self.capacity_milli).astype(np.int64)
        sums, counts = np.bincount(percent, weights=values), np.bincount(percent)
        share = sums / np.maximum(counts, 1) * WHOLE_MILLI * 100 / self.capacity_milli
        return {at: float(share[at]) for at in np.flatnonzero(counts).tolist()}

    def allocated_percent(self) -> Mapping[int, float]:
        """Allocated by arrived, both in percent of the cluster."""
        return self.by_percent(self.allocated_milli / WHOLE_MILLI)

    def fragmented_percent(self) -> Mapping[int, float]:
        """Fragmented by arrived, both in percent of the cluster."""
        return self.by_percent(self.fragmented_gpus)


class _Kept:
    """Scores of one kind of pod, and how far in the log of changed nodes they are true."""

    def __init__(self, nodes: int) -> None:
        self.scores = np.full(nodes, NO_PLACE, dtype=np.int64)
        self.gpu_left = np.full(nodes, -1, dtype=np.int64)
        self.log_at = 0
        self.version: object = None


class Cluster:
    """What is left on every node, and the scores that are still true."""

    def __init__(self, nodes: Nodes, scorer: Scorer) -> None:
        widest = int(nodes.gpus.max())
        self.nodes, self.scorer = nodes, scorer
        self.cpu, self.memory = nodes.cpu_milli.copy(), nodes.memory_mib.copy()
        self.gpu = np.where(np.arange(widest) < nodes.gpus[:, None], WHOLE_MILLI, -1).astype(np.int64)
        self._no_card = np.zeros(len(nodes.names), dtype=np.int64)
        self._log: list[int] = []
        self._cached: dict[PodKind, _Kept] = {}
        self._accepts: dict[tuple[str, ...], NDArray[np.bool_]] = {}

    def capacity(self, rows: Ints) -> FreeCapacity:
        """What is left on some nodes."""
        nodes = self.nodes
        return FreeCapacity(self.cpu[rows], self.gpu[rows], nodes.model[rows], nodes.models, self._no_card[rows])

    def place(self, kind: PodKind) -> tuple[int, int]:
        """Put one pod where it scores highest; (node, GPU), -1 for nowhere and for none or several."""
        self.scorer.seen(kind.shape)
        retained = self._scored(kind)
        node = int(np.argmax(retained.scores))
        if retained.scores[node] == NO_PLACE:
            return NO_PLACE, NO_PLACE
        shape, gpu = kind.shape, -1
        self.cpu[node] -= shape.cpu_milli
        self.memory[node] -= kind.memory_mib
        if retained.gpu_left[node] >= 0:
            gpu = int(np.flatnonzero(self.gpu[node] == retained.gpu_left[node])[0])
            self.gpu[node, gpu] -= shape.milli
        elif shape.gpus:
            taken = np.flatnonzero(self.gpu[node] >= WHOLE_MILLI)[: shape.gpus]
            self.gpu[node, taken] -= WHOLE_MILLI
            gpu = int(taken[0]) if shape.gpus == 1 else -1
        self._log.append(node)
        return node, gpu

    def _scored(self, kind: PodKind) -> _Kept:
        retained = self._cached.get(kind)
        if retained is None:
            retained = self._cached[kind] = _Kept(len(self.cpu))
        version = self.scorer.version()
        if retained.version is not version:
            rows = np.arange(len(self.cpu))
        else:
            rows = np.unique(np.array(self._log[retained.log_at :], dtype=np.int64))
        retained.version, retained.log_at = version, len(self._log)
        if len(rows):
            retained.scores[rows] = NO_PLACE
            rows = rows[self._fits(kind, rows)]
        if len(rows):
            retained.scores[rows], retained.gpu_left[rows] = self.scorer.scores(self.capacity(rows), kind.shape, rows)
        return retained

    def _fits(self, kind: PodKind, rows: Ints) -> NDArray[np.bool_]:
        shape = kind.shape
        fits: NDArray[np.bool_] = (self.cpu[rows] >= shape.cpu_milli) & (self.memory[rows] >= kind.memory_mib)
        if shape.gpus:
            fits &= (self.gpu[rows] >= shape.milli).sum(axis=1) >= shape.gpus
        if shape.models:
            if shape.models not in self._accepts:
                accepted = np.array([m in shape.models for m in self.nodes.models])
                self._accepts[shape.models] = accepted[self.nodes.model]
            fits &= self._accepts[shape.models][rows]
        return fits


def run(nodes: Nodes, arrivals: Sequence[tuple[str, PodKind]], scorer: Scorer, measure: Mix) -> Curve:
    """Let the pods arrive one by one. `measure` is the mix that fragmentation is measured against."""
    cluster = Cluster(nodes, scorer)
    every = np.arange(len(nodes.names))
    before = fragmented_gpus(cluster.capacity(every), measure)
    count = len(arrivals)
    node, gpu, cpu = (np.full(count, NO_PLACE, dtype=np.int64) for _ in range(3))
    left = np.zeros((count, cluster.gpu.shape[1]), dtype=np.int64)
    for at, (_, kind) in enumerate(arrivals):
        node[at], gpu[at] = cluster.place(kind)
        if node[at] != NO_PLACE:
            cpu[at], left[at] = cluster.cpu[node[at]], cluster.gpu[node[at]]
    asked = np.array([kind.gpu_milli for _, kind in arrivals], dtype=np.int64)
    placed = np.flatnonzero(node != NO_PLACE)
    states = FreeCapacity(cpu[placed], left[placed], nodes.model[node[placed]], nodes.models, np.zeros_like(placed))
    after = fragmented_gpus(states, measure)
    change = np.zeros(count)
    now = before.copy()
    for at, value in zip(placed.tolist(), after.tolist(), strict=True):
        change[at] = value - now[node[at]]
        now[node[at]] = value
    return Curve(
        arrived_milli=np.cumsum(asked),
        allocated_milli=np.cumsum(np.where(node != NO_PLACE, asked, 0)),
        fragmented_gpus=float(before.sum()) + np.cumsum(change),
        node=node,
        gpu=gpu,
        capacity_milli=nodes.capacity_milli,
    )


def scorer_for(name: str, nodes: Nodes, known: Mix, policy: Policy | None = None) -> Scorer:
    """`fgd`, with the mix known, or `isochrone`, with nothing known."""
    if name == "fgd":
        return Fgd(known)
    gpus = np.bincount(nodes.model, weights=nodes.gpus, minlength=len(nodes.models)).astype(np.int64)
    return Ours(gpus, len(nodes.names), policy or Policy(), PodMix())
