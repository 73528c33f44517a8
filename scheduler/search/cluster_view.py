"""The cluster as a search sees it: what is free, what that is worth to expected pods, where the gang's partners are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.partner_reach import PartnerReach
from scheduler.search.gpu_usage import GpuUsage
from scheduler.search.objective import Floats
from topology.cluster.snapshot import Amount2D, NodeTable


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Free amounts (N, A) and free GPUs (N,) of all nodes, what free GPUs are worth (`Objective.usable`), the limit
    between the phases, and by phase how far each node is from the partners of its pods."""

    table: NodeTable
    free: Amount2D
    gpus: NDArray[np.int64]
    usable: Floats
    limit_us: float
    size_bytes: int
    partners: Mapping[str, PartnerReach]
    devices: GpuUsage | None = None


def loss_of_a_slot(usable: Floats, free_gpus: NDArray[np.int64], gpus: int) -> Floats:
    """GPUs that expected pods lose per pod of so many GPUs, with the node filled up by such pods, shape (n,)."""
    each = max(gpus, 1)
    fit = np.arange(len(usable)) // each
    lost = usable - usable[np.arange(len(usable)) - fit * each] if gpus else np.zeros(len(usable))
    loss: Floats = (lost / np.maximum(fit, 1))[free_gpus]
    return loss
