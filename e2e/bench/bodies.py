"""The gangs that the benchmarks create: pure functions from names to request bodies, encoded ahead of time."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from e2e.stack.nodes import GPU
from topology.labels import DECODE, GANG, GROUP_NAME, MIN_DECODE, MIN_PREFILL, PHASE, PREFILL, REACH

SIZE: Final = 8
"""Pods of a gang; all of them are its minimum."""

POD_GROUPS: Final = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups"
PODS: Final = "/api/v1/namespaces/{namespace}/pods"


@dataclass(frozen=True, slots=True)
class Post:
    """One object to create."""

    path: str
    name: str
    body: bytes
    is_pod: bool


def _pod(name: str, gpus: int, metadata: dict[str, Any], **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "engine", "resources": {"limits": {GPU: str(gpus)}}}
    meta = {"name": name, **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container], **spec}}


def _post(path: str, namespace: str, item: dict[str, Any]) -> Post:
    body = json.dumps(item).encode()
    return Post(path.format(namespace=namespace), item["metadata"]["name"], body, item["kind"] == "Pod")


def pod_group(name: str) -> dict[str, Any]:
    """A PodGroup for a whole gang, as short as can be."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": SIZE},
    }


def plain_gang(namespace: str, name: str, gpus: int = 1) -> list[Post]:
    """A gang as Volcano alone knows it: its PodGroup, then pods that name it."""
    metadata = {"annotations": {GROUP_NAME: name}}
    pods = [_pod(f"{name}-{index}", gpus, metadata, schedulerName="volcano") for index in range(SIZE)]
    return [_post(POD_GROUPS, namespace, pod_group(name)), *(_post(PODS, namespace, pod) for pod in pods)]


def our_gang(namespace: str, name: str, gpus: int = 1, reach: str = "1ms") -> list[Post]:
    """A gang as a user of Isochrone writes it: labelled pods for the default scheduler, nothing else."""
    half = SIZE // 2
    annotations = {REACH: reach, MIN_PREFILL: str(half), MIN_DECODE: str(SIZE - half)}
    posts = []
    for index in range(SIZE):
        phase = PREFILL if index < half else DECODE
        metadata = {"labels": {PHASE: phase, GANG: name}, "annotations": annotations}
        posts.append(_post(PODS, namespace, _pod(f"{name}-{phase}-{index}", gpus, metadata)))
    return posts


def many(gangs: Iterable[Sequence[Post]]) -> list[Post]:
    """All posts of several gangs, gang after gang."""
    return [post for gang in gangs for post in gang]
