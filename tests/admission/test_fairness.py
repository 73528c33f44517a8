"""Who goes before whom, and for whom others may leave: through a real controller over a cluster from a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from admission.demo.file_cluster import FileCluster
from admission.fairness.bypass_limit import Overtaking
from tests.admission.controllers import (
    bind_released,
    controlling,
    create,
    events,
    gated,
    groups,
    nominations,
    reasons,
    released,
)
from tests.admission.held_pods import NAMESPACE, held
from tests.admission.pods import Raw
from tests.topology.list_watch_server import until
from topology.labels import GROUP_NAME, NVIDIA_GPU, QUEUE_NAME


def pair(gang: str, gpus: int = 1, **more: Any) -> list[Raw]:
    return [held(f"p-{gang}", gang=gang, gpus=gpus, **more), held(f"d-{gang}", gang=gang, gpus=gpus, **more)]


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster([{"name": "n1", "gpus": 8}]) as made:
        yield made


def queue(cluster: FileCluster, name: str, gpus: int | None, held_gpus: int = 0, state: str = "Open") -> None:
    spec = {} if gpus is None else {"capability": {NVIDIA_GPU: str(gpus)}}
    status = {"state": state, "allocated": {NVIDIA_GPU: str(held_gpus)}}
    cluster.create("queues", {"metadata": {"name": name}, "spec": spec, "status": status})


# --- queues ------------------------------------------------------------------------------------


async def test_a_gang_waits_for_its_queue_and_goes_when_it_has_room(cluster: FileCluster, tmp_path: Path) -> None:
    queue(cluster, "default", None)
    queue(cluster, "small", 6, held_gpus=3)
    async with controlling(cluster, tmp_path):
        create(cluster, *pair("a", 2, annotations={QUEUE_NAME: "small"}))
        await until(lambda: reasons(cluster, "p-a") == reasons(cluster, "d-a") == ["WaitingForQueue"])
        assert events(cluster, "p-a")[0][1].startswith("Queue small has 3 of 6 GPUs left and 4 are needed; raise")
        create(cluster, *pair("b", 2))  # another queue is not its concern
        await until(lambda: "isochrone-b" in groups(cluster))
        cluster.change("queues", "", "small", {"status": {"allocated": {NVIDIA_GPU: "2"}}})
        await until(lambda: "isochrone-a" in groups(cluster))
        assert groups(cluster)["isochrone-a"]["spec"]["queue"] == "small"


async def test_two_gangs_do_not_share_the_last_room_of_a_queue(cluster: FileCluster, tmp_path: Path) -> None:
    """4 GPUs in the queue, two gangs of 4: the queue's status says nothing of the first one yet."""
    queue(cluster, "default", 4)
    async with controlling(cluster, tmp_path):
        create(cluster, *pair("a", 2), *pair("b", 2))
        await until(lambda: len(groups(cluster)) == 1)
        await until(lambda: ["WaitingForQueue"] in (reasons(cluster, "p-a"), reasons(cluster, "p-b")))
        assert len(released(cluster)) == 2


@pytest.mark.parametrize(("state", "why"), [("Closed", "is Closed, not Open"), (None, "does not exist")])
async def test_a_queue_that_cannot_be_used(cluster: FileCluster, tmp_path: Path, state: str | None, why: str) -> None:
    queue(cluster, "default", None)
    if state:
        queue(cluster, "x", None, state=state)
    async with controlling(cluster, tmp_path):
        create(cluster, *pair("a", annotations={QUEUE_NAME: "x"}))
        await until(lambda: reasons(cluster, "p-a") == ["WaitingForQueue"])
        assert why in events(cluster, "p-a")[0][1]
        if state:
            cluster.change("queues", "", "x", {"status": {"state": "Open"}})
        else:
            queue(cluster, "x", None)
        await until(lambda: not gated(cluster))


# --- older gangs -------------------------------------------------------------------------------


def test_counts() -> None:
    """Passed twice is enough where the limit is 2; whoever went starts anew."""
    a, b, c = ("team", "a"), ("team", "b"), ("team", "c")
    passes = Overtaking(2)
    passes.went(b, [a])
    assert passes.blocking_gang([a], lambda _: True) is None
    passes.went(c, [a])
    assert passes.blocking_gang([a], lambda _: True) == a
    assert passes.blocking_gang([a], lambda _: False) is None
    passes.went(a, [])
    assert passes.passed(a) == 0


async def test_an_older_gang_is_passed_so_often_and_no_more(cluster: FileCluster, tmp_path: Path) -> None:
    """Of 8 GPUs 2 are taken and the old gang wants all 8. Two small ones may pass it; the third, which fits, waits."""
    async with controlling(cluster, tmp_path, bypass_limit="2") as controller:
        create(cluster, *pair("first"))
        await until(lambda: len(bind_released(cluster)) == 2)
        create(cluster, *pair("old", 4))
        await until(lambda: controller.batch.held_gangs() == 1)
        for small in ("s1", "s2"):
            create(cluster, *pair(small))
            await until(lambda: f"isochrone-{small}" in groups(cluster))  # noqa: B023  # waited for at once
            bind_released(cluster)
        create(cluster, *pair("s3"))
        await until(lambda: reasons(cluster, "p-s3") == ["WaitingForQueue"])
        assert events(cluster, "p-s3")[0][1].startswith("Waits behind the older gang team/old, which waits for room")
        for gone in ("first", "s1", "s2"):
            for name in (f"p-{gone}", f"d-{gone}"):
                cluster.delete("pods", NAMESPACE, name)
        await until(lambda: "isochrone-old" in groups(cluster))
        assert {"p-s3", "d-s3"} <= gated(cluster)


async def test_a_gang_that_would_not_fit_an_empty_cluster_holds_up_nobody(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path, bypass_limit="0") as controller:
        create(cluster, *pair("old", 5))
        await until(lambda: controller.batch.held_gangs() == 1)
        create(cluster, *pair("young"))
        await until(lambda: "isochrone-young" in groups(cluster))


async def test_strictly_in_order(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path, bypass_limit="0") as controller:
        create(cluster, *pair("first"))
        await until(lambda: len(bind_released(cluster)) == 2)
        create(cluster, *pair("old", 4))
        await until(lambda: controller.batch.held_gangs() == 1)
        create(cluster, *pair("young"))
        await until(lambda: reasons(cluster, "p-young") == ["WaitingForQueue"])
        cluster.delete("pods", NAMESPACE, "p-old")
        cluster.delete("pods", NAMESPACE, "d-old")
        await until(lambda: "isochrone-young" in groups(cluster))


# --- priorities --------------------------------------------------------------------------------


def tenant(cluster: FileCluster, name: str, gpus: int, group: str = "batch", priority: int = 0) -> None:
    """A running pod of somebody else."""
    pod = {
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": {GROUP_NAME: group}},
        "spec": {
            "nodeName": "n1",
            "priority": priority,
            "containers": [{"name": "c", "resources": {"requests": {NVIDIA_GPU: str(gpus)}}}],
        },
        "status": {"phase": "Running"},
    }
    cluster.create_pod(pod)


def pod_group(cluster: FileCluster, name: str, minimum: int, queue: str = "default") -> None:
    meta = {"name": name, "namespace": NAMESPACE}
    cluster.create("podgroups", {"metadata": meta, "spec": {"minMember": minimum, "queue": queue}})


@pytest.mark.parametrize(
    ("minimum", "theirs", "their_queue", "goes"),
    [
        (1, 0, "default", True),  # 4 pods of 2 GPUs, 3 may leave: room for 6
        (2, 0, "default", False),  # 2 may leave: room for 4 of 6
        (1, 10, "default", False),  # not of lower priority
        (1, 0, "other", False),  # Volcano preempts inside one queue
    ],
)
async def test_a_gang_of_higher_priority_goes_where_inferiors_may_leave(
    cluster: FileCluster, tmp_path: Path, minimum: int, theirs: int, their_queue: str, goes: bool
) -> None:
    pod_group(cluster, "batch", minimum, their_queue)
    for i in range(4):
        tenant(cluster, f"t{i}", 2, priority=theirs)
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, *pair("vip", 3, priority=10))
        if goes:
            await until(lambda: "isochrone-vip" in groups(cluster))
            assert released(cluster).keys() >= {"p-vip", "d-vip"}
            assert nominations(cluster) == {}
            await until(lambda: reasons(cluster, "p-vip") == ["InsufficientGPU"])
            assert "if pods of a priority below 10 leave" in events(cluster, "p-vip")[0][1]
            affinity = cluster.pod(NAMESPACE, "p-vip")["spec"]["affinity"]["nodeAffinity"]
            assert "requiredDuringSchedulingIgnoredDuringExecution" in affinity
        else:
            await until(lambda: controller.batch.held_gangs() == 1 and bool(reasons(cluster, "p-vip")))
            assert gated(cluster) == {"p-vip", "d-vip"}


async def test_preemption_can_be_turned_off(cluster: FileCluster, tmp_path: Path) -> None:
    pod_group(cluster, "batch", 1)
    for i in range(4):
        tenant(cluster, f"t{i}", 2)
    async with controlling(cluster, tmp_path, preemption="false"):
        create(cluster, *pair("vip", 3, priority=10))
        await until(lambda: bool(reasons(cluster, "p-vip")))
        assert gated(cluster) == {"p-vip", "d-vip"}
