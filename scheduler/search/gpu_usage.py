"""Room on cards while a search places pods: the rules of `topology.gpus.gpu_row`, one node at a time, with a way back.

Only gangs with a pod that must be looked at card by card have one of these; for all others amounts say everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.gpu_fit import GpuNeed, gpu_slots
from scheduler.search.demand import Demand
from topology.cluster.snapshot import Mask, Snapshot
from topology.gpus.allocations import put_plain
from topology.gpus.capacity import NodeGpus
from topology.gpus.gpu_row import GpuRow, choose, put_all
from topology.gpus.table import GpuTable

PLENTY = 1_000
"""Slots where cards set no limit."""


def with_pod(devices: NodeGpus, row: GpuRow, need: GpuNeed | None, gpus: int) -> GpuRow | None:
    """Cards with one pod more, on those that its form's owner would choose, or `gpus` whole ones where amounts say it
    all; None where it does not fit."""
    if need is None:
        return put_plain(devices, row, gpus) if gpus else row
    if need.request.profiles:
        return row
    chosen = choose(devices, row, need.request, need.phase, need.limits)
    return None if chosen is None else put_all(devices, row, chosen, need.request, need.phase)


class GpuUsage:
    """Cards of some nodes of a snapshot as pods of these demands are put on and taken off again; nodes by position."""

    def __init__(self, gpus: GpuTable, demands: Sequence[Demand], nodes: NDArray[np.int64]) -> None:
        self._gpus, self._demands, self._nodes = gpus, demands, nodes
        self._rows: dict[int, GpuRow] = {}
        self.slots: NDArray[np.int64] = np.array(
            [
                np.full(len(nodes), PLENTY) if demand.gpu_need is None else gpu_slots(gpus, demand.gpu_need, nodes)
                for demand in demands
            ],
            dtype=np.int64,
        ).reshape(len(demands), len(nodes))
        """How many pods of each demand the cards of each node take now, (demands, nodes)."""

    def put(self, index: int, node: int) -> tuple[GpuRow, NDArray[np.int64]] | None:
        """One pod on a node, on the cards that its form's owner would choose; what `back` needs, None if it cannot."""
        before, row = self.row(node), self.after(index, node)
        if row is None:
            return None
        slots = self.slots[:, node].copy()
        self._rows[node] = row
        for i, other in enumerate(self._demands):
            if other.gpu_need is not None and not other.gpu_need.request.profiles:
                self.slots[i, node] = self._fit(node, row, other.gpu_need, other.count)
        return before, slots

    def after(self, index: int, node: int) -> GpuRow | None:
        """A node's cards with one more pod of a demand on them; None where it does not fit."""
        demand = self._demands[index]
        return with_pod(self.devices(node), self.row(node), demand.gpu_need, demand.gpus)

    def back(self, node: int, token: tuple[GpuRow, NDArray[np.int64]]) -> None:
        """Takes the last pod that was put on a node off it."""
        self._rows[node], self.slots[:, node] = token

    def state(self, node: int) -> object:
        """Equal for nodes whose cards can be swapped."""
        devices, row = self.devices(node), self.row(node)
        pinned = any(d.gpu_need is not None and d.gpu_need.request.pinned for d in self._demands)
        return (
            row,
            devices.memory_mib,
            devices.kind,
            devices.healthy,
            devices.replicas,
            devices.listed,
            devices.instances,
            pinned and node,
        )

    def row(self, node: int) -> GpuRow:
        """A node's cards as they are now."""
        if node not in self._rows:
            self._rows[node] = self._gpus.row(int(self._nodes[node]))
        return self._rows[node]

    def devices(self, node: int) -> NodeGpus:
        """What cards a node has."""
        return self._gpus.static.devices[int(self._nodes[node])]

    def _fit(self, node: int, row: GpuRow, need: GpuNeed, count: int) -> int:
        """Of so many pods those that fit beside what is there."""
        devices = self.devices(node)
        for fitting in range(count):
            chosen = choose(devices, row, need.request, need.phase, need.limits)
            if chosen is None:
                return fitting
            row = put_all(devices, row, chosen, need.request, need.phase)
        return count


def capacity_together(snapshot: Snapshot, one: Demand, other: Demand, nodes: Mask) -> Mask:
    """Of the nodes (N,) those whose cards take a pod of each demand at once; whichever comes first may leave a card for
    the other, so both orders count. Whole GPUs are left to the amounts."""
    at = np.flatnonzero(nodes)
    if (one.gpu_need is None and other.gpu_need is None) or not len(at):
        return nodes
    capacity = GpuUsage(snapshot.gpus, [replace(demand, gpus=0, count=1) for demand in (one, other)], at)
    both = nodes.copy()
    for i, node in enumerate(at.tolist()):
        fits = False
        for first, second in ((0, 1), (1, 0)):
            if capacity.slots[first, i] and (token := capacity.put(first, i)) is not None:
                fits |= bool(capacity.slots[second, i])
                capacity.back(i, token)
        both[node] = fits
    return both
