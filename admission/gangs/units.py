"""Members that are several pods: an LWS group serves as one, so it is planned, counted and let go as one. Pure.

A LeaderWorkerSet group of size 4 is one engine over four nodes. Its pods carry the group in labels and the size in an
annotation (https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/). Every other pod is a
unit of itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from scheduler.decision import Plan
from scheduler.plan import plan
from scheduler.policy import Policy
from scheduler.request import GangRequest
from topology.objects import Pod
from topology.snapshot import Snapshot

LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_GROUP_KEY = "leaderworkerset.sigs.k8s.io/group-key"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
_MOST_PODS = 4096


def unit_of(pod: Pod) -> str:
    """The unit that a pod is part of; "" for a pod that is a unit of itself."""
    meta = pod.metadata
    name, group = meta.label(LWS_NAME), meta.label(LWS_GROUP)
    return f"{name}/{group}" if name and group and size_of(pod) > 1 else ""


def size_of(pod: Pod) -> int:
    """Pods in the pod's unit; 1 where nothing, or nonsense, is said."""
    text = pod.metadata.annotation(LWS_SIZE)
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

    A plan that would tear a unit apart is made again without that unit; below the minimum nobody goes.
    """
    asked = gang
    while True:
        result = plan(asked, snapshot, policy, advise=advise)
        torn = _torn(asked, result, units)
        if not torn:
            return result
        asked = replace(asked, members=tuple(m for m in asked.members if units.get(m.uid, "") not in torn))


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
