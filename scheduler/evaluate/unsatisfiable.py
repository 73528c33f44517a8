"""What no room that comes can help: a pod larger than every node, a minimum larger than the cluster."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from scheduler.evaluate.evaluate import PodFit
from scheduler.evaluate.gpu_fit import MIB, gpu_fit
from scheduler.model.decision import TooLarge
from scheduler.model.verdict import GPU_BYTES
from topology.cluster.snapshot import Snapshot
from topology.resources import GPU, MEMORY

_UNITS = {GPU: "gpus", MEMORY: "bytes"}


def too_large(snapshot: Snapshot, need: PodFit) -> TooLarge | None:
    """Whole GPUs, or else memory of the host or of one GPU, of which no node open to the pod has as much, even empty.

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
    return _more_than_a_gpu(snapshot, need)


def _more_than_a_gpu(snapshot: Snapshot, need: PodFit) -> TooLarge | None:
    """GPU memory of which no card could be promised as much, even empty and less what is kept free of each."""
    if need.devices is None or need.devices.request.profiles or need.devices.request.parts:
        return None  # instances and cards of several containers have sizes of their own
    fit = gpu_fit(snapshot.gpus, need.devices)
    known = (fit.most_mib > 0) & ~fit.none[:, None]
    open_to_pod = known & need.accepts[:, None]
    if not open_to_pod.any() or (fit.need_mib <= fit.most_mib)[open_to_pod].any():
        return None
    largest = int(fit.most_mib[open_to_pod].max())
    asked = int(fit.need_mib[open_to_pod & (fit.most_mib == largest)].min())
    anywhere = bool((fit.need_mib <= fit.most_mib)[known].any())
    return TooLarge(asked * MIB, largest * MIB, GPU_BYTES, anywhere)


def capacity_gpus(snapshot: Snapshot, needs: Collection[PodFit]) -> int:
    """Whole GPUs of all nodes that accept one of these pods, empty or not."""
    if snapshot.gpu_column is None or not needs:
        return 0
    open_to_some = np.logical_or.reduce([need.accepts for need in needs])
    return int(snapshot.table.allocatable[open_to_some, snapshot.gpu_column].sum())
