"""Places for a gang of very many pods: a domain is filled node by node, with as many pods on a node as it takes.

The joint search (`branch_and_bound`) weighs every pod against every other, which for hundreds of pods is neither
possible nor worth it: where a gang fills whole domains, which domain it is says nearly everything. So the tightest
domain that can hold the gang is taken, in it the nodes near the other phase, of those the ones where the least is lost.
Linear in pods.

What it finds is a plan. That it finds nothing proves nothing: `feasibility_search` is asked then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.search.cluster_view import ClusterView, loss_of_a_slot
from scheduler.search.demand import Demand
from scheduler.search.objective import Floats
from scheduler.search.reach_cliques import kinds_within
from topology.cluster.isochrone_sets import near_all
from topology.cluster.snapshot import Mask, NodeTable, capacity_for
from topology.gpus.gpu_row import GpuRow

Ints = NDArray[np.int64]


class Assignment:
    """What stands where while a domain is filled, and how to take it all back."""

    def __init__(self, view: ClusterView, demands: Sequence[Demand]) -> None:
        self.view, self.demands = view, demands
        self.free, self.gpus = view.free.copy(), view.gpus.copy()
        self.places: list[list[int]] = [[] for _ in demands]
        self._put: list[tuple[int, tuple[GpuRow, Ints]]] = []

    def slots(self, index: int, nodes: Ints) -> Ints:
        """How many pods of a demand each of these nodes takes now."""
        demand = self.demands[index]
        slots: Ints = np.where(demand.accepts[nodes], capacity_for(self.free[nodes], demand.request), 0)
        if self.view.devices is not None:
            slots = np.minimum(slots, self.view.devices.slots[index, nodes])
        return slots

    def loss(self, index: int, nodes: Ints) -> Floats:
        """GPUs that expected pods lose for a pod of a demand on each of these nodes."""
        return loss_of_a_slot(self.view.usable, self.gpus[nodes], self.demands[index].gpus)

    def put(self, index: int, node: int, pods: int) -> int:
        """So many pods of a demand on a node; how many found cards too."""
        demand, devices, placed = self.demands[index], self.view.devices, pods
        if devices is not None:
            for placed in range(pods + 1):
                if placed == pods or (token := devices.put(index, node)) is None:
                    break
                self._put.append((node, token))
        self.free[node] -= placed * demand.request
        self.gpus[node] -= placed * demand.gpus
        self.places[index] += [node] * placed
        return placed

    def take_back(self, index: int, node: int) -> None:
        """The last pod that was put anywhere, one of this demand, is taken off its node."""
        demand = self.demands[index]
        if self.view.devices is not None:
            self.view.devices.back(*self._put.pop())
        self.free[node] += demand.request
        self.gpus[node] += demand.gpus
        self.places[index].pop()

    def undo(self) -> None:
        """As if nothing had been placed."""
        for node, token in reversed(self._put):
            assert self.view.devices is not None
            self.view.devices.back(node, token)
        self.free, self.gpus = self.view.free.copy(), self.view.gpus.copy()
        self.places, self._put = [[] for _ in self.demands], []


def fill(view: ClusterView, demands: Sequence[Demand], domains: Iterator[Ints]) -> list[list[int]] | None:
    """Node indices for each demand, every pair of the phases within the limit; the first of these domains that does so.

    None where none of them could be filled so.
    """
    filling = Assignment(view, demands)
    order = sorted(range(len(demands)), key=lambda i: (tuple((-demands[i].request).tolist()), demands[i].phase, i))
    for domain in domains:
        allowed = _around(filling, domain)
        if all(_spread(filling, index, domain, allowed) for index in order):
            return filling.places
        filling.undo()
    return None


def _around(filling: Assignment, domain: Ints) -> dict[str, Mask]:
    """For each phase the nodes, (N,), around which the domain has room for all of the other phase."""
    view, demands = filling.view, filling.demands
    reach, phases = view.table.reach, {demand.phase for demand in demands}
    kinds, of = np.unique(reach.kind[domain], return_inverse=True)
    within = kinds_within(view.table, view.limit_us, view.size_bytes, kinds)
    allowed = {}
    for phase in phases:
        around = np.ones(len(kinds), dtype=bool)
        for index, demand in enumerate(demands):
            if demand.phase != phase:
                slots = np.bincount(of.reshape(-1), weights=filling.slots(index, domain), minlength=len(kinds))
                around &= within @ slots >= demand.count
        mask = np.zeros(len(view.table), dtype=bool)
        mask[domain] = around[of.reshape(-1)]
        if len(domain) == 1:  # a node alone is within its own links
            mask[domain] = reach.self_us(view.size_bytes)[domain] <= view.limit_us
        allowed[phase] = mask
    return allowed


def _spread(filling: Assignment, index: int, domain: Ints, allowed: dict[str, Mask]) -> bool:
    """All pods of one demand into a domain, where they may go beside what stands there. Whether they found places."""
    view, demand = filling.view, filling.demands[index]
    others = [n for i, nodes in enumerate(filling.places) if filling.demands[i].phase != demand.phase for n in nodes]
    nodes = domain[allowed[demand.phase][domain]]
    slots = filling.slots(index, nodes)
    nodes, slots = nodes[slots > 0], slots[slots > 0]
    if int(slots.sum()) < demand.count:
        return False
    far = view.partners[demand.phase].worst[nodes]
    if others:
        kind = view.table.reach.kind[nodes]
        rows = [view.table.reach.kind_row_us(int(k), view.size_bytes)[kind] for k in _kinds(view.table, others)]
        far = np.maximum(far, np.max(rows, axis=0))
    left, mine = demand.count, []
    for at in np.lexsort((nodes, filling.loss(index, nodes), far)).tolist():
        node = int(nodes[at])
        placed = filling.put(index, node, min(left, int(slots[at])))
        left -= placed
        if placed:
            mine.append(node)
        if not left:
            break
    near = near_all(view.table, np.array(mine, dtype=np.int64), view.limit_us, view.size_bytes)
    for phase in allowed:
        if phase != demand.phase:
            allowed[phase] = allowed[phase] & near
    return not left


def _kinds(table: NodeTable, nodes: Sequence[int]) -> list[int]:
    found: list[int] = np.unique(table.reach.kind[np.array(nodes, dtype=np.int64)]).tolist()
    return found
