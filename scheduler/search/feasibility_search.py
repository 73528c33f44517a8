"""The search for a whole gang: which node for which pod, so that every prefill-decode pair is within the bound.

Rules of this file. (1) Pure: same input, same places. (2) Nodes that can be swapped without changing anything are
tried once (same kind in the reach model, same free amounts, same acceptance). (3) Complete within its budget: None
with budget left means that no placement exists. (4) The budget counts placements tried, not time.

It walks depth first: the widest pods first, the first pod in the tightest domain that can hold the whole gang, every
further pod near those placed, and turns back as soon as the room left inside the bound is too small for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scheduler.search.demand import Demand
from scheduler.search.gpu_usage import GpuUsage
from scheduler.search.reach_cliques import MOST_KINDS, clique_numbers, kinds_within
from topology.cluster.isochrone_sets import near_all
from topology.cluster.snapshot import Mask, Snapshot, capacity_for
from topology.gpus.gpu_row import GpuRow
from topology.labels import DECODE, PREFILL

_ROUNDS = 8
_SHALLOW = 3
"""Placements after which what is still possible is counted anew: the first few decide about domains."""


@dataclass(frozen=True, slots=True)
class Found:
    """Node indices per demand, in their order, how many placements were tried. `complete` is False out of budget."""

    places: tuple[tuple[int, ...], ...] | None
    expanded: int
    complete: bool


class _Budget:
    def __init__(self, limit: int) -> None:
        self.limit, self.spent = limit, 0

    def spend(self) -> bool:
        self.spent += 1
        return self.spent <= self.limit


@dataclass(slots=True)
class _Step:
    """One pod of a demand on its way through its candidates: where it stands now, and what was so before."""

    demand: int
    candidates: Iterator[int]
    node: int = -1
    token: tuple[GpuRow, NDArray[np.int64]] | None = None
    allowed: dict[str, Mask] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)


class FeasibilitySearch:
    """One search over one snapshot. Build it, call `run` once."""

    def __init__(
        self,
        snapshot: Snapshot,
        demands: Sequence[Demand],
        fixed: Mapping[str, NDArray[np.int64]],
        bound_us: float,
        size_bytes: int,
        budget: int,
        devices: GpuUsage | None = None,
    ) -> None:
        table = snapshot.table
        self._table = table
        self._demands, self._devices = demands, devices
        self._bound_us, self._size = bound_us, size_bytes
        self._budget = _Budget(budget)
        self._free = snapshot.free.copy()
        gpu = snapshot.gpu_column
        self._gpu = gpu if gpu is not None else table.column.get("cpu", 0)
        # Where each phase may still go: within the bound of everything of the other phase that has a place.
        self._allowed: dict[str, Mask] = {
            PREFILL: near_all(table, fixed[DECODE], bound_us, size_bytes),
            DECODE: near_all(table, fixed[PREFILL], bound_us, size_bytes),
        }
        self._placed: dict[str, list[int]] = {PREFILL: fixed[PREFILL].tolist(), DECODE: fixed[DECODE].tolist()}
        # Widest first: a wide pod has the fewest places, so it decides early.
        self._order = sorted(range(len(demands)), key=lambda i: (tuple(-demands[i].request), demands[i].phase, i))
        self._queue = [i for i in self._order for _ in range(demands[i].count)]
        self._places: list[list[int]] = [[] for _ in demands]
        self._banned: list[set[int]] = [set() for _ in demands]
        self._same = self._signatures()
        self._within: NDArray[np.bool_] | None = None  # by kinds of nodes, made when first needed

    def run(self) -> Found:
        """Search to the end, the first solution, or the budget."""
        self._leave_cliques()
        self._rule_out(0)
        solved = self._enough_capacity(0) and (not self._queue or self._place())
        complete = self._budget.spent <= self._budget.limit
        places = tuple(tuple(p) for p in self._places) if solved else None
        expanded = min(self._budget.spent, self._budget.limit)
        return Found(places=places, expanded=expanded, complete=complete or solved)

    def _leave_cliques(self) -> None:
        """Where nodes within the bound of each other form cliques, as in a tree of switches, a gang is in one of them:
        leave those that have room for all of it together, as far as counting tells."""
        if len(self._table.reach.first) > MOST_KINDS or len({demand.phase for demand in self._demands}) < 2:
            return
        if (cliques := clique_numbers(self._table, self._kinds_within())) is None:
            return
        need = sum(int(demand.request[self._gpu]) * demand.count for demand in self._demands if len(demand.request))
        smallest, pods = np.min([demand.request for demand in self._demands], axis=0), len(self._queue)
        welcome = np.logical_or.reduce([demand.accepts for demand in self._demands])
        gpus = np.where(welcome, np.maximum(self._free[:, self._gpu], 0), 0) if need else np.zeros(len(welcome))
        enough = np.bincount(cliques, weights=gpus) >= need
        enough &= np.bincount(cliques, weights=np.where(welcome, capacity_for(self._free, smallest), 0)) >= pods
        for phase, allowed in self._allowed.items():
            self._allowed[phase] = allowed & enough[cliques]

    def _kinds_within(self) -> NDArray[np.bool_]:
        if self._within is None:
            self._within = kinds_within(self._table, self._bound_us, self._size)
        return self._within

    def _rule_out(self, depth: int) -> None:
        """Leave to each phase only nodes around which the other phase has room, until nothing changes any more.

        Around every place of a pod all pods of the other phase must fit. Counting that by kinds of nodes proves most
        gangs impossible without trying a place. Where nearly every node is a kind of its own counting costs too much.
        """
        reach, everywhere = self._table.reach, np.arange(len(self._table))
        if not len(everywhere) or len(reach.first) > MOST_KINDS:
            return
        within = self._kinds_within()
        slots = [
            (self._demands[i], count, np.where(self._demands[i].accepts, self._slots(i, everywhere), 0))
            for i, count in self._remaining(depth)
        ]
        equivalents, inside = np.diagonal(within)[reach.kind], reach.self_us(self._size) <= self._bound_us
        for _ in range(_ROUNDS):
            before = [int(mask.sum()) for mask in self._allowed.values()]
            for demand, count, capacity in slots:
                mine = np.where(self._allowed[demand.phase], capacity, 0)
                per_kind = np.bincount(reach.kind, weights=mine, minlength=len(reach.first))
                around = (within @ per_kind)[reach.kind] + mine * (inside.astype(np.int64) - equivalents)
                other = DECODE if demand.phase == PREFILL else PREFILL
                self._allowed[other] = self._allowed[other] & (around >= count)
            if before == [int(mask.sum()) for mask in self._allowed.values()]:
                return

    def _place(self) -> bool:
        """Depth first, one step for each pod. The steps are a list, not calls: a gang may have thousands of pods."""
        steps: list[_Step] = []
        step = self._step(0)
        while True:
            if self._next(step, len(steps)):
                if len(steps) + 1 == len(self._queue):
                    return True
                if self._enough_capacity(len(steps) + 1):
                    steps.append(step)
                    step = self._step(len(steps))
                    continue
            else:
                self._banned[step.demand].difference_update(step.refused)
                if not steps:
                    return False
                step = steps.pop()
            self._take_back(step)

    def _step(self, depth: int) -> _Step:
        index = self._queue[depth]
        return _Step(index, self._candidates(depth, self._demands[index]))

    def _next(self, step: _Step, depth: int) -> bool:
        """Put the step's pod on its next candidate, if there is one and the budget allows it."""
        demand = self._demands[step.demand]
        other = DECODE if demand.phase == PREFILL else PREFILL
        for node in step.candidates:
            if node in self._banned[step.demand]:
                continue
            if not self._budget.spend():
                return False
            token = self._devices.put(step.demand, node) if self._devices is not None else None
            if self._devices is not None and token is None:
                continue
            step.node, step.token, step.allowed = node, token, self._allowed.copy()
            self._free[node] -= demand.request
            self._allowed[other] = self._allowed[other] & (self._table.reach.row_us(node, self._size) <= self._bound_us)
            self._placed[demand.phase].append(node)
            self._places[step.demand].append(node)
            if depth < _SHALLOW:
                self._rule_out(depth + 1)
            return True
        return False

    def _take_back(self, step: _Step) -> None:
        demand, node = self._demands[step.demand], step.node
        self._places[step.demand].pop()
        self._placed[demand.phase].pop()
        self._allowed = step.allowed
        self._free[node] += demand.request
        if self._devices is not None and step.token is not None:
            self._devices.back(node, step.token)
        # No solution has a pod of this demand here, so its interchangeable siblings need not try again below.
        step.refused.append(node)
        self._banned[step.demand].add(node)

    def _remaining(self, depth: int) -> list[tuple[int, int]]:
        counts = np.bincount(np.array(self._queue[depth:], dtype=np.int64), minlength=len(self._demands))
        return [(i, int(n)) for i, n in enumerate(counts) if n]

    def _slots(self, index: int, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many pods of a demand each node takes now, shape (nodes,)."""
        slots = capacity_for(self._free[nodes], self._demands[index].request)
        return slots if self._devices is None else np.minimum(slots, self._devices.slots[index, nodes])

    def _enough_capacity(self, depth: int) -> bool:
        """A necessary condition: each kind of pod alone fits into what is allowed, and so do all their GPUs, and all of
        them if every pod were as small as the smallest."""
        union = np.zeros(len(self._table), dtype=bool)
        gpus, remaining = 0, self._remaining(depth)
        for index, count in remaining:
            demand = self._demands[index]
            mask = self._allowed[demand.phase] & demand.accepts
            if not mask.any() or int(self._slots(index, np.flatnonzero(mask)).sum()) < count:
                return False
            union |= mask
            gpus += int(demand.request[self._gpu]) * count if len(demand.request) else 0
        if gpus and int(np.maximum(self._free[union, self._gpu], 0).sum()) < gpus:
            return False
        if len(remaining) < 2:
            return True
        smallest = np.min([self._demands[index].request for index, _ in remaining], axis=0)
        return int(capacity_for(self._free[union], smallest).sum()) >= sum(count for _, count in remaining)

    def _candidates(self, depth: int, demand: Demand) -> Iterator[int]:
        mask = self._allowed[demand.phase] & demand.accepts
        nodes = np.flatnonzero(mask)
        nodes = nodes[self._slots(self._queue[depth], nodes) > 0]
        if not len(nodes):
            return
        if self._placed[PREFILL] or self._placed[DECODE]:
            near = self._distance(demand.phase)[nodes]
            left = self._free[nodes, self._gpu] if self._free.shape[1] else np.zeros(len(nodes), dtype=np.int64)
            order = np.lexsort((nodes, left, near))
        else:
            order = self._anchor_order(depth, nodes)
        nodes = nodes[order]
        # Untouched nodes with one signature are the same choice: the first of each is tried. Nodes that hold something
        # of this gang are told apart by it. Whether a node is allowed follows from its kind while it is untouched.
        enqueue = np.isin(nodes, np.array(self._placed[PREFILL] + self._placed[DECODE], dtype=np.int64))
        first = np.zeros(len(nodes), dtype=bool)
        first[np.unique(np.where(enqueue, -1 - nodes, self._same[nodes]), return_index=True)[1]] = True
        yield from nodes[first].tolist()

    def _signatures(self) -> NDArray[np.int64]:
        """A number per node, (N,): equal where kind, free amounts and acceptance by every demand are."""
        columns = [self._table.reach.kind[:, None], self._free, *(demand.accepts[:, None] for demand in self._demands)]
        if self._devices is not None:
            known: dict[object, int] = {}
            states = [known.setdefault(self._devices.state(node), len(known)) for node in range(len(self._table))]
            columns.append(np.array(states, dtype=np.int64)[:, None])
        rows = np.hstack([column.astype(np.int64) for column in columns])
        same: NDArray[np.int64] = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
        return same

    def _distance(self, phase: str) -> NDArray[np.float64]:
        """Worst reach to the other phase's places; to the own phase's while the other has none."""
        other = self._placed[DECODE if phase == PREFILL else PREFILL] or self._placed[phase]
        rows = [self._table.reach.row_us(node, self._size) for node in sorted(set(other))]
        worst: NDArray[np.float64] = np.max(rows, axis=0)
        return worst

    def _anchor_order(self, depth: int, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first pod: tightest domain that can hold everything first, the fullest such domain, then by name."""
        reach = self._table.reach
        remaining = self._remaining(depth)
        free = np.maximum(self._free[:, self._gpu], 0)
        need = sum(int(self._demands[i].request[self._gpu]) * count for i, count in remaining)
        everywhere = np.arange(len(self._table))
        level = np.full(len(self._table), 5, dtype=np.int64)
        leftover = np.zeros(len(self._table), dtype=np.int64)
        alone = np.arange(len(self._table))
        domains: tuple[NDArray[np.integer], ...] = (alone, reach.fabric, reach.leaf, reach.spine, reach.zone)
        for rank, domain in enumerate(domains):
            known = domain >= 0
            size = int(domain.max(initial=0)) + 1
            fits = known & (level == 5)
            for index, count in remaining:
                slots = np.where(self._demands[index].accepts, self._slots(index, everywhere), 0)
                fits &= np.bincount(domain[known], weights=slots[known], minlength=size)[domain] >= count
            capacity = np.bincount(domain[known], weights=free[known], minlength=size)[domain]
            fits &= capacity >= need
            level[fits] = rank
            leftover[fits] = capacity[fits].astype(np.int64) - need
        return np.lexsort((nodes, free[nodes], leftover[nodes], level[nodes]))
