"""`plan(gang, snapshot)`: places for a whole gang at once, its isochrone sets, or the reason why there are none.

Rules of this file. (1) The minimum of every phase together, or nothing. (2) Members beyond the minimum that do not fit
are left out one by one and never block their siblings. (3) Partners that already have places are never moved: joiners
come to them. (4) What cannot be planned says why with numbers.

`pairing: nearest` is planned as `all`, which is stricter and so always sound; the looser search belongs to the
decision core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scheduler.decision import Outcome, Plan
from scheduler.judge import Need, need_of
from scheduler.minimum import choices
from scheduler.planned import Places, planned
from scheduler.policy import Policy
from scheduler.request import GangRequest, PodRequest, ReachBound
from scheduler.search import Found, Item, Search
from scheduler.shortfall import held_decisions, shortfall_of
from scheduler.what_if import WHAT_IF_SHARE, remedies
from topology.labels import PHASES
from topology.snapshot import Assumed, Snapshot


def plan(gang: GangRequest, snapshot: Snapshot, policy: Policy | None = None, *, advise: bool = True) -> Plan:
    """Plan a gang against one snapshot. Never raises for a gang that does not fit: the outcome says so.

    Without `advise` a held gang's shortfall has no remedies, which cost several more searches to find.
    """
    policy = policy or Policy()
    for phase in PHASES:
        of_phase = [m for m in gang.members if m.phase == phase]
        if gang.still_needed(phase) > len(of_phase):
            nobody = not of_phase and not any(p.phase == phase for p in gang.partners)
            return _without_places(gang, snapshot, Outcome.WAITING_FOR_PARTNER if nobody else Outcome.WAITING_FOR_GANG)
    needs = _needs(gang, snapshot)
    fixed = _partner_nodes(gang, snapshot)
    members = sorted(gang.members, key=lambda m: (m.phase, m.name, m.uid))
    places, expanded, complete = _place(gang, snapshot, policy, members, needs, fixed)
    if places is None:
        outcome = Outcome.HELD if complete else Outcome.UNDECIDED
        decisions = held_decisions(gang, snapshot, policy, needs, fixed)
        shortfall = shortfall_of(gang, snapshot, needs, fixed)
        if advise and outcome == Outcome.HELD:
            trial = replace(policy, search_budget=policy.search_budget // WHAT_IF_SHARE)

            def fits(what_if: Snapshot, bound: ReachBound) -> bool:
                asked = replace(gang, bound=bound)
                return bool(_minimum(asked, what_if, trial, members, needs, fixed)[0])

            shortfall = replace(shortfall, remedies=remedies(gang, snapshot, decisions, fits))
        return Plan(
            request=gang,
            outcome=outcome,
            snapshot_id=snapshot.id,
            decisions=decisions,
            shortfall=shortfall,
            expanded=expanded,
        )
    return planned(gang, snapshot, policy, needs, fixed, places, expanded)


def _needs(gang: GangRequest, snapshot: Snapshot) -> dict[str, Need]:
    """By member uid; members that ask for the same share one need."""
    known: dict[tuple[int, tuple[tuple[str, int], ...]], Need] = {}
    found = {}
    for member in gang.members:
        key = id(member.spec), tuple(sorted(member.amounts.items()))
        if key not in known:
            known[key] = need_of(member, snapshot)
        found[member.uid] = known[key]
    alike: dict[tuple[object, ...], Need] = {}
    return {uid: alike.setdefault(_asked(need), need) for uid, need in found.items()}


def _place(
    gang: GangRequest,
    snapshot: Snapshot,
    policy: Policy,
    members: Sequence[PodRequest],
    needs: Mapping[str, Need],
    fixed: Mapping[str, NDArray[np.int64]],
) -> tuple[Places | None, int, bool]:
    """Everyone if possible; else the minimum and then whoever fits. None when the minimum does not."""
    found, grouped = _search(gang, snapshot, policy, members, needs, fixed)
    expanded, complete = found.expanded, found.complete
    places = _by_uid(grouped, found)
    if places is not None:
        return places, expanded, True
    if len(members) == sum(gang.still_needed(phase) for phase in PHASES):
        return None, expanded, complete
    places, more, complete = _minimum(gang, snapshot, policy, members, needs, fixed)
    expanded += more
    if places is None:
        return None, expanded, complete
    chosen = set(places)
    blocked: set[tuple[object, ...]] = set()
    # One of each phase in turn, so that what fits beyond the minimum stays balanced.
    turn: dict[str, int] = dict.fromkeys(PHASES, 0)
    extra: list[tuple[int, str, PodRequest]] = []
    for member in members:
        if member.uid not in chosen:
            extra.append((turn[member.phase], member.phase, member))
            turn[member.phase] += 1
    for _, _, member in sorted(extra, key=lambda e: e[:2]):
        kind = _kind(member, needs[member.uid])
        if kind in blocked:  # its twin found no place and room only shrinks
            continue
        now = snapshot.with_assumed(_assumed(snapshot, members, places))
        around = {phase: np.append(fixed[phase], _nodes(members, places, phase)) for phase in PHASES}
        found, grouped = _search(gang, now, policy, [member], needs, around)
        expanded += found.expanded
        place = _by_uid(grouped, found)
        if place is None:
            blocked.add(kind)
        else:
            places |= place
    return places, expanded, True


def _minimum(
    gang: GangRequest,
    snapshot: Snapshot,
    policy: Policy,
    members: Sequence[PodRequest],
    needs: Mapping[str, Need],
    fixed: Mapping[str, NDArray[np.int64]],
) -> tuple[Places | None, int, bool]:
    """Places for the minimum alone, by the first choice of members that has some; nobody if nobody is needed.

    Which members make up the minimum matters only where they differ; choices are then tried in the order of names.
    """
    if gang.satisfied:
        return {}, 0, True
    expanded, complete = 0, True
    for core in choices(gang, members, {m.uid: _kind(m, needs[m.uid]) for m in members}):
        left = policy.search_budget - expanded
        if core is None or left <= 0:
            return None, expanded, False
        found, grouped = _search(gang, snapshot, replace(policy, search_budget=left), core, needs, fixed)
        expanded += found.expanded
        complete = complete and found.complete
        if (places := _by_uid(grouped, found)) is not None:
            return places, expanded, True
    return None, expanded, complete


def _search(
    gang: GangRequest,
    snapshot: Snapshot,
    policy: Policy,
    members: Iterable[PodRequest],
    needs: Mapping[str, Need],
    fixed: Mapping[str, NDArray[np.int64]],
) -> tuple[Found, list[list[PodRequest]]]:
    groups: dict[tuple[object, ...], list[PodRequest]] = {}
    for member in members:
        groups.setdefault(_kind(member, needs[member.uid]), []).append(member)
    grouped = list(groups.values())
    if any(needs[group[0].uid].missing for group in grouped):
        return Found(places=None, expanded=0, complete=True), grouped
    items = [
        Item(group[0].phase, needs[group[0].uid].row, needs[group[0].uid].accepts, len(group)) for group in grouped
    ]
    search = Search(snapshot, items, fixed, gang.bound.us, gang.bound.size_bytes, policy.search_budget)
    return search.run(), grouped


def _asked(need: Need) -> tuple[object, ...]:
    return need.row.tobytes(), need.accepts.tobytes(), need.missing


def _kind(member: PodRequest, need: Need) -> tuple[object, ...]:
    """Members of one kind are interchangeable to the search. Equal needs are one object."""
    return member.phase, id(need)


def _by_uid(grouped: Sequence[Sequence[PodRequest]], found: Found) -> Places | None:
    if found.places is None:
        return None
    return {
        member.uid: node
        for group, nodes in zip(grouped, found.places, strict=True)
        for member, node in zip(group, sorted(nodes), strict=True)
    }


def _partner_nodes(gang: GangRequest, snapshot: Snapshot) -> dict[str, NDArray[np.int64]]:
    index = snapshot.table.index
    return {
        phase: np.array(
            sorted({index[n] for p in gang.partners if p.phase == phase for n in p.nodes if n in index}),
            dtype=np.int64,
        )
        for phase in PHASES
    }


def _nodes(members: Iterable[PodRequest], places: Places, phase: str) -> NDArray[np.int64]:
    return np.array([places[m.uid] for m in members if m.phase == phase and m.uid in places], dtype=np.int64)


def _assumed(snapshot: Snapshot, members: Iterable[PodRequest], places: Places) -> dict[str, Assumed]:
    return {m.uid: Assumed(snapshot.table.names[places[m.uid]], m.amounts, m.hold) for m in members if m.uid in places}


def _without_places(gang: GangRequest, snapshot: Snapshot, outcome: str) -> Plan:
    return Plan(request=gang, outcome=outcome, snapshot_id=snapshot.id, decisions={})
