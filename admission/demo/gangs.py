"""The gangs of the demo, and the objects that a user and the Deployment controller make of each.

Decides what is asked for. It must never know the cluster, nor where anything ends up.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from topology.labels import DECODE, GANG, NVIDIA_GPU, PHASE, PREFILL, REACH, REACH_MODE, REQUIRED

Object = dict[str, Any]

NAMESPACE: Final = "team-a"


@dataclass(frozen=True, slots=True)
class Half:
    """One Deployment of a gang."""

    phase: str
    replicas: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Gang:
    """What a user asks for. `reach` as the annotation is written; empty for the default of 1ms."""

    name: str
    halves: tuple[Half, ...]
    reach: str = ""
    mode: str = REQUIRED

    @property
    def asked(self) -> str:
        """In a few words."""
        pods = " and ".join(
            f"{half.replicas} {half.phase} x {half.gpus} GPU{'s' if half.gpus > 1 else ''}" for half in self.halves
        )
        how = "within" if self.mode == REQUIRED else "if possible within"
        return f"{pods}, every pair {how} {self.reach or '1ms'}"


CHAT = Gang("chat", (Half(PREFILL, 1, 2), Half(DECODE, 2, 2)))
CODE = Gang("code", (Half(PREFILL, 1, 6), Half(DECODE, 1, 6)), reach="100us")
BATCH = Gang("batch", (Half(PREFILL, 1, 1), Half(DECODE, 1, 1)), mode="preferred")
REASON = Gang("reason", (Half(PREFILL, 1, 8), Half(DECODE, 1, 8)), reach="100us")


def workload(gang: Gang, half: Half, owner: Object | None = None) -> Object:
    """The Deployment of one half; with it as `owner`, its ReplicaSet."""
    name = f"{gang.name}-{half.phase}"
    if owner is not None:
        name += f"-{hashlib.sha256(name.encode()).hexdigest()[:9]}"
    return {"metadata": _meta(name, owner), "spec": {"replicas": half.replicas}}


def _meta(name: str, owner: Object | None = None) -> Object:
    meta: Object = {"name": name, "namespace": NAMESPACE}
    if owner is not None:
        meta["ownerReferences"] = [_owner(owner)]
    return meta


def _owner(owner: Object) -> Object:
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {**reference, "controller": True, "blockOwnerDeletion": True}


def pod_of(gang: Gang, half: Half, replica_set: Object) -> Object:
    """A pod as a ReplicaSet makes it from the user's template: two labels of ours, and an annotation for the bound."""
    role = "kv_producer" if half.phase == PREFILL else "kv_consumer"
    amount = {NVIDIA_GPU: str(half.gpus)}
    annotations = {REACH: gang.reach} if gang.reach else {}
    if gang.mode != REQUIRED:
        annotations[REACH_MODE] = gang.mode
    name = replica_set["metadata"]["name"]
    container = {
        "name": "engine",
        "image": "vllm/vllm-openai:latest",
        "args": [
            "--model",
            gang.name,
            "--kv-transfer-config",
            f'{{"kv_connector":"NixlConnector","kv_role":"{role}"}}',
        ],
        "resources": {"requests": {"cpu": "8", "memory": "64Gi", **amount}, "limits": dict(amount)},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name}-",
            "namespace": NAMESPACE,
            "labels": {"app": f"{gang.name}-{half.phase}", PHASE: half.phase, GANG: gang.name},
            "annotations": annotations,
            "ownerReferences": [_owner(replica_set)],
        },
        "spec": {"containers": [container], "schedulerName": "default-scheduler", "restartPolicy": "Always"},
    }


def gpus_of(pod: Object) -> str:
    """GPUs that a pod asks for."""
    return str(pod["spec"]["containers"][0]["resources"]["requests"][NVIDIA_GPU])
