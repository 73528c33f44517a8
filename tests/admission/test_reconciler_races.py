"""What may come between two steps of a departure: nodes that go, any answer to any write, watches that lose their
place, and a restart in the middle of preemption or of a rollout."""

from __future__ import annotations

from collections.abc import AsyncGenerator
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
    never_overbooked,
    nominations,
    reasons,
    released,
    writes,
)
from tests.admission.held_pods import NAMESPACE, held
from tests.admission.pods import Raw
from tests.admission.test_fairness import pair, pod_group, tenant
from tests.admission.test_reconciler_failures import interrupted
from tests.admission.test_units import lws
from tests.topology.list_watch_server import until

NODES: list[Raw] = [{"name": f"n{i}", "zone": "a", "leaf": "l", "gpus": 2} for i in (1, 2)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admission.release.pod_writer._PAUSES_S", SHORT_PAUSES_S)


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster(NODES) as made:
        yield made


# --- nodes -------------------------------------------------------------------------------------


async def test_a_node_that_goes_before_the_release_is_not_released_to(cluster: FileCluster, tmp_path: Path) -> None:
    """Both pods are nominated to one node, which goes: nobody is released, and both are planned on the other."""
    async with controlling(cluster, tmp_path) as controller:
        keeper = interrupted(controller)

        async def goes() -> None:
            keeper.after = None
            (node,) = set(nominations(cluster).values())
            cluster.delete("nodes", "", node)
            await until(lambda: len(controller.state.table()) == 1)

        keeper.after = goes
        with never_overbooked(cluster):
            create(cluster, held("p0"), held("d0"))
            await until(lambda: "isochrone-chat" in groups(cluster))
        (left,) = controller.state.table().index
        assert set(released(cluster).values()) == {left}
        assert controller.batch.plans == 2


async def test_a_node_that_goes_after_the_release_costs_a_nomination(cluster: FileCluster, tmp_path: Path) -> None:
    """It goes while the gates open: the nominations are withdrawn, so that Volcano looks elsewhere in the set."""
    async with controlling(cluster, tmp_path, replan_after="6s") as controller:
        keeper = interrupted(controller)
        gone: list[str] = []

        async def goes() -> None:
            keeper.before = None
            gone.extend(set(nominations(cluster).values()))
            cluster.delete("nodes", "", gone[0])

        keeper.before = goes
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster) and not gated(cluster))
        await until(lambda: "Replanned" in reasons(cluster, "p0") and "Replanned" in reasons(cluster, "d0"))
        assert nominations(cluster) == {}
        snapshot = controller.state.snapshot(0.0, 0.0)
        assert not snapshot.used.any(), "what was promised on the lost node counts nowhere"


# --- answers -----------------------------------------------------------------------------------

EVERY_WRITE = ("/pods/[^/]+/status$", "/pods/[^/]+$", "/podgroups/")


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_any_answer_to_any_write_delays_and_does_no_more(
    cluster: FileCluster, tmp_path: Path, status: int
) -> None:
    """Every kind of write is refused twice, 429 with the Retry-After that API servers send; two gangs for the room of
    one and a half: one goes whole, the other is held and told; and then its turn comes."""
    for path in EVERY_WRITE * 2:
        cluster.fail_next("PATCH", path, status)
    cluster.fail_next("POST", "/events$", status)
    async with controlling(cluster, tmp_path) as controller:
        with never_overbooked(cluster):
            create(cluster, *pair("a", 2), *pair("b", 1))
            await until(lambda: len(groups(cluster)) == 1 and controller.batch.held_gangs() == 1)
            await until(lambda: not controller.batch.busy and len(gated(cluster)) == 2)
            (held_back,) = {name[-1] for name in gated(cluster)}
            await until(lambda: reasons(cluster, f"p-{held_back}") == ["InsufficientGPU"])
            goes = "ab".replace(held_back, "")
            assert len(bind_released(cluster)) == 2
            for half in "pd":
                cluster.delete("pods", NAMESPACE, f"{half}-{goes}")
            await until(lambda: f"isochrone-{held_back}" in groups(cluster))


async def test_a_pod_made_anew_and_an_empty_group_outlast_refusals(
    cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two deletes that a controller does are refused by turns, and done in the end, each once."""
    monkeypatch.setattr("admission.upkeep.pod_group_gc.EMPTY_S", 0.3)
    owner = cluster.create("replicasets", {"metadata": {"name": "rs", "namespace": NAMESPACE}, "spec": {"replicas": 2}})
    maker = {**owner, "apiVersion": "apps/v1", "kind": "ReplicaSet"}
    for status in (409, 429, 500, 503):
        for path in ("/pods/[^/]+$", "/podgroups/"):
            cluster.fail_next("DELETE", path, status)
    async with controlling(cluster, tmp_path, replan_after="1s") as controller:
        create(cluster, held("p0", owner=maker), held("d0", owner=maker))
        await until(lambda: controller.renewal.renewed == 2)
        assert not {"p0", "d0"} & released(cluster).keys()
        await until(lambda: not groups(cluster))
        await until(lambda: controller.retirement.retired == 1)


async def test_watches_that_lose_their_place_in_the_middle(cluster: FileCluster, tmp_path: Path) -> None:
    """Between nomination and release history is compacted (410) and every watch is cut; pods come and go meanwhile."""
    async with controlling(cluster, tmp_path) as controller:
        keeper = interrupted(controller)

        async def lost() -> None:
            keeper.before = None
            create(cluster, *pair("code", 2))
            create(cluster, held("p-gone", gang="gone"))
            cluster.delete("pods", NAMESPACE, "p-gone")
            cluster.forget_history()
            cluster.cut_watches()

        keeper.before = lost
        with never_overbooked(cluster):
            create(cluster, held("p0"), held("d0"))
            await until(lambda: "isochrone-chat" in groups(cluster) and not gated(cluster) & {"p0", "d0"})
            await until(lambda: reasons(cluster, "p-code") == reasons(cluster, "d-code") == ["InsufficientGPU"])
        assert writes(cluster).count(("pod", "p0")) == 1
        assert set(controller.state.gangs()) == {(NAMESPACE, "chat"), (NAMESPACE, "code")}


# --- restarts ----------------------------------------------------------------------------------


async def test_a_restart_between_two_releases_of_a_gang_that_preempts(tmp_path: Path) -> None:
    """One pod is out, the other is held, and no victim has gone: the second follows into its own victims' room, with
    the group that a preempting gang needs; another gang gets nothing of it."""
    async with FileCluster([{"name": "n1", "zone": "a", "leaf": "l", "gpus": 8}]) as cluster:
        pod_group(cluster, "batch", 1)
        for i in range(4):
            tenant(cluster, f"t{i}", 2)
        for _ in range(30):
            cluster.fail_next("PATCH", "/pods/d-vip$|/podgroups/", 422)
        async with controlling(cluster, tmp_path, retry_s=60):
            create(cluster, *pair("vip", 3, priority=10))
            await until(lambda: "p-vip" in released(cluster))
        assert gated(cluster) == {"d-vip"}
        cluster._failures.clear()
        create(cluster, *pair("other", 1, priority=5))
        async with controlling(cluster, tmp_path):
            await until(lambda: "isochrone-vip" in groups(cluster) and "d-vip" in released(cluster))
            assert "minResources" not in groups(cluster)["isochrone-vip"]["spec"]
            await until(lambda: reasons(cluster, "p-other") == ["InsufficientGPU"])
            assert gated(cluster) == {"p-other", "d-other"}


@pytest.mark.parametrize("here", [1, 2])
async def test_a_restart_in_the_middle_of_a_rollout_of_groups(tmp_path: Path, here: int) -> None:
    """Two groups of two run; the second is being replaced, and of the new one `here` pods exist when the controller
    comes back. It goes whole, the first is not touched, and a gang that came meanwhile gets none of its room before."""
    nodes = [{"name": f"n{i}", "zone": "a", "leaf": "l", "gpus": 2} for i in range(3)]
    async with FileCluster(nodes) as cluster:
        async with controlling(cluster, tmp_path):
            create(cluster, held("p0"), *(lws(group, worker, 2) for group in (0, 1) for worker in (0, 1)))
            await until(lambda: "isochrone-chat" in groups(cluster) and not gated(cluster))
            assert len(bind_released(cluster)) == 5
        before = {name: cluster.pod(NAMESPACE, name)["metadata"]["resourceVersion"] for name in ("p0", "d0", "d0-1")}
        for name in ("d1", "d1-1"):
            cluster.delete("pods", NAMESPACE, name)
        again = [lws(1, worker, 2) for worker in (0, 1)]
        create(cluster, *again[:here])
        async with controlling(cluster, tmp_path) as controller:
            await until(lambda: len(controller.state.gang_pods(NAMESPACE, "chat")) == 3 + here)
            create(cluster, *again[here:])
            await until(lambda: {"d1", "d1-1"} <= released(cluster).keys())
            assert len(bind_released(cluster)) == 2
            assert groups(cluster)["isochrone-chat"]["spec"]["minMember"] == 3
        after = {name: cluster.pod(NAMESPACE, name)["metadata"]["resourceVersion"] for name in before}
        assert before == after
