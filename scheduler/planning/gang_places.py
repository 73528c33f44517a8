"""Nodes for members of a gang: for everybody, else for the minimum and then for whoever still fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from scheduler.model.policy import Policy
from scheduler.model.request import PodRequest
from scheduler.planning.gang_members import GangMembers, Places
from scheduler.planning.gang_minimum import choices
from scheduler.search.demand import demand_of
from scheduler.search.feasibility_search import Found
from scheduler.search.solver import Solver
from topology.cluster.snapshot import Snapshot
from topology.labels import PHASES

_EACH = 4
"""Placements that a search for several members beyond the minimum may try for each of them."""


def places_of(
    asked: GangMembers, snapshot: Snapshot, policy: Policy, limit_us: float
) -> tuple[Places | None, int, bool]:
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
    places, more, complete = places_of_minimum(asked, snapshot, policy, limit_us)
    expanded += more
    if places is None:
        return None, expanded, complete
    places, more = _beyond(asked, snapshot, policy, places, limit_us)
    return places, expanded + more, True


def _beyond(
    asked: GangMembers, snapshot: Snapshot, policy: Policy, places: Places, limit_us: float
) -> tuple[Places, int]:
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
            tried, growing = asked.equivalence_class(some[0]), True
            waiting = [m for m in waiting if asked.equivalence_class(m) != tried]
    return places, expanded


def _with(
    asked: GangMembers, snapshot: Snapshot, partners: Mapping[str, list[NDArray[np.int64]]], places: Places
) -> tuple[Snapshot, dict[str, list[NDArray[np.int64]]]]:
    """The cluster and the partners, with these members in their places."""
    placed = asked.placed(places)
    return asked.assumed(snapshot, places), {
        phase: partners[phase] + [np.array([places[m.uid]]) for m in placed if m.phase == phase] for phase in PHASES
    }


def _in_turn(members: Sequence[PodRequest]) -> list[PodRequest]:
    """One of each phase in turn, so that what fits beyond the minimum stays balanced."""
    turns = []
    for _, of_phase in groupby(members, key=lambda m: m.phase):
        turns += list(enumerate(of_phase))
    return [member for _, member in sorted(turns, key=lambda t: (t[0], t[1].phase))]


def places_of_minimum(
    asked: GangMembers, snapshot: Snapshot, policy: Policy, limit_us: float
) -> tuple[Places | None, int, bool]:
    """Places for the minimum alone, by the first choice of members that has some; nobody if nobody is needed.

    Which members make up the minimum matters only where they differ; choices are then tried in the order of names.
    """
    if asked.gang.satisfied:
        return {}, 0, True
    expanded, complete = 0, True
    for core in choices(asked):
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
    asked: GangMembers, snapshot: Snapshot, policy: Policy, members: Iterable[PodRequest], limit_us: float
) -> tuple[Places | None, int, bool]:
    """Places for exactly these members; how many were tried; and whether None is a proof."""
    grouped = list(asked.by_class(members).values())
    needs = [asked.needs[group[0].uid] for group in grouped]
    if any(need.missing for need in needs):
        return None, 0, True
    demands = [demand_of(g[0].phase, need, len(g), snapshot) for g, need in zip(grouped, needs, strict=True)]
    found = Solver(snapshot, demands, asked.partners, asked.gang.bound, limit_us, policy).run()
    return _by_uid(grouped, found), found.expanded, found.complete


def _by_uid(grouped: Sequence[Sequence[PodRequest]], found: Found) -> Places | None:
    if found.places is None:
        return None
    return {
        member.uid: node
        for group, nodes in zip(grouped, found.places, strict=True)
        for member, node in zip(group, sorted(nodes), strict=True)
    }
