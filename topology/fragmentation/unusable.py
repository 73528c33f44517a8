"""Free GPU that the mix of pods cannot use: the FGD measure, for many nodes at once.

For a node and a typical pod: all that is left on its GPUs counts if the pod cannot run there (too few GPUs with enough
left, too little CPU, a model it does not accept, or a pod without GPUs, which uses none of it); else what is left on
GPUs smaller than its ask. Weighted by how frequent the pod is, summed. Source: Weng et al., "Beware of Fragmentation:
Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023, section 4, and the authors'
simulator (hkust-adsl/kubernetes-scheduler-simulator, pkg/utils/frag.go). Where cards are shared by memory, the binding
share of each card takes the place of the milli.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topology.fragmentation.pod_mix import GpuMix, Mix
from topology.fragmentation.remainder import WHOLE_MILLI


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """What is left on N nodes of up to G GPUs.

    `gpu_milli` (N, G): the binding share left of every GPU, -1 without one. `model` (N,) counts into `models`.
    `gpu_mib` (N,) is the memory of one card, 0 where unknown.
    """

    cpu_milli: NDArray[np.int64]
    gpu_milli: NDArray[np.int64]
    model: NDArray[np.int64]
    models: tuple[str, ...]
    gpu_mib: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.cpu_milli)

    def take(self, rows: NDArray[np.int64]) -> FreeCapacity:
        """Some of the nodes, in the order of `rows`; a node may come twice."""
        return FreeCapacity(
            self.cpu_milli[rows], self.gpu_milli[rows], self.model[rows], self.models, self.gpu_mib[rows]
        )

    def states(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """One node of every state, (S,), and the state of every node, (N,)."""
        _, first, same = np.unique(self.marks(), return_index=True, return_inverse=True)
        return first.astype(np.int64), same.reshape(-1).astype(np.int64)

    def marks(self) -> NDArray[np.uint64]:
        """The state of every node as a number, (N,). Nodes in one state are alike to any pod; which card has what left
        does not matter, `models` are not part of it.

        States are told apart by 64 bits: among 5,000 nodes two different ones share a number once in 10^12 calls.
        """
        mixed = _GPU_BITS[np.minimum(self.gpu_milli, WHOLE_MILLI) + 1].sum(axis=1, dtype=np.uint64)
        for column in (self.cpu_milli, self.model, self.gpu_mib):
            mixed = _stirred(mixed ^ column.astype(np.uint64))
        marks: NDArray[np.uint64] = mixed
        return marks


def _stirred(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of a number spread over all 64 (splitmix64: Steele, Lea and Flood, OOPSLA 2014)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    stirred: NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return stirred


_GPU_BITS = _stirred(np.arange(WHOLE_MILLI + 2, dtype=np.uint64))
"""Bits for a card with -1 (none) to 1000 milli left."""


def fragmented_gpus(capacity: FreeCapacity, mix: Mix) -> NDArray[np.float64]:
    """The FGD measure of every node, in GPUs, shape (N,): 0 with nothing left or no pod in the mix."""
    found = np.zeros(len(capacity))
    for gpu_mib, rows in by_gpu(capacity):
        some = capacity if len(rows) == len(capacity) else capacity.take(rows)
        found[rows] = _on_gpus(some, mix.on_gpu(gpu_mib), mix.allowed(capacity.models))
    return found


def by_gpu(capacity: FreeCapacity) -> list[tuple[int, NDArray[np.int64]]]:
    """Nodes by the memory of their cards: (MiB, indices)."""
    if not len(capacity):
        return []
    first = int(capacity.gpu_mib[0])
    if (capacity.gpu_mib == first).all():
        return [(first, np.arange(len(capacity)))]
    return [(int(size), np.flatnonzero(capacity.gpu_mib == size)) for size in np.unique(capacity.gpu_mib)]


def _on_gpus(capacity: FreeCapacity, mix: GpuMix, allowed: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """For nodes of one kind of card. Integers up to the last line, so the order of summing changes nothing."""
    if not mix.total:
        return np.zeros(len(capacity))
    # GPUs first, nodes last: sums over the first axis are the fast ones.
    left = np.maximum(capacity.gpu_milli.T, 0).astype(np.int32)
    everything = left.sum(axis=0, dtype=np.int64)
    if not len(mix.requests):
        return np.asarray(everything / WHOLE_MILLI)
    large = left[:, None, :] >= mix.requests.astype(np.int32)[None, :, None]  # (G, A, N)
    many = large.sum(axis=0, dtype=np.int32)
    usable = np.where(large, left[:, None, :], 0).sum(axis=0, dtype=np.int64)  # (A, N)
    runs = (capacity.cpu_milli >= mix.cpu_milli[:, None]) & (many[mix.ask_of] >= mix.gpus[:, None])  # (M, N)
    if allowed is not None:
        runs &= allowed[mix.places][:, capacity.model]
    weight = np.add.reduceat(runs * mix.counts[:, None], mix.starts, axis=0)  # (A, N)
    served = (weight * usable).sum(axis=0)
    left_over: NDArray[np.float64] = (everything * mix.total - served) / (mix.total * WHOLE_MILLI)
    return left_over
