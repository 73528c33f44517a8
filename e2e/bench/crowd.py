"""A large cluster as an API server would show it: nodes, bound pods, and the events of pods that come and go.

Pure: names and numbers in, bytes out, the same every time. Objects carry what real ones carry around the fields that
are read (managed fields, conditions, environments), because skipping it is most of the work. Nothing is kept: an
object is made when it is asked for, so that a server of 50,000 pods is small itself.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from topology.labels import DECODE, GANG, PHASE, PREFILL

GPUS: Final = 8
OURS_EVERY: Final = 10
"""Every tenth pod has our labels; the others are somebody else's."""

_TIME: Final = "2026-11-30T06:18:00Z"
_MANAGERS: Final = ("kube-controller-manager", "vc-scheduler", "kubelet")


def _managed(manager: str, *paths: str) -> dict[str, Any]:
    """Who owns which field: the bulk of many objects."""
    fields: dict[str, Any] = {}
    for path in paths:
        at = fields
        for step in path.split("/"):
            at = at.setdefault(step, {})
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": _TIME,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many nodes of 8 GPUs, 32 to a leaf, and so many pods, spread over them evenly."""

    nodes: int
    pods: int

    def node_name(self, index: int) -> str:
        """In the order of index."""
        return f"gpu-{index % self.nodes:05d}"

    def node(self, index: int) -> dict[str, Any]:
        """One node, about 4 KB."""
        name, leaf = self.node_name(index), index // 32
        labels = {
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": "p5.48xlarge",
            "topology.kubernetes.io/region": "r1",
            "topology.kubernetes.io/zone": f"z{leaf % 4}",
            "network.topology.nvidia.com/leaf": f"leaf-{leaf}",
            "network.topology.nvidia.com/spine": f"spine-{leaf // 16}",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.count": str(GPUS),
            "nvidia.com/gpu.memory": "81559",
            "feature.node.kubernetes.io/rdma.available": "true",
            **{f"feature.node.kubernetes.io/cpu-cpuid.F{i}": "true" for i in range(24)},
        }
        capacity = {"cpu": "192", "ephemeral-storage": "7000Gi", "memory": "2063000Mi", "pods": "110"}
        capacity["nvidia.com/gpu"] = str(GPUS)
        kinds = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
        return {
            "metadata": {
                "name": name,
                "uid": f"node-uid-{index:028d}",
                "resourceVersion": str(1000 + index),
                "creationTimestamp": _TIME,
                "labels": labels,
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
                "managedFields": [_managed("kubelet", *(f"f:metadata/f:labels/f:{key}" for key in labels))],
            },
            "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"aws:///r1/i-{index:017x}"},
            "status": {
                "capacity": capacity,
                "allocatable": capacity,
                "conditions": [
                    {
                        "type": kind,
                        "status": "True" if kind == "Ready" else "False",
                        "lastHeartbeatTime": _TIME,
                        "lastTransitionTime": _TIME,
                        "reason": f"Kubelet{kind}",
                        "message": f"kubelet says {kind}",
                    }
                    for kind in kinds
                ],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
                "nodeInfo": {"kernelVersion": "6.8.0", "kubeletVersion": "v1.34.4", "osImage": "Ubuntu 24.04"},
                "images": [{"names": [f"registry.example/image-{i}:v1"], "sizeBytes": 9 * 10**9} for i in range(10)],
            },
        }

    def pod(self, index: int, version: int, *, step: str = "Running") -> dict[str, Any]:
        """One pod, about 4 KB. `step` is where its life stands: Created, Bound or Running."""
        name = f"worker-{index // 100:05d}-{index % 100:02d}"
        gang = f"gang-{index // (8 * OURS_EVERY)}"
        ours = {PHASE: (PREFILL, DECODE)[index // OURS_EVERY % 2], GANG: gang} if index % OURS_EVERY == 0 else {}
        asked = {"cpu": "4", "memory": "32Gi"} | ({"nvidia.com/gpu": "1"} if index % 2 else {})
        spec: dict[str, Any] = {
            "containers": [
                {
                    "name": "engine",
                    "image": "registry.example/engine:v1.2.3",
                    "command": ["python3", "-m", "engine.server"],
                    "args": ["--model", "/models/large", "--port", "8000", "--tensor-parallel-size", "8"],
                    "env": [{"name": f"SETTING_{i}", "value": f"value of setting {i}"} for i in range(8)]
                    + [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    "ports": [{"containerPort": 8000, "protocol": "TCP"}],
                    "resources": {"limits": asked, "requests": asked},
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
                    "terminationMessagePath": "/dev/termination-log",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "restartPolicy": "Always",
            "schedulerName": "volcano",
            "serviceAccountName": "default",
            "priority": 0,
            "tolerations": [
                {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
                for key in ("not-ready", "unreachable")
            ],
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
        }
        status: dict[str, Any] = {"phase": "Pending", "qosClass": "Guaranteed"}
        if step != "Created":
            spec["nodeName"] = self.node_name(index)
        if step == "Running":
            value = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            status |= {
                "phase": "Running",
                "podIP": "10.1.2.3",
                "hostIP": "10.0.0.1",
                "conditions": [{"type": kind, "status": "True", "lastTransitionTime": _TIME} for kind in value],
                "containerStatuses": [{"name": "engine", "ready": True, "imageID": "sha256:" + "0" * 64}],
            }
        return {
            "metadata": {
                "name": name,
                "generateName": f"worker-{index // 100:05d}-",
                "namespace": f"team-{index % 20}",
                "uid": f"pod-uid-{index:029d}",
                "resourceVersion": str(version),
                "creationTimestamp": _TIME,
                "labels": {"app": "serving", "pod-template-hash": f"{index // 100:010d}", **ours},
                "annotations": {"scheduling.k8s.io/group-name": gang, "kubernetes.io/config.source": "api"},
                "ownerReferences": [
                    {
                        "apiVersion": "apps/v1",
                        "kind": "ReplicaSet",
                        "name": f"worker-{index // 100:05d}",
                        "uid": f"set-uid-{index // 100:028d}",
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
                "managedFields": [
                    _managed(
                        manager,
                        "f:metadata/f:labels/f:app",
                        'f:spec/f:containers/k:{"name":"engine"}/f:env/f:name',
                        'f:spec/f:containers/k:{"name":"engine"}/f:resources/f:limits',
                        'f:status/f:conditions/k:{"type":"Ready"}/f:lastTransitionTime',
                    )
                    for manager in _MANAGERS
                ],
            },
            "spec": spec,
            "status": status,
        }

    def churn(self, version: int) -> Iterator[bytes]:
        """Lines of a watch for ever: the oldest pod goes, a new one comes, is bound and runs. Four lines a pod.

        `version` is the one the list had; each line has the next.
        """
        index = 0
        while True:
            gone, new = self.pod(index, version + 1), self.pods + index
            yield line("DELETED", gone)
            yield line("ADDED", self.pod(new, version + 2, step="Created"))
            yield line("MODIFIED", self.pod(new, version + 3, step="Bound"))
            yield line("MODIFIED", self.pod(new, version + 4))
            version += 4
            index += 1


def encoded(item: object) -> bytes:
    """As Go writes it: without spaces."""
    return json.dumps(item, separators=(",", ":")).encode()


def line(kind: str, item: object) -> bytes:
    """One line of a watch."""
    return encoded({"type": kind, "object": item}) + b"\n"
