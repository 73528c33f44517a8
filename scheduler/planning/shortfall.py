"""Why a gang has no places: one decision per pod with a true verdict for every node, and the gap of the whole gang."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.evaluate import Evaluation, PodFit, decision_of, evaluate, has_capacity
from scheduler.evaluate.partner_reach import Named, other_phase, partner_of, reach_to
from scheduler.evaluate.unsatisfiable import capacity_gpus, too_large
from scheduler.model.decision import Decision, PairReach, Shortfall, decision_id
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, ReachBound
from scheduler.model.verdict import VerdictCode
from scheduler.planning.gang_members import EquivalenceClass, GangMembers
from scheduler.planning.gang_minimum import narrowest_minimum
from scheduler.search.demand import demand_of
from scheduler.search.gpu_usage import capacity_together
from topology.cluster.isochrone_sets import as_requirement, near_all, nearest_us
from topology.cluster.snapshot import Amount2D, Mask, NodeTable, Snapshot, capacity_for
from topology.labels import PHASES, PREFILL


@dataclass(frozen=True, slots=True)
class _Capacity:
    """Nodes where one member of a phase has room, and nodes with room for a member of a class and one of the other
    phase at once."""

    of: Mapping[str, Mask]
    both: Mapping[EquivalenceClass, Mask]

    def shared(self) -> Mask:
        """Nodes with room for some member of each phase at once."""
        every: Mask = np.logical_or.reduce(list(self.both.values()))
        return every


def _capacity(asked: GangMembers, snapshot: Snapshot) -> _Capacity:
    nowhere = np.zeros(len(snapshot.table), dtype=bool)
    of = dict.fromkeys(PHASES, nowhere)
    classes = {each: asked.needs[members[0].uid] for each, members in asked.by_class(asked.gang.members).items()}
    both = dict.fromkeys(classes, nowhere)
    for each, need in classes.items():
        phase = each[0]
        of[phase] = of[phase] | has_capacity(snapshot, need)
        for other, more in classes.items():
            if phase != other[0] and not need.missing and not more.missing:
                able = need.accepts & more.accepts & (capacity_for(snapshot.free, need.row + more.row) > 0)
                pair = demand_of(phase, need, 1, snapshot), demand_of(other[0], more, 1, snapshot)
                both[each] = both[each] | capacity_together(snapshot, *pair, able)
    return _Capacity(of, both)


def _reach_to_others(
    snapshot: Snapshot,
    phase: str,
    bound: ReachBound,
    others: Mask,
    both: Mask,
    named: Mapping[str, Named],
) -> NDArray[np.float64]:
    """How far each node is from the other phase, (N,): its farthest place if it has some, else its nearest room.

    `others` are the nodes with room for the other phase; a node is its own neighbour only with room for `both`. With
    `nearest` a place and room do alike: whichever is nearer.
    """
    partners = named[other_phase(phase)]
    if partners and not bound.nearest:
        return reach_to(snapshot.table, partners, bound)
    single = np.flatnonzero(others & ~both)
    capacity = nearest_us(snapshot.table, np.flatnonzero(others & both), bound.size_bytes, single)
    return np.minimum(capacity, reach_to(snapshot.table, partners, bound)) if partners else capacity


def _named(gang: GangRequest, snapshot: Snapshot) -> dict[str, list[tuple[str, int]]]:
    """Partners by phase: (name, node index), one entry for each node that one may stand on."""
    index = snapshot.table.index
    return {
        phase: [(p.name, index[n]) for p in gang.partners if p.phase == phase for n in p.nodes if n in index]
        for phase in PHASES
    }


def held_decisions(asked: GangMembers, snapshot: Snapshot, policy: Policy) -> dict[str, Decision]:
    """A decision per member of a gang that has no plan: no node is eligible, and each says why."""
    gang = asked.gang
    capacity, partners = _capacity(asked, snapshot), _named(gang, snapshot)
    of_class: dict[EquivalenceClass, Decision] = {}
    decisions = {}
    for member in asked.members:
        need, phase = asked.needs[member.uid], member.phase
        each = asked.equivalence_class(member)
        if (known := of_class.get(each)) is None:
            others = capacity.of[other_phase(phase)]
            reach = _reach_to_others(snapshot, phase, gang.bound, others, capacity.both[each], partners)
            evaluated = _evaluate_held(snapshot, need, reach, gang.bound, policy)
            known = decision_of(snapshot, member, need, evaluated, gang.bound, partners[other_phase(phase)])
            of_class[each] = known = replace(known, too_large=too_large(snapshot, need))
        decisions[member.uid] = replace(known, id=decision_id(member.uid, snapshot.id), request=member)
    return decisions


def _evaluate_held(
    snapshot: Snapshot, need: PodFit, reach_us: NDArray[np.float64], bound: ReachBound, policy: Policy
) -> Evaluation:
    evaluated = evaluate(snapshot, need, reach_us, bound, policy)
    codes = evaluated.codes.copy()
    # A node that passes alone is out because all that must come together does not fit around it. So is one where the
    # other phase has room nowhere: that is not a matter of distance.
    nowhere = (codes == VerdictCode.REACH_EXCEEDED.value) & np.isinf(reach_us)
    codes[(codes == VerdictCode.ELIGIBLE.value) | nowhere] = VerdictCode.GANG_TOO_LARGE
    return replace(evaluated, codes=codes)


def _closest(
    gang: GangRequest, snapshot: Snapshot, capacity: _Capacity, named: Mapping[str, Named]
) -> PairReach | None:
    """The nearest pair of nodes: room for a member on one, the farthest partner or room for one on the other.

    Of two phases that need places the worse off counts: its nearest pair is what keeps the gang apart.
    """
    table, size = snapshot.table, gang.bound.size_bytes
    found: list[PairReach] = []
    both = capacity.shared()
    for phase in [phase for phase in PHASES if gang.still_needed(phase)]:
        here = np.flatnonzero(capacity.of[phase])
        reach = _reach_to_others(snapshot, phase, gang.bound, capacity.of[other_phase(phase)], both, named)
        if not len(here) or not np.isfinite(reach[here]).any():
            continue
        node = int(here[int(np.argmin(reach[here]))])
        partners = named[other_phase(phase)]
        others = np.flatnonzero(capacity.of[other_phase(phase)])
        if not both[node]:
            others = others[others != node]
        row = table.reach.row_us(node, size)
        decides = [partner_of(table, node, partners, gang.bound)[1]] if partners else []
        if decides and (not gang.bound.nearest or row[decides[0]] <= row[others].min(initial=np.inf)):
            other = decides[0]
        else:
            other = int(others[int(np.argmin(row[others]))])
        pair = (node, other) if phase == PREFILL else (other, node)
        found.append(PairReach(table.names[pair[0]], table.names[pair[1]], table.reach.between(node, other, size)))
    return min(found, key=lambda p: (-p.reach.us, p.prefill, p.decode)) if found else None


def shortfall_of(asked: GangMembers, snapshot: Snapshot, own: Amount2D) -> Shortfall:
    """The gap of the whole gang: the closest pair with room, and the most free GPUs within the bound of one node.

    `own`, (N, R), is what its own pods hold.
    """
    gang = asked.gang
    capacity, named = _capacity(asked, snapshot), _named(gang, snapshot)
    minimum = narrowest_minimum(gang)
    best_gpus, best_where = _most_gpus(gang, snapshot, {m.phase for m in minimum}, capacity, named)
    return Shortfall(
        needed_gpus=sum(m.gpus for m in minimum),
        closest=_closest(gang, snapshot, capacity, named),
        best_gpus=best_gpus,
        best_where=best_where,
        cluster_gpus=capacity_gpus(snapshot, [asked.needs[m.uid] for m in gang.members if gang.still_needed(m.phase)]),
        held_gpus=0 if snapshot.gpu_column is None else int(own[:, snapshot.gpu_column].sum()),
    )


def _most_gpus(
    gang: GangRequest,
    snapshot: Snapshot,
    phases: Collection[str],
    capacity: _Capacity,
    named: Mapping[str, Named],
) -> tuple[int, str]:
    """The most free GPUs, on nodes with room for a member, within the bound of one node, and that surrounding in words.

    With partners it is the nodes that they allow, since their places are given; those have no words.
    """
    table, bound, gpu = snapshot.table, gang.bound, snapshot.gpu_column
    if gpu is None or not phases:
        return 0, ""
    usable = np.logical_or.reduce([capacity.of[phase] for phase in phases])
    free = np.where(usable, np.maximum(snapshot.free[:, gpu], 0), 0)
    if any(named[phase] for phase in PHASES):
        # A phase that comes is bound to the partners of the other one only.
        allowed = [
            (reach_to(table, named[other_phase(p)], bound) <= bound.us if named[other_phase(p)] else capacity.of[p])
            & capacity.of[p]
            for p in sorted(phases)
        ]
        return int(free[np.logical_or.reduce(allowed)].sum()), ""
    best, where = 0, None
    for centre in _centres(table, np.flatnonzero(usable), free):
        near = near_all(table, np.array([centre]), bound.us, bound.size_bytes)
        if (gpus := int(free[near].sum())) > best:
            best, where = gpus, as_requirement(table, near, [centre] if near[centre] else [])
            # The words may cover less than the nodes (whole domains only, or too many names): then there are none.
            if where is not None and where.nodes < int(near.sum()):
                where = None
    return best, where.show() if where is not None else ""


def _centres(table: NodeTable, nodes: NDArray[np.int64], free: NDArray[np.int64]) -> list[int]:
    """Nodes whose surroundings cover every case: of each kind the fullest and the emptiest, since nodes of one kind
    have the same surroundings but for themselves."""
    kinds = table.reach.kind[nodes]
    centres: set[int] = set()
    for kind in np.unique(kinds):
        equivalent = nodes[kinds == kind]
        centres |= {int(equivalent[np.argmin(free[equivalent])]), int(equivalent[np.argmax(free[equivalent])])}
    return sorted(centres)
