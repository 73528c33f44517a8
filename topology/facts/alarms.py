"""What does not fit together in a node's facts, one sentence each; nothing is changed because of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topology.facts.report import Gpu, Health, Nic, NodeState, PodDevices

WHOLE_GPUS: Final = "nvidia.com/gpu"


def alarms(state: NodeState, gpus: Sequence[Gpu], nics: Sequence[Nic], pods: PodDevices | None) -> tuple[str, ...]:
    """Sorted by what they are about: GPUs, fabric, capacity, network."""
    found = [f"GPU {_name(gpu)} is {gpu.health}: {gpu.health_why}" for gpu in gpus if gpu.health is not Health.HEALTHY]
    reasons: dict[str, list[str]] = {}
    for gpu in gpus:
        if gpu.fabric is not None and gpu.fabric.why_unusable:
            reasons.setdefault(gpu.fabric.why_unusable, []).append(_name(gpu))
    found += [f"GPU {', '.join(names)}: {why}" for why, names in sorted(reasons.items())]
    if (mismatch := _capacity(gpus, pods)) is not None:
        found.append(mismatch)
    if state.gpudirect is False and any(nic.rdma for nic in nics) and gpus:
        found.append("no GPUDirect: neither nvidia_peermem nor dma-buf, so RDMA goes through host memory")
    return tuple(found)


def _capacity(gpus: Sequence[Gpu], pods: PodDevices | None) -> str | None:
    """Whole GPUs that the kubelet may give against those that answer; shared ones (`GPU-...::3`) count once."""
    allocatable = dict(pods.allocatable) if pods else {}
    ids = {device.partition("::")[0] for device in allocatable.get(WHOLE_GPUS, ())}
    if not ids or any(device.startswith("MIG-") for device in ids):
        return None
    whole = [gpu for gpu in gpus if gpu.health is not Health.LOST and not (gpu.mig and gpu.mig.enabled)]
    if len(ids) == len(whole):
        return None
    return f"{WHOLE_GPUS} has {len(ids)} devices, but {len(whole)} whole GPUs answer"


def _name(gpu: Gpu) -> str:
    return str(gpu.index) if gpu.index is not None else gpu.uuid
