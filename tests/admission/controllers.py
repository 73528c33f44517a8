"""A real controller over a cluster from a file, in this event loop, with short timers; and looks at what it did."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
from collections.abc import AsyncGenerator, Generator, Iterable
from pathlib import Path
from typing import Any

from admission.controller.controller import Controller
from admission.demo.file_cluster import FileCluster
from admission.settings import ControllerSettings
from tests.admission.held_pods import NAMESPACE
from tests.admission.pods import Raw
from tests.topology.list_watch_server import running, until
from topology.environment import load
from topology.kube.api import KubeApi
from topology.labels import DECISION, GATE, GROUP_NAME, NVIDIA_GPU, PLACEMENT

SETTLE = "30ms"
RETRY_S = 0.1
GROUP_SHOWN_S = 0.5
SHORT_PAUSES_S = (0.01, 0.02, None)
"""Between tries of a release: set it as `admission.release.pod_writer._PAUSES_S` where releases fail."""
_POD_WRITE = re.compile(r"/api/v1/namespaces/[^/]+/pods/([^/]+)(/status)?")
_GROUP_WRITE = re.compile(r"/apis/scheduling\.volcano\.sh/v1beta1/namespaces/[^/]+/podgroups/([^/]+)")


class Impatient(random.Random):
    """The client's jitter, always at its shortest."""

    def uniform(self, a: float, b: float) -> float:
        return a


@contextlib.asynccontextmanager
async def controlling(
    cluster: FileCluster, folder: Path, *, settle: str = SETTLE, retry_s: float = RETRY_S, **settings: Any
) -> AsyncGenerator[Controller]:
    """A controller with complete lists; it is killed at the end of the block."""
    async with await KubeApi.connect(cluster.kubeconfig(folder / "kubeconfig"), rng=Impatient()) as api:
        controller = Controller(api, load(ControllerSettings, settle=settle, **settings))
        batch = controller.batch
        batch._settings = batch._workflow.settings = batch._planner.settings = dataclasses.replace(
            batch._settings, retry_s=retry_s, other_watch_s=0.0, group_shown_s=GROUP_SHOWN_S
        )
        async with running(controller.run()):
            await until(controller.synced)
            yield controller


async def planned_again(controller: Controller, plans: int) -> None:
    """Waits until more gangs were planned than `plans`."""
    await until(lambda: controller.batch.plans > plans)


@contextlib.contextmanager
def never_overbooked(cluster: FileCluster) -> Generator[None]:
    """After every single write in the block, no node has more GPUs promised or given than it has."""
    store, found = cluster.store, list[AssertionError]()
    wake = store._on_change

    def read() -> None:
        wake()
        try:
            not_overbooked(cluster)
        except AssertionError as error:
            found.append(error)

    store._on_change = read
    try:
        yield
    finally:
        store._on_change = wake
    if found:
        raise found[0]


# --- what became of the pods -------------------------------------------------------------------


def pods_of(cluster: FileCluster, *names: str) -> list[Raw]:
    """These pods, or all of the tests' namespace."""
    found = [pod for pod in cluster.objects("pods") if pod["metadata"]["namespace"] == NAMESPACE]
    return [pod for pod in found if not names or pod["metadata"]["name"] in names]


def versions(cluster: FileCluster) -> dict[str, str]:
    """The version of each pod of the tests' namespace."""
    return {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in pods_of(cluster)}


def known(controller: Controller) -> dict[str, str]:
    """The versions that the controller's watch has told."""
    metas = [pod.metadata for pod in controller.pods.objects.values() if pod.metadata.namespace == NAMESPACE]
    return {meta.name: meta.resource_version for meta in metas}


def gated(cluster: FileCluster) -> set[str]:
    """Names of the pods that our gate holds."""
    return {pod["metadata"]["name"] for pod in pods_of(cluster) if _held(pod)}


def released(cluster: FileCluster) -> dict[str, str]:
    """Pods without our gate, each with where it is, or is to go."""
    return {pod["metadata"]["name"]: _place(pod) for pod in pods_of(cluster) if not _held(pod)}


def nominations(cluster: FileCluster) -> dict[str, str]:
    """Nominated nodes of all pods that have one."""
    reported = ((pod["metadata"]["name"], pod["status"].get("nominatedNodeName", "")) for pod in pods_of(cluster))
    return {name: node for name, node in reported if node}


def groups(cluster: FileCluster) -> dict[str, Raw]:
    """PodGroups by name."""
    return {group["metadata"]["name"]: group for group in cluster.objects("podgroups")}


def annotation(cluster: FileCluster, name: str, key: str = PLACEMENT) -> str:
    """What a pod carries."""
    return str(cluster.pod(NAMESPACE, name)["metadata"].get("annotations", {}).get(key, ""))


def events(cluster: FileCluster, name: str) -> list[tuple[str, str]]:
    """(reason, message) of the Events about a pod, in the order of creation."""
    uid = cluster.pod(NAMESPACE, name)["metadata"]["uid"]
    return [(event["reason"], event["message"]) for event in cluster.events_of(uid)]


def reasons(cluster: FileCluster, name: str) -> list[str]:
    """The reasons alone."""
    return [reason for reason, _ in events(cluster, name)]


def not_overbooked(cluster: FileCluster) -> None:
    """No node has more GPUs promised or given than it has."""
    booked: dict[str, int] = {}
    for pod in cluster.objects("pods"):
        if not _held(pod) and pod["status"].get("phase") != "Succeeded" and (node := _place(pod)):
            amounts = pod["spec"]["containers"][0]["resources"]["requests"]
            booked[node] = booked.get(node, 0) + int(amounts[NVIDIA_GPU])
    has = {n["metadata"]["name"]: int(n["status"]["allocatable"].get(NVIDIA_GPU, 0)) for n in cluster.objects("nodes")}
    assert all(amount <= has[node] for node, amount in booked.items()), f"booked {booked} of {has}"


def writes(cluster: FileCluster) -> list[tuple[str, str]]:
    """What was written to pods and PodGroups, in order: (nominate | pod | group, name); `pod` is a release or words."""
    found = []
    for method, path in cluster.requests:
        if method != "PATCH":
            continue
        if match := _POD_WRITE.fullmatch(path):
            found.append(("nominate" if match[2] else "pod", match[1]))
        elif match := _GROUP_WRITE.fullmatch(path):
            found.append(("group", match[1]))
    return found


def kinds(value: Iterable[tuple[str, str]]) -> list[str]:
    """The kinds of writes, repeats of one left out."""
    found: list[str] = []
    for kind, _ in value:
        if not found or found[-1] != kind:
            found.append(kind)
    return found


# --- the neighbours ----------------------------------------------------------------------------


def create(cluster: FileCluster, *pods: Raw) -> None:
    """Creates pods, one after the other."""
    for pod in pods:
        cluster.create_pod(pod)


def bind_released(cluster: FileCluster) -> list[str]:
    """What Volcano does with nominated pods whose PodGroup is there; names of those bound now."""
    bound = []
    for pod in pods_of(cluster):
        name = pod["metadata"]["name"]
        there = pod["metadata"]["annotations"].get(GROUP_NAME) in groups(cluster)
        if not _held(pod) and there and "nodeName" not in pod["spec"]:
            cluster.bind(NAMESPACE, name, pod["status"]["nominatedNodeName"])
            bound.append(name)
    return bound


async def all_finish(cluster: FileCluster, pods: int) -> None:
    """Whoever is released is bound and ends at once, until so many have; no node is ever promised twice."""
    done: set[str] = set()

    def turn() -> bool:
        for name in bind_released(cluster):
            cluster.change("pods", NAMESPACE, name, {"status": {"phase": "Succeeded"}})
            done.add(name)
        return len(done) == pods

    with never_overbooked(cluster):
        await until(turn)


def explained(pod: Raw) -> bool:
    """It carries the decision's line and the readable block."""
    value: dict[str, Any] = pod["metadata"].get("annotations", {})
    return bool(value.get(DECISION) and value.get(PLACEMENT))


def _held(pod: Raw) -> bool:
    return GATE in [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]


def _place(pod: Raw) -> str:
    return str(pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName", ""))
