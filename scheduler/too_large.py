"""What no room that comes can help: a pod larger than every node, a minimum larger than the cluster."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from scheduler.decision import TooLarge
from scheduler.judge import Need
from topology.resources import GPU, MEMORY
from topology.snapshot import Snapshot

_UNITS = {GPU: "gpus", MEMORY: "bytes"}


def too_large(snapshot: Snapshot, need: Need) -> TooLarge | None:
    """Whole GPUs, or else host memory, of which no node that accepts the pod has as much when it is empty.

    None where one has, and where no node accepts the pod or has any of it: that is said in other words.
    """
    table = snapshot.table
    if need.missing or not need.accepts.any():
        return None
    for resource, unit in _UNITS.items():
        if (column := table.column.get(resource)) is None:
            continue
        asked, largest = int(need.row[column]), int(table.allocatable[need.accepts, column].max())
        if 0 < largest < asked:
            return TooLarge(asked, largest, unit, anywhere=bool(table.allocatable[:, column].max() >= asked))
    return None


def capacity_gpus(snapshot: Snapshot, needs: Collection[Need]) -> int:
    """Whole GPUs of all nodes that accept one of these pods, empty or not."""
    if snapshot.gpu_column is None or not needs:
        return 0
    open_to_some = np.logical_or.reduce([need.accepts for need in needs])
    return int(snapshot.table.allocatable[open_to_some, snapshot.gpu_column].sum())
