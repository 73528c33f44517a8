"""Every public key: labels, annotations, gate, marker, and the keys of others that we read.

This file is a contract (docs/contracts.md is the same table for people). It knows names and nothing else.
Labels are for selecting; every other setting is an annotation on the pod template.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

PREFIX: Final = "isochrone.dev/"

# --- ours: labels on pods and namespaces -------------------------------------------------------
PHASE: Final = PREFIX + "phase"
GANG: Final = PREFIX + "gang"
ENABLED: Final = PREFIX + "enabled"  # on a namespace: "true" asks for Isochrone; on a pod: "false" opts out

# --- ours: annotations on the pod template (read) ----------------------------------------------
REACH: Final = PREFIX + "reach"
REACH_SIZE: Final = PREFIX + "reach-size"
REACH_MODE: Final = PREFIX + "reach-mode"
PAIRING: Final = PREFIX + "pairing"
MIN_PREFILL: Final = PREFIX + "min-prefill"
MIN_DECODE: Final = PREFIX + "min-decode"
GPU_MEMORY: Final = PREFIX + "gpu-memory"  # what one GPU of the pod will hold
GPU_MEMORY_PEAK: Final = PREFIX + "gpu-memory-peak"  # the most it holds for a while

# --- ours: annotations we write ----------------------------------------------------------------
SIGNAL: Final = PREFIX + "signal"  # on a pod: which signal told the phase and the gang
CONFLICT: Final = PREFIX + "phase-conflict"  # on a pod: what its signals say against each other
PLACEMENT: Final = PREFIX + "placement"  # on a pod and a PodGroup: the readable block
DECISION: Final = PREFIX + "decision"  # on a pod and a PodGroup: decision id, snapshot id, facts age

# --- ours: on the pod spec ---------------------------------------------------------------------
GATE: Final = PREFIX + "reach"  # the scheduling gate of `required` pods
MARKER_RESOURCE: Final = PREFIX + "pair"  # quantity "0": Volcano calls the extender for these pods alone

# --- values ------------------------------------------------------------------------------------
PREFILL: Final = "prefill"
DECODE: Final = "decode"
PHASES: Final = (PREFILL, DECODE)
REQUIRED: Final = "required"
PREFERRED: Final = "preferred"
ALL_PAIRS: Final = "all"
NEAREST: Final = "nearest"

DEFAULT_REACH_US: Final = 1000.0
DEFAULT_REACH_SIZE_BYTES: Final = 64 * 1024

# --- Volcano's and Kubernetes' (read, and written where Volcano documents it) ------------------
GROUP_NAME: Final = "scheduling.k8s.io/group-name"
TASK_SPEC: Final = "volcano.sh/task-spec"
QUEUE_NAME: Final = "scheduling.volcano.sh/queue-name"
VOLCANO_SCHEDULER: Final = "volcano"
DEFAULT_SCHEDULER: Final = "default-scheduler"
MIRROR_POD: Final = "kubernetes.io/config.mirror"
HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"

# --- node labels that name network domains (topograph, GPU feature discovery) -------------------
LEAF: Final = "network.topology.nvidia.com/leaf"
SPINE: Final = "network.topology.nvidia.com/spine"
CORE: Final = "network.topology.nvidia.com/core"
ACCELERATOR: Final = "network.topology.nvidia.com/accelerator"
NVLINK_CLIQUE: Final = "nvidia.com/gpu.clique"
GPU_PRODUCT: Final = "nvidia.com/gpu.product"
GPU_COUNT: Final = "nvidia.com/gpu.count"
RDMA_CAPABLE: Final = "feature.node.kubernetes.io/rdma.capable"
RDMA_AVAILABLE: Final = "feature.node.kubernetes.io/rdma.available"
TRANSPORT: Final = PREFIX + "transport"  # on a node: "rdma" or "tcp", said by a person; wins over detection
GPUDIRECT: Final = PREFIX + "gpudirect"  # on a node: "false" where RDMA cannot reach GPU memory

# --- node labels that we write, off by default: the name of the HyperNode that the node is in -------
CLIQUE: Final = PREFIX + "clique"
IN_LEAF: Final = PREFIX + "leaf"
IN_SPINE: Final = PREFIX + "spine"

# --- who made an object --------------------------------------------------------------------------
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "isochrone"

NVIDIA_GPU: Final = "nvidia.com/gpu"


def labelled(given: Container[str] | None) -> bool:
    """Whether our phase or gang label is among these, with whatever value."""
    return given is not None and (PHASE in given or GANG in given)
