"""The PodGroup of a gang, as it should be. Pure: pods in, object out; server-side apply makes it so.

`minMember` is the sum of `minTaskMember`, so both hold Volcano to the same minimum; where a member is itself several
pods, sub-groups take the place of roles. Owners are the top owners of the
pods (the Deployment, not its ReplicaSet, which goes with a rollout), or the pods themselves where nobody owns them;
never with blockOwnerDeletion, which would need rights on their finalizers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from admission.gangs.gang_view import GangView, unit_size
from admission.recognition.gang_identity import PODGROUP_PREFIX, podgroup_name
from admission.recognition.replica_group import identified_by
from admission.release.pod_group_schema import OPTIONAL, as_known
from topology.labels import DECODE, GANG, GATE, GROUP_NAME, PHASE, PREFILL, QUEUE_NAME, TASK_SPEC
from topology.objects import OwnerReference, Pod, PodGroup
from topology.resources import CPU, PODS, Amounts, readable_request, sum_amounts

API_VERSION = "scheduling.volcano.sh/v1beta1"
MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "isochrone"
_MAX_OWNERS = 100

TopOwner = Callable[[Pod], OwnerReference | None]
"""Finds the top owner of a pod; None where the chain is not known yet or nobody owns it."""


def group_names(view: GangView) -> dict[str, list[Pod]]:
    """PodGroup name to the gang's pods that name it; pods that name none are left out."""
    names: dict[str, list[Pod]] = {}
    for pod in (*view.held, *view.released, *view.bound):
        name = podgroup_name(view.key[1]) if moved(pod, view.key[1]) else pod.metadata.annotation(GROUP_NAME)
        if name:
            names.setdefault(name, []).append(pod)
    return names


def moved(pod: Pod, gang: str) -> bool:
    """A held pod whose gang label was changed: it still names the PodGroup that we gave it with the other gang.

    Names with our prefix are ours (docs/contracts.md), so it may be given its new gang's when it goes.
    """
    name = pod.metadata.annotation(GROUP_NAME)
    return pod.has_gate(GATE) and name.startswith(PODGROUP_PREFIX) and not is_ours(name, gang)


def is_ours(name: str, gang: str) -> bool:
    """Whether a PodGroup name is the one we give this gang; any other belongs to somebody else and is kept."""
    return name == podgroup_name(gang)


def marked_ours(group: PodGroup) -> bool:
    """Whether it is a gang's, and carries the mark of those that we made."""
    return bool(group.metadata.label(GANG)) and group.metadata.label(MANAGED_BY) == MANAGER


def wanted_pod_group(
    view: GangView,
    pods: Sequence[Pod],
    top_owner: TopOwner,
    annotations: Mapping[str, str],
    more_later: Callable[[Sequence[Pod]], bool] = lambda _: False,
    known: frozenset[str] = frozenset(OPTIONAL),
    releasing: Set[str] = frozenset(),
) -> dict[str, Any]:
    """The object to apply. `pods` are the gang's pods that name it, at least one; `releasing` are uids about to be
    released.

    Pods that their owner makes only once these are ready (`more_later`) cannot be waited for: the minimum is then who
    is out or going, and rises with who comes. Of the optional fields only those `known` to the cluster are there.
    """
    namespace, gang = view.key
    settings = view.settings
    stated = {PREFILL: settings.min_prefill or 1, DECODE: settings.min_decode or 1}
    minimum: dict[str, int] = {}
    later: dict[str, bool] = {}
    sizes = {phase: unit_size(view, phase) for phase in stated}
    for phase, count in stated.items():
        mine = [p for p in pods if p.metadata.label(PHASE) == phase]
        minimum[phase] = count * sizes[phase]
        later[phase] = more_later(mine)
        if later[phase]:
            minimum[phase] = max(1, min(minimum[phase], _out(mine, releasing)))
    spec: dict[str, Any] = {
        "minMember": sum(minimum.values()),
        "queue": _first(p.metadata.annotation(QUEUE_NAME) for p in pods) or "default",
        "minResources": _resources(pods, minimum),
    }
    # A group whose leader goes first is not whole yet: it is counted by pods until it is.
    policy = _sub_group_policy(pods, minimum, {phase: size for phase, size in sizes.items() if not later[phase]})
    # Volcano says not to combine sub-groups with roles.
    spec |= {"subGroupPolicy": policy} if policy else _per_role(pods, minimum)
    spec = as_known(spec, known, _per_role(pods, minimum))
    if priority := _first(p.spec.priority_class_name for p in pods):
        spec["priorityClassName"] = priority
    return {
        "apiVersion": API_VERSION,
        "kind": "PodGroup",
        "metadata": {
            "name": podgroup_name(gang),
            "namespace": namespace,
            "labels": {GANG: gang, MANAGED_BY: MANAGER},
            "annotations": dict(annotations),
            "ownerReferences": _owners(pods, top_owner),
        },
        "spec": spec,
    }


def _sub_group_policy(
    pods: Sequence[Pod], minimum: Mapping[str, int], sizes: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Of the phases whose members are themselves several pods: Volcano counts whole groups of them."""
    apart = {phase: _identified_by(pods, phase) for phase in sizes}
    whole = [phase for phase, size in sizes.items() if size > 1 and len(apart[phase]) == 1]
    return [_sub_groups(phase, sizes[phase], minimum[phase], apart[phase]) for phase in whole]


def _per_role(pods: Sequence[Pod], minimum: Mapping[str, int]) -> dict[str, Any]:
    """Per-role minimums need one role name per phase; where people gave several, the sum alone holds the gang."""
    roles = {phase: sorted({_role(p) for p in pods if p.metadata.label(PHASE) == phase}) for phase in minimum}
    if any(len(names) > 1 for names in roles.values()):
        return {}
    per_role = {(names or [phase])[0]: minimum[phase] for phase, names in roles.items()}
    return {"minTaskMember": per_role} if len(per_role) == len(roles) else {}


def _out(pods: Sequence[Pod], leaving: Set[str]) -> int:
    """How many are past our gate, or about to be."""
    return sum(1 for p in pods if p.metadata.uid in leaving or not p.has_gate(GATE))


def _identified_by(pods: Sequence[Pod], phase: str) -> list[str]:
    """The labels that tell this phase's units apart; Volcano can be given one, so units of one system alone."""
    return sorted({key for p in pods if p.metadata.label(PHASE) == phase and (key := identified_by(p))})


def _sub_groups(phase: str, size: int, minimum: int, keys: list[str]) -> dict[str, Any]:
    """Pods of one phase with one group key are one sub-group, placed as a whole."""
    return {
        "name": phase,
        "labelSelector": {"matchLabels": {PHASE: phase}},
        "matchLabelKeys": keys,
        "subGroupSize": size,
        "minSubGroups": max(1, minimum // size),
    }


def differs(existing: PodGroup, wanted: Mapping[str, Any]) -> bool:
    """Whether somebody changed what holds the gang's minimum."""
    spec = wanted["spec"]
    roles: dict[str, int] = spec.get("minTaskMember", {})
    return bool(existing.spec.min_member != spec["minMember"] or (existing.spec.min_task_member or {}) != roles)


def _role(pod: Pod) -> str:
    meta = pod.metadata
    return meta.annotation(TASK_SPEC) or meta.label(TASK_SPEC) or meta.label(PHASE)


def _first(values: Any) -> str:
    return next((v for v in values if v), "")


def _resources(pods: Sequence[Pod], minimum: Mapping[str, int]) -> dict[str, str]:
    """What the minimum needs, from the smallest pods of each phase: more would keep a gang out that could run."""
    chosen: list[Amounts] = []
    for phase, count in minimum.items():
        requests = [readable_request(p.spec)[0] for p in pods if p.metadata.label(PHASE) == phase]
        requests.sort(key=lambda amounts: sorted(amounts.items()))
        # Pods that are still to come are taken to be like the largest of those that are here.
        chosen += (requests + requests[-1:] * count)[:count]
    total = sum_amounts(chosen)
    return {
        name: f"{amount}m" if name == CPU else str(amount) for name, amount in sorted(total.items()) if name != PODS
    }


def _owners(pods: Sequence[Pod], top_owner: TopOwner) -> list[dict[str, str]]:
    owners: dict[str, dict[str, str]] = {}
    for pod in sorted(pods, key=lambda p: p.metadata.name):
        owner = top_owner(pod)
        if owner is None:
            owner = OwnerReference(kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid, api_version="v1")
        owners.setdefault(
            owner.uid,
            {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid},
        )
    return list(owners.values())[:_MAX_OWNERS]
