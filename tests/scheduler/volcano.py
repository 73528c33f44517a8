"""A small cluster, the bodies that Volcano would send about it, and a running extender to send them to.

Bodies carry what a real one carries around the few fields that are read (managedFields, conditions, tasks of nodes),
so that skipping is tested too. Nothing here knows how an answer comes about.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry

from scheduler.extender.decision_cache import DecisionCache
from scheduler.extender.metrics import ExtenderMetrics
from scheduler.extender.server import Extender
from scheduler.extender.wire import MAX_BODY_BYTES
from topology import labels
from topology.cluster.snapshot import NodeTable, Snapshot, snapshot_of
from topology.http_server import listening
from topology.objects import Node, Pod
from topology.resources import pod_request
from topology.units import HostPort

NO_LABELS: Mapping[str, str] = {}


# --- the cluster -------------------------------------------------------------------------------


def node_json(name: str, *, gpus: int = 8, zone: str = "z1", leaf: str = "l1", **extra: str) -> dict[str, Any]:
    """A node with fast links; nodes of one zone are microseconds apart, of two zones 2 ms. `extra` are annotations."""
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {
                labels.HOSTNAME: name,
                labels.ZONE: zone,
                labels.LEAF: leaf,
                labels.SPINE: f"spine-of-{zone}",
                labels.RDMA_CAPABLE: "true",
                labels.GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3",
            },
            "annotations": extra,
        },
        "spec": {},
        "status": {
            "allocatable": {"cpu": "128", "memory": "2000Gi", "pods": "110", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
            "images": [{"names": ["registry.example/vllm:v1"], "sizeBytes": 9_000_000_000}],
        },
    }


def pod_json(
    name: str,
    phase: str = "",
    *,
    gang: str = "chat",
    gpus: int = 1,
    node: str = "",
    annotations: Mapping[str, str] = NO_LABELS,
    padding: int = 0,
) -> dict[str, Any]:
    """A pod as the API server shows it; without a phase it is none of ours."""
    resources = {"cpu": "4", "memory": "32Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    ours = {labels.PHASE: phase, labels.GANG: gang} if phase else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": {"app": "chat", **ours},
            "annotations": dict(annotations),
            "creationTimestamp": None,
            "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {"f:" + "x" * padding: {}}}}],
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": "engine",
                    "image": "registry.example/vllm:v1",
                    "args": ["--model", "m"],
                    "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    "resources": {"requests": resources, "limits": resources},
                }
            ],
            "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


def pod_of(content: Mapping[str, Any]) -> Pod:
    return msgspec.convert(content, Pod)


class Cluster:
    """What the extender may look at, made of JSON objects; `ready` False is a process that has not listed yet."""

    def __init__(self, nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]] = ()) -> None:
        self.nodes = [msgspec.convert(node, Node) for node in nodes]
        self.pods = [pod_of(pod) for pod in pods]
        self.ready = True

    def snapshot(self) -> Snapshot | None:
        if not self.ready:
            return None
        return snapshot_of(self.nodes, [(p.spec.node_name, pod_request(p.spec)) for p in self.pods if p.spec.node_name])

    def table(self) -> NodeTable | None:
        snapshot = self.snapshot()
        return snapshot.table if snapshot is not None else None

    def gang_pods(self, namespace: str, gang: str) -> Sequence[Pod]:
        return [p for p in self.pods if p.metadata.namespace == namespace and p.metadata.label(labels.GANG) == gang]


# --- what Volcano sends ------------------------------------------------------------------------


def task_json(pod: Mapping[str, Any], *, node: str = "", status: int = 1) -> dict[str, Any]:
    resources = {"MilliCPU": 4000, "Memory": 34359738368, "ScalarResources": None, "MaxTaskNum": 0}
    return {
        "UID": pod["metadata"]["uid"],
        "Job": "default/chat",
        "Name": pod["metadata"]["name"],
        "Namespace": "default",
        "TaskRole": "",
        "Resreq": resources,
        "InitResreq": resources,
        "NodeName": node,
        "Status": status,
        "LastTransaction": None,
        "Priority": 0,
        "NumaInfo": {"Policy": "", "ResMap": {}},
        "Pod": pod,
    }


def node_info_json(node: Mapping[str, Any], tasks: int = 0, padding: int = 0) -> dict[str, Any]:
    name = node["metadata"]["name"]
    held = [pod_json(f"{name}-{i}", gpus=0, node=name, padding=padding) for i in range(tasks)]
    return {
        "Name": name,
        "Node": node,
        "State": {"Phase": 1, "Reason": ""},
        "Idle": {"MilliCPU": 1.797e308, "Memory": 0, "ScalarResources": None},
        "Tasks": {f"default/{pod['metadata']['name']}": task_json(pod, node=name, status=32) for pod in held},
        "Others": None,
        "ImageStates": {},
    }


def body_of(**content: Any) -> bytes:
    """As Go writes it: no spaces."""
    return json.dumps(content, separators=(",", ":")).encode()


def prioritize_body(pod: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> bytes:
    return body_of(task=task_json(pod), nodes=[node_info_json(node) for node in nodes])


def event_body(pod: Mapping[str, Any], node: str, status: int = 2) -> bytes:
    return body_of(task=task_json(pod, node=node, status=status))


# --- a running extender ------------------------------------------------------------------------


@dataclass
class Running:
    """An extender on loopback and one connection to it."""

    url: str
    client: aiohttp.ClientSession
    registry: CollectorRegistry
    decisions: DecisionCache

    async def post(self, verb: str, body: bytes | Any, content_type: str = "application/json") -> tuple[int, bytes]:
        """Status and body; a body that Volcano would not be able to read is told apart by `read_by_go`."""
        headers = {"Content-Type": content_type}
        if isinstance(body, bytes):
            body = io.BytesIO(body)  # a client warns about large bytes; a file is sent with its length all the same
        async with self.client.post(f"{self.url}/{verb}", data=body, headers=headers) as response:
            assert response.headers.get("Content-Length") == str(len(await response.read()))
            return response.status, await response.read()

    def counted(self, name: str, **of: str) -> float:
        return self.registry.get_sample_value(name, of) or 0.0


@asynccontextmanager
async def running(view: Any, *, max_body_bytes: int = MAX_BODY_BYTES) -> AsyncGenerator[Running, None]:
    registry, decisions = CollectorRegistry(), DecisionCache()
    extender = Extender(view, decisions, metrics=ExtenderMetrics(registry), max_body_bytes=max_body_bytes)
    async with (
        listening(extender.app(), HostPort("127.0.0.1", 0), "EXTENDER_LISTEN") as where,
        aiohttp.ClientSession() as client,
    ):
        yield Running(f"http://{where}", client, registry, decisions)
    await asyncio.sleep(0)


def read_by_go(verb: str, body: bytes) -> Any:
    """Decode by the rules of Go's decoder and Volcano's response types; fails where Volcano would fail."""
    if verb.startswith("onSession"):
        assert body == b""
        return None
    answer = json.loads(body, parse_constant=lambda word: (_ for _ in ()).throw(AssertionError(word)))
    match verb:
        case "prioritize":
            assert answer["errorMessage"] == ""
            assert isinstance(answer["nodeScore"], dict)
            assert all(type(score) in (int, float) for score in answer["nodeScore"].values())
        case "predicate":
            assert type(answer["status"]) is str
            assert type(answer["code"]) is int
        case "allocateFunc" | "deallocateFunc":
            assert type(answer["errorMessage"]) is str
        case "jobReady":
            assert type(answer["status"]) is bool
        case "jobEnqueueable":
            assert type(answer["status"]) is int
        case "preemptable" | "reclaimable":
            assert type(answer["status"]) is int
            assert isinstance(answer["victims"], list)
        case "queueOverused":
            assert type(answer["overused"]) is bool
        case _:
            raise AssertionError(verb)
    return answer
