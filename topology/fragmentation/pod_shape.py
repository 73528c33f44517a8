"""What a pod asks for, as far as the room it leaves is concerned: pods of one shape are the same to the mix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topology.fragmentation.remainder import WHOLE_MILLI
from topology.gpus.gpu_request import GpuRequest
from topology.gpus.mig_profiles import base_name, profile_mib
from topology.labels import GPU_PRODUCT, PREFILL
from topology.objects import PodSpec
from topology.resources import CPU, GPU, Amounts


@dataclass(frozen=True, slots=True, order=True)
class PodShape:
    """What a pod asks for, as far as room is concerned. Of each card: `milli` (1000 is a whole one) or `gpu_mib` of
    memory or both; `models` that it accepts, empty for any. `profile` is that of the MIG instances it asks for."""

    cpu_milli: int = 0
    gpus: int = 0
    milli: int = 0
    gpu_mib: int = 0
    models: tuple[str, ...] = ()
    profile: str = ""

    def share_of(self, gpu_mib: int) -> int:
        """The binding share in milli, 1 or more, of a card with so much memory (0: unknown, memory binds nothing)."""
        return max(asked_share(self.milli, self.gpu_mib, gpu_mib), 1) if self.gpus else 0


NOTHING = PodShape()


def asked_share(milli: int, asked_mib: int, gpu_mib: int) -> int:
    """The larger of a share in milli and of memory against a card's memory, rounded up."""
    by_memory = -(-WHOLE_MILLI * asked_mib // gpu_mib) if gpu_mib > 0 else 0
    return max(milli, by_memory)


def left_share(milli: NDArray[np.int64], left_mib: NDArray[np.int64], gpu_mib: NDArray[np.int64]) -> NDArray[np.int64]:
    """The binding share left of every card, (N, G) in milli, -1 without a card: the smaller of milli and memory left.

    `gpu_mib` is (N,), 0 where unknown: only the milli count there.
    """
    size = np.maximum(gpu_mib, 1)[:, None]
    by_memory = np.where(gpu_mib[:, None] > 0, WHOLE_MILLI * np.maximum(left_mib, 0) // size, WHOLE_MILLI)
    share: NDArray[np.int64] = np.where(milli < 0, -1, np.minimum(milli, by_memory))
    return share


def shape_of(amounts: Amounts, gpu: GpuRequest | None = None, phase: str = "", spec: PodSpec | None = None) -> PodShape:
    """A request as a shape. A share in percent counts as it stands; memory counts as it is promised: with the peak,
    but for prefill, which gives its peak back. Only a node selector on the GPU product is read as a choice of models.
    """
    product = (spec.node_selector or {}).get(GPU_PRODUCT, "") if spec is not None else ""
    models = (product,) if product else ()
    cpu = amounts.get(CPU, 0)
    if gpu is None or gpu.plain:
        count = amounts.get(GPU, 0) if gpu is None else gpu.count
        return PodShape(cpu, count, WHOLE_MILLI, 0, models) if count else PodShape(cpu)
    if gpu.whole and not gpu.profiles:
        return PodShape(cpu, gpu.count, WHOLE_MILLI, 0, models)
    memory = max((profile_mib(name) for name, _ in gpu.profiles), default=0) or gpu.memory_mib
    if phase != PREFILL:
        memory = max(memory, gpu.peak_mib)
    share = max(gpu.memory_milli, gpu.compute_milli)
    profile = base_name(gpu.profiles[0][0]) if gpu.profiles else ""
    return PodShape(cpu, gpu.count, min(share, WHOLE_MILLI), memory, models, profile)
