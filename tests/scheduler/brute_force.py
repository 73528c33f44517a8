"""The slow and simple planner that the real one is measured against: it tries everything and shares no search code.

Only for a handful of nodes and pods. Reach comes from `ReachModel.between`, room from plain sums over dicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

from scheduler.model.request import GangRequest, PodRequest
from scheduler.model.verdict import VerdictCode
from topology.cluster.snapshot import Snapshot
from topology.labels import DECODE, PHASES, PREFILL
from topology.resources import Amounts
from topology.selectors import accepts

CODE_OF = {"nvidia.com/gpu": VerdictCode.INSUFFICIENT_GPU, "memory": VerdictCode.INSUFFICIENT_MEMORY}


def free_of(snapshot: Snapshot, node: str) -> Amounts:
    """What is free on a node, by resource."""
    at = snapshot.table.index[node]
    return {r: int(snapshot.free[at, i]) for i, r in enumerate(snapshot.table.resources)}


def reach_us(snapshot: Snapshot, a: str, b: str, size_bytes: int) -> float:
    """Reach between two nodes by name."""
    index = snapshot.table.index
    return snapshot.table.reach.between(index[a], index[b], size_bytes).us


def welcome(snapshot: Snapshot, pod: PodRequest, node: str) -> bool:
    """The node accepts the pod and can be named in a set."""
    at = snapshot.table.index[node]
    return accepts(pod.spec, snapshot.table.nodes[at]) and bool(snapshot.table.hostnames[at])


def fits(free: Mapping[str, int], amounts: Mapping[str, int]) -> bool:
    """Everything asked for is free."""
    return all(free.get(resource, 0) >= asked for resource, asked in amounts.items())


def placements(gang: GangRequest, snapshot: Snapshot, pods: Sequence[PodRequest]) -> Iterator[dict[str, str]]:
    """Every way to place exactly these pods, uid to node, such that everything holds."""
    free = {name: free_of(snapshot, name) for name in snapshot.table.names}
    taken: dict[str, tuple[str, str]] = {}  # uid to (phase, node)
    partners = [(p.phase, n) for p in gang.partners for n in p.nodes if n in snapshot.table.index]

    def near(phase: str, node: str) -> bool:
        return all(
            reach_us(snapshot, node, there, gang.bound.size_bytes) <= gang.bound.us
            for other, there in [*partners, *taken.values()]
            if other != phase
        )

    def place(rest: Sequence[PodRequest]) -> Iterator[dict[str, str]]:
        if not rest:
            yield {uid: node for uid, (_, node) in taken.items()}
            return
        pod = rest[0]
        for node in snapshot.table.names:
            if not (welcome(snapshot, pod, node) and fits(free[node], pod.amounts) and near(pod.phase, node)):
                continue
            for resource, asked in pod.amounts.items():
                free[node][resource] -= asked
            taken[pod.uid] = pod.phase, node
            yield from place(rest[1:])
            del taken[pod.uid]
            for resource, asked in pod.amounts.items():
                free[node][resource] += asked

    yield from place(pods)


def minimum_is_possible(gang: GangRequest, snapshot: Snapshot) -> bool:
    """Whether any members that make up the minimum can have places together."""
    per_phase = [combinations([m for m in gang.members if m.phase == p], gang.still_needed(p)) for p in PHASES]
    return any(
        next(placements(gang, snapshot, [*prefill, *decode]), None) is not None
        for prefill, decode in product(*[list(c) for c in per_phase])
    )


def faults(gang: GangRequest, snapshot: Snapshot, places: Mapping[str, str]) -> list[str]:
    """What is wrong with places: nothing, for a plan that may be carried out."""
    wrong = []
    members = {m.uid: m for m in gang.members}
    for node in snapshot.table.names:
        guests = [members[uid] for uid, where in places.items() if where == node]
        total = {r: sum(m.amounts.get(r, 0) for m in guests) for m in guests for r in m.amounts}
        if not fits(free_of(snapshot, node), total):
            wrong.append(f"{node} is booked twice")
        wrong += [f"{node} does not accept {m.name}" for m in guests if not welcome(snapshot, m, node)]
    known = snapshot.table.index
    partners = [(p.phase, n) for p in gang.partners for n in p.nodes if n in known]
    planned = [(members[uid].phase, node) for uid, node in places.items()]
    for (a, here), (b, there) in product(planned, [*planned, *partners]):
        if {a, b} == {PREFILL, DECODE} and reach_us(snapshot, here, there, gang.bound.size_bytes) > gang.bound.us:
            wrong.append(f"{here} and {there} are too far apart")
    return wrong


def verdict(gang: GangRequest, snapshot: Snapshot, pod: PodRequest, node: str) -> VerdictCode:
    """Why this node is out for a pod of a gang that cannot be placed, from the definitions alone."""
    at, table = snapshot.table.index[node], snapshot.table
    have = {r: int(table.allocatable[at, i]) for i, r in enumerate(table.resources)}
    free = free_of(snapshot, node)
    if not welcome(snapshot, pod, node):
        return VerdictCode.NODE_NOT_ACCEPTED
    if any(not have.get(r, 0) for r in pod.amounts):
        return VerdictCode.RESOURCE_MISSING
    short = [CODE_OF.get(r, VerdictCode.INSUFFICIENT_OTHER) for r, n in pod.amounts.items() if free.get(r, 0) < n]
    if short:
        return min(short)
    size, bound_us = gang.bound.size_bytes, gang.bound.us
    places = [n for p in gang.partners if p.phase != pod.phase for n in p.nodes if n in table.index]
    if places:
        far = max(reach_us(snapshot, node, there, size) for there in places) > bound_us
        return VerdictCode.REACH_EXCEEDED if far else VerdictCode.GANG_TOO_LARGE
    quotas = []
    for other in (m for m in gang.members if m.phase != pod.phase):
        for there in table.names:
            capacity = free_of(snapshot, there)
            if there == node:
                capacity = {r: n - pod.amounts.get(r, 0) for r, n in capacity.items()}
            if welcome(snapshot, other, there) and fits(capacity, other.amounts):
                quotas.append(reach_us(snapshot, node, there, size))
    return VerdictCode.REACH_EXCEEDED if quotas and min(quotas) > bound_us else VerdictCode.GANG_TOO_LARGE
