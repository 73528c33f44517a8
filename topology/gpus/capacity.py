"""What cards a node has, read from whatever the node says of itself: one value a node.

A sharing plugin's own list of devices is believed first (it has UUIDs and memory), then counted resources (qGPU,
Volcano's gpu-number, nvidia.com/gpu), with the labels of GPU feature discovery for model and memory. Labels: NVIDIA
k8s-device-plugin docs/gpu-feature-discovery. Whatever is shared without a list of devices has predicted cards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from topology.bad_input import BadInput
from topology.gpus.amounts import MOST_MIB
from topology.gpus.devices import HAMI_REGISTER, MOST_DEVICES, Device, node_devices
from topology.gpus.forms import HAMI, MIG_PREFIX, QGPU, VOLCANO_NUMBER, VOLCANO_SHARE, VOLCANO_VGPU, WHOLE
from topology.gpus.mig_profiles import profile_mib
from topology.gpus.sets import GpuLinks
from topology.labels import GPU_PRODUCT, NVIDIA_GPU
from topology.objects import Node
from topology.units import parse_quantity

GPU_MEMORY: Final = "nvidia.com/gpu.memory"
GPU_COUNT: Final = "nvidia.com/gpu.count"
GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"
MIG_CONFIG: Final = "nvidia.com/mig.config"
MIG_CONFIG_STATE: Final = "nvidia.com/mig.config.state"
MIG_STRATEGY: Final = "nvidia.com/mig.strategy"

KNOWN_MIB: Final = (
    ("GB200", 189471),
    ("B200", 183359),
    ("H200", 143771),
    ("H100", 81559),
    ("L40S", 46068),
    ("A30", 24576),
    ("A10", 23028),
    ("T4", 15360),
)
"""Total memory that nvidia-smi shows for these cards in MiB, for nodes whose labels name the model and no memory."""


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The cards of one node, by index. `memory_mib` is 0 for a card that is broken or whose memory nobody tells."""

    model: str = ""
    kind: str = WHOLE.name
    """The form that this node's cards are given out in."""
    memory_mib: tuple[int, ...] = ()
    healthy: tuple[bool, ...] = ()
    uuids: tuple[str, ...] = ()
    replicas: int = 1
    """How often nvidia.com/gpu counts each card (time slicing, MPS)."""
    listed: bool = False
    """The cards come from a plugin's own list, so that allocations name them."""
    isolates: bool = True
    """Memory of pods on one card of this node is kept apart."""
    instances: tuple[tuple[str, int], ...] = ()
    """MIG profiles that the node offers, each with the MiB of one instance."""
    links: GpuLinks | None = None
    """How the cards are joined, where an agent saw it."""
    all_mig: bool = False
    """Every card is in MIG mode: whole GPUs that are still listed cannot be had."""
    problem: str = ""
    """One sentence on what could not be read; the node then counts by its resources alone."""


def node_gpus(node: Node) -> NodeGpus:
    """Read one node. Never raises: what cannot be read is said in `problem`."""
    problem = ""
    try:
        devices, key = node_devices(node.metadata.annotations)
    except BadInput as bad:
        devices, key, problem = (), "", str(bad)
    if devices:
        return _listed(devices, hami=key == HAMI_REGISTER)
    allocatable = node.status.allocatable or {}
    labels = node.metadata.labels or {}
    model = labels.get(GPU_PRODUCT, "")
    memory = _label_number(labels.get(GPU_MEMORY, "")) or _known_mib(model)
    if QGPU.compute in allocatable:
        count = _amount(allocatable, QGPU.compute) // 100
        each = _amount(allocatable, QGPU.memory) * QGPU.unit_mib // max(count, 1)
        return replace(_uniform(model, count, each or memory, problem=problem), kind=QGPU.name)
    if VOLCANO_NUMBER.count in allocatable:
        count = _amount(allocatable, VOLCANO_NUMBER.count)
        each = _amount(allocatable, VOLCANO_SHARE.memory) // max(count, 1)
        gpus = _uniform(model, count, each or memory, isolates=False, problem=problem)
        return replace(gpus, kind=VOLCANO_SHARE.name)
    replicas = max(_label_number(labels.get(GPU_REPLICAS, "")), 1)
    count = _amount(allocatable, NVIDIA_GPU)
    instances = _instances(labels, allocatable)
    if _all_mig(labels, allocatable):
        return NodeGpus(model=model, instances=instances, all_mig=True, problem=problem)
    # Replicas share a card without a wall between them; so does a card that only annotations divide.
    gpus = _uniform(model, -(-count // replicas), memory, isolates="-MIG-" in model, problem=problem)
    return replace(gpus, replicas=replicas, isolates=gpus.isolates and replicas == 1, instances=instances)


def _instances(labels: dict[str, str], allocatable: dict[str, str | int | float]) -> tuple[tuple[str, int], ...]:
    """MIG profiles offered by name, with the memory of an instance: GFD's label, else the gigabytes in the name."""
    names = sorted(key.removeprefix(MIG_PREFIX) for key in allocatable if key.startswith(MIG_PREFIX))
    return tuple(
        (name, _label_number(labels.get(f"{MIG_PREFIX}{name}.memory", "")) or profile_mib(name)) for name in names
    )


def _listed(devices: tuple[Device, ...], *, hami: bool) -> NodeGpus:
    return NodeGpus(
        model=next((d.model for d in devices), ""),
        kind=HAMI.name if hami else VOLCANO_VGPU.name,
        memory_mib=tuple(d.memory_mib if d.healthy else 0 for d in devices),
        healthy=tuple(d.healthy for d in devices),
        uuids=tuple(d.uuid for d in devices),
        replicas=max((d.splits for d in devices), default=1) if hami else 1,
        listed=True,
    )


def _uniform(model: str, count: int, memory_mib: int, *, isolates: bool = True, problem: str = "") -> NodeGpus:
    count = min(count, MOST_DEVICES)
    return NodeGpus(
        model=model,
        memory_mib=(memory_mib,) * count,
        healthy=(True,) * count,
        uuids=("",) * count,
        isolates=isolates,
        problem=problem,
    )


def _all_mig(labels: dict[str, str], allocatable: dict[str, str | int | float]) -> bool:
    """Whether the GPU operator has put every card of the node into MIG mode with instances of their own names, though
    the list of whole GPUs may lag behind. (NVIDIA GPU Operator, "MIG support": nvidia.com/mig.config and its state.)"""
    config = labels.get(MIG_CONFIG, "")
    split = config.startswith("all-") and config not in ("all-disabled", "all-enabled")
    mixed = labels.get(MIG_STRATEGY, "mixed") == "mixed" and any(key.startswith(MIG_PREFIX) for key in allocatable)
    return split and mixed and labels.get(MIG_CONFIG_STATE, "success") == "success"


def lists_whole_gpus_in_vain(node: Node) -> bool:
    """Whether nvidia.com/gpu of this node counts cards that MIG mode has taken: they are no whole GPUs any more."""
    return bool(node.metadata.labels) and _all_mig(node.metadata.labels or {}, node.status.allocatable or {})


def _known_mib(model: str) -> int:
    """Memory by the model's name: the gigabytes in it, or the card's own figure; 0 where neither is known."""
    if match := re.search(r"([0-9]{1,3})GB", model):
        return int(match[1]) * 1024
    tokens = set(re.split(r"[^A-Z0-9]+", model.upper()))
    return next((mib for name, mib in KNOWN_MIB if name in tokens), 0)


def _label_number(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,8}", text) and int(text) <= MOST_MIB else 0


def _amount(allocatable: dict[str, str | int | float], key: str) -> int:
    try:
        return parse_quantity(allocatable.get(key, 0), key)
    except BadInput:
        return 0  # the node's own table says so; here it has none
