"""The controller dies between two of its steps: a successor that knows nothing finishes, and books nothing twice."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest

from admission.demo.file_cluster import FileCluster
from tests.admission.controllers import (
    SHORT_PAUSES_S,
    bind_released,
    controlling,
    create,
    gated,
    groups,
    kinds,
    never_overbooked,
    nominations,
    not_overbooked,
    reasons,
    released,
    writes,
)
from tests.admission.held_pods import NAMESPACE, held
from tests.topology.list_watch_server import until
from topology.clock import monotonic_s

NODES = [{"name": "n1", "zone": "a", "leaf": "l1", "gpus": 4}, {"name": "n2", "zone": "a", "leaf": "l1", "gpus": 4}]
CHAT = ("p0", "d0", "d1")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admission.release.pod_writer._PAUSES_S", SHORT_PAUSES_S)


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster(NODES) as made:
        yield made


async def dies(cluster: FileCluster, folder: Path, failing: str, left: int) -> None:
    """Creates the gang; the controller is killed when it has come to the writes that fail, with `left` pods held."""
    for _ in range(30):
        cluster.fail_next("PATCH", failing, 500)
    async with controlling(cluster, folder, retry_s=60):
        create(cluster, *(held(name, gpus=2) for name in CHAT))
        await until(lambda: set(nominations(cluster)) == set(CHAT) and len(gated(cluster)) == left)
        await until(lambda: any(re.search(failing, path) for method, path in cluster.requests if method == "PATCH"))
    cluster._failures.clear()
    assert groups(cluster) == {}


async def dies_after_nominating(cluster: FileCluster, folder: Path) -> None:
    await dies(cluster, folder, "/pods/[^/]*$|/podgroups/", 3)
    assert gated(cluster) == set(CHAT)


async def dies_after_one_release(cluster: FileCluster, folder: Path) -> None:
    await dies(cluster, folder, "/pods/(p0|d0)$|/podgroups/", 2)
    assert gated(cluster) == {"p0", "d0"}


async def dies_before_the_pod_group(cluster: FileCluster, folder: Path) -> None:
    await dies(cluster, folder, "/podgroups/", 0)
    assert gated(cluster) == set()


Point = Callable[[FileCluster, Path], Awaitable[None]]
POINTS: list[Point] = [dies_after_nominating, dies_after_one_release, dies_before_the_pod_group]


@pytest.mark.parametrize("dies_at", POINTS)
async def test_a_successor_finishes(cluster: FileCluster, tmp_path: Path, dies_at: Point) -> None:
    await dies_at(cluster, tmp_path)
    before = nominations(cluster)
    with never_overbooked(cluster):
        async with controlling(cluster, tmp_path):
            await until(lambda: "isochrone-chat" in groups(cluster) and not gated(cluster))
            assert sorted(bind_released(cluster)) == sorted(CHAT)
            await until(lambda: all(reasons(cluster, name) == ["Placed"] for name in CHAT))
    assert released(cluster) == before, "nothing had changed, so nobody had to be planned elsewhere"
    assert groups(cluster)["isochrone-chat"]["spec"]["minMember"] == 2


@pytest.mark.parametrize("dies_at", POINTS)
async def test_a_third_one_finds_nothing_to_do(cluster: FileCluster, tmp_path: Path, dies_at: Point) -> None:
    await dies_at(cluster, tmp_path)
    async with controlling(cluster, tmp_path) as second:
        await until(lambda: "isochrone-chat" in groups(cluster) and not gated(cluster))
        await until(lambda: not second.batch.busy)
    done = len(writes(cluster))
    async with controlling(cluster, tmp_path) as third:
        create(cluster, held("p9", gang="other"))
        await until(lambda: third.batch.plans >= 1)
    assert len(writes(cluster)) == done


async def test_what_a_predecessor_only_nominated_is_planned_anew(cluster: FileCluster, tmp_path: Path) -> None:
    await dies_after_nominating(cluster, tmp_path)
    taken = set(nominations(cluster).values())
    for node in taken:
        cluster.create_pod(FileCluster([{"name": node, "used": 4}]).objects("pods")[0])
    cluster.create("nodes", FileCluster([{**NODES[0], "name": "n3", "gpus": 8}]).objects("nodes")[0])
    async with controlling(cluster, tmp_path):
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert set(released(cluster).values()) == {"n3"}
        not_overbooked(cluster)


async def test_what_a_predecessor_released_keeps_its_room(cluster: FileCluster, tmp_path: Path) -> None:
    """All eight GPUs are promised or asked for: the other gang must not get what the released ones were promised."""
    await dies_before_the_pod_group(cluster, tmp_path)
    create(cluster, held("p1", gang="code", gpus=2), held("d2", gang="code", gpus=2))
    with never_overbooked(cluster):
        async with controlling(cluster, tmp_path) as controller:
            await until(lambda: "isochrone-chat" in groups(cluster))
            await until(lambda: controller.batch.held_gangs() == 1)
            assert gated(cluster) == {"p1", "d2"}
            bind_released(cluster)
            cluster.delete("pods", NAMESPACE, "d0")
            cluster.delete("pods", NAMESPACE, "d1")
            await until(lambda: "isochrone-code" in groups(cluster))


async def test_the_rest_of_a_gang_comes_to_whom_a_predecessor_released(tmp_path: Path) -> None:
    """The first was released into its zone and is not bound yet: wherever in it that may be, the rest must be near."""
    nodes = [
        {"name": "a1", "zone": "a", "gpus": 4},
        {"name": "a2", "zone": "a", "gpus": 4},
        {"name": "b1", "zone": "b", "gpus": 8},
    ]
    async with FileCluster(nodes) as cluster:
        await dies_after_one_release(cluster, tmp_path)
        (zone,) = {node[0] for node in nominations(cluster).values()}
        async with controlling(cluster, tmp_path):
            await until(lambda: "isochrone-chat" in groups(cluster) and not gated(cluster))
        assert {node[0] for node in released(cluster).values()} == {zone}


async def test_while_lists_are_incomplete_nothing_is_planned(cluster: FileCluster, tmp_path: Path) -> None:
    create(cluster, held("p0"), held("d0"))
    cluster.fail_next("GET", "/apis/apps/v1/replicasets$", 500)
    async with controlling(cluster, tmp_path):
        await until(lambda: "isochrone-chat" in groups(cluster))
    lists = [i for i, (method, path) in enumerate(cluster.requests) if method == "GET" and "replicasets" in path]
    first = next(i for i, (method, _) in enumerate(cluster.requests) if method == "PATCH")
    assert len(lists) == 2
    assert max(lists) < first
    assert kinds(writes(cluster)) == ["nominate", "pod", "group"]


async def test_at_a_start_the_first_in_rank_is_planned_first_however_long_the_looks_take(
    cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at all gangs once takes longer than the quiet time; each would take all the room there is."""
    ticks = 0

    def slow_s() -> float:
        nonlocal ticks
        ticks += 1
        return monotonic_s() + ticks * 0.001

    monkeypatch.setattr("admission.reconcile.reconciler.monotonic_s", slow_s)
    monkeypatch.setattr("admission.reconcile.reconciler._STEP_S", 10.0)
    for number in range(80):
        create(cluster, *(held(f"{half}-g{number:02}", gang=f"g{number:02}", gpus=4) for half in "pd"))
    async with controlling(cluster, tmp_path, settle="60ms") as controller:
        await until(lambda: bool(groups(cluster)) and controller.batch.held_gangs() == 79)
        assert groups(cluster).keys() == {"isochrone-g00"}
