"""Room that Volcano is to make is booked for the gang that was let go for it: while it waits, and over a restart."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from admission.demo.file_cluster import FileCluster
from admission.fairness.preemption_claims import Claims
from scheduler.model.decision import Outcome, Plan
from scheduler.model.request import GangRequest, PodRequest
from tests.admission.controllers import controlling, create, events, gated, groups, reasons, released
from tests.admission.held_pods import CHAT, NAMESPACE, bound, held, stored
from tests.admission.held_pods import released as let_go
from tests.admission.test_fairness import pair, pod_group, tenant
from tests.topology.list_watch_server import until
from topology.clock import monotonic_s
from topology.labels import NVIDIA_GPU
from topology.objects import Pod

# --- the book ----------------------------------------------------------------------------------


def booked() -> tuple[Claims, dict[str, Pod]]:
    """p0 and d0 of chat, booked on n1 until 60."""
    pods = {name: stored(let_go(held(name))) for name in ("p0", "d0")}
    members = tuple(PodRequest(f"uid-{n}", NAMESPACE, n, "prefill", {NVIDIA_GPU: 1}) for n in pods)
    plan = Plan(GangRequest(*CHAT, members), Outcome.PLANNED, "1", {}, {m.uid: "n1" for m in members})
    claims = Claims(60)
    claims.book(CHAT, plan, 0)
    return claims, {f"uid-{name}": pod for name, pod in pods.items()}


@pytest.mark.parametrize(
    ("how", "freed", "left"),
    [
        ("waits", False, {"uid-p0", "uid-d0"}),
        ("is bound where it was booked", False, {"uid-p0"}),
        ("is bound elsewhere", True, {"uid-p0"}),
        ("is nominated", False, {"uid-p0"}),  # which counts by itself
        ("is gone", True, {"uid-p0"}),
        ("is still held", False, {"uid-p0", "uid-d0"}),  # its release is under way
    ],
)
def test_a_claim_lasts_until_the_pod_has_a_place(how: str, freed: bool, left: set[str]) -> None:
    claims, pods = booked()
    nodes = {"is bound where it was booked": "n1", "is bound elsewhere": "n2"}
    if how in nodes:
        pods["uid-d0"] = stored(bound(held("d0"), nodes[how]))
    elif how == "is nominated":
        pods["uid-d0"] = stored(let_go(held("d0"), "n2"))
    elif how == "is gone":
        del pods["uid-d0"]
    elif how == "is still held":
        pods["uid-d0"] = stored(held("d0"))
    assert claims.settle({CHAT: pods}, 59) is freed
    assert claims._claims.keys() == left
    assert claims.settle({CHAT: pods}, 60), "nobody made the room in time"
    assert claims.next_s() is None


def test_who_is_planned_anew_claims_nothing() -> None:
    claims, _ = booked()
    claims.drop(["uid-p0", "uid-x"])
    assert claims._claims.keys() == {"uid-d0"}


# --- carried out -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def asks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admission.fairness.fairness._ASK_AGAIN_S", 0.2)


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    """8 GPUs, held by four pods of two each; three of them may leave."""
    async with FileCluster([{"name": "n1", "zone": "a", "leaf": "l", "gpus": 8}]) as made:
        pod_group(made, "batch", 1)
        for i in range(4):
            tenant(made, f"t{i}", 2)
        yield made


async def first_goes(cluster: FileCluster) -> None:
    if not {"p-vip1", "d-vip1"} & released(cluster).keys():
        create(cluster, *pair("vip1", 3, priority=10))
    await until(lambda: "isochrone-vip1" in groups(cluster))


@pytest.mark.parametrize("restart", [False, True])
async def test_two_gangs_do_not_count_on_the_same_victims(cluster: FileCluster, tmp_path: Path, restart: bool) -> None:
    """Six GPUs may come free, and two gangs of higher priority want six each: the first goes, the second says why not,
    and goes when the first wants them no more."""
    if restart:
        async with controlling(cluster, tmp_path):
            await first_goes(cluster)
    async with controlling(cluster, tmp_path):
        await first_goes(cluster)
        create(cluster, *pair("vip2", 3, priority=10))
        await until(lambda: reasons(cluster, "p-vip2") == ["InsufficientGPU"])
        assert "leave" not in events(cluster, "p-vip2")[0][1]
        assert gated(cluster) == {"p-vip2", "d-vip2"}
        for name in ("p-vip1", "d-vip1"):
            cluster.delete("pods", NAMESPACE, name)  # it does not want them any more: they are the other's
        await until(lambda: "isochrone-vip2" in groups(cluster))


@pytest.mark.parametrize("restart", [False, True])
async def test_what_a_victim_leaves_is_not_given_to_others(cluster: FileCluster, tmp_path: Path, restart: bool) -> None:
    """Three victims have gone and Volcano has not placed the gang yet: a small gang must not take its room. Once it is
    placed, two GPUs that nobody claimed come free, and the small one goes."""
    if restart:
        async with controlling(cluster, tmp_path):
            await first_goes(cluster)
            for name in ("t1", "t2", "t3"):
                cluster.delete("pods", NAMESPACE, name)
    async with controlling(cluster, tmp_path) as controller:
        await first_goes(cluster)
        if not restart:
            for name in ("t1", "t2", "t3"):
                cluster.delete("pods", NAMESPACE, name)
        create(cluster, *pair("small"))
        await until(lambda: reasons(cluster, "p-small") == ["InsufficientGPU"])
        for name in ("p-vip1", "d-vip1"):
            cluster.bind(NAMESPACE, name, "n1")
        cluster.delete("pods", NAMESPACE, "t0")
        await until(lambda: "isochrone-small" in groups(cluster))
        await until(lambda: not controller.batch.busy)
        assert not controller.batch._fairness.claims._claims


async def test_room_that_nobody_makes_is_everybodys_again_in_time(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path, replan_after="2s") as controller:
        controller.renewal._unplaced._replan_after_s = 0  # they stay released, unplaced
        began_s = monotonic_s()
        await first_goes(cluster)
        for name in ("t1", "t2", "t3"):
            cluster.delete("pods", NAMESPACE, name)
        create(cluster, *pair("small"))
        await until(lambda: "isochrone-small" in groups(cluster))
        assert monotonic_s() - began_s >= 2.0  # the room was theirs for as long as that
        assert released(cluster)["p-vip1"] == ""
        assert {"p-small", "d-small"} <= released(cluster).keys()


async def test_a_successor_makes_the_group_of_a_gang_that_preempts_without_minimal_resources(
    cluster: FileCluster, tmp_path: Path
) -> None:
    """The predecessor died between the release and the PodGroup. With minResources Volcano would not let the group in,
    and only a group that is in may preempt."""
    for _ in range(30):
        cluster.fail_next("PATCH", "/podgroups/", 500)
    async with controlling(cluster, tmp_path, retry_s=60):
        create(cluster, *pair("vip1", 3, priority=10))
        await until(lambda: {"p-vip1", "d-vip1"} <= released(cluster).keys())
    cluster._failures.clear()
    async with controlling(cluster, tmp_path):
        await until(lambda: "isochrone-vip1" in groups(cluster))
        assert "minResources" not in groups(cluster)["isochrone-vip1"]["spec"]
