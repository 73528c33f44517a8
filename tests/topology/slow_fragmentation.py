"""The FGD measure written as it reads, one node and one pod at a time: the oracle of the fast one."""

from __future__ import annotations

from collections.abc import Sequence

from topology.fragmentation.pod_mix import Mix
from topology.fragmentation.pod_shape import PodShape


def fragmented(cpu_milli: int, devices: Sequence[int], model: str, gpu_mib: int, mix: Mix) -> float:
    """F of one node in GPUs; `devices` are the milli left, -1 where there is none."""
    typical = list(zip(mix.shapes, mix.counts.tolist(), strict=True))[: mix.typical]
    total = sum(count for _, count in typical)
    lost = [count * _lost(cpu_milli, devices, model, gpu_mib, pod) for pod, count in typical]
    fragments: float = sum(lost) / max(total, 1) / 1000
    return fragments


def _lost(cpu_milli: int, devices: Sequence[int], model: str, gpu_mib: int, pod: PodShape) -> int:
    left = [gpu for gpu in devices if gpu > 0]
    ask = pod.share_of(gpu_mib)
    large = [gpu for gpu in left if gpu >= ask]
    runs = pod.gpus > 0 and len(large) >= pod.gpus and cpu_milli >= pod.cpu_milli
    if not runs or (pod.models and model not in pod.models):
        return sum(left)
    return sum(gpu for gpu in left if gpu < ask)
