"""Which changes to an existing pod the API server accepts: the few rules that gates, affinity and binding meet.

Decides yes or a sentence why not, for one pod before and after. It must never know who asks. The rules follow
ValidatePodUpdate of Kubernetes 1.34, for the fields that Isochrone, its users' tools and Volcano write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]

_CHANGEABLE = ("tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def why_refused(old: Object, new: Object) -> str:
    """Why the change of a pod's spec is not allowed; empty if it is."""
    before, after = dict(old.get("spec") or {}), dict(new.get("spec") or {})
    gates_before, gates_after = (_names(spec.pop("schedulingGates", None)) for spec in (before, after))
    if not set(gates_after) <= set(gates_before):
        return "spec.schedulingGates: Forbidden: only deletion is allowed, no additions"
    if gates_before:
        places = [(spec.pop("affinity", None) or {}, spec.pop("nodeSelector", None) or {}) for spec in (before, after)]
        (affinity_was, selector_was), (affinity_now, selector_now) = places
        if why := _why_affinity(affinity_was, affinity_now):
            return why
        if not selector_was.items() <= selector_now.items():
            return "spec.nodeSelector: Invalid value: only additions are allowed (no mutations or deletions)"
    before, after = _fixed_fields(before), _fixed_fields(after)
    if before != after:
        field = next(name for name in sorted({*before, *after}) if before.get(name) != after.get(name))
        return f"spec: Forbidden: pod updates may not change fields such as {field} of a pod without scheduling gates"
    return ""


def _fixed_fields(spec: Object) -> dict[str, Any]:
    """A pod's spec without the fields that may change on any pod."""
    fixed = {field: value for field, value in spec.items() if field not in _CHANGEABLE}
    for kind in ("containers", "initContainers"):
        fixed[kind] = [{**container, "image": ""} for container in spec.get(kind) or ()]
    return fixed


def why_not_bound(pod: Object) -> str:
    """Why the pod cannot be bound to a node; empty if it can."""
    spec = pod.get("spec") or {}
    name = pod["metadata"]["name"]
    if (pod["metadata"]).get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f"pod {name} is already assigned to node {spec['nodeName']!r}"
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def _names(gates: Any) -> list[str]:
    return [gate.get("name", "") for gate in gates or ()]


def _why_affinity(was: Object, now: Object) -> str:
    """Required node affinity of a gated pod may only become narrower; the other kinds are fixed."""
    others = {key: value for key, value in was.items() if key != "nodeAffinity"}
    if others != {key: value for key, value in now.items() if key != "nodeAffinity"}:
        return "spec.affinity: Forbidden: only nodeAffinity of a gated pod may be changed"
    terms_was, terms_now = _required_terms(was), _required_terms(now)
    return _why_terms(terms_was, terms_now) if terms_was else ""


def _required_terms(affinity: Object) -> list[Object]:
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED) or {}
    return required.get("nodeSelectorTerms") or []


def _why_terms(terms_was: Sequence[Object], terms_now: Sequence[Object]) -> str:
    """Each term stays, and its expressions too; more may follow behind them."""
    path = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    if len(terms_was) != len(terms_now):
        return f"{path}: Invalid value: no additions/deletions to non-empty NodeSelectorTerms list are allowed"
    for i, (a, b) in enumerate(zip(terms_was, terms_now, strict=True)):
        if not a.get("matchExpressions") and not a.get("matchFields"):
            if a != b:
                return f"{path}[{i}]: Invalid value: a null or empty term matches nothing and may not be changed"
            continue
        for part in ("matchExpressions", "matchFields"):
            retained = a.get(part) or []
            if (b.get(part) or [])[: len(retained)] != retained:
                return f"{path}[{i}].{part}: Invalid value: only additions are allowed (no deletions or mutations)"
    return ""
