"""Places for a gang of very many pods: a domain is filled node by node, with as many pods on a node as it takes.

The joint search (`joint`) weighs every pod against every other, which for hundreds of pods is neither possible nor
worth it: where a gang fills whole domains, which domain it is says nearly everything. So the tightest domain that can
hold the gang is taken, in it the nodes near the other phase, of those the ones where the least is lost. Linear in pods.

What it finds is a plan. That it finds nothing proves nothing: `search` is asked then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.search.candidate_regions import loss_of_a_slot
from scheduler.search.gpu_usage import CardRoom
from scheduler.search.objective import Floats
from scheduler.search.reach_cliques import kinds_within
from topology.cluster.isochrone_sets import near_all
from topology.cluster.snapshot import Amount2D, Mask, NodeTable, room_for
from topology.gpus.cards import CardRow

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Load:
    """`count` pods of one phase and need (A,), the columns asked for; where they may go as far as pods that have places
    are concerned, (N,), and how far the farthest and the nearest of these is, (N,) us each."""

    phase: str
    need: Amount2D
    gpus: int
    count: int
    may: Mask
    farthest_us: Floats
    nearest_us: Floats


@dataclass(frozen=True, slots=True)
class Yard:
    """The cluster that is filled: free amounts (N, A), free GPUs (N,), what free GPUs are worth (`Objective.usable`),
    and the bound between the phases."""

    table: NodeTable
    free: Amount2D
    gpus: Ints
    usable: Floats
    limit_us: float
    size_bytes: int
    cards: CardRoom | None = None


class Filling:
    """What stands where while a domain is filled, and how to take it all back."""

    def __init__(self, yard: Yard, loads: Sequence[Load]) -> None:
        self.yard, self.loads = yard, loads
        self.free, self.gpus = yard.free.copy(), yard.gpus.copy()
        self.places: list[list[int]] = [[] for _ in loads]
        self._put: list[tuple[int, tuple[CardRow, Ints]]] = []

    def slots(self, index: int, nodes: Ints) -> Ints:
        """How many pods of a load each of these nodes takes now."""
        load = self.loads[index]
        slots: Ints = np.where(load.may[nodes], room_for(self.free[nodes], load.need), 0)
        if self.yard.cards is not None:
            slots = np.minimum(slots, self.yard.cards.slots[index, nodes])
        return slots

    def loss(self, index: int, nodes: Ints) -> Floats:
        """GPUs that expected pods lose for a pod of a load on each of these nodes."""
        return loss_of_a_slot(self.yard.usable, self.gpus[nodes], self.loads[index].gpus)

    def put(self, index: int, node: int, pods: int) -> int:
        """So many pods of a load on a node; how many found cards too."""
        load, cards, placed = self.loads[index], self.yard.cards, pods
        if cards is not None:
            for placed in range(pods + 1):
                if placed == pods or (token := cards.put(index, node)) is None:
                    break
                self._put.append((node, token))
        self.free[node] -= placed * load.need
        self.gpus[node] -= placed * load.gpus
        self.places[index] += [node] * placed
        return placed

    def take_back(self, index: int, node: int) -> None:
        """The last pod that was put anywhere, one of this load, is taken off its node."""
        load = self.loads[index]
        if self.yard.cards is not None:
            self.yard.cards.back(*self._put.pop())
        self.free[node] += load.need
        self.gpus[node] += load.gpus
        self.places[index].pop()

    def undo(self) -> None:
        """As if nothing had been placed."""
        for node, token in reversed(self._put):
            assert self.yard.cards is not None
            self.yard.cards.back(node, token)
        self.free, self.gpus = self.yard.free.copy(), self.yard.gpus.copy()
        self.places, self._put = [[] for _ in self.loads], []


def fill(yard: Yard, loads: Sequence[Load], domains: Iterator[Ints]) -> list[list[int]] | None:
    """Node indices for each load, every pair of the two phases within the limit; the first of these domains that does.

    None where none of them could be filled so.
    """
    filling = Filling(yard, loads)
    order = sorted(range(len(loads)), key=lambda i: (tuple((-loads[i].need).tolist()), loads[i].phase, i))
    for domain in domains:
        allowed = _around(filling, domain)
        if all(_spread(filling, index, domain, allowed) for index in order):
            return filling.places
        filling.undo()
    return None


def _around(filling: Filling, domain: Ints) -> dict[str, Mask]:
    """For each phase the nodes, (N,), around which the domain has room for all of the other phase."""
    yard, loads = filling.yard, filling.loads
    reach, phases = yard.table.reach, {load.phase for load in loads}
    kinds, of = np.unique(reach.kind[domain], return_inverse=True)
    within = kinds_within(yard.table, yard.limit_us, yard.size_bytes, kinds)
    allowed = {}
    for phase in phases:
        around = np.ones(len(kinds), dtype=bool)
        for index, load in enumerate(loads):
            if load.phase != phase:
                slots = np.bincount(of.reshape(-1), weights=filling.slots(index, domain), minlength=len(kinds))
                around &= within @ slots >= load.count
        mask = np.zeros(len(yard.table), dtype=bool)
        mask[domain] = around[of.reshape(-1)]
        if len(domain) == 1:  # a node alone is within its own links
            mask[domain] = reach.self_us(yard.size_bytes)[domain] <= yard.limit_us
        allowed[phase] = mask
    return allowed


def _spread(filling: Filling, index: int, domain: Ints, allowed: dict[str, Mask]) -> bool:
    """All pods of one load into a domain, where they may go beside what stands there. Whether they found places."""
    yard, load = filling.yard, filling.loads[index]
    others = [n for i, nodes in enumerate(filling.places) if filling.loads[i].phase != load.phase for n in nodes]
    nodes = domain[allowed[load.phase][domain]]
    slots = filling.slots(index, nodes)
    nodes, slots = nodes[slots > 0], slots[slots > 0]
    if int(slots.sum()) < load.count:
        return False
    far = load.farthest_us[nodes]
    if others:
        kind = yard.table.reach.kind[nodes]
        rows = [yard.table.reach.kind_row_us(int(k), yard.size_bytes)[kind] for k in _kinds(yard.table, others)]
        far = np.maximum(far, np.max(rows, axis=0))
    left, mine = load.count, []
    for at in np.lexsort((nodes, filling.loss(index, nodes), far)).tolist():
        node = int(nodes[at])
        placed = filling.put(index, node, min(left, int(slots[at])))
        left -= placed
        if placed:
            mine.append(node)
        if not left:
            break
    near = near_all(yard.table, np.array(mine, dtype=np.int64), yard.limit_us, yard.size_bytes)
    for phase in allowed:
        if phase != load.phase:
            allowed[phase] = allowed[phase] & near
    return not left


def _kinds(table: NodeTable, nodes: Sequence[int]) -> list[int]:
    found: list[int] = np.unique(table.reach.kind[np.array(nodes, dtype=np.int64)]).tolist()
    return found
