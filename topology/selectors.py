"""Whether a node satisfies a pod's own wishes: node selector, required node affinity, taints.

Kubernetes' rules, so that a node we plan is a node Volcano's predicates accept. Unknown operators match nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topology.objects import Node, NodeSelector, PodSpec, Requirement, Taint, Toleration

UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"


def matches_requirement(labels: Mapping[str, str], requirement: Requirement) -> bool:
    """One match expression against a label set (operators In, NotIn, Exists, DoesNotExist, Gt, Lt)."""
    value = labels.get(requirement.key)
    values = requirement.values or ()
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            try:
                have, want = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return have > want if requirement.operator == "Gt" else have < want
        case _:
            return False


def matches_requirements(labels: Mapping[str, str], requirements: Iterable[Requirement]) -> bool:
    """All match expressions hold."""
    return all(matches_requirement(labels, requirement) for requirement in requirements)


def matches_selector(node: Node, selector: NodeSelector) -> bool:
    """Any term holds; a term holds when all of its expressions and fields do; an empty term matches nothing."""
    labels = node.metadata.labels or {}
    fields = {"metadata.name": node.metadata.name}
    for term in selector.node_selector_terms:
        expressions, match_fields = term.match_expressions or (), term.match_fields or ()
        if not expressions and not match_fields:
            continue
        if matches_requirements(labels, expressions) and matches_requirements(fields, match_fields):
            return True
    return False


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether any toleration covers the taint."""
    for toleration in tolerations:
        if toleration.effect and toleration.effect != taint.effect:
            continue
        if toleration.key and toleration.key != taint.key:
            continue
        if toleration.operator == "Exists":
            return True
        if toleration.key and toleration.operator in ("", "Equal") and toleration.value == taint.value:
            return True
    return False


def blocking_taint(node: Node, tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that keeps a pod with these tolerations off the node, if any."""
    for taint in node.spec.taints or ():
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
            return taint
    return None


def selects_node(spec: PodSpec, node: Node) -> bool:
    """The pod's nodeSelector and required node affinity both accept the node."""
    labels = node.metadata.labels or {}
    if any(labels.get(key) != value for key, value in (spec.node_selector or {}).items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required if affinity else None
    return required is None or matches_selector(node, required)


def accepts(spec: PodSpec, node: Node) -> bool:
    """The node is up, open, tolerated and selected: everything but room."""
    if not node.ready:
        return False
    tolerations = spec.tolerations or ()
    if node.spec.unschedulable and not tolerates(tolerations, Taint(key=UNSCHEDULABLE_TAINT, effect="NoSchedule")):
        return False
    return blocking_taint(node, tolerations) is None and selects_node(spec, node)
