"""What pods take from the pods that are expected, where whole GPUs do not say it: on shared cards and on MIG instances.

Shared cards: of a node's cards the whole free ones count for whole pods, all or none, and of every card what is left
for pods whose share fits on it; a loss is the value before less the value after. MIG: memory that the instances of the
mix lose for want of a place, in cards, as in the score (scheduler/evaluate/mig_cost.py). Both are in GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.evaluate import PodFit
from scheduler.evaluate.gpu_fit import limits_of
from scheduler.evaluate.mig_cost import mig_cost
from scheduler.model.policy import Policy
from scheduler.search.demand import Demand
from scheduler.search.gpu_usage import GpuUsage, with_pod
from scheduler.search.objective import EXPECTED, Floats, Objective
from topology.cluster.snapshot import Snapshot
from topology.fragmentation.pod_mix import Mix
from topology.gpus.capacity import NodeGpus
from topology.gpus.gpu_row import WHOLE_MILLI, GpuRow

LEAST_MIG = -1.0
"""The most that one MIG instance can mend, in cards: it is on one card."""

Ints = NDArray[np.int64]


class GpuValue:
    """What a node's cards are worth to expected pods, in GPUs."""

    def __init__(self, mix: Mix, policy: Policy) -> None:
        self._mix, self._planned = mix, limits_of(policy).planned_milli
        self._expected: dict[int, list[tuple[float, int, int]]] = {}
        self._known: dict[tuple[tuple[int, ...], GpuRow], float] = {}

    def of(self, devices: NodeGpus, row: GpuRow) -> float:
        """Of cards in this state. Sum over expected pods of how often they come times the GPUs they can use."""
        key = devices.memory_mib, row
        if key not in self._known:
            self._known[key] = self._value(devices, row)
        return self._known[key]

    def _value(self, devices: NodeGpus, row: GpuRow) -> float:
        left = [self._left(devices, row, i) for i in range(len(row.users))]
        whole = sum(1 for i, users in enumerate(row.users) if users == 0 and left[i] == WHOLE_MILLI)
        size = max(devices.memory_mib, default=0) * self._planned // WHOLE_MILLI
        if size not in self._expected:
            self._expected[size] = self._pods(size)
        value = 0.0
        for often, gpus, demand in self._expected[size]:
            if demand == WHOLE_MILLI:
                value += often * whole * (whole >= gpus)
            else:
                able = [milli for milli in left if milli >= demand]
                value += often * sum(able) / WHOLE_MILLI * (len(able) >= gpus)
        return value

    def _left(self, devices: NodeGpus, row: GpuRow, gpu: int) -> int:
        """Thousandths of one card that may still be promised: a card in use has its reserve and peaks kept free."""
        if row.users[gpu] <= 0:
            return WHOLE_MILLI if row.users[gpu] == 0 else 0
        capacity, compute = devices.memory_mib[gpu], row.left_compute[gpu]
        if not capacity:
            return compute
        reserve = capacity - capacity * self._planned // WHOLE_MILLI
        retained = max(0, row.left_mib[gpu] - row.peak_mib[gpu] - reserve)
        return min(compute, WHOLE_MILLI * retained // max(1, capacity - reserve))

    def _pods(self, size: int) -> list[tuple[float, int, int]]:
        """(share of all pods, GPUs, thousandths of each) on cards of this size; what no card can hold is left out."""
        of = self._mix.on_gpu(size)
        if not of.total or not len(of.gpus):
            return [(often, gpus, WHOLE_MILLI) for gpus, often in EXPECTED.items()]
        requests = of.requests[of.ask_of].tolist()
        each = zip(of.counts.tolist(), of.gpus.tolist(), requests, strict=True)
        return [(count / of.total, gpus, demand) for count, gpus, demand in each if demand <= WHOLE_MILLI]


class CapacityLoss:
    """What one more pod of each demand takes on each of some nodes, by position, as pods come and go."""

    def __init__(
        self, snapshot: Snapshot, demands: Sequence[Demand], nodes: Ints, value: GpuValue, devices: GpuUsage | None
    ) -> None:
        """`demands` are over all columns. With `devices` everything follows from the state of cards, whole GPUs too."""
        self._snapshot, self._demands, self._nodes, self._value, self._devices = (
            snapshot,
            demands,
            nodes,
            value,
            devices,
        )
        self._used = snapshot.used[nodes].copy()
        self.least = [LEAST_MIG if demand.shape.profile else 0.0 for demand in demands]
        """What one pod of each demand loses at least, wherever it goes."""
        self.gpus: Floats = np.array([self._of(i, np.arange(len(nodes))) for i in range(len(demands))]).reshape(
            len(demands), len(nodes)
        )
        """GPUs lost for one more pod, (demands, nodes)."""

    def put(self, index: int, node: int) -> Floats:
        """A pod of this demand has come to a node, on its cards already; what `back` needs."""
        before = self.gpus[:, node].copy()
        self._used[node] += self._demands[index].request
        for other in range(len(self._demands)):
            self.gpus[other, node] = self._of(other, np.array([node]))[0]
        return before

    def back(self, index: int, node: int, before: Floats) -> None:
        """The last pod that came to a node has gone."""
        self._used[node] -= self._demands[index].request
        self.gpus[:, node] = before

    def state(self, node: int) -> object:
        """Equal for nodes that can be swapped as far as MIG is concerned; shared cards say it themselves."""
        if not any(demand.shape.profile for demand in self._demands):
            return None
        table, at = self._snapshot.table, int(self._nodes[node])
        if table.mig_of(at) is not None:
            return at
        return table.allocatable[at].tobytes(), self._used[node].tobytes(), int(table.gpus.model_kind[at])

    def _of(self, index: int, at: Ints) -> Floats:
        lost = np.zeros(len(at))
        if self._devices is not None:
            for i, node in enumerate(at.tolist()):
                after = self._devices.after(index, node) if self._devices.slots[index, node] else None
                if after is not None:
                    devices, row = self._devices.devices(node), self._devices.row(node)
                    lost[i] = self._value.of(devices, row) - self._value.of(devices, after)
        if profile := self._demands[index].shape.profile:
            lost += mig_cost(self._snapshot, self._nodes[at], (profile,), self._snapshot.mix.profiles, self._used[at])
        return lost


def lost_gpus(
    before: Snapshot,
    after: Snapshot,
    placed: Sequence[tuple[PodFit, int]],
    policy: Policy,
    objective: Objective,
) -> float:
    """GPUs that expected pods lose to these pods, each with its node: `after` is `before` with them in it."""
    lost = 0.0
    if any(need.devices is not None for need, _ in placed):
        lost += _on_gpus(before, after, placed, before.gpu_column, GpuValue(before.mix, policy))
    elif (gpu := before.gpu_column) is not None:
        rows = np.flatnonzero(before.used[:, gpu] != after.used[:, gpu])
        free = [np.maximum(s.table.allocatable[rows, gpu] - s.used[rows, gpu], 0) for s in (before, after)]
        usable = objective.usable(int(free[0].max(initial=0)))
        lost += float((usable[free[0]] - usable[free[1]]).sum())
    split: dict[int, list[PodFit]] = {}
    for need, node in placed:
        if need.shape.profile:
            split.setdefault(node, []).append(need)
    return lost + _places(before, split)


def _on_gpus(
    before: Snapshot, after: Snapshot, placed: Sequence[tuple[PodFit, int]], gpu: int | None, value: GpuValue
) -> float:
    """GPUs that expected pods lose on the cards of these nodes. The pods come one after the other, in the order given,
    each to the card that its form's owner would choose of those within the limits of plans."""
    on: dict[int, list[PodFit]] = {}
    for need, node in placed:
        on.setdefault(node, []).append(need)
    lost = 0.0
    for node, needs in sorted(on.items()):
        devices, row = before.table.gpus.devices[node], before.gpus.row(node)
        now: GpuRow | None = row
        for need in needs:
            taken = int(need.row[gpu]) if gpu is not None else 0
            now = with_pod(devices, now, need.devices, taken) if now is not None else None
        # Where they do not fit in this order they do in another.
        lost += value.of(devices, row) - value.of(devices, now if now is not None else after.gpus.row(node))
    return lost


def _places(before: Snapshot, pods: Mapping[int, Sequence[PodFit]]) -> float:
    """Cards of MIG memory that the mix loses to these pods, by node; on a node one after the other, by profile."""
    lost = 0.0
    for node, needs in sorted(pods.items()):
        used, at = before.used[[node]].copy(), np.array([node])
        for need in sorted(needs, key=lambda n: n.shape.profile):
            lost += float(mig_cost(before, at, (need.shape.profile,), before.mix.profiles, used)[0])
            used[0] += need.row
    return lost
