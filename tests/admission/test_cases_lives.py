"""Public cases about the lives of gangs, each as a short story played against a real controller.

The ids are those of the project's list of public failures; what is right was written down before the code ran.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import permutations
from pathlib import Path

import pytest

from admission.controller.controller import Controller
from admission.demo.file_cluster import FileCluster
from admission.release.pod_group import MANAGED_BY
from tests.admission.controllers import (
    all_finish,
    bind_released,
    controlling,
    create,
    events,
    gated,
    groups,
    nominations,
    pods_of,
    reasons,
    released,
    writes,
)
from tests.admission.held_pods import NAMESPACE, held
from tests.admission.pods import Raw
from tests.admission.test_reconciler_later import deployment, replica_set
from tests.admission.test_units import lws
from tests.topology.list_watch_server import until
from topology.cluster.state import GangKey
from topology.labels import GANG, GROUP_NAME


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster([{"name": n, "zone": "a", "leaf": "l", "gpus": 4} for n in ("n1", "n2")]) as made:
        yield made


async def test_c052_edits_leave_no_pod_groups_behind(cluster: FileCluster, tmp_path: Path) -> None:
    """Eight edits of a template: one PodGroup before, during and after, owned by what outlives a rollout."""
    top = deployment(cluster, "prefill")
    async with controlling(cluster, tmp_path):
        create(cluster, held("d0"))
        for edit in range(8):
            made = replica_set(cluster, f"prefill-{edit}", edit + 1, 1, top)
            create(cluster, held(f"p{edit}", owner=made))
            await until(lambda: not gated(cluster) and groups(cluster).keys() == {"isochrone-chat"})
            bind_released(cluster)
            if edit:
                cluster.delete("pods", NAMESPACE, f"p{edit - 1}")
                cluster.delete("replicasets", NAMESPACE, f"prefill-{edit - 1}")
        (group,) = groups(cluster).values()
        assert [o["kind"] for o in group["metadata"]["ownerReferences"]] == ["Pod", "Deployment"]


@pytest.mark.parametrize("back", [False, True])
async def test_c053_c059_an_empty_pod_group_of_ours_goes_and_a_used_one_stays(
    cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    """Scaled to nothing (or given another gang), its group goes after a while; if pods come back before, it stays."""
    monkeypatch.setattr("admission.upkeep.pod_group_gc.EMPTY_S", 60 if back else 0.3)
    meta = {"name": "isochrone-users-own", "namespace": NAMESPACE, "labels": {GANG: "users-own"}}
    cluster.create("podgroups", {"metadata": meta, "spec": {"minMember": 1}})
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
        uid = groups(cluster)["isochrone-chat"]["metadata"]["uid"]
        assert groups(cluster)["isochrone-chat"]["metadata"]["labels"][MANAGED_BY] == "isochrone"
        bind_released(cluster)
        for name in ("p0", "d0"):
            cluster.delete("pods", NAMESPACE, name)
        if back:
            create(cluster, held("p1"), held("d1"))
            await until(lambda: len(bind_released(cluster)) == 2 or len(pods_of(cluster)) != 2)
            await until(lambda: controller.retirement.retired == 0 and len(released(cluster)) == 2)
            assert groups(cluster)["isochrone-chat"]["metadata"]["uid"] == uid
        else:
            await until(lambda: "isochrone-chat" not in groups(cluster))
            await until(lambda: controller.retirement.retired == 1)  # counted once the answer is here
        assert "isochrone-users-own" in groups(cluster)


async def test_c053_a_late_delete_misses_a_group_that_is_used_again(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "team/isochrone-chat" in controller.pod_groups.objects)
        seen = controller.pod_groups.objects["team/isochrone-chat"]
        cluster.change("podgroups", NAMESPACE, "isochrone-chat", {"status": {"running": 2}})
        assert not await controller.retirement._pod_writer.remove_pod_group(seen)
        assert "isochrone-chat" in groups(cluster)


@pytest.mark.parametrize("order", sorted(permutations(["p-a", "p-b", "d-a", "d-b"]))[::3])
async def test_c055_of_two_gangs_one_runs_and_the_other_holds_nothing(
    cluster: FileCluster, tmp_path: Path, order: tuple[str, ...]
) -> None:
    """Eight GPUs, two gangs of four and four: in whatever order their pods come."""
    async with controlling(cluster, tmp_path) as controller:
        for name in order:
            create(cluster, held(name, gang=name[-1], gpus=4))
        await until(lambda: len(groups(cluster)) == 1 and controller.batch.held_gangs() == 1)
        (runs,) = {name.removeprefix("isochrone-") for name in groups(cluster)}
        (waits,) = {"a", "b"} - {runs}
        assert gated(cluster) == {f"p-{waits}", f"d-{waits}"}
        assert nominations(cluster).keys() == {f"p-{runs}", f"d-{runs}"}


@pytest.mark.full  # half a minute on a busy machine; tests/admission/test_reconciler_many.py has the short form
async def test_c056_sixty_gangs_of_all_sizes_finish(tmp_path: Path) -> None:
    """Sixty gangs of 2 to 8 GPUs on 16: each runs and ends, none is left while there is room for it."""
    async with (
        FileCluster([{"name": n, "leaf": "l", "gpus": 8} for n in ("n1", "n2")]) as cluster,
        controlling(cluster, tmp_path, bypass_limit="3"),
    ):
        for i in range(60):
            create(cluster, *(held(f"{half}-g{i:02}", gang=f"g{i:02}", gpus=1 + i % 4) for half in "pd"))
        await all_finish(cluster, 120)


async def test_c058_pods_without_their_group_are_repaired_after_a_restart(cluster: FileCluster, tmp_path: Path) -> None:
    """The controller dies between the release and the PodGroup; its successor makes the group in its first look."""
    async with controlling(cluster, tmp_path):
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
    cluster.delete("podgroups", NAMESPACE, "isochrone-chat")
    (tmp_path / "second").mkdir()
    async with controlling(cluster, tmp_path / "second"):
        await until(lambda: "isochrone-chat" in groups(cluster))


async def test_c061_a_group_that_another_controller_makes_stays_the_only_one(
    cluster: FileCluster, tmp_path: Path
) -> None:
    """LWS names its own PodGroup on its pods: it is awaited, then they go into it, and it is not touched."""
    pods = [held("p0"), lws(0, 0, 2), lws(0, 1, 2)]
    for pod in pods:
        pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), GROUP_NAME: "decode-0"}
    async with controlling(cluster, tmp_path):
        create(cluster, *pods)
        await until(lambda: all(reasons(cluster, name) == ["WaitingForGang"] for name in ("p0", "d0", "d0-1")))
        meta = {"name": "decode-0", "namespace": NAMESPACE}
        made = cluster.create("podgroups", {"metadata": meta, "spec": {"minMember": 3}})
        await until(lambda: not gated(cluster))
        assert sorted(bind_released(cluster)) == ["d0", "d0-1", "p0"]
        assert groups(cluster) == {"decode-0": made}
        assert all(pod["metadata"]["annotations"][GROUP_NAME] == "decode-0" for pod in pods_of(cluster))


async def test_c064_a_gang_that_lost_room_says_so_and_joins_when_it_is_back(
    cluster: FileCluster, tmp_path: Path
) -> None:
    """Two pods are drained and a stranger takes their node: the new ones wait, each with what is short and how far."""
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, *(held(n, gpus=2) for n in ("p0", "p1", "d0", "d1")))
        await until(lambda: "isochrone-chat" in groups(cluster))
        bind_released(cluster)
        lost = [p["metadata"]["name"] for p in pods_of(cluster) if p["spec"].get("nodeName") == "n2"]
        for name in lost:
            cluster.delete("pods", NAMESPACE, name)
        filler: Raw = held("filler", gpus=4)
        filler["metadata"]["labels"] = {}
        filler["spec"] |= {"nodeName": "n2", "schedulingGates": []}
        cluster.create_pod(filler)
        create(cluster, *(held(f"{name[0]}9-{name}", gpus=2) for name in lost))
        await until(lambda: controller.batch.held_gangs() == 1)
        for pod in sorted(gated(cluster)):
            await until(lambda: reasons(cluster, pod) == ["InsufficientGPU"])  # noqa: B023
            assert "2 short" in events(cluster, pod)[0][1]
        cluster.delete("pods", NAMESPACE, "filler")
        await until(lambda: not gated(cluster))


async def test_c065_what_is_evicted_does_not_come_and_go_for_ever(cluster: FileCluster, tmp_path: Path) -> None:
    """Two pods of two pairs are reclaimed for another queue, whose pods are placed after the successors are let go.

    The minimum that Volcano holds together is one pair before and after, so the pair that runs is not broken. The
    successors are placed where room is for them, once; when that room is taken, their nominations are withdrawn, and
    with each time that they are made anew the patience doubles. Those made anew while there is no room are held, told,
    and not one of them is written to again."""
    maker = replica_set(cluster, "chat", 1, 4, deployment(cluster, "chat"))
    async with controlling(cluster, tmp_path, replan_after="1s") as controller:
        patience_s = noted_patience(controller)
        create(cluster, *(held(name, gpus=2, owner=maker) for name in ("p0", "p1", "d0", "d1")))
        await until(lambda: "isochrone-chat" in groups(cluster) and not gated(cluster))
        assert len(bind_released(cluster)) == 4
        await until(lambda: all(reasons(cluster, name) == ["Placed"] for name in ("p0", "p1", "d0", "d1")))
        before = groups(cluster)["isochrone-chat"]["spec"]
        nodes = [cluster.delete("pods", NAMESPACE, name)["spec"]["nodeName"] for name in ("p1", "d1")]
        create(cluster, *(held(f"{half}1-again", gpus=2, owner=maker) for half in "pd"))
        await until(lambda: {"p1-again", "d1-again"} <= nominations(cluster).keys())
        for number, node in enumerate(nodes):  # Volcano gives the room to the other queue
            other: Raw = held(f"other-{number}", gpus=2)
            other["metadata"]["labels"] = {}
            other["spec"] |= {"nodeName": node, "schedulingGates": []}
            cluster.create_pod(other)
        await until(lambda: controller.renewal.renewed == 2)
        create(cluster, *(held(f"{half}1-once-more", gpus=2, owner=maker) for half in "pd"))
        for half in "pd":
            await until(lambda: reasons(cluster, f"{half}1-once-more") == ["InsufficientGPU"])  # noqa: B023
        await until(lambda: not controller.reporter._to_annotate)
        assert gated(cluster) == {"p1-once-more", "d1-once-more"}
        assert {"p0", "d0"} <= released(cluster).keys()
        assert groups(cluster)["isochrone-chat"]["spec"] == before
        assert patience_s[0] == 2


def noted_patience(controller: Controller) -> list[float]:
    """How patient it is with a gang each time that pods of one were made anew; it forgets that once the gang runs."""
    unplaced, noted = controller.renewal._unplaced, list[float]()
    made_anew = unplaced.renewed

    def renewed(gang: GangKey) -> None:
        made_anew(gang)
        noted.append(unplaced.patience_s(gang))

    unplaced.renewed = renewed  # type: ignore[method-assign]
    return noted


async def test_c068_a_replica_of_several_pods_goes_whole_or_holds_nothing(tmp_path: Path) -> None:
    """Five GPUs for decode, in groups of two: the second replica fits, of the third not one pod is let go, though one
    would fit; and both are told why."""
    async with FileCluster([{"name": "n1", "gpus": 6}]) as cluster, controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), lws(0, 0, 2), lws(0, 1, 2))
        await until(lambda: "isochrone-chat" in groups(cluster))
        bind_released(cluster)
        create(cluster, lws(1, 0, 2), lws(1, 1, 2), lws(2, 0, 2), lws(2, 1, 2))
        await until(lambda: {"d1", "d1-1"} <= released(cluster).keys() and not controller.batch.busy)
        assert gated(cluster) == {"d2", "d2-1"}
        for name in ("d2", "d2-1"):
            await until(lambda: bool(reasons(cluster, name)))  # noqa: B023
            assert set(reasons(cluster, name)) <= {"InsufficientGPU", "Fragmented"}
        for name in ("d1", "d1-1"):
            cluster.delete("pods", NAMESPACE, name)
        await until(lambda: not gated(cluster))


async def test_c118_a_short_notready_changes_nothing_of_what_runs(cluster: FileCluster, tmp_path: Path) -> None:
    """While the node is not ready its pods stay where they are in every account; afterwards all is as before."""
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
        bind_released(cluster)
        await until(lambda: all(reasons(cluster, n) == ["Placed"] for n in ("p0", "d0")))
        node = cluster.pod(NAMESPACE, "d0")["spec"]["nodeName"]

        def used() -> dict[str, list[int]]:
            snapshot = controller.state.snapshot(0.0, 0.0)
            return {name: snapshot.used[i].tolist() for i, name in enumerate(snapshot.table.names)}

        before, count = used(), len(writes(cluster))
        for ready in ("False", "True"):
            conditions = [{"type": "Ready", "status": ready}]
            cluster.change("nodes", "", node, {"status": {"conditions": conditions}})
            wanted = ready == "True"
            await until(
                lambda: controller.state.table().nodes[controller.state.table().index[node]].ready is wanted  # noqa: B023
            )
            assert used() == before
        assert len(writes(cluster)) == count


async def test_c127_a_new_node_rewrites_nobody(cluster: FileCluster, tmp_path: Path) -> None:
    """Thirty held gangs; a node comes that helps none of them, and another label: not one write to a pod."""
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, *(held(f"{half}-g{i:02}", gang=f"g{i:02}", gpus=6) for i in range(30) for half in "pd"))
        await until(lambda: controller.batch.held_gangs() == 30)
        await until(lambda: all(reasons(cluster, f"p-g{i:02}") for i in range(30)))
        await until(lambda: not controller.reporter._to_annotate)
        before, plans = len(writes(cluster)), controller.batch.plans
        cluster.create("nodes", {"metadata": {"name": "n3", "labels": {"a": "b"}}, "status": {"allocatable": {}}})
        await until(lambda: controller.batch.plans >= plans + 30)
        cluster.change("nodes", "", "n3", {"metadata": {"labels": {"a": "c"}}})
        await until(lambda: controller.batch.plans >= plans + 60)
        assert len(writes(cluster)) == before
