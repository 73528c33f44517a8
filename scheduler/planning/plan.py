"""`plan(gang, snapshot)`: places for a whole gang at once, its isochrone sets, or the reason why there are none.

Rules of this file. (1) The minimum of every phase together, or nothing. (2) Members beyond the minimum that do not fit
are left out one by one and never block their siblings. (3) Partners that already have places are never moved: joiners
come to them. (4) What cannot be planned says why with numbers. (5) With `reach-mode: preferred` the bound is a wish:
places within it if there are some, else places. (6) Pods of one atomic unit have places together or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest

import numpy as np

from scheduler.evaluate.gpu_fit import gpu_slots
from scheduler.model.decision import Outcome, Plan
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, PodRequest, ReachBound
from scheduler.planning.build_plan import build_plan
from scheduler.planning.gang_members import GangMembers, Places
from scheduler.planning.gang_places import places_of, places_of_minimum
from scheduler.planning.gang_usage import held_by_gang
from scheduler.planning.remedies import WHAT_IF_SHARE, remedies
from scheduler.planning.shortfall import held_decisions, shortfall_of
from scheduler.planning.units import plan_whole_units
from topology.cluster.snapshot import Snapshot
from topology.labels import NEAREST, PHASES, PREFERRED


def plan(gang: GangRequest, snapshot: Snapshot, policy: Policy | None = None, *, advise: bool = True) -> Plan:
    """Plan a gang against one snapshot. Never raises for a gang that does not fit: the outcome says so.

    Without `advise` a held gang's shortfall has no remedies, which cost several more searches to find.
    """
    return plan_whole_units(gang, partial(_plan, snapshot=snapshot, policy=policy or Policy()), advise=advise)


def _plan(gang: GangRequest, snapshot: Snapshot, policy: Policy, *, advise: bool) -> Plan:
    """A plan for single pods, whatever units they are part of."""
    gang = replace(gang, bound=replace(gang.bound, nearest=gang.pairing == NEAREST))
    if (group := gang.group) is not None:
        gang = replace(gang, members=tuple(replace(member, group=group) for member in gang.members))
    if (lacking := _lacks_pods(gang)) is not None:
        return Plan(request=gang, outcome=lacking, snapshot_id=snapshot.id, decisions={})
    asked = GangMembers.of(gang, snapshot, policy)
    places, expanded, complete = _by_mode(asked, snapshot, policy)
    if places is not None and _stand_together(asked, snapshot, places):
        return build_plan(asked, snapshot, policy, places, expanded)
    complete &= places is None
    if gang.mode == PREFERRED:
        asked = replace(asked, gang=replace(gang, bound=_no_bound(gang.bound, snapshot)))
    return _held(asked, snapshot, policy, expanded, complete=complete, advise=advise)


def _lacks_pods(gang: GangRequest) -> str | None:
    """What a gang waits for that has fewer pods than its minimum; None where it has enough."""
    for phase in PHASES:
        of_phase = [m for m in gang.members if m.phase == phase]
        if gang.still_needed(phase) > len(of_phase):
            nobody = not of_phase and not any(p.phase == phase for p in gang.partners)
            return Outcome.WAITING_FOR_PARTNER if nobody else Outcome.WAITING_FOR_GANG
    return None


def _by_mode(asked: GangMembers, snapshot: Snapshot, policy: Policy) -> tuple[Places | None, int, bool]:
    """Places within the bound; where that is a wish and not all have one, anywhere, if more have one then."""
    gang = asked.gang
    places, expanded, complete = places_of(asked, snapshot, policy, gang.bound.us)
    if gang.mode == PREFERRED and (places is None or len(places) < len(gang.members)):
        anywhere, more, complete = places_of(asked, snapshot, policy, np.inf)
        expanded += more
        if anywhere is not None and (places is None or len(anywhere) > len(places)):
            places = anywhere
    return places, expanded, complete


def _held(
    asked: GangMembers, snapshot: Snapshot, policy: Policy, expanded: int, *, complete: bool, advise: bool
) -> Plan:
    gang, own = asked.gang, held_by_gang(asked.gang, snapshot)
    decisions = held_decisions(asked.beside(own), snapshot, policy)
    shortfall = shortfall_of(asked, snapshot, own)
    never = shortfall.beyond_cluster
    outcome = Outcome.HELD if complete or never else Outcome.UNDECIDED
    if advise and outcome == Outcome.HELD and not never:
        # Advice needs to know only whether it fits: the first plan found will do.
        trial = replace(policy, search_budget=policy.search_budget // WHAT_IF_SHARE, improve_budget=0)

        def fits(what_if: Snapshot, bound: ReachBound) -> bool:
            return bool(places_of_minimum(replace(asked, gang=replace(gang, bound=bound)), what_if, trial, bound.us)[0])

        shortfall = replace(shortfall, remedies=remedies(gang, snapshot, decisions, own, fits))
    return Plan(
        request=gang,
        outcome=outcome,
        snapshot_id=snapshot.id,
        decisions=decisions,
        shortfall=shortfall,
        expanded=expanded,
    )


def _stand_together(asked: GangMembers, snapshot: Snapshot, places: Places) -> bool:
    """Whether every pod that shares cards still fits its node with all others in place.

    Which card a pod gets is the device plugin's choice and is predicted; in another order than the search's the
    prediction can differ, and the last guard, which sees the others first, would refuse what was planned.
    """
    by_node: dict[int, list[PodRequest]] = {}
    for member in asked.placed(places):
        if asked.needs[member.uid].devices is not None:
            by_node.setdefault(places[member.uid], []).append(member)
    if not by_node:
        return True
    after = asked.assumed(snapshot, places)
    # One of each node at a time: pods on different nodes do not see each other.
    turns = ([member for member in turn if member is not None] for turn in zip_longest(*by_node.values()))
    return all(_fit_beside(asked, after, places, turn) for turn in turns)


def _fit_beside(asked: GangMembers, after: Snapshot, places: Places, members: Sequence[PodRequest]) -> bool:
    """Whether each of these fits the cards of its own node beside all others but these."""
    now = after.without_assumed([member.uid for member in members]).gpus
    for member in members:
        devices, node = asked.needs[member.uid].devices, np.array([places[member.uid]], dtype=np.int64)
        if devices is not None and gpu_slots(now, devices, node)[0] < 1:
            return False
    return True


def _no_bound(bound: ReachBound, snapshot: Snapshot) -> ReachBound:
    """A bound that keeps nothing apart, as a number that can be shown: the farthest two kinds of nodes are."""
    reach = snapshot.table.reach
    rows = [float(reach.kind_row_us(kind, bound.size_bytes).max()) for kind in range(len(reach.first))]
    inside = float(reach.self_us(bound.size_bytes).max(initial=0.0))
    return replace(bound, us=max([bound.us, inside, *rows]))
