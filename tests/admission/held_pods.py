"""Pods of gangs as the API server has them once the webhook tagged them, and what may happen to them afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.admission.pods import Raw, decoded, tagged
from topology.labels import DECISION, GANG, GATE, NVIDIA_GPU, PHASE
from topology.objects import Pod

NAMESPACE = "team"
CHAT = (NAMESPACE, "chat")


def held(
    name: str,
    phase: str = "",
    gang: str = "chat",
    *,
    gpus: int = 1,
    owner: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    gates_before: Sequence[str] = (),
    **spec: Any,
) -> Raw:
    """One held pod. Without a phase its name tells: `p0` is prefill, all others decode."""
    phase = phase or ("prefill" if name.startswith("p") else "decode")
    amount = {NVIDIA_GPU: str(gpus)}
    metadata: Raw = {"name": name, "namespace": NAMESPACE, "labels": {PHASE: phase, GANG: gang}}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if owner is not None:
        metadata["ownerReferences"] = [reference(owner)]
    if gates_before:
        spec["schedulingGates"] = [{"name": gate} for gate in gates_before]
    resources = {"requests": dict(amount), "limits": dict(amount)}
    container = {"name": "engine", "image": "engine:dev", "resources": resources}
    made: Raw = {"metadata": metadata, "spec": {"containers": [container], **spec}}
    tagging, pod = tagged(made)
    assert not tagging.denied
    return pod


def reference(owner: Mapping[str, Any]) -> Raw:
    """The ownerReference of whoever controls a pod."""
    meta = owner["metadata"]
    value = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {**value, "controller": True, "blockOwnerDeletion": True}


def stored(pod: Raw, **metadata: Any) -> Pod:
    """As a watch tells it: with a UID."""
    return decoded({**pod, "metadata": {"uid": f"uid-{pod['metadata']['name']}", **pod["metadata"], **metadata}})


def released(pod: Raw, nominated: str = "", affinity: Raw | None = None) -> Raw:
    """The same pod after our release: without our gate, with the decision's mark."""
    meta, spec = pod["metadata"], dict(pod["spec"])
    left = [gate for gate in spec.pop("schedulingGates", ()) if gate["name"] != GATE]
    if left:
        spec["schedulingGates"] = left
    if affinity is not None:
        spec["affinity"] = affinity
    marked = {**meta.get("annotations", {}), DECISION: "abc1234 (snapshot 1, facts 0.1s old)"}
    return {
        "metadata": {**meta, "annotations": marked},
        "spec": spec,
        "status": {"nominatedNodeName": nominated} if nominated else {},
    }


def bound(pod: Raw, node: str) -> Raw:
    """The same pod on a node."""
    let_go = released(pod)
    return {**let_go, "spec": {**let_go["spec"], "nodeName": node}}


def within(key: str, *values: str) -> Raw:
    """A match expression."""
    return {"key": key, "operator": "In", "values": list(values)}


def required(*terms: Raw) -> Raw:
    """An affinity with these node selector terms."""
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}
