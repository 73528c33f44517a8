"""Room kept for pods that their owners make later is kept by a successor too, before it plans anybody.

Four nodes of 8 GPUs; every pod of chat takes one whole. Another gang wants two nodes and must not get the kept ones.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from admission.demo.file_cluster import FileCluster
from tests.admission.controllers import bind_released, controlling, create, events, gated, groups, reasons, released
from tests.admission.held_pods import NAMESPACE, held
from tests.admission.pods import Raw
from tests.admission.test_fairness import queue
from tests.admission.test_units import lws, stateful_set
from tests.topology.list_watch_server import until
from topology.labels import MIN_DECODE, NVIDIA_GPU

WISHES = {MIN_DECODE: "2"}


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    nodes = [{"name": f"n{i}", "zone": "a", "leaf": "l", "gpus": 8} for i in range(1, 5)]
    async with FileCluster(nodes) as made:
        yield made


def others(gpus: int = 8, priority: int = 0) -> list[Raw]:
    return [held(f"{half}-other", gang="other", gpus=gpus, priority=priority) for half in "pd"]


def leader_first(cluster: FileCluster, size: int) -> Raw:
    template = {"containers": [{"name": "w", "resources": {"requests": {"nvidia.com/gpu": "8"}}}]}
    parts = {"size": size, "workerTemplate": {"spec": template}}
    spec = {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": parts}
    meta = {"name": "decode", "namespace": NAMESPACE}
    return cluster.create("leaderworkersets", {"metadata": meta, "spec": spec})


async def goes(cluster: FileCluster, folder: Path, *pods: Raw, is_bound: bool = True) -> None:
    """A predecessor lets these go; it is gone at the end."""
    async with controlling(cluster, folder):
        create(cluster, *pods)
        await until(lambda: "isochrone-chat" in groups(cluster) and not gated(cluster))
        if is_bound:
            bind_released(cluster)


def retained(state: Mapping[str, object]) -> list[str]:
    return [uid for uid in state if uid.startswith("expected/")]


@pytest.mark.parametrize(("is_bound", "here"), [(True, False), (False, False), (True, True)])
async def test_for_the_next_pod_of_an_ordered_owner(
    cluster: FileCluster, tmp_path: Path, is_bound: bool, here: bool
) -> None:
    """It comes later, or is there when the successor starts; the other gang ranks before it and cannot preempt."""
    owner = stateful_set(cluster, "decode", 2)
    first = held("d0", gpus=8, owner=owner, annotations=WISHES)
    await goes(cluster, tmp_path, held("p0", gpus=8), first, is_bound=is_bound)
    second = held("d1", gpus=8, owner=owner, annotations=WISHES)
    create(cluster, *others(priority=10), *[second][: int(here)])
    async with controlling(cluster, tmp_path, preemption="false", bypass_limit="0") as controller:
        await until(lambda: bool(reasons(cluster, "p-other")))
        assert here or len(retained(controller.state._assumed)) == 1
        create(cluster, *[second][int(here) :])
        await until(lambda: "d1" in released(cluster))
        await until(lambda: not retained(controller.state._assumed))
        assert gated(cluster) == {"p-other", "d-other"}


@pytest.mark.parametrize("here", [0, 1, 2])
async def test_for_the_workers_of_a_leader(cluster: FileCluster, tmp_path: Path, here: int) -> None:
    """Of two workers none, one or both are there when the successor starts, and a gang that ranks before them."""
    owner = leader_first(cluster, 3)
    await goes(cluster, tmp_path, held("p0", gpus=8), lws(0, 0, 3, owner=owner, gpus=8))
    workers = [lws(0, worker, 3, owner=owner, gpus=8) for worker in (1, 2)]
    create(cluster, *others(4, priority=10), *workers[:here])
    async with controlling(cluster, tmp_path, preemption="false", bypass_limit="0") as controller:
        await until(lambda: bool(reasons(cluster, "p-other")))
        create(cluster, *workers[here:])
        await until(lambda: {"d0-1", "d0-2"} <= released(cluster).keys())
        await until(lambda: not retained(controller.state._assumed))
        assert gated(cluster) == {"p-other", "d-other"}


async def test_in_the_queue_too(cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """25 GPUs of quota: 16 run, 8 are kept; a gang of 2 would find a node, and waits for its queue."""
    monkeypatch.setattr("admission.fairness.queue_commitments.QUEUE_LAG_S", 0.0)  # what is bound is in Volcano's count
    queue(cluster, "default", 25)
    owner = stateful_set(cluster, "decode", 2)
    await goes(cluster, tmp_path, held("p0", gpus=8), held("d0", gpus=8, owner=owner, annotations=WISHES))
    cluster.change("queues", "", "default", {"status": {"allocated": {NVIDIA_GPU: "16"}}})
    create(cluster, *others(1))
    async with controlling(cluster, tmp_path):
        await until(lambda: reasons(cluster, "p-other") == ["WaitingForQueue"])
        assert "has 1 of 25 GPUs left and 2 are needed" in events(cluster, "p-other")[0][1]


async def test_a_leader_goes_without_pods_of_other_groups_that_have_no_room(
    cluster: FileCluster, tmp_path: Path
) -> None:
    """The minimum is one group of two: this leader and its worker to come. That there are more pods of its phase, held,
    must neither keep it back nor be waited for by Volcano; with its worker the group is counted as a whole."""
    owner = leader_first(cluster, 2)
    large = [lws(1, worker, 2, owner=owner, gpus=9) for worker in (0, 1)]
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0", gpus=8), lws(0, 0, 2, owner=owner, gpus=8), *large)
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert gated(cluster) == {"d1", "d1-1"}
        spec = groups(cluster)["isochrone-chat"]["spec"]
        assert (spec["minMember"], spec["minTaskMember"]) == (2, {"prefill": 1, "decode": 1})
        assert "subGroupPolicy" not in spec
        await until(lambda: reasons(cluster, "d1") == reasons(cluster, "d1-1") == ["InsufficientGPU"])
        bind_released(cluster)
        create(cluster, lws(0, 1, 2, owner=owner, gpus=8))
        await until(lambda: "d0-1" in released(cluster))
        await until(lambda: groups(cluster)["isochrone-chat"]["spec"]["minMember"] == 3)
        await until(lambda: not controller.batch.busy)
        assert groups(cluster)["isochrone-chat"]["spec"]["subGroupPolicy"][0]["subGroupSize"] == 2


@pytest.mark.parametrize("why", ["its owner wants no more", "nothing is to be kept", "time is over"])
async def test_not_for_ever(cluster: FileCluster, tmp_path: Path, why: str) -> None:
    owner = stateful_set(cluster, "decode", 2)
    await goes(cluster, tmp_path, held("p0", gpus=8), held("d0", gpus=8, owner=owner, annotations=WISHES))
    if why == "its owner wants no more":
        cluster.change("statefulsets", NAMESPACE, "decode", {"spec": {"replicas": 1}})
    create(cluster, *others())
    limit = {"nothing is to be kept": "off", "time is over": "1s"}.get(why, "600s")
    async with controlling(cluster, tmp_path, reserve_for=limit):
        await until(lambda: "isochrone-other" in groups(cluster))
