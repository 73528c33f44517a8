"""So many interchangeable pods of a gang, what each requests, and where each is accepted: what every search places."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.evaluate.evaluate import PodFit
from scheduler.evaluate.gpu_fit import GpuNeed
from topology.cluster.snapshot import Amount2D, Mask, Snapshot
from topology.fragmentation.pod_shape import NOTHING, PodShape


@dataclass(frozen=True, slots=True)
class Demand:
    """`count` pods of one phase that can be swapped.

    `request` is what one takes of the amounts that are counted, (R,); `gpus` the whole GPUs among them. `accepts` says
    which nodes may take one, (N,). Both are over the columns and nodes of whoever places the pods. `gpu_need` is what
    must be looked at GPU by GPU, None where amounts say it all; `shape` what of a GPU one takes.
    """

    phase: str
    request: Amount2D
    gpus: int
    count: int
    accepts: Mask
    gpu_need: GpuNeed | None = None
    shape: PodShape = NOTHING


def demand_of(phase: str, need: PodFit, count: int, snapshot: Snapshot) -> Demand:
    """Pods of one phase and need, over all columns and nodes of a snapshot."""
    column = snapshot.gpu_column
    gpus = int(need.row[column]) if column is not None else 0
    return Demand(phase, need.row, gpus, count, need.accepts, need.devices, need.shape)
