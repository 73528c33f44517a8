"""Members that are several pods: an LWS group serves as one, so it is planned, counted and let go as one. Pure.

A LeaderWorkerSet group of size 4 is one engine over four nodes. Its pods carry the group in labels and the size in an
annotation (https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/). A role's copy of
Kthena, a role instance of RBG and a pod set of AIBrix are the same: named by labels, their size in a variable that the
operator gives each container. Every other pod is a unit of itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler.model.decision import Outcome, Plan
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, PodRequest
from scheduler.planning.plan import plan
from topology.cluster.snapshot import Snapshot
from topology.labels import DECODE, PHASES, PREFILL
from topology.objects import Pod

LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_GROUP_KEY = "leaderworkerset.sigs.k8s.io/group-key"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
_NAMED = (
    # The labels that name a unit, the last of which tells units of one phase apart, and the variable with its size:
    # volcano-sh/kthena pkg/model-serving-controller/utils/utils.go, sgl-project/rbg api/workloads/constants/env.go,
    # vllm-project/aibrix pkg/controller/constants/stormservice.go.
    (("modelserving.volcano.sh/group-name", "modelserving.volcano.sh/role-id"), "GROUP_SIZE"),
    (("rbg.workloads.x-k8s.io/role-instance-name",), "RBG_LWP_GROUP_SIZE"),
    (("stormservice.orchestration.aibrix.ai/podset-name",), "POD_GROUP_SIZE"),
)
_UNIT_LABELS = frozenset(key for keys, _ in _NAMED for key in keys)
_MOST_PODS = 4096
_MOST_CHOICES = 8
"""Units tried as the first of a minimum; they are alike but for services of several LeaderWorkerSets."""


def unit_of(pod: Pod) -> str:
    """The unit that a pod is part of; "" for a pod that is a unit of itself."""
    return _read(pod)[0]


def size_of(pod: Pod) -> int:
    """Pods in the pod's unit; 1 where nothing, or nonsense, is said."""
    return _read(pod)[1]


def told_apart_by(pod: Pod) -> str:
    """The label whose value differs between units of one phase; "" for a pod that is a unit of itself."""
    return _read(pod)[2]


def _read(pod: Pod) -> tuple[str, int, str]:
    meta = pod.metadata
    if LWS_SIZE not in (meta.annotations or {}) and _UNIT_LABELS.isdisjoint(meta.labels or {}):
        return "", 1, ""  # as nearly every pod is
    name, group, size = meta.label(LWS_NAME), meta.label(LWS_GROUP), _number(meta.annotation(LWS_SIZE))
    if size > 1:
        return (f"{name}/{group}", size, LWS_GROUP_KEY) if name and group else ("", size, "")
    for keys, variable in _NAMED:
        names = [meta.label(key) for key in keys]
        if all(names) and (size := _number(_variable(pod, variable))) > 1:
            return "/".join(names), size, keys[-1]
    return "", 1, ""


def _variable(pod: Pod, name: str) -> str:
    """Its value in the first container that has it."""
    named = (each.value for container in pod.spec.containers for each in container.env or () if each.name == name)
    return next(named, "")


def _number(text: str) -> int:
    size = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 1
    return size if 1 <= size <= _MOST_PODS else 1


def largest(pods: Iterable[Pod]) -> int:
    """The size of the largest unit among these pods, at least 1."""
    return max((size_of(p) for p in pods if unit_of(p)), default=1)


def short_units(pods: Iterable[Pod], expected: Mapping[str, int] | None = None) -> dict[str, int]:
    """Units of which pods are missing, each with how many; `expected` are those that come once the others run."""
    seen: dict[str, int] = {}
    size: dict[str, int] = {}
    for pod in pods:
        if unit := unit_of(pod):
            seen[unit] = seen.get(unit, 0) + 1
            size[unit] = size_of(pod)
    missing = {unit: size[unit] - n - (expected or {}).get(unit, 0) for unit, n in seen.items()}
    return {unit: n for unit, n in sorted(missing.items()) if n > 0}


def plan_units(
    gang: GangRequest, units: Mapping[str, str], snapshot: Snapshot, policy: Policy, *, advise: bool = False
) -> Plan:
    """A plan in which every unit has places for all of its pods or for none. `units` is pod uid to unit ("" alone).

    A plan that would tear units apart is made again without them. If too few pods are left, whole units that make up
    the minimum are asked for by themselves; below the minimum nobody goes.
    """
    asked = gang
    while True:
        result = plan(asked, snapshot, policy, advise=advise)
        torn = _torn(asked, result, units)
        if not torn:
            break
        asked = replace(asked, members=tuple(m for m in asked.members if units.get(m.uid, "") not in torn))
    if asked is gang or result.places:
        return result
    if result.outcome in (Outcome.WAITING_FOR_PARTNER, Outcome.WAITING_FOR_GANG):
        return _plan_minimum(gang, units, snapshot, policy, advise)
    return _for_everybody(gang, result, snapshot, policy)


def _plan_minimum(
    gang: GangRequest, units: Mapping[str, str], snapshot: Snapshot, policy: Policy, advise: bool
) -> Plan:
    """Places for the minimum made up of whole units; with none, the reason for everybody. Unlike units are each tried
    as the first; alike ones once."""
    tried: list[object] = []
    for first in range(_MOST_CHOICES):
        core = core_of(gang, units, first)[0]
        kinds = [(m.phase, m.amounts, m.spec, m.gpu) for m in core]
        if kinds in tried:
            continue
        tried.append(kinds)
        result = plan(_all_of(gang, core), snapshot, policy, advise=False)
        if result.places:
            return replace(result, request=replace(gang, members=result.request.members))
    result = plan(_all_of(gang, core_of(gang, units)[0]), snapshot, policy, advise=advise)
    return _for_everybody(gang, result, snapshot, policy)


def _for_everybody(gang: GangRequest, result: Plan, snapshot: Snapshot, policy: Policy) -> Plan:
    """Why nobody goes, for those too without whom that was found out."""
    everybody = plan(_all_of(gang, gang.members), snapshot, policy, advise=False)
    if everybody.places:
        return replace(everybody, request=gang)
    return replace(everybody, request=gang, outcome=result.outcome, shortfall=result.shortfall)


def _all_of(gang: GangRequest, members: Sequence[PodRequest]) -> GangRequest:
    """All of these or nobody."""
    phases = [m.phase for m in members] + [p.phase for p in gang.partners]
    return replace(gang, members=tuple(members), min_prefill=phases.count(PREFILL), min_decode=phases.count(DECODE))


def core_of(
    gang: GangRequest, units: Mapping[str, str], first: int = 0
) -> tuple[list[PodRequest], list[list[PodRequest]]]:
    """Whole units that make up the minimum of each phase, by name from the `first` on; and the units beyond it, one of
    each phase in turn."""
    core: list[PodRequest] = []
    rest: list[tuple[int, str, list[PodRequest]]] = []
    for phase in PHASES:
        wholes: dict[str, list[PodRequest]] = {}
        for m in sorted((m for m in gang.members if m.phase == phase), key=lambda m: (m.name, m.uid)):
            wholes.setdefault(units.get(m.uid) or f"{m.uid}/", []).append(m)
        in_turn = list(wholes.values())  # in the order of their first pods
        shift = first % len(in_turn) if in_turn else 0
        needed, turn = gang.still_needed(phase), 0
        for whole in in_turn[shift:] + in_turn[:shift]:
            if needed > 0:
                core += whole
                needed -= len(whole)
            else:
                rest.append((turn, phase, whole))
                turn += 1
    return core, [whole for _, _, whole in sorted(rest, key=lambda r: r[:2])]


def _torn(gang: GangRequest, result: Plan, units: Mapping[str, str]) -> set[str]:
    """Units with some of their pods placed and some not."""
    if not result.places:
        return set()
    placed = {units.get(m.uid, "") for m in gang.members if m.uid in result.places}
    left = {units.get(m.uid, "") for m in gang.members if m.uid not in result.places}
    return (placed & left) - {""}


def units_by_uid(pods: Sequence[Pod]) -> dict[str, str]:
    """Pod uid to unit, for pods that are part of one."""
    return {p.metadata.uid: unit for p in pods if (unit := unit_of(p))}
