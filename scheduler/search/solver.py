"""Places for all pods asked for, the best that a budget finds, or the proof that there are none.

First a joint search in each promising region (`candidate_regions`, `branch_and_bound`), which knows what a good plan
is; then, where none of them holds the gang, a search over the whole cluster that only asks whether it fits
(`feasibility_search`), which is what makes a "no" true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.partner_reach import PartnerReach, other_phase, seen_from
from scheduler.evaluate.rail_alignment import GangRails, gang_rails
from scheduler.model.policy import Policy
from scheduler.model.request import ReachBound
from scheduler.search.branch_and_bound import BranchAndBound
from scheduler.search.bulk_fill import fill
from scheduler.search.bulk_fill_nearest import cannot, fill_nearest
from scheduler.search.candidate_regions import domains, regions
from scheduler.search.capacity_loss import CapacityLoss, GpuValue
from scheduler.search.cluster_view import ClusterView
from scheduler.search.demand import Demand
from scheduler.search.feasibility_search import FeasibilitySearch, Found
from scheduler.search.gpu_usage import GpuUsage
from scheduler.search.objective import Floats, Objective, expected_pods, taken_gpus
from scheduler.search.problem import Partners, Problem
from scheduler.search.small_sets import FEW, SmallSets
from topology.cluster.snapshot import Snapshot, capacity_for
from topology.gpus.roots import RootCapacity
from topology.labels import PHASES

Places = Mapping[str, Sequence[NDArray[np.int64]]]  # by phase, the nodes of each partner
REGION_BUDGET = 4
"""Placements tried in one region of a large cluster, beyond one for every pod."""
WHOLE_BUDGET = 1_500
"""Placements tried for the best plan where all nodes with room are looked at, before asking whether there is any."""
PATIENCE = 300
"""The same where those are more than a few, and in a region with `pairing: nearest` while there is no plan; beyond one
for every pod."""
_STEPPED = 512
"""Pods of a gang that a search over the whole cluster still places one by one."""
_DOMAINS = 8
"""Domains that are filled on trial with a gang of very many pods."""
FEW_NODES = 12
"""Up to so many nodes a plan is improved for as long as the policy allows; on n times as many for 1 of n x n x n, since
more nodes have more good plans and each step costs more."""


class Solver:
    """One question: these demands, beside these partners, within this bound."""

    def __init__(
        self,
        snapshot: Snapshot,
        demands: Sequence[Demand],
        partners: Places,
        bound: ReachBound,
        limit_us: float,
        policy: Policy,
    ) -> None:
        """`demands` are over all columns and nodes.

        `bound` is what reach is measured against, `limit_us` what it may not exceed: infinity where it is a wish."""
        self._snapshot, self._demands, self._partners = snapshot, demands, partners
        self._bound, self._limit_us, self._policy = bound, limit_us, policy
        table, gpu = snapshot.table, snapshot.gpu_column
        asked = np.array([demand.request > 0 for demand in demands]).reshape(len(demands), len(table.resources))
        columns = np.flatnonzero(asked.any(axis=0))
        gpus = (
            np.maximum(table.allocatable[:, gpu] - snapshot.used[:, gpu], 0)
            if gpu is not None
            else np.zeros(len(table), dtype=np.int64)
        )
        taken = taken_gpus([(demand.shape, demand.count) for demand in demands], snapshot, policy)
        self._objective = Objective(policy, bound.us, taken, expected_pods(snapshot))
        self._value = GpuValue(snapshot.mix, policy)
        self._roots = snapshot.root_capacity()
        self._view = ClusterView(
            table=table,
            free=table.allocatable[:, columns] - snapshot.used[:, columns],
            gpus=gpus,
            usable=self._objective.usable(int(gpus.max(initial=0))),
            limit_us=limit_us,
            size_bytes=bound.size_bytes,
            partners={phase: self._seen_by(phase) for phase in PHASES},
            devices=self._gpu_usage(demands, np.arange(len(table))),
        )
        self._order = sorted(range(len(demands)), key=self._rank)
        self._asked = [replace(d, request=d.request[columns], accepts=self._may(d)) for d in demands]
        """The demands over the columns that any of them asks for, where partners allow them."""
        self._slots = self._slots_now()
        self._pods = sum(demand.count for demand in demands)

    def run(self) -> Found:
        """The best places found; `complete` without places is a proof."""
        if not self._demands:
            return Found(places=(), expanded=0, complete=True)
        if self._pods > self._policy.joint_pods:
            return self._filled()
        return self._searched()

    def _searched(self) -> Found:
        """For no more pods than are weighed against each other."""
        budget, spent, best, cost = self._policy.search_budget, 0, None, np.inf
        for region in regions(self._view, self._asked, self._slots, self._near()):
            allowed, improve = budget - spent, self._policy.improve_budget
            if not region.whole:
                # Only here is `nearest` searched for as such; without a plan so far that is worth more steps.
                more = PATIENCE if self._bound.nearest and best is None else REGION_BUDGET
                allowed = min(allowed, more + self._pods)
            else:
                if not self._bound.nearest:  # the search that only asks whether it fits proves a "no" faster
                    most = WHOLE_BUDGET if len(region.nodes) <= FEW_NODES else PATIENCE + self._pods
                    allowed = min(allowed // 2 + 1, most)
                improve = int(improve * min(1.0, FEW_NODES / max(1, len(region.nodes))) ** 3)
            joint = self._joint(region.nodes, allowed, improve)
            joint.run(cost)
            spent += joint.spent
            if joint.best is not None:
                best, cost = self._named(region.nodes, joint.best), joint.cost
                if not self._policy.improve_budget:
                    break
            if region.whole and (joint.best is not None or joint.complete):
                return Found(places=best, expanded=spent, complete=True)
        if best is not None:
            return Found(places=best, expanded=spent, complete=True)
        return self._nearest(spent) if self._bound.nearest else self._everywhere(spent)

    # --- the pieces ----------------------------------------------------------------------------

    def _filled(self) -> Found:
        """For more pods than a joint search can weigh against each other."""
        view, asked, pods = self._view, self._asked, self._pods
        able = np.flatnonzero((self._slots > 0).any(axis=0))
        near = [able] if any(seen.pods for seen in view.partners.values()) else []
        tried = domains(view, able, asked, self._slots, most=_DOMAINS)
        if (places := fill(view, asked, chain(near, tried))) is not None:
            return Found(tuple(tuple(nodes) for nodes in places), pods, complete=True)
        if self._bound.nearest:
            return self._nearest(0)
        # Pod by pod over all nodes costs a millisecond a step: of very many only counting may say "no".
        most = self._policy.search_budget if pods <= _STEPPED else 0
        return self._everywhere(0, min(most, pods + PATIENCE))

    def _nearest(self, spent: int) -> Found:
        """A partner for each pod, over all nodes, clique by clique; else what counting says."""
        if cannot(self._view, self._asked):
            return Found(None, spent, complete=True)
        if (places := fill_nearest(self._view, self._asked)) is not None:
            return Found(tuple(tuple(nodes) for nodes in places), spent + self._pods, complete=True)
        return Found(None, spent + self._pods, complete=False)

    def _everywhere(self, spent: int, most: int | None = None) -> Found:
        """Over all nodes, for any plan at all."""
        size = self._bound.size_bytes
        fixed = {
            phase: np.unique(np.concatenate([*self._partners[phase], np.empty(0, dtype=np.int64)])).astype(np.int64)
            for phase in PHASES
        }
        left = self._policy.search_budget - spent if most is None else most
        found = FeasibilitySearch(
            self._snapshot, self._demands, fixed, self._limit_us, size, left, self._view.devices
        ).run()
        return Found(found.places, spent + found.expanded, found.complete)

    def _slots_now(self) -> NDArray[np.int64]:
        """How many pods of each demand every node takes, (demands, N)."""
        rows = [np.where(demand.accepts, capacity_for(self._view.free, demand.request), 0) for demand in self._asked]
        slots = np.array(rows, dtype=np.int64).reshape(len(rows), len(self._view.table))
        return slots if self._view.devices is None else np.minimum(slots, self._view.devices.slots)

    def _gpu_usage(self, demands: Sequence[Demand], nodes: NDArray[np.int64]) -> GpuUsage | None:
        """Room on cards for these demands; None where amounts say everything."""
        if all(demand.gpu_need is None for demand in demands):
            return None
        return GpuUsage(self._snapshot.gpus, demands, nodes)

    def _seen_by(self, phase: str) -> PartnerReach:
        return seen_from(self._snapshot.table, self._partners[other_phase(phase)], self._bound.size_bytes)

    def _may(self, demand: Demand) -> NDArray[np.bool_]:
        """Nodes for a demand: accepted, and as near to partners as it must be whatever its siblings do."""
        worst, _, nearest, count = self._view.partners[demand.phase]
        if not count:
            return demand.accepts
        if not self._bound.nearest:
            return demand.accepts & (worst <= self._limit_us)
        alone = not any(other.phase != demand.phase for other in self._demands)
        return demand.accepts & (nearest <= self._limit_us) if alone else demand.accepts

    def _near(self) -> Floats | None:
        """The cost in reach of each node to the partners, for the phase that sees most of them."""
        partners = self._view.partners
        phase = max((demand.phase for demand in self._demands), key=lambda p: (partners[p].pods, p))
        worst, total, nearest, count = partners[phase]
        if not count:
            return None
        nobody = np.zeros(len(worst))
        if self._bound.nearest:
            return self._objective.of(nearest, nearest, nobody, 0.0)
        return self._objective.of(worst, total / count, nobody, 0.0)

    def _rank(self, index: int) -> tuple[object, ...]:
        """The phase with fewer pods first, then the one with the widest, decode first of equals; in it widest first."""
        demand = self._demands[index]
        mine = [other for other in self._demands if other.phase == demand.phase]
        widest = max(tuple(other.request.tolist()) for other in mine)
        flipped = tuple(-n for n in widest)
        return sum(d.count for d in mine), flipped, demand.phase, tuple((-demand.request).tolist()), index

    def _joint(self, nodes: NDArray[np.int64], budget: int, improve: int) -> BranchAndBound:
        table, bound = self._snapshot.table, self._bound
        first = self._demands[self._order[0]].phase
        phases = (first, other_phase(first))
        demands = tuple(replace(d, accepts=d.accepts[nodes]) for d in (self._asked[i] for i in self._order))
        seen = [self._view.partners[phase] for phase in phases]
        partners = Partners(
            worst=np.array([s[0][nodes] for s in seen]),
            total=np.array([s[1][nodes] for s in seen]),
            nearest=np.array([s[2][nodes] for s in seen]),
            count=(seen[0][3], seen[1][3]),
        )
        devices = self._gpu_usage(demands, nodes)
        losses = self._losses(nodes, devices)
        problem = Problem(
            free=self._view.free[nodes],
            gpus=self._view.gpus[nodes],
            reach_us=self._reach(nodes),
            same=self._same(nodes, demands, devices, losses),
            first=first,
            demands=demands,
            partners=partners,
            bound_us=self._limit_us,
            nearest=bound.nearest,
            devices=devices,
            roots=self._roots_of(nodes),
            losses=losses,
            rails=self._rails(nodes) if losses is None else None,
            names=tuple(nodes.tolist()),
        )
        sizes = None
        if len(table) <= FEW and not bound.nearest and improve:
            there = [sorted({int(n) for p in self._partners[phase] for n in p}) for phase in phases]
            sizes = SmallSets(table, nodes, (there[0], there[1]), self._limit_us, bound.size_bytes)
        return BranchAndBound(problem, self._objective, sizes, budget, improve)

    def _rails(self, nodes: NDArray[np.int64]) -> GangRails | None:
        there = tuple({int(n) for p in self._partners[phase] for n in p} for phase in PHASES)
        return gang_rails(self._snapshot, (there[0], there[1]), nodes)

    def _roots_of(self, nodes: NDArray[np.int64]) -> RootCapacity | None:
        """Free GPUs by PCI root of these nodes, by position; None where no node has several roots that are known."""
        capacity = self._roots
        if not len(capacity.nodes):
            return None
        at = np.flatnonzero(np.isin(nodes, capacity.nodes))
        return RootCapacity(at, capacity.free[np.searchsorted(capacity.nodes, nodes[at])]) if len(at) else None

    def _reach(self, nodes: NDArray[np.int64]) -> Floats:
        reach, size = self._snapshot.table.reach, self._bound.size_bytes
        kinds, at = np.unique(reach.kind[nodes], return_inverse=True)
        between = np.array([reach.kind_row_us(int(kind), size)[kinds] for kind in kinds]).reshape(
            len(kinds), len(kinds)
        )
        matrix: Floats = between[np.ix_(at, at)]
        np.fill_diagonal(matrix, reach.self_us(size)[nodes])
        return matrix

    def _losses(self, nodes: NDArray[np.int64], devices: GpuUsage | None) -> CapacityLoss | None:
        """What is lost beyond whole GPUs; None where those say everything."""
        if devices is None and not any(demand.shape.profile for demand in self._demands):
            return None
        return CapacityLoss(self._snapshot, [self._demands[i] for i in self._order], nodes, self._value, devices)

    def _same(
        self, nodes: NDArray[np.int64], demands: Sequence[Demand], devices: GpuUsage | None, losses: CapacityLoss | None
    ) -> NDArray[np.int64]:
        """A number per node: equal where kind, free amounts and welcome are. Nodes of partners are like no other."""
        columns = [
            self._snapshot.table.reach.kind[nodes],
            *self._view.free[nodes].T,
            *(demand.accepts for demand in demands),
        ]
        if (roots := self._roots_of(nodes)) is not None:
            by_node = np.full((len(nodes), roots.free.shape[1]), -1)
            by_node[roots.nodes] = roots.free
            columns += [*by_node.T]
        if (rails := self._snapshot.rail_capacity()) and len(at := np.flatnonzero(np.isin(nodes, rails.nodes))):
            seen = np.full((len(nodes), 2), -1, dtype=np.int64)
            place = np.searchsorted(rails.nodes, nodes[at])
            seen[at] = np.stack([rails.kind[place], rails.free[place]], axis=1)
            columns += [*seen.T]
        rows = zip(*(column.tolist() for column in columns), strict=True)
        taken = {int(n) for partners in self._partners.values() for p in partners for n in p}
        known: dict[object, int] = {}
        keys: list[object] = [
            node
            if node in taken
            else (
                row,
                devices.state(at) if devices is not None else None,
                losses.state(at) if losses is not None else None,
            )
            for at, (node, row) in enumerate(zip(nodes.tolist(), rows, strict=True))
        ]
        return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)

    def _named(self, nodes: NDArray[np.int64], best: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """Positions in search order back to node indices in the order of demands."""
        by_demand = dict(zip(self._order, best, strict=True))
        return tuple(tuple(nodes[by_demand[i]].tolist()) for i in range(len(self._demands)))
