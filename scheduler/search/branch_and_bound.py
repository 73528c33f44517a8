"""The best places for a whole gang on a few nodes: branch and bound over all pods together.

Rules of this file. (1) Pure, and repeatable: ties go to the first name. (2) A branch is left when even its best end
costs as much as the best plan so far, and only then: with budget left the plan found is the best there is. (3) Nodes
that can be swapped are tried once, and a node that was tried for a pod is not tried for its twins below. (4) The budget
counts placements tried.

All pods of one phase come before the other phase. Once the first has its places, what a pod of the second costs on a
node no longer depends on where its siblings go, except through room: that makes the bounds sharp where most of the
branches are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.pci_affinity import split_share
from scheduler.evaluate.rail_alignment import Placed
from scheduler.search.demand import Demand
from scheduler.search.objective import Floats, Objective, least_loss
from scheduler.search.problem import Problem, SetSizes
from topology.cluster.snapshot import Amount2D, Mask, capacity_for
from topology.labels import DECODE

_LESS = 1e-9  # a plan must be better by more than rounding


class BranchAndBound:
    """One search. `best` are the positions per demand of the best plan, None while there is none."""

    def __init__(
        self, problem: Problem, objective: Objective, sizes: SetSizes | None, budget: int, improve: int
    ) -> None:
        self.best: list[list[int]] | None = None
        self.cost = np.inf
        self.spent, self.complete = 0, True
        self._problem, self._objective, self._sizes = problem, objective, sizes
        self._budget, self._improve = budget, improve
        demands = problem.demands
        self._second_phase = [demand.phase != problem.first for demand in demands]
        self._queue = [i for i, demand in enumerate(demands) for _ in range(demand.count)]
        self._pods = [self._pods_of(second=second) for second in (False, True)]
        partners = problem.partners.count
        self._pairs = max(1, self._pods[0] * self._pods[1] + self._pods[0] * partners[0] + self._pods[1] * partners[1])
        self._free = problem.free.copy()
        self._gpus = np.maximum(problem.gpus, 0)
        self._usable = objective.usable(int(self._gpus.max(initial=0)))
        self._slots = _slots(problem)
        self._columns = [
            [(int(column), int(d.request[column])) for column in np.flatnonzero(d.request)] for d in demands
        ]
        self._rest = [sorted(Counter(self._queue[at:]).items()) for at in range(len(self._queue) + 1)]
        self._smallest = [_smallest(demands, rest) for rest in self._rest]
        least = _least_losses(problem, self._usable)
        self._least_after = [sum(least[i] * count for i, count in rest) for rest in self._rest]
        self._banned = [np.zeros(len(self._free), dtype=bool) for _ in demands]
        self._load = np.zeros(len(self._free), dtype=np.int64)
        self._loads: dict[tuple[int, int], int] = {}
        self._places: list[list[int]] = [[] for _ in demands]
        self._worst = np.zeros(len(self._free))  # to the first phase's places
        self._total = np.zeros(len(self._free))
        self._nearest = np.full(len(self._free), np.inf)
        self._far = self._ends = self._worst
        self._open = np.ones(len(self._free), dtype=bool)
        self._floor_us = float(problem.reach_us.min()) if len(self._free) else 0.0

    def run(self, below: float = np.inf) -> BranchAndBound:
        """Search to the end or the budget, for plans that cost less than `below`."""
        self.cost = below
        if not self._pods[0]:
            self._first_is_placed()
        if len(self._free) or not self._queue:
            self._dive(0, 0.0, 0.0, 0.0)
        return self

    def _pods_of(self, *, second: bool) -> int:
        each = zip(self._problem.demands, self._second_phase, strict=True)
        return sum(demand.count for demand, of in each if of is second)

    # --- one pod after the other ---------------------------------------------------------------

    def _dive(self, depth: int, lost: float, worst: float, total: float) -> None:
        """`lost` GPUs so far, `worst` and `total` reach of what is settled."""
        if depth == len(self._queue):
            self._end(lost, worst, total)
            return
        index = self._queue[depth]
        second = self._second_phase[index]
        if not self._enough_capacity(depth):
            return
        nodes = np.flatnonzero((self._slots[index] > 0) & ~self._banned[index])
        if second:
            nodes = nodes[self._open[nodes]]
        if not len(nodes):
            return
        key = self._problem.same[nodes] * (len(self._loads) + 1) + self._load[nodes]
        first: dict[int, int] = {}
        for at, equivalent in enumerate(key.tolist()):
            first.setdefault(equivalent, at)
        nodes = nodes[list(first.values())]
        losses = self._losses(index, nodes)
        bounds = self._second if second else self._first
        costs, nodes, losses = bounds(depth, nodes, losses, lost, worst, total)
        banned, tried = self._banned[index], -1
        for at in np.lexsort((nodes, costs)).tolist():
            if costs[at] >= self.cost - _LESS:
                break
            if self.spent >= self._budget:
                self.complete = False
                break
            self.spent += 1
            if tried >= 0:
                # All plans with a pod of this demand on that node were looked at: its twins below need not go there.
                equivalents = (self._problem.same == self._problem.same[tried]) & (self._load == self._load[tried])
                self._banned[index] = self._banned[index] | equivalents
            tried = int(nodes[at])
            self._step(depth, index, tried, lost + float(losses[at]), worst, total)
        self._banned[index] = banned

    def _step(self, depth: int, index: int, node: int, lost: float, worst: float, total: float) -> None:
        """The next pod on a node, everything below that, and the pod off again."""
        problem, devices = self._problem, self._problem.devices
        token = devices.put(index, node) if devices is not None else None
        if devices is not None and token is None:
            return
        lost_before = problem.losses.put(index, node) if problem.losses is not None else None
        slots, load = self._slots[:, node].copy(), self._load[node]
        before = self._worst, self._total, self._nearest, self._far, self._ends, self._open
        self._take(index, node)
        worst, total = self._settle(index, node, worst, total)
        if not self._second_phase[index] and depth + 1 == self._pods[0]:
            self._first_is_placed()
        self._dive(depth + 1, lost, worst, total)
        self._worst, self._total, self._nearest, self._far, self._ends, self._open = before
        self._places[index].pop()
        self._load[node] = load
        self._slots[:, node] = slots
        self._gpus[node] += problem.demands[index].gpus
        self._free[node] += problem.demands[index].request
        if devices is not None and token is not None:
            devices.back(node, token)
        if problem.losses is not None and lost_before is not None:
            problem.losses.back(index, node, lost_before)

    def _take(self, index: int, node: int) -> None:
        """A pod's amounts off a node, and what that node takes now."""
        demand, devices, slots = self._problem.demands[index], self._problem.devices, self._slots[:, node].tolist()
        self._free[node] -= demand.request
        self._gpus[node] -= demand.gpus
        free = self._free[node].tolist()
        for i, columns in enumerate(self._columns):
            if columns and slots[i]:
                self._slots[i, node] = min(max(free[column], 0) // n for column, n in columns)
        if devices is not None:
            self._slots[:, node] = np.minimum(self._slots[:, node], devices.slots[:, node])
        self._load[node] = self._loads.setdefault((int(self._load[node]), index), len(self._loads) + 1)
        self._places[index].append(node)

    def _settle(self, index: int, node: int, worst: float, total: float) -> tuple[float, float]:
        """Worst and total reach of what is settled once a pod is on a node; what it means to those that follow."""
        problem, partners = self._problem, self._problem.partners
        if self._second_phase[index]:
            return max(worst, float(self._far[node])), total + float(self._ends[node])
        if problem.nearest:
            self._nearest = np.minimum(self._nearest, problem.reach_us[node])
            return worst, total
        if partners.count[0]:
            worst, total = max(worst, float(partners.worst[0, node])), total + float(partners.total[0, node])
        self._worst = np.maximum(self._worst, problem.reach_us[node])
        self._total = self._total + problem.reach_us[node]
        return worst, total

    def _losses(self, index: int, nodes: NDArray[np.int64]) -> Floats:
        """GPUs that expected pods lose for one pod of a demand on each of these nodes."""
        problem, gpus = self._problem, self._problem.demands[index].gpus
        if problem.devices is not None and problem.losses is not None:
            of_gpus: Floats = problem.losses.gpus[index, nodes]
            return of_gpus
        lost: Floats = self._usable[self._gpus[nodes]] - self._usable[self._gpus[nodes] - gpus]
        return lost if problem.losses is None else lost + problem.losses.gpus[index, nodes]

    def _enough_capacity(self, depth: int) -> bool:
        """A necessary condition: each demand alone fits, and all of them if every pod were as small as the smallest."""
        rest, second = self._rest[depth], depth >= self._pods[0]
        capacity = [self._slots[i] * self._open if second else self._slots[i] for i, _ in rest]
        if any(int(slots.sum()) < count for slots, (_, count) in zip(capacity, rest, strict=True)):
            return False
        if (smallest := self._smallest[depth]) is None:
            return True
        union = np.logical_or.reduce([slots > 0 for slots in capacity])
        return int(capacity_for(self._free[union], smallest).sum()) >= len(self._queue) - depth

    def _first_is_placed(self) -> None:
        """What a place of the second phase means from now on, by node: worst and total reach, and whether it may be."""
        problem, partners = self._problem, self._problem.partners
        if problem.nearest:
            self._far = self._ends = np.minimum(self._nearest, partners.nearest[1])
        else:
            self._far = np.maximum(self._worst, partners.worst[1]) if partners.count[1] else self._worst
            self._ends = self._total + partners.total[1]
        self._open = self._far <= problem.bound_us

    # --- what a placement costs at least -------------------------------------------------------

    def _first(
        self, depth: int, nodes: NDArray[np.int64], losses: Floats, lost: float, worst: float, total: float
    ) -> tuple[Floats, NDArray[np.int64], Floats]:
        """The least cost of any plan with the next pod, one of the first phase, on each node; hopeless ones dropped."""
        problem, partners = self._problem, self._problem.partners
        lost_least = lost + losses + self._least_after[depth + 1]
        worst_least, total_least = np.full(len(nodes), worst), np.full(len(nodes), total)
        alive = np.ones(len(nodes), dtype=bool)
        if problem.nearest:
            worst_least = np.maximum(worst_least, self._floor_us)
            mean_least = (total_least + self._floor_us * sum(self._pods)) / max(1, sum(self._pods))
        else:
            if partners.count[0]:
                worst_least = np.maximum(worst_least, partners.worst[0, nodes])
            total_least += partners.total[0, nodes]
            more = self._pods[0] - depth - 1
            if partners.count[0]:
                for i, count in self._rest[depth + 1]:
                    if not self._second_phase[i]:
                        total_least += count * partners.total[0, problem.demands[i].accepts].min(initial=np.inf)
            far = np.maximum(self._worst, problem.reach_us[nodes])  # (candidates, V)
            ends = self._total + problem.reach_us[nodes] + more * self._floor_us
            for i, demand in enumerate(problem.demands):
                if not self._second_phase[i]:
                    continue
                open_to = (self._slots[i] > 0) & (far <= problem.bound_us)
                alive &= (open_to * self._slots[i]).sum(axis=1) >= demand.count
                if partners.count[1]:
                    far_too, ends_too = np.maximum(far, partners.worst[1]), ends + partners.total[1]
                else:
                    far_too, ends_too = far, ends
                worst_least = np.maximum(worst_least, np.where(open_to, far_too, np.inf).min(axis=1))
                total_least = total_least + demand.count * np.where(open_to, ends_too, np.inf).min(axis=1)
            mean_least = total_least / self._pairs
        nodes, losses = nodes[alive], losses[alive]
        share = self._share(nodes, second=False)
        costs = self._objective.of(worst_least[alive], mean_least[alive], lost_least[alive], share)
        return costs, nodes, losses

    def _second(
        self, depth: int, nodes: NDArray[np.int64], losses: Floats, lost: float, worst: float, total: float
    ) -> tuple[Floats, NDArray[np.int64], Floats]:
        """As `_first`, for the second phase: the first one has its places."""
        lost_least = lost + losses + self._least_after[depth + 1]
        far, ends = self._far, self._ends
        worst_least, total_least = np.maximum(worst, far[nodes]), total + ends[nodes]
        open_to = np.zeros(len(far), dtype=bool)
        for i, count in self._rest[depth + 1]:
            may = (self._slots[i] > 0) & self._open
            open_to |= may
            worst_least = np.maximum(worst_least, far[may].min(initial=np.inf))
            total_least = total_least + count * ends[may].min(initial=np.inf)
        if self._problem.nearest:
            return self._second_nearest(nodes, losses, lost_least, open_to, worst_least, total_least)
        share = self._share(nodes, second=True)
        return self._objective.of(worst_least, total_least / self._pairs, lost_least, share), nodes, losses

    def _second_nearest(
        self,
        nodes: NDArray[np.int64],
        losses: Floats,
        lost_least: Floats,
        open_to: Mask,
        worst_least: Floats,
        total_least: Floats,
    ) -> tuple[Floats, NDArray[np.int64], Floats]:
        """Pods of the first phase need a partner too: among those placed, this one, or one that may still come."""
        problem = self._problem
        alive = np.ones(len(nodes), dtype=bool)
        for first, known in zip(self._of(second=False), self._nearest_of_first().tolist(), strict=True):
            row = problem.reach_us[first]
            best = np.minimum(min(known, float(row[open_to].min(initial=np.inf))), row[nodes])
            alive &= best <= problem.bound_us
            worst_least, total_least = np.maximum(worst_least, best), total_least + best
        mean = total_least / max(1, sum(self._pods))
        costs = self._objective.of(worst_least[alive], mean[alive], lost_least[alive], 0.0)
        return costs, nodes[alive], losses[alive]

    def _nearest_of_first(self) -> Floats:
        """What each pod of the first phase has as its nearest partner so far, shape (pods,)."""
        first, second = self._of(second=False), self._of(second=True)
        known: Floats = self._problem.partners.nearest[0, first]
        if second and first:
            known = np.minimum(known, self._problem.reach_us[np.ix_(first, second)].min(axis=1))
        return known

    def _of(self, *, second: bool) -> list[int]:
        each = zip(self._second_phase, self._places, strict=True)
        return [node for of, nodes in each if of is second for node in nodes]

    def _share(self, nodes: NDArray[np.int64], *, second: bool) -> Floats | float:
        if self._sizes is None or self._problem.nearest:
            return 0.0
        return self._sizes.least_share(self._of(second=second), nodes, second)

    def _split(self) -> float:
        """The share of groups that the places tear between PCI roots. Only of a complete plan: none is dropped for it
        before."""
        if self._problem.roots is None:
            return 0.0
        gpus_at: dict[int, dict[str, list[int]]] = {}
        for demand, nodes in zip(self._problem.demands, self._places, strict=True):
            for node in nodes:
                gpus_at.setdefault(node, {}).setdefault(demand.phase, []).append(demand.gpus)
        return split_share(self._problem.roots, gpus_at, min(self._pods))

    def _off_rail(self) -> float:
        """The share of the gang's GPUs on no rail of their partners, of a complete plan too."""
        problem = self._problem
        if problem.rails is None:
            return 0.0
        return problem.rails.off(
            Placed(demand.phase == DECODE, demand.gpus, problem.names[node])
            for demand, nodes in zip(problem.demands, self._places, strict=True)
            for node in nodes
        )

    def _end(self, lost: float, worst: float, total: float) -> None:
        """A complete plan: kept if it is the best so far."""
        pairs = self._pairs
        if self._problem.nearest:
            first = self._nearest_of_first()
            if (first > self._problem.bound_us).any():
                return
            worst, total = max(worst, float(first.max(initial=0.0))), total + float(first.sum())
            pairs = max(1, sum(self._pods))
        share = self._sizes.share(self._of(second=False), self._of(second=True)) if self._sizes is not None else 0.0
        one = np.array([worst]), np.array([total / pairs]), np.array([lost])
        cost = float(self._objective.of(*one, share, self._split(), self._off_rail())[0])
        if cost < self.cost - _LESS:
            if self.best is None:
                self._budget = min(self._budget, self.spent + self._improve)
            self.cost, self.best = cost, [sorted(nodes) for nodes in self._places]


def _slots(problem: Problem) -> NDArray[np.int64]:
    """How many pods of each demand every node takes, shape (demands, V)."""
    rows = [np.where(demand.accepts, capacity_for(problem.free, demand.request), 0) for demand in problem.demands]
    slots = np.array(rows, dtype=np.int64)
    return slots if problem.devices is None else np.minimum(slots, problem.devices.slots)


def _smallest(demands: Sequence[Demand], rest: Sequence[tuple[int, int]]) -> Amount2D | None:
    """The least of each amount that any of the pods left requests; None where they are of one demand."""
    smallest: Amount2D | None = np.min([demands[i].request for i, _ in rest], axis=0) if len(rest) > 1 else None
    return smallest


def _least_losses(problem: Problem, usable: Floats) -> list[float]:
    """GPUs that a pod of each demand loses at least, wherever it goes."""
    whole = least_loss(usable, [demand.gpus for demand in problem.demands])
    if problem.losses is None:
        return whole
    known = [0.0] * len(whole) if problem.devices is not None else whole
    return [mine + least for mine, least in zip(known, problem.losses.least, strict=True)]
