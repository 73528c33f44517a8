"""Atomic units: pods that serve as one (an LWS group over four nodes) have places together or not at all.

The search knows single pods. A plan that would split a unit is made again without it; if too few pods are left, whole
units that make up the minimum are asked for by themselves, and below the minimum nobody goes. A gang without units is
planned once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from scheduler.model.decision import Outcome, Plan
from scheduler.model.request import GangRequest, PodRequest
from scheduler.planning.gang_minimum import minimum_units
from topology.labels import DECODE, PREFILL

_MOST_CHOICES = 8
"""Units tried as the first of a minimum; they are alike but for services of several LeaderWorkerSets."""


class PlanPods(Protocol):
    """A plan of these members as single pods."""

    def __call__(self, gang: GangRequest, *, advise: bool) -> Plan:
        """As `scheduler.planning.plan.plan`, on one snapshot."""


def plan_whole_units(gang: GangRequest, plan_pods: PlanPods, *, advise: bool) -> Plan:
    """A plan in which every unit has places for all of its pods or for none."""
    asked = gang
    while True:
        result = plan_pods(asked, advise=advise)
        split = _split(asked, result)
        if not split:
            break
        asked = replace(asked, members=tuple(m for m in asked.members if m.unit not in split))
    if asked is gang or result.places:
        return result
    if result.outcome in (Outcome.WAITING_FOR_PARTNER, Outcome.WAITING_FOR_GANG):
        return _plan_minimum(gang, plan_pods, advise=advise)
    return _for_everybody(gang, result, plan_pods)


def _plan_minimum(gang: GangRequest, plan_pods: PlanPods, *, advise: bool) -> Plan:
    """Places for the minimum made up of whole units; with none, the reason for everybody. Unlike units are each tried
    as the first; alike ones once."""
    tried: list[object] = []
    for first in range(_MOST_CHOICES):
        minimum = minimum_units(gang, first)[0]
        requests = [(m.phase, m.amounts, m.spec, m.gpu) for m in minimum]
        if requests in tried:
            continue
        tried.append(requests)
        result = plan_pods(_all_of(gang, minimum), advise=False)
        if result.places:
            return replace(result, request=replace(gang, members=result.request.members))
    result = plan_pods(_all_of(gang, minimum_units(gang)[0]), advise=advise)
    return _for_everybody(gang, result, plan_pods)


def _for_everybody(gang: GangRequest, result: Plan, plan_pods: PlanPods) -> Plan:
    """Why nobody goes, for those too without whom that was found out."""
    everybody = plan_pods(_all_of(gang, gang.members), advise=False)
    if everybody.places:
        return replace(everybody, request=gang)
    return replace(everybody, request=gang, outcome=result.outcome, shortfall=result.shortfall)


def _all_of(gang: GangRequest, members: Sequence[PodRequest]) -> GangRequest:
    """All of these or nobody."""
    phases = [m.phase for m in members] + [p.phase for p in gang.partners]
    return replace(gang, members=tuple(members), min_prefill=phases.count(PREFILL), min_decode=phases.count(DECODE))


def _split(gang: GangRequest, result: Plan) -> set[str]:
    """Units with some of their pods placed and some not."""
    if not result.places:
        return set()
    placed = {m.unit for m in gang.members if m.uid in result.places}
    left = {m.unit for m in gang.members if m.uid not in result.places}
    return (placed & left) - {""}
