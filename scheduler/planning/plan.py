"""`plan(gang, snapshot)`: places for a whole gang at once, its isochrone sets, or the reason why there are none.

Rules of this file. (1) The minimum of every phase together, or nothing. (2) Members beyond the minimum that do not fit
are left out one by one and never block their siblings. (3) Partners that already have places are never moved: joiners
come to them. (4) What cannot be planned says why with numbers. (5) With `reach-mode: preferred` the bound is a wish:
places within it if there are some, else places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.evaluate import Need, need_of
from scheduler.evaluate.gpu_fit import card_slots
from scheduler.evaluate.partner_reach import nodes_of
from scheduler.model.decision import Outcome, Plan
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, PodRequest, ReachBound
from scheduler.planning.build_plan import Places, planned
from scheduler.planning.gang_minimum import choices
from scheduler.planning.gang_usage import held_by_gang
from scheduler.planning.remedies import WHAT_IF_SHARE, remedies
from scheduler.planning.shortfall import held_decisions, shortfall_of
from scheduler.search.demand import demand_of
from scheduler.search.feasibility_search import Found
from scheduler.search.solver import GangSearch
from topology.cluster.snapshot import Assumed, Snapshot
from topology.labels import NEAREST, PHASES, PREFERRED

_EACH = 4
"""Placements that a search for several members beyond the minimum may try for each of them."""


def plan(gang: GangRequest, snapshot: Snapshot, policy: Policy | None = None, *, advise: bool = True) -> Plan:
    """Plan a gang against one snapshot. Never raises for a gang that does not fit: the outcome says so.

    Without `advise` a held gang's shortfall has no remedies, which cost several more searches to find.
    """
    policy = policy or Policy()
    gang = replace(gang, bound=replace(gang.bound, nearest=gang.pairing == NEAREST))
    if (group := gang.group) is not None:
        gang = replace(gang, members=tuple(replace(member, group=group) for member in gang.members))
    for phase in PHASES:
        of_phase = [m for m in gang.members if m.phase == phase]
        if gang.still_needed(phase) > len(of_phase):
            nobody = not of_phase and not any(p.phase == phase for p in gang.partners)
            return _without_places(gang, snapshot, Outcome.WAITING_FOR_PARTNER if nobody else Outcome.WAITING_FOR_GANG)
    asked = _Asked.of(gang, snapshot, policy)
    places, expanded, complete = _place(asked, snapshot, policy, gang.bound.us)
    if gang.mode == PREFERRED and (places is None or len(places) < len(gang.members)):
        anywhere, more, complete = _place(asked, snapshot, policy, np.inf)
        expanded += more
        if anywhere is not None and (places is None or len(anywhere) > len(places)):
            places = anywhere
    if places is not None and _stand_together(asked, snapshot, places):
        return planned(gang, snapshot, policy, asked.needs, places, expanded)
    complete &= places is None
    if gang.mode == PREFERRED:
        gang = replace(gang, bound=_no_bound(gang.bound, snapshot))
    return _held(asked, gang, snapshot, policy, expanded, complete=complete, advise=advise)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A gang against one node table: members in the order of names, what each needs, where partners are."""

    gang: GangRequest
    members: Sequence[PodRequest]
    needs: Mapping[str, Need]  # by uid; members that ask for the same share one object
    partners: Mapping[str, list[NDArray[np.int64]]]  # by phase, nodes of each partner

    @classmethod
    def of(cls, gang: GangRequest, snapshot: Snapshot, policy: Policy) -> _Asked:
        known: dict[tuple[object, ...], Need] = {}
        alike: dict[tuple[object, ...], Need] = {}
        needs = {}
        for member in gang.members:
            key = id(member.spec), tuple(sorted(member.amounts.items())), member.phase, member.gpu, member.problem
            if key not in known:
                need = need_of(member, snapshot, policy)
                asks = need.row.tobytes(), need.accepts.tobytes(), need.missing, need.cards
                known[key] = alike.setdefault(asks, need)
            needs[member.uid] = known[key]
        return cls(
            gang=gang,
            members=sorted(gang.members, key=lambda m: (m.phase, m.name, m.uid)),
            needs=needs,
            partners={phase: nodes_of(gang.partners, phase, snapshot.table) for phase in PHASES},
        )

    def kind(self, member: PodRequest) -> tuple[str, int]:
        """Members of one kind are interchangeable to the search."""
        return member.phase, id(self.needs[member.uid])


def _held(
    asked: _Asked,
    gang: GangRequest,
    snapshot: Snapshot,
    policy: Policy,
    expanded: int,
    *,
    complete: bool,
    advise: bool,
) -> Plan:
    own = held_by_gang(gang, snapshot)
    with_own = {id(need): replace(need, own=own) for need in asked.needs.values()}
    decisions = held_decisions(gang, snapshot, policy, {uid: with_own[id(n)] for uid, n in asked.needs.items()})
    shortfall = shortfall_of(gang, snapshot, asked.needs, own)
    never = shortfall.beyond_cluster
    outcome = Outcome.HELD if complete or never else Outcome.UNDECIDED
    if advise and outcome == Outcome.HELD and not never:
        # Advice needs to know only whether it fits: the first plan found will do.
        trial = replace(policy, search_budget=policy.search_budget // WHAT_IF_SHARE, improve_budget=0)

        def fits(what_if: Snapshot, bound: ReachBound) -> bool:
            return bool(_minimum(replace(asked, gang=replace(gang, bound=bound)), what_if, trial, bound.us)[0])

        shortfall = replace(shortfall, remedies=remedies(gang, snapshot, decisions, own, fits))
    return Plan(
        request=gang,
        outcome=outcome,
        snapshot_id=snapshot.id,
        decisions=decisions,
        shortfall=shortfall,
        expanded=expanded,
    )


def _stand_together(asked: _Asked, snapshot: Snapshot, places: Places) -> bool:
    """Whether every pod that shares cards still fits its node with all others in place.

    Which card a pod gets is the device plugin's choice and is predicted; in another order than the search's the
    prediction can differ, and the last guard, which sees the others first, would refuse what was planned.
    """
    names = snapshot.table.names
    sharing = [m for m in asked.members if m.uid in places and asked.needs[m.uid].cards is not None]
    if not sharing:
        return True
    after = snapshot.with_assumed(
        {m.uid: Assumed(names[places[m.uid]], m.amounts, m.hold) for m in asked.members if m.uid in places}
    )
    # One of each node at a time: pods on different nodes do not see each other.
    by_node: dict[int, list[PodRequest]] = {}
    for member in sharing:
        by_node.setdefault(places[member.uid], []).append(member)
    for some in zip_longest(*by_node.values()):
        now = after.without_assumed([m.uid for m in some if m is not None]).gpus
        for member in (m for m in some if m is not None):
            cards, node = asked.needs[member.uid].cards, np.array([places[member.uid]], dtype=np.int64)
            if cards is not None and card_slots(now, cards, node)[0] < 1:
                return False
    return True


def _no_bound(bound: ReachBound, snapshot: Snapshot) -> ReachBound:
    """A bound that keeps nothing apart, as a number that can be shown: the farthest two kinds of nodes are."""
    reach = snapshot.table.reach
    rows = [float(reach.kind_row_us(kind, bound.size_bytes).max()) for kind in range(len(reach.first))]
    inside = float(reach.self_us(bound.size_bytes).max(initial=0.0))
    return replace(bound, us=max([bound.us, inside, *rows]))


def _place(asked: _Asked, snapshot: Snapshot, policy: Policy, limit_us: float) -> tuple[Places | None, int, bool]:
    """Everyone if possible; else the minimum and then whoever fits. None when the minimum does not."""
    needed = sum(asked.gang.still_needed(phase) for phase in PHASES)
    # Where very many may go without each other, it is not worth much to know that they cannot all go together.
    brief = needed < len(asked.members) > policy.joint_pods
    everyone = replace(policy, search_budget=0) if brief else policy
    places, expanded, complete = _search(asked, snapshot, everyone, asked.members, limit_us)
    if places is not None:
        return places, expanded, True
    if len(asked.members) == needed:
        return None, expanded, complete
    places, more, complete = _minimum(asked, snapshot, policy, limit_us)
    expanded += more
    if places is None:
        return None, expanded, complete
    places, more = _beyond(asked, snapshot, policy, places, limit_us)
    return places, expanded + more, True


def _beyond(asked: _Asked, snapshot: Snapshot, policy: Policy, places: Places, limit_us: float) -> tuple[Places, int]:
    """The places, and those of the members beyond them that fit too; how many placements were tried.

    They come in turn, and together as many as fitted last time, twice over: for thousands of pods that is a dozen
    searches. One that fits nowhere stops none but its twins, for whom room only shrinks.
    """
    waiting = _in_turn([m for m in asked.members if m.uid not in places])
    together, growing, expanded = 1, True, 0
    now, beside = _with(asked, snapshot, dict(asked.partners), places)
    while waiting:
        some = waiting[:together]
        budget = (
            policy if len(some) == 1 else replace(policy, search_budget=min(policy.search_budget, _EACH * together))
        )
        place, more, _ = _search(replace(asked, partners=beside), now, budget, some, limit_us)
        expanded += more
        if place is not None:
            waiting = waiting[len(some) :]
            places = places | place
            now, beside = _with(asked, now, beside, place)
            growing = growing or together == 1
            together = together * 2 if growing else max(1, together // 2)
        elif len(some) > 1:
            together, growing = len(some) // 2, False
        else:
            kind, growing = asked.kind(some[0]), True
            waiting = [m for m in waiting if asked.kind(m) != kind]
    return places, expanded


def _with(
    asked: _Asked, snapshot: Snapshot, partners: Mapping[str, list[NDArray[np.int64]]], places: Places
) -> tuple[Snapshot, dict[str, list[NDArray[np.int64]]]]:
    """The cluster and the partners, with these members in their places."""
    placed, names = [m for m in asked.members if m.uid in places], snapshot.table.names
    now = snapshot.with_assumed({m.uid: Assumed(names[places[m.uid]], m.amounts, m.hold) for m in placed})
    return now, {
        phase: partners[phase] + [np.array([places[m.uid]]) for m in placed if m.phase == phase] for phase in PHASES
    }


def _in_turn(members: Sequence[PodRequest]) -> list[PodRequest]:
    """One of each phase in turn, so that what fits beyond the minimum stays balanced."""
    turns = []
    for _, of_phase in groupby(members, key=lambda m: m.phase):
        turns += list(enumerate(of_phase))
    return [member for _, member in sorted(turns, key=lambda t: (t[0], t[1].phase))]


def _minimum(asked: _Asked, snapshot: Snapshot, policy: Policy, limit_us: float) -> tuple[Places | None, int, bool]:
    """Places for the minimum alone, by the first choice of members that has some; nobody if nobody is needed.

    Which members make up the minimum matters only where they differ; choices are then tried in the order of names.
    """
    if asked.gang.satisfied:
        return {}, 0, True
    expanded, complete = 0, True
    for core in choices(asked.gang, asked.members, {m.uid: asked.kind(m) for m in asked.members}):
        left = policy.search_budget - expanded
        if core is None or left <= 0:
            return None, expanded, False
        places, more, proven = _search(asked, snapshot, replace(policy, search_budget=left), core, limit_us)
        expanded += more
        complete = complete and proven
        if places is not None:
            return places, expanded, True
    return None, expanded, complete


def _search(
    asked: _Asked, snapshot: Snapshot, policy: Policy, members: Iterable[PodRequest], limit_us: float
) -> tuple[Places | None, int, bool]:
    """Places for exactly these members; how many were tried; and whether None is a proof."""
    groups: dict[tuple[str, int], list[PodRequest]] = {}
    for member in members:
        groups.setdefault(asked.kind(member), []).append(member)
    grouped = list(groups.values())
    needs = [asked.needs[group[0].uid] for group in grouped]
    if any(need.missing for need in needs):
        return None, 0, True
    demands = [demand_of(g[0].phase, need, len(g), snapshot) for g, need in zip(grouped, needs, strict=True)]
    found = GangSearch(snapshot, demands, asked.partners, asked.gang.bound, limit_us, policy).run()
    return _by_uid(grouped, found), found.expanded, found.complete


def _by_uid(grouped: Sequence[Sequence[PodRequest]], found: Found) -> Places | None:
    if found.places is None:
        return None
    return {
        member.uid: node
        for group, nodes in zip(grouped, found.places, strict=True)
        for member, node in zip(group, sorted(nodes), strict=True)
    }


def _without_places(gang: GangRequest, snapshot: Snapshot, outcome: str) -> Plan:
    return Plan(request=gang, outcome=outcome, snapshot_id=snapshot.id, decisions={})
