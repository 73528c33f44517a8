"""Bounded overtaking where a queue is what is short: inside one queue, over a tree of queues, and not beyond them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from admission.controller.controller import Controller
from admission.demo.file_cluster import FileCluster
from tests.admission.controllers import controlling, create, events, gated, groups, reasons
from tests.admission.held_pods import NAMESPACE, held
from tests.admission.pods import Raw
from tests.admission.test_units import lws
from tests.topology.list_watch_server import until
from topology.labels import NVIDIA_GPU, QUEUE_NAME


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    """Room for everybody: queues alone say who waits."""
    async with FileCluster([{"name": "n1", "gpus": 64}]) as made:
        yield made


def queue(cluster: FileCluster, name: str, gpus: int | None = None, parent: str = "", holds: int = 0) -> None:
    spec = ({} if gpus is None else {"capability": {NVIDIA_GPU: str(gpus)}}) | ({"parent": parent} if parent else {})
    status = {"state": "Open", "allocated": {NVIDIA_GPU: str(holds)}}
    cluster.create("queues", {"metadata": {"name": name}, "spec": spec, "status": status})


def holds(cluster: FileCluster, name: str, gpus: int) -> None:
    cluster.change("queues", "", name, {"status": {"allocated": {NVIDIA_GPU: str(gpus)}}})


def pair(gang: str, queue: str, gpus: int = 1) -> list[Raw]:
    notes = {QUEUE_NAME: queue}
    return [held(f"{half}-{gang}", gang=gang, gpus=gpus, annotations=notes) for half in "pd"]


async def goes(cluster: FileCluster, gang: str, queue: str, gpus: int = 1) -> None:
    create(cluster, *pair(gang, queue, gpus))
    await until(lambda: f"isochrone-{gang}" in groups(cluster))


async def old_waits(cluster: FileCluster, controller: Controller, queue: str) -> None:
    """Two GPUs of the queue are others', the old gang wants all eight."""
    create(cluster, *pair("old", queue, 4))
    await until(lambda: controller.batch.held_gangs() == 1 and reasons(cluster, "p-old") == ["WaitingForQueue"])
    assert events(cluster, "p-old")[0][1].startswith("Queue ")


@pytest.mark.parametrize(("limited", "olds", "youngs"), [("q", "q", "q"), ("top", "a", "b"), ("top", "a", "a")])
async def test_inside_a_queue_an_older_gang_is_passed_so_often_and_no_more(
    cluster: FileCluster, tmp_path: Path, limited: str, olds: str, youngs: str
) -> None:
    """8 GPUs of quota, 2 held: the old gang needs 8. Two small ones of 2 may pass; the third, which fits, waits."""
    queue(cluster, limited, 8, holds=2)
    for child in {olds, youngs} - {limited}:
        queue(cluster, child, parent=limited)
    async with controlling(cluster, tmp_path, bypass_limit="2") as controller:
        await old_waits(cluster, controller, olds)
        await goes(cluster, "s1", youngs)
        await goes(cluster, "s2", youngs)
        create(cluster, *pair("s3", youngs))
        await until(lambda: reasons(cluster, "p-s3") == ["WaitingForQueue"])
        value = events(cluster, "p-s3")[0][1]
        assert value.startswith(
            "Waits behind the older gang team/old, which waits for its queue and was passed 2 times"
        )
        for gone in ("s1", "s2"):
            for half in "pd":
                cluster.delete("pods", NAMESPACE, f"{half}-{gone}")
        holds(cluster, limited, 0)
        await until(lambda: "isochrone-old" in groups(cluster))
        assert {"p-s3", "d-s3"} <= gated(cluster)


async def test_who_takes_nothing_of_that_quota_is_not_held_up(cluster: FileCluster, tmp_path: Path) -> None:
    queue(cluster, "q", 8, holds=2)
    queue(cluster, "other", 8)
    async with controlling(cluster, tmp_path, bypass_limit="0") as controller:
        await old_waits(cluster, controller, "q")
        await goes(cluster, "young", "other")
        create(cluster, *pair("same", "q"))
        await until(lambda: reasons(cluster, "p-same") == ["WaitingForQueue"])


async def test_who_leaves_enough_is_not_held_up(cluster: FileCluster, tmp_path: Path) -> None:
    """The old gang waits for nodes (64 GPUs, it needs 80). Its queue of 100 holds both, so quota is no reason; and a
    gang that no cluster can hold stands before nobody."""
    queue(cluster, "q", 100)
    async with controlling(cluster, tmp_path, bypass_limit="0") as controller:
        create(cluster, *pair("old", "q", 40))
        await until(lambda: controller.batch.held_gangs() == 1)
        await goes(cluster, "young", "q")


async def test_a_gang_that_its_queue_can_never_hold_stands_before_nobody(cluster: FileCluster, tmp_path: Path) -> None:
    queue(cluster, "top", 7)
    queue(cluster, "q", 20, parent="top")
    async with controlling(cluster, tmp_path, bypass_limit="0") as controller:
        await old_waits(cluster, controller, "q")
        await goes(cluster, "young", "q")


async def test_half_a_gang_waits_for_its_partner_and_stands_in_no_queue(cluster: FileCluster, tmp_path: Path) -> None:
    """Its one pod alone is more than the queue has left; but what it waits for first is its other half."""
    queue(cluster, "q", 8, holds=2)
    async with controlling(cluster, tmp_path, bypass_limit="0", partner_after="100ms"):
        create(cluster, pair("old", "q", 7)[0])
        await until(lambda: reasons(cluster, "p-old") == ["WaitingForPartner"])
        await goes(cluster, "young", "q")


@pytest.mark.parametrize("how", ["a pod goes", "its queue closes"])
async def test_who_waited_behind_it_goes_when_it_stops_waiting(cluster: FileCluster, tmp_path: Path, how: str) -> None:
    queue(cluster, "top", 8, holds=2)
    queue(cluster, "a", parent="top")
    queue(cluster, "b", parent="top")
    async with controlling(cluster, tmp_path, bypass_limit="0") as controller:
        await old_waits(cluster, controller, "a")
        create(cluster, *pair("young", "b"))
        await until(lambda: reasons(cluster, "p-young") == ["WaitingForQueue"])
        if how == "a pod goes":
            cluster.delete("pods", NAMESPACE, "p-old")
        else:
            cluster.change("queues", "", "a", {"status": {"state": "Closed"}})
        await until(lambda: "isochrone-young" in groups(cluster))


async def test_passes_count_on_when_quota_comes_and_room_does_not(cluster: FileCluster, tmp_path: Path) -> None:
    """Passed once while it waited for quota, and that is the limit: it is not passed again while it waits for room."""
    queue(cluster, "q", 60, holds=10)
    queue(cluster, "other")
    async with controlling(cluster, tmp_path, bypass_limit="1"):
        await goes(cluster, "first", "other", 5)  # 54 of 64 left on the node
        create(cluster, *pair("old", "q", 30))  # 60: more than 50 of its queue, and more than the node has left
        await until(lambda: reasons(cluster, "p-old") == ["WaitingForQueue"])
        await goes(cluster, "s1", "q")
        cluster.change("queues", "", "q", {"spec": {"capability": {NVIDIA_GPU: "80"}}})
        await until(lambda: reasons(cluster, "p-old") == ["WaitingForQueue", "InsufficientGPU"])
        create(cluster, *pair("s2", "other"))
        await until(lambda: reasons(cluster, "p-s2") == ["WaitingForQueue"])


async def test_a_group_of_pods_that_no_cluster_holds_whole_stands_before_nobody(tmp_path: Path) -> None:
    """Two groups, each a leader of 1 GPU and a worker of 8, on nodes of 4. The two leaders would fit and are as many
    pods as the minimum asks for; but a group goes whole or not at all."""
    async with (
        FileCluster([{"name": f"n{i}", "zone": "a", "leaf": "l", "gpus": 4} for i in range(3)]) as cluster,
        controlling(cluster, tmp_path, bypass_limit="0") as controller,
    ):
        create(
            cluster, held("p0"), *(lws(group, worker, 2, gpus=1 + 7 * worker) for group in (0, 1) for worker in (0, 1))
        )
        await until(lambda: controller.batch.held_gangs() == 1)
        await until(lambda: bool(reasons(cluster, "p0")))
        create(cluster, *(held(f"{half}-young", gang="young") for half in "pd"))
        await until(lambda: "isochrone-young" in groups(cluster))
