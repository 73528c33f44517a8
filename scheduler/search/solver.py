"""Places for all pods asked for, the best that a budget finds, or the proof that there are none.

First a joint search in each promising region (`narrow`, `joint`), which knows what a good plan is; then, where none of
them holds the gang, a search over the whole cluster that only asks whether it fits (`search`), which is what makes a
"no" true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.partner_reach import Seen, other_phase, seen_from
from scheduler.evaluate.rail_alignment import GangRails, gang_rails
from scheduler.model.policy import Policy
from scheduler.model.request import ReachBound
from scheduler.search.branch_and_bound import Joint
from scheduler.search.bulk_fill import Load, Yard, fill
from scheduler.search.bulk_fill_nearest import cannot, fill_nearest
from scheduler.search.candidate_regions import Wanted, domains, regions
from scheduler.search.capacity_loss import CardValue, RoomLoss, Taker
from scheduler.search.feasibility_search import Found, Item, Search
from scheduler.search.gpu_usage import Asker, CardRoom
from scheduler.search.objective import Floats, Objective, expected_pods, taken_gpus
from scheduler.search.problem import Part, Partners, Problem
from scheduler.search.single_node import one_node
from scheduler.search.small_sets import FEW, SmallSets
from topology.cluster.snapshot import Snapshot, room_for
from topology.gpus.roots import RootRoom
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


class GangSearch:
    """One question: these items, beside these partners, within this bound."""

    def __init__(
        self,
        snapshot: Snapshot,
        items: Sequence[Item],
        partners: Places,
        bound: ReachBound,
        limit_us: float,
        policy: Policy,
    ) -> None:
        """`bound` is what reach is measured against, `limit_us` what it may not exceed: infinity where it is a wish."""
        self._snapshot, self._items, self._partners = snapshot, items, partners
        self._bound, self._limit_us, self._policy = bound, limit_us, policy
        table, gpu = snapshot.table, snapshot.gpu_column
        self._gpu_of = [int(item.need[gpu]) if gpu is not None else 0 for item in items]
        asked = np.flatnonzero(np.any([item.need > 0 for item in items], axis=0)) if items else np.empty(0, np.int64)
        self._asked = asked
        self._free = table.allocatable[:, asked] - snapshot.used[:, asked]
        self._gpus = (
            np.maximum(table.allocatable[:, gpu] - snapshot.used[:, gpu], 0)
            if gpu is not None
            else np.zeros(len(table), dtype=np.int64)
        )
        taken = taken_gpus([(item.shape, item.count) for item in items], snapshot, policy)
        self._objective = Objective(policy, bound.us, taken, expected_pods(snapshot))
        self._value = CardValue(snapshot.mix, policy)
        self._roots = snapshot.root_room()
        # What partners mean for a pod of each phase, by node: (worst, total, nearest, how many).
        self._seen = {phase: self._seen_by(phase) for phase in PHASES}
        self._order = sorted(range(len(items)), key=self._rank)
        self._cards = self._card_room(range(len(items)), np.arange(len(table)))
        self._wanted, self._pods = [self._want(i) for i in range(len(items))], sum(item.count for item in items)

    def run(self) -> Found:
        """The best places found; `complete` without places is a proof."""
        if not self._items:
            return Found(places=(), expanded=0, complete=True)
        if self._pods > self._policy.joint_pods:
            return self._filled()
        if (node := self.one_node()) is not None:
            return Found(tuple((node,) * item.count for item in self._items), self._pods, complete=True)
        return self.searched()

    def searched(self) -> Found:
        """As `run`, for no more pods than are weighed against each other, whatever can be known beforehand."""
        wanted, pods = self._wanted, self._pods
        budget, spent, best, cost = self._policy.search_budget, 0, None, np.inf
        for region in regions(self._snapshot.table, self._free, self._gpus, wanted, self._near(), self._objective):
            allowed, improve = budget - spent, self._policy.improve_budget
            if not region.whole:
                # Only here is `nearest` searched for as such; without a plan so far that is worth more steps.
                more = PATIENCE if self._bound.nearest and best is None else REGION_BUDGET
                allowed = min(allowed, more + pods)
            else:
                if not self._bound.nearest:  # the search that only asks whether it fits proves a "no" faster
                    most = WHOLE_BUDGET if len(region.nodes) <= FEW_NODES else PATIENCE + pods
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

    def one_node(self) -> int | None:
        """The node that takes all, where that needs no search: nothing counts but reach and whole GPUs."""
        snapshot, items = self._snapshot, self._items
        if (
            self._bound.nearest
            or len({item.phase for item in items}) < len(PHASES)
            or any(seen.pods for seen in self._seen.values())
            or self._cards is not None
            or any(item.shape.profile for item in items)
            or len(self._roots.nodes)
            or len(snapshot.rail_room().nodes)
            or len(snapshot.table) <= FEW
            or 2 * self._pods > self._policy.search_budget
        ):
            return None
        in_order, size = [self._wanted[i] for i in self._order], self._bound.size_bytes
        reach = snapshot.table.reach
        return one_node(reach, size, self._limit_us, self._free, self._gpus, in_order, self._objective)

    # --- the pieces ----------------------------------------------------------------------------

    def _filled(self) -> Found:
        """For more pods than a joint search can weigh against each other."""
        wanted, pods = self._wanted, self._pods
        yard, loads = self._yard()
        able = np.flatnonzero(np.logical_or.reduce([want.slots > 0 for want in wanted]))
        near = [able] if any(seen.pods for seen in self._seen.values()) else []
        tried = domains(yard.table, able, self._free, self._gpus, wanted, yard.usable, most=_DOMAINS)
        if (places := fill(yard, loads, chain(near, tried))) is not None:
            return Found(tuple(tuple(nodes) for nodes in places), pods, complete=True)
        if self._bound.nearest:
            return self._nearest(0)
        # Pod by pod over all nodes costs a millisecond a step: of very many only counting may say "no".
        most = self._policy.search_budget if pods <= _STEPPED else 0
        return self._everywhere(0, min(most, pods + PATIENCE))

    def _nearest(self, spent: int) -> Found:
        """A partner for each pod, over all nodes, clique by clique; else what counting says."""
        yard, loads = self._yard()
        pods = sum(load.count for load in loads)
        if cannot(yard, loads):
            return Found(None, spent, complete=True)
        if (places := fill_nearest(yard, loads)) is not None:
            return Found(tuple(tuple(nodes) for nodes in places), spent + pods, complete=True)
        return Found(None, spent + pods, complete=False)

    def _yard(self) -> tuple[Yard, list[Load]]:
        usable = self._objective.usable(int(self._gpus.max(initial=0)))
        size = self._bound.size_bytes
        yard = Yard(self._snapshot.table, self._free, self._gpus, usable, self._limit_us, size, self._cards)
        loads = []
        for item, want in zip(self._items, self._wanted, strict=True):
            seen = self._seen[item.phase]
            loads.append(Load(item.phase, want.need, want.gpus, want.count, self._may(item), seen.worst, seen.nearest))
        return yard, loads

    def _everywhere(self, spent: int, most: int | None = None) -> Found:
        """Over all nodes, for any plan at all."""
        size = self._bound.size_bytes
        fixed = {
            phase: np.unique(np.concatenate([*self._partners[phase], np.empty(0, dtype=np.int64)])).astype(np.int64)
            for phase in PHASES
        }
        left = self._policy.search_budget - spent if most is None else most
        found = Search(self._snapshot, self._items, fixed, self._limit_us, size, left, self._cards).run()
        return Found(found.places, spent + found.expanded, found.complete)

    def _want(self, index: int) -> Wanted:
        item = self._items[index]
        need = item.need[self._asked]
        slots = np.where(self._may(item), room_for(self._free, need), 0)
        if self._cards is not None:
            slots = np.minimum(slots, self._cards.slots[index])
        return Wanted(need, self._gpu_of[index], item.count, slots)

    def _card_room(self, order: Sequence[int], nodes: NDArray[np.int64]) -> CardRoom | None:
        """Room on cards, for items in this order; None where amounts say everything."""
        if all(item.cards is None for item in self._items):
            return None
        askers = [Asker(self._items[i].cards, self._gpu_of[i], self._items[i].count) for i in order]
        return CardRoom(self._snapshot.gpus, askers, nodes)

    def _seen_by(self, phase: str) -> Seen:
        return seen_from(self._snapshot.table, self._partners[other_phase(phase)], self._bound.size_bytes)

    def _may(self, item: Item) -> NDArray[np.bool_]:
        """Nodes for an item: accepted, and as near to partners as it must be whatever its siblings do."""
        worst, _, nearest, count = self._seen[item.phase]
        if not count:
            return item.accepts
        if not self._bound.nearest:
            return item.accepts & (worst <= self._limit_us)
        alone = not any(other.phase != item.phase for other in self._items)
        return item.accepts & (nearest <= self._limit_us) if alone else item.accepts

    def _near(self) -> Floats | None:
        """The cost in reach of each node to the partners, for the phase that sees most of them."""
        phase = max((item.phase for item in self._items), key=lambda p: (self._seen[p][3], p))
        worst, total, nearest, count = self._seen[phase]
        if not count:
            return None
        nobody = np.zeros(len(worst))
        if self._bound.nearest:
            return self._objective.of(nearest, nearest, nobody, 0.0)
        return self._objective.of(worst, total / count, nobody, 0.0)

    def _rank(self, index: int) -> tuple[object, ...]:
        """The phase with fewer pods first, then the one with the widest, decode first of equals; in it widest first."""
        item = self._items[index]
        mine = [i for i in self._items if i.phase == item.phase]
        widest = max(tuple(i.need.tolist()) for i in mine)
        flipped = tuple(-n for n in widest)
        return sum(i.count for i in mine), flipped, item.phase, tuple((-item.need).tolist()), index

    def _joint(self, nodes: NDArray[np.int64], budget: int, improve: int) -> Joint:
        table, bound = self._snapshot.table, self._bound
        first = self._items[self._order[0]].phase
        phases = (first, other_phase(first))
        parts = tuple(
            Part(
                second=self._items[i].phase != first,
                need=self._items[i].need[self._asked],
                gpus=self._gpu_of[i],
                count=self._items[i].count,
                may=self._may(self._items[i])[nodes],
            )
            for i in self._order
        )
        seen = [self._seen[phase] for phase in phases]
        partners = Partners(
            worst=np.array([s[0][nodes] for s in seen]),
            total=np.array([s[1][nodes] for s in seen]),
            nearest=np.array([s[2][nodes] for s in seen]),
            count=(seen[0][3], seen[1][3]),
        )
        cards = self._card_room(self._order, nodes)
        losses = self._losses(nodes, cards)
        problem = Problem(
            free=self._free[nodes],
            gpus=self._gpus[nodes],
            reach_us=self._reach(nodes),
            same=self._same(nodes, parts, cards, losses),
            parts=parts,
            partners=partners,
            bound_us=self._limit_us,
            nearest=bound.nearest,
            cards=cards,
            roots=self._roots_of(nodes),
            losses=losses,
            rails=self._rails(nodes) if losses is None else None,
            names=tuple(nodes.tolist()),
            swapped=first != PHASES[0],
        )
        sizes = None
        if len(table) <= FEW and not bound.nearest and improve:
            there = [sorted({int(n) for p in self._partners[phase] for n in p}) for phase in phases]
            sizes = SmallSets(table, nodes, (there[0], there[1]), self._limit_us, bound.size_bytes)
        return Joint(problem, self._objective, sizes, budget, improve)

    def _rails(self, nodes: NDArray[np.int64]) -> GangRails | None:
        there = tuple({int(n) for p in self._partners[phase] for n in p} for phase in PHASES)
        return gang_rails(self._snapshot, (there[0], there[1]), nodes)

    def _roots_of(self, nodes: NDArray[np.int64]) -> RootRoom | None:
        """Free GPUs by PCI root of these nodes, by position; None where no node has several roots that are known."""
        room = self._roots
        if not len(room.nodes):
            return None
        at = np.flatnonzero(np.isin(nodes, room.nodes))
        return RootRoom(at, room.free[np.searchsorted(room.nodes, nodes[at])]) if len(at) else None

    def _reach(self, nodes: NDArray[np.int64]) -> Floats:
        reach, size = self._snapshot.table.reach, self._bound.size_bytes
        kinds, at = np.unique(reach.kind[nodes], return_inverse=True)
        between = np.array([reach.kind_row_us(int(kind), size)[kinds] for kind in kinds]).reshape(
            len(kinds), len(kinds)
        )
        matrix: Floats = between[np.ix_(at, at)]
        np.fill_diagonal(matrix, reach.self_us(size)[nodes])
        return matrix

    def _losses(self, nodes: NDArray[np.int64], cards: CardRoom | None) -> RoomLoss | None:
        """What is lost beyond whole GPUs; None where those say everything."""
        items = [self._items[i] for i in self._order]
        if cards is None and not any(item.shape.profile for item in items):
            return None
        takers = [Taker(item.need, item.shape.profile) for item in items]
        return RoomLoss(self._snapshot, takers, nodes, self._value, cards)

    def _same(
        self, nodes: NDArray[np.int64], parts: Sequence[Part], cards: CardRoom | None, losses: RoomLoss | None
    ) -> NDArray[np.int64]:
        """A number per node: equal where kind, free amounts and welcome are. Nodes of partners are like no other."""
        columns = [self._snapshot.table.reach.kind[nodes], *self._free[nodes].T, *(part.may for part in parts)]
        if (roots := self._roots_of(nodes)) is not None:
            by_node = np.full((len(nodes), roots.free.shape[1]), -1)
            by_node[roots.nodes] = roots.free
            columns += [*by_node.T]
        if (rails := self._snapshot.rail_room()) and len(at := np.flatnonzero(np.isin(nodes, rails.nodes))):
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
                cards.state(at) if cards is not None else None,
                losses.state(at) if losses is not None else None,
            )
            for at, (node, row) in enumerate(zip(nodes.tolist(), rows, strict=True))
        ]
        return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)

    def _named(self, nodes: NDArray[np.int64], best: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """Positions in search order back to node indices in item order."""
        by_item = dict(zip(self._order, best, strict=True))
        return tuple(tuple(nodes[by_item[i]].tolist()) for i in range(len(self._items)))
