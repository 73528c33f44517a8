"""The best plan there is, by trying every one: what the planner's cost is measured against.

It shares no code with the planner: reach comes from `ReachModel.between` pair by pair, costs from the formula in
`scheduler/search/objective.py` written out again, sets from their definition. Only for a handful of nodes and pods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement, product

import numpy as np
from numpy.typing import NDArray

from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, PodRequest
from tests.scheduler import brute_force
from topology.cluster.snapshot import Snapshot
from topology.labels import DECODE, NEAREST, PHASES, PREFILL

Counts = NDArray[np.int64]


class BestPlan:
    """All plans for all members of one gang on one cluster; `cost` is the least, None where there is no plan."""

    def __init__(self, gang: GangRequest, snapshot: Snapshot, policy: Policy | None = None) -> None:
        self._gang, self._snapshot, self._policy = gang, snapshot, policy or Policy()
        names = snapshot.table.names
        self._reach = np.array(
            [[brute_force.reach_us(snapshot, a, b, gang.bound.size_bytes) for b in names] for a in names]
        )
        self._free = np.maximum(snapshot.free, 0)
        self._gpu = snapshot.table.column.get("nvidia.com/gpu", 0)
        self._gpus = sum(m.gpus for m in gang.members)
        near = self._reach <= gang.bound.us
        self._near = [sum(1 << b for b in range(len(names)) if near[a, b]) for a in range(len(names))]
        self._sets: dict[tuple[int, int], int] = {}
        self._partners = {
            phase: [[names.index(n) for n in p.nodes if n in names] for p in gang.partners if p.phase == phase]
            for phase in PHASES
        }
        self.cost = self._least()

    def _least(self) -> float | None:
        prefills, decodes = self._ways(PREFILL), self._ways(DECODE)
        if not len(prefills[0]) or not len(decodes[0]):
            return None
        best = math.inf
        for counts, load in zip(*prefills, strict=True):
            fits = (load + decodes[1] <= self._free).all(axis=(1, 2))
            worst, mean = self._far(counts, decodes[0])
            before, after = self._free[:, self._gpu], (self._free - load - decodes[1])[:, :, self._gpu]
            lost = (self._usable(before) - self._usable(after)).sum(axis=1)
            policy, span = self._policy, math.log1p(self._gang.bound.us / 5)
            cost = policy.reach_worst_points * np.log1p(worst / 5) / span
            cost = cost + policy.reach_mean_points * np.log1p(mean / 5) / span
            cost = cost + policy.lost_points * lost / max(self._gpus, 1)
            cost[~(fits & (worst <= self._gang.bound.us))] = math.inf
            for at in np.argsort(cost, kind="stable").tolist():
                if cost[at] >= best:
                    break
                share = 0.0 if self._gang.pairing == NEAREST else 1 / self._smaller_set(counts, decodes[0][at])
                best = min(best, float(cost[at]) + policy.set_points * share)
        return None if math.isinf(best) else best

    def _ways(self, phase: str) -> tuple[Counts, Counts]:
        """Every way to place the members of a phase alone: pods per node (ways, N), amounts per node (ways, N, R)."""
        groups: dict[tuple[object, ...], list[PodRequest]] = {}
        for m in self._gang.members:
            if m.phase == phase:
                key = tuple(sorted(m.amounts.items())), tuple(sorted((m.spec.node_selector or {}).items()))
                groups.setdefault(key, []).append(m)
        each = [self._ways_of(pods) for pods in groups.values()]
        counts, loads = [], []
        for chosen in product(*each):
            count = np.zeros(len(self._free), dtype=np.int64)
            load = np.zeros_like(self._free)
            for pods, nodes in zip(groups.values(), chosen, strict=True):
                row = self._snapshot.table.vector(pods[0].amounts)[0]
                for node in nodes:
                    count[node] += 1
                    load[node] += row
            if (load <= self._free).all():
                counts.append(count)
                loads.append(load)
        size = len(self._free)
        return np.array(counts).reshape(-1, size), np.array(loads).reshape(-1, *self._free.shape)

    def _ways_of(self, pods: Sequence[PodRequest]) -> list[tuple[int, ...]]:
        one, table = pods[0], self._snapshot.table
        if table.vector(one.amounts)[1]:
            return []
        welcome = [i for i, name in enumerate(table.names) if brute_force.welcome(self._snapshot, one, name)]
        return list(combinations_with_replacement(welcome, len(pods)))

    def _far(self, prefill: Counts, decodes: Counts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Worst and mean reach of the pairs that count, for one way of prefill and every way of decode."""
        reach, here = self._reach, [node for node in range(len(prefill)) for _ in range(prefill[node])]
        worst, mean = np.zeros(len(decodes)), np.zeros(len(decodes))
        to_prefill = [reach[node] for node in here] + [self._at_worst(p) for p in self._partners[PREFILL]]
        for way, counts in enumerate(decodes):
            there = [node for node in range(len(counts)) for _ in range(counts[node])]
            to_decode = [reach[node] for node in there] + [self._at_worst(p) for p in self._partners[DECODE]]
            if self._gang.pairing == NEAREST:
                us = [min((float(row[n]) for row in to_prefill), default=math.inf) for n in there]
                us += [min((float(row[n]) for row in to_decode), default=math.inf) for n in here]
            else:
                us = [float(row[n]) for row in to_prefill for n in there]
                us += [float(row[n]) for row in to_decode[len(there) :] for n in here]
            worst[way], mean[way] = max(us, default=0.0), sum(us) / max(1, len(us))
        return worst, mean

    def _at_worst(self, nodes: Sequence[int]) -> NDArray[np.float64]:
        """Reach to a partner that may stand on any of these nodes."""
        worst: NDArray[np.float64] = self._reach[list(nodes)].max(axis=0)
        return worst

    @staticmethod
    def _usable(free: Counts) -> NDArray[np.float64]:
        """GPUs that pods of 1, 2, 4 and 8 GPUs, equally many, can use of so many free ones."""
        usable: NDArray[np.float64] = free * sum((free >= gpus) * 0.25 for gpus in (1, 2, 4, 8))
        return usable

    def _smaller_set(self, prefill: Counts, decode: Counts) -> int:
        """Nodes of the smaller isochrone set: all that one side reaches, and all that all of those reach."""
        places = {PREFILL: set(np.flatnonzero(prefill).tolist()), DECODE: set(np.flatnonzero(decode).tolist())}
        for phase in PHASES:
            places[phase] |= {n for partner in self._partners[phase] for n in partner}
        key = _mask(places[PREFILL]), _mask(places[DECODE])
        if key not in self._sets:
            sizes = []
            for phase in PHASES:
                if places[phase]:
                    other = [n for n in range(len(prefill)) if all(self._near[p] >> n & 1 for p in places[phase])]
                    mine = [n for n in range(len(prefill)) if all(self._near[o] >> n & 1 for o in other)]
                    sizes.append(min(len(other), len(mine)))
            self._sets[key] = max(1, *sizes) if sizes else len(prefill)
        return self._sets[key]


def _mask(nodes: Iterable[int]) -> int:
    return sum(1 << n for n in nodes)


def cost_without_sets(terms: Mapping[str, float], bound_us: float, gpus: int, policy: Policy | None = None) -> float:
    """The formula by hand, but for the sets: `terms` are worst_us, mean_us and lost_gpus."""
    policy, span = policy or Policy(), math.log1p(bound_us / 5)
    return (
        policy.reach_worst_points * math.log1p(terms["worst_us"] / 5) / span
        + policy.reach_mean_points * math.log1p(terms["mean_us"] / 5) / span
        + policy.lost_points * terms["lost_gpus"] / max(gpus, 1)
    )
