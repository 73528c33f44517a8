"""Replica groups: members that are several pods, which pods form one, and how many it has. Pure.

A LeaderWorkerSet group of size 4 is one engine over four nodes. Its pods carry the group in labels and the size in an
annotation (https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/). A role's copy of
Kthena, a role instance of RBG and a pod set of AIBrix are the same: named by labels, their size in a variable that the
operator gives each container. Every other pod is a unit of itself.

A group serves as one, so it is planned, counted and released as one: `PodRequest.unit` carries its name to the planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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


def unit_of(pod: Pod) -> str:
    """The unit that a pod is part of; "" for a pod that is a unit of itself."""
    return _read(pod)[0]


def size_of(pod: Pod) -> int:
    """Pods in the pod's unit; 1 where nothing, or nonsense, is said."""
    return _read(pod)[1]


def identified_by(pod: Pod) -> str:
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


def units_by_uid(pods: Sequence[Pod]) -> dict[str, str]:
    """Pod uid to unit, for pods that are part of one."""
    return {p.metadata.uid: unit for p in pods if (unit := unit_of(p))}
