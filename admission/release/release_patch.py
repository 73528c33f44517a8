"""The one JSON patch that lets a pod go: our gate out, our node set in, the explanation beside it.

Decides how the patch looks for any pod. It must never know why the pod goes or where. The gate is removed by position
with a `test` before it, so another system's gate is never dropped; the requirement is appended to every affinity term
that exists, because terms are alternatives and the API server accepts exactly this tightening while the pod is gated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topology.cluster.isochrone_sets import NodeSet
from topology.labels import GATE
from topology.objects import Pod

_AFFINITY = "/spec/affinity"
_NODE_AFFINITY = _AFFINITY + "/nodeAffinity"
_REQUIRED = _NODE_AFFINITY + "/requiredDuringSchedulingIgnoredDuringExecution"

Operation = dict[str, Any]


def release_patch(pod: Pod, node_set: NodeSet | None, annotations: Mapping[str, str]) -> list[Operation]:
    """Operations against the pod as read. Raises LookupError when our gate is not there."""
    gate = gate_there(pod)
    operations: list[Operation] = [
        {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
        gate,
        {"op": "remove", "path": gate["path"].removesuffix("/name")},
    ]
    if node_set is not None:
        operations += _affinity(pod, node_set)
    operations += annotate(pod, annotations)
    return operations


def gate_there(pod: Pod) -> Operation:
    """The test that our gate is where it was read. Raises LookupError when it was not there."""
    at = next((i for i, gate in enumerate(pod.spec.scheduling_gates or ()) if gate.name == GATE), None)
    if at is None:
        raise LookupError(f"pod {pod.key} has no gate {GATE}")
    return {"op": "test", "path": f"/spec/schedulingGates/{at}/name", "value": GATE}


def annotate(pod: Pod, annotations: Mapping[str, str]) -> list[Operation]:
    """Operations that set annotations; the map is made only where it is absent."""
    operations: list[Operation] = []
    if annotations and pod.metadata.annotations is None:
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    for key in sorted(annotations):
        escaped = key.replace("~", "~0").replace("/", "~1")
        operations.append({"op": "add", "path": f"/metadata/annotations/{escaped}", "value": annotations[key]})
    return operations


def _affinity(pod: Pod, node_set: NodeSet) -> list[Operation]:
    expression = {"key": node_set.key, "operator": "In", "values": list(node_set.values)}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = pod.spec.affinity
    if affinity is None:
        whole = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
        return [{"op": "add", "path": _AFFINITY, "value": whole}]
    if affinity.node_affinity is None:
        value = {"requiredDuringSchedulingIgnoredDuringExecution": selector}
        return [{"op": "add", "path": _NODE_AFFINITY, "value": value}]
    required = affinity.node_affinity.required
    if required is None or not required.node_selector_terms:
        return [{"op": "add", "path": _REQUIRED, "value": selector}]
    operations: list[Operation] = []
    for i, term in enumerate(required.node_selector_terms):
        path = f"{_REQUIRED}/nodeSelectorTerms/{i}"
        if term.match_expressions:
            operations.append({"op": "add", "path": f"{path}/matchExpressions/-", "value": expression})
        elif term.match_fields:
            operations.append({"op": "add", "path": f"{path}/matchExpressions", "value": [expression]})
        # An empty term matches nothing and must go on matching nothing.
    return operations
