"""The room of a snapshot's nodes as the measures of fragmentation take it: what pods can still be promised.

The reserve of a card that is in use, and what is kept there for prefill peaks, come off first; memory is measured
against the part of a card that may be promised at all (scheduler/evaluate/gpu_fit.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.gpu_fit import limits_of
from scheduler.model.policy import Policy
from topology.cluster.snapshot import Snapshot
from topology.fragmentation.remainder import WHOLE_MILLI
from topology.fragmentation.unusable import FreeCapacity
from topology.resources import CPU

Ints = NDArray[np.int64]


def free_capacity(snapshot: Snapshot, nodes: Ints, policy: Policy) -> FreeCapacity:
    """What is left on these nodes (indices into the node table)."""
    table = snapshot.table
    static = table.gpus
    column = table.column.get(CPU)
    cpu = np.zeros(len(nodes), dtype=np.int64)
    if column is not None:
        cpu = table.allocatable[nodes, column] - snapshot.used[nodes, column]
    planned = limits_of(policy).planned_milli
    size = static.largest_mib[nodes] * planned // WHOLE_MILLI
    return FreeCapacity(cpu, _left(snapshot, nodes, planned), static.model_kind[nodes], static.models, size)


def _left(snapshot: Snapshot, nodes: Ints, planned_milli: int) -> Ints:
    """Share left of every card, (n, G) in milli of what may be promised of it; -1 where there is none."""
    static = snapshot.table.gpus
    devices = np.arange(static.width) < static.count[nodes, None]
    if static.plain and not snapshot.holds:
        # The same as the table of GPUs says, for these nodes alone.
        column = snapshot.gpu_column
        used = np.zeros(len(nodes), dtype=np.int64) if column is None else snapshot.used[nodes, column]
        free = static.healthy[nodes] & (np.arange(static.width) >= used[:, None])
        return np.where(devices, np.where(free, WHOLE_MILLI, 0), -1).astype(np.int64)
    gpus = snapshot.gpus
    left, capacity = gpus.left_milli.take(nodes, axis=0), gpus.memory_mib.take(nodes, axis=0)
    peak = gpus.prefill_peak_mib.take(nodes, axis=0)
    if peak.any():
        peak = WHOLE_MILLI * peak // np.maximum(capacity, 1)
    reserve = np.where(capacity > 0, WHOLE_MILLI - planned_milli, 0)
    retained = np.maximum(left - peak - reserve, 0) * WHOLE_MILLI // np.where(capacity > 0, planned_milli, WHOLE_MILLI)
    share: Ints = np.where(devices, np.where(left >= WHOLE_MILLI, WHOLE_MILLI, retained), -1).astype(np.int64)
    return share
