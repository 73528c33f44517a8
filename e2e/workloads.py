"""Manifests of what people run beside each other: engines in two phases, training gangs, plain pods. Pure functions."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from e2e.stack.nodes import GPU, HOSTNAME

Phase = Literal["prefill", "decode"]
Object = dict[str, Any]

PHASE = "isochrone.dev/phase"
GANG = "isochrone.dev/gang"
ENABLED = "isochrone.dev/enabled"
REACH = "isochrone.dev/reach"
REACH_MODE = "isochrone.dev/reach-mode"
PLACEMENT = "isochrone.dev/placement"
GATE = "isochrone.dev/reach"
GROUP_NAME = "scheduling.k8s.io/group-name"

PREFILL: Phase = "prefill"
DECODE: Phase = "decode"
PHASES: tuple[Phase, Phase] = (PREFILL, DECODE)
KV_ROLES: Mapping[Phase, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}


def resources(gpus: int) -> Object:
    """A container's resources; without GPUs a little CPU, as an ordinary pod asks for."""
    return {"limits": {GPU: str(gpus)}} if gpus else {"requests": {"cpu": "100m"}}


def deployment(
    name: str, replicas: int, labels: Mapping[str, str], annotations: Mapping[str, str], spec: Object
) -> Object:
    """A Deployment whose pods carry these labels beside its own selector."""
    template = {"metadata": {"labels": {"app": name, **labels}, "annotations": dict(annotations)}, "spec": spec}
    whole = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": whole}


def phased(
    phase: Phase,
    gang: str = "chat",
    *,
    replicas: int = 1,
    gpus: int = 2,
    reach: str = "",
    annotations: Mapping[str, str] | None = None,
    hostname: str = "",
    scheduler: str = "",
) -> Object:
    """One half of a gang, by our labels: the Deployment `<gang>-<phase>`."""
    spec: Object = {"containers": [{"name": "engine", "image": "engine", "resources": resources(gpus)}]}
    if hostname:
        spec["nodeSelector"] = {HOSTNAME: hostname}
    if scheduler:
        spec["schedulerName"] = scheduler
    value = ({REACH: reach} if reach else {}) | dict(annotations or {})
    return deployment(f"{gang}-{phase}", replicas, {PHASE: phase, GANG: gang}, value, spec)


def pair(gang: str = "chat", *, prefill: int = 1, decode: int = 1, **options: Any) -> list[Object]:
    """Both halves of a gang alike; `options` are those of `phased`."""
    return [
        phased("prefill", gang, replicas=prefill, **options),
        phased("decode", gang, replicas=decode, **options),
    ]


def vllm(phase: Phase, model: str, *, gpus: int = 2) -> Object:
    """An engine as a vLLM user writes it: nothing in it knows Isochrone."""
    config = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[phase]}
    args = ["--model", model, "--kv-transfer-config", json.dumps(config), "--port", "8000"]
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai",
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": args,
        "resources": resources(gpus),
    }
    return deployment(f"vllm-{phase}", 1, {}, {}, {"containers": [container]})


def pod(
    name: str, *, gpus: int = 0, group: str = "", scheduler: str = "volcano", labels: Mapping[str, str] | None = None
) -> Object:
    """An ordinary pod of somebody else."""
    annotations = {GROUP_NAME: group} if group else {}
    container = {"name": "main", "image": "main", "resources": resources(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": annotations},
        "spec": {"schedulerName": scheduler, "containers": [container]},
    }


def pod_group(name: str, min_member: int) -> Object:
    """A plain PodGroup of Volcano's."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": min_member},
    }


def occupant(node: str, gpus: int) -> Object:
    """A pod that holds GPUs of one node without any scheduler, as a static assignment does."""
    item = pod(f"occupant-{node}", gpus=gpus, scheduler="by-hand")
    item["spec"]["nodeName"] = node
    return item


def leader_worker_sets() -> Object:
    """The kind, with as much of its form as is read; no controller stands behind it."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    names = {"plural": "leaderworkersets", "singular": "leaderworkerset", "kind": "LeaderWorkerSet"}
    spec = {"group": "leaderworkerset.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version]}
    meta = {"name": "leaderworkersets.leaderworkerset.x-k8s.io"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}
