"""A PodGroup comes without `minResources` and gets them once its gang runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from admission.demo.file_cluster import FileCluster
from tests.admission.controllers import bind_released, controlling, create, groups
from tests.admission.held_pods import NAMESPACE, held
from tests.topology.list_watch_server import until

RUNNING = {"nvidia.com/gpu": "2"}
"""One prefill and one decode pod of one GPU each: the default minimum."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admission.upkeep.min_resources.CHECK_S", 0.05)


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster([{"name": n, "zone": "a", "leaf": "l", "gpus": 4} for n in ("n1", "n2")]) as made:
        yield made


def needs(cluster: FileCluster) -> object:
    return groups(cluster)["isochrone-chat"]["spec"].get("minResources")


async def test_a_group_is_let_in_without_and_says_what_its_minimum_needs_once_it_runs(
    cluster: FileCluster, tmp_path: Path
) -> None:
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), held("d0"), held("d1"))
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert needs(cluster) is None
        await controller.completion.read()
        await controller.completion.read()
        assert needs(cluster) is None  # nobody is bound yet
        bind_released(cluster)
        await until(lambda: needs(cluster) == RUNNING)
        await until(lambda: controller.completion.completed == 1)
        retained = groups(cluster)["isochrone-chat"]
        assert retained["spec"]["minMember"] == 2
        assert retained["metadata"]["annotations"]  # what else stands there stays


async def test_a_successor_completes_what_its_predecessor_left(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path):
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
    bind_released(cluster)
    assert needs(cluster) is None
    async with controlling(cluster, tmp_path):
        await until(lambda: needs(cluster) == RUNNING)


async def test_groups_of_others_and_failures_change_nothing(cluster: FileCluster, tmp_path: Path) -> None:
    meta = {"name": "isochrone-chat", "namespace": NAMESPACE, "labels": {"isochrone.dev/gang": "chat"}}
    cluster.create("podgroups", {"metadata": meta, "spec": {"minMember": 2}})
    cluster.fail_next("PATCH", "/podgroups/isochrone-mine", 500)
    async with controlling(cluster, tmp_path) as controller:
        cluster.create_pod({**held("x"), "spec": {**held("x")["spec"], "nodeName": "n1", "schedulingGates": None}})
        await controller.completion.read()
        await controller.completion.read()
        assert needs(cluster) is None  # it does not carry our mark
        assert controller.completion.completed == 0
