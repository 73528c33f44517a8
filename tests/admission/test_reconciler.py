"""Batch admission over a real list, watch and patch: whole gangs go, or wait and say why."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from admission.demo.file_cluster import FileCluster
from tests.admission.controllers import (
    bind_released,
    controlling,
    create,
    events,
    explained,
    gated,
    groups,
    kinds,
    nominations,
    not_overbooked,
    planned_again,
    pods_of,
    reasons,
    released,
    writes,
)
from tests.admission.held_pods import NAMESPACE, held
from tests.topology.list_watch_server import LIMIT_S, until
from topology.clock import monotonic_s
from topology.labels import GROUP_NAME, HOSTNAME, MIN_DECODE, REACH

# Two nodes beside each other on one leaf, one in another zone: 24.4 us apart, and 2 ms.
NODES: list[dict[str, Any]] = [
    {"name": "n1", "zone": "a", "spine": "s", "leaf": "l1", "gpus": 4, "rdma": True},
    {"name": "n2", "zone": "a", "spine": "s", "leaf": "l1", "gpus": 4, "rdma": True},
    {"name": "far", "zone": "b", "spine": "t", "leaf": "m1", "gpus": 4, "rdma": True},
]


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster(NODES) as made:
        yield made


# --- a gang goes -------------------------------------------------------------------------------


async def test_a_whole_gang_goes_in_the_order_that_keeps_promises(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path):
        create(cluster, held("p0", gpus=2), held("d0", gpus=2), held("d1", gpus=2))
        await until(lambda: "isochrone-chat" in groups(cluster))
    value = writes(cluster)
    assert kinds(value) == ["nominate", "pod", "group"]
    assert sorted(value[:3]) == [("nominate", "d0"), ("nominate", "d1"), ("nominate", "p0")]
    assert sorted(value[3:6]) == [("pod", "d0"), ("pod", "d1"), ("pod", "p0")]
    assert value[6:] == [("group", "isochrone-chat")]
    assert gated(cluster) == set()
    assert set(nominations(cluster).values()) == {"n1", "n2"}
    spec = groups(cluster)["isochrone-chat"]["spec"]
    assert (spec["minMember"], spec["minTaskMember"]) == (2, {"prefill": 1, "decode": 1})
    for pod in pods_of(cluster):
        assert explained(pod)
        (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term["matchExpressions"] == [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]
    not_overbooked(cluster)


async def test_a_bound_gang_is_told_and_left_alone(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert sorted(bind_released(cluster)) == ["d0", "p0"]
        await until(lambda: reasons(cluster, "p0") == reasons(cluster, "d0") == ["Placed"])
        assert controller.batch.held_gangs() == 0
        assert not controller.batch.busy
    assert kinds(writes(cluster)) == ["nominate", "pod", "group"]


async def test_a_gang_is_looked_at_at_once_when_its_owners_pods_are_here(cluster: FileCluster, tmp_path: Path) -> None:
    owners = [
        cluster.create(
            "replicasets", {"metadata": {"name": f"chat-{phase}", "namespace": NAMESPACE}, "spec": {"replicas": n}}
        )
        for phase, n in (("prefill", 1), ("decode", 2))
    ]
    async with controlling(cluster, tmp_path, settle="60s"):
        create(cluster, held("p0", owner=owners[0]), held("d0", owner=owners[1]))
        await until(lambda: len(cluster.requests) > 10)
        assert gated(cluster) == {"p0", "d0"}
        create(cluster, held("d1", owner=owners[1]))
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert [o["name"] for o in groups(cluster)["isochrone-chat"]["metadata"]["ownerReferences"]] == [
            "chat-decode",
            "chat-prefill",
        ]


async def test_pods_that_another_gate_holds_are_waited_for(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path, partner_after="100ms"):
        create(cluster, held("p0"), held("d0", gates_before=("example.com/budget",)))
        await until(lambda: reasons(cluster, "p0") == ["WaitingForPartner"])
        assert gated(cluster) == {"p0", "d0"}
        cluster.change("pods", NAMESPACE, "d0", {"spec": {"schedulingGates": [{"name": "isochrone.dev/reach"}]}})
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert gated(cluster) == set()


async def test_a_partner_that_nobody_holds_is_not_called_missing(cluster: FileCluster, tmp_path: Path) -> None:
    """Pods that `isochrone release` let go one after the other: the last ones are not told that they are alone."""
    async with controlling(cluster, tmp_path, partner_after="100ms"):
        create(cluster, held("p0"), held("d0", annotations={"isochrone.dev/reach-mode": "preferred"}))
        await until(lambda: reasons(cluster, "p0") == ["WaitingForPartner"])
    assert events(cluster, "p0")[0][1] == (
        "Its decode d0 is on no node yet and not held (let go by hand, or isochrone.dev/reach-mode: preferred): this "
        "pod is planned within reach of it once it is. If it finds no node, see its Events"
    )


# --- a gang waits ------------------------------------------------------------------------------


async def test_a_gang_that_cannot_fit_waits_whole_and_says_why(cluster: FileCluster, tmp_path: Path) -> None:
    # Two nodes of four GPUs are in reach of each other, and six on one node are nowhere.
    create(cluster, held("p0", gpus=2), held("d0", gpus=6))
    before = {pod["metadata"]["name"]: pod for pod in pods_of(cluster)}
    async with controlling(cluster, tmp_path) as controller:
        await until(lambda: all(explained(pod) for pod in pods_of(cluster)))
        await until(lambda: reasons(cluster, "p0") == reasons(cluster, "d0") == ["InsufficientGPU"])
        assert controller.batch.held_gangs() == 1
        cluster.change("nodes", "", "far", {"metadata": {"labels": {"touched": "yes"}}})  # news, and no room
        await planned_again(controller, controller.batch.plans)
    assert gated(cluster) == {"p0", "d0"}
    assert set(writes(cluster)) == {("pod", "p0"), ("pod", "d0")}
    for pod in pods_of(cluster):
        old = before[pod["metadata"]["name"]]
        assert (pod["spec"], pod["status"]) == (old["spec"], old["status"])
    assert groups(cluster) == {}
    assert "6 GPUs" in events(cluster, "d0")[0][1] or "2 short" in events(cluster, "d0")[0][1]


async def test_held_news_is_told_once_while_it_stays_the_same(cluster: FileCluster, tmp_path: Path) -> None:
    create(cluster, held("p0", gpus=2), held("d0", gpus=6))
    async with controlling(cluster, tmp_path) as controller:
        await until(lambda: all(explained(pod) for pod in pods_of(cluster)))
        for turn in range(3):
            plans = controller.batch.plans
            cluster.change("nodes", "", "far", {"metadata": {"labels": {"touched": str(turn)}}})
            await planned_again(controller, plans)
        assert await controller.events.drain(LIMIT_S)
    assert sorted(writes(cluster)) == [("pod", "d0"), ("pod", "p0")]
    assert [event["count"] for event in cluster.objects("events")] == [1, 1]


async def test_a_held_gang_is_placed_for_the_news_of_a_fitting_node(cluster: FileCluster, tmp_path: Path) -> None:
    create(cluster, held("p0", gpus=2), held("d0", gpus=6))
    async with controlling(cluster, tmp_path, retry_s=3600) as controller:
        await until(lambda: controller.batch.held_gangs() == 1)
        cluster.create("nodes", FileCluster([{**NODES[0], "name": "n3", "gpus": 8}]).objects("nodes")[0])
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert released(cluster)["d0"] == "n3"
        assert controller.batch.held_gangs() == 0


async def test_a_held_gang_is_placed_when_somebody_else_ends(tmp_path: Path) -> None:
    async with (
        FileCluster([{"name": "n1", "gpus": 4, "used": 3}]) as cluster,
        controlling(cluster, tmp_path) as controller,
    ):
        create(cluster, held("p0"), held("d0"))
        await until(lambda: controller.batch.held_gangs() == 1)
        cluster.change("pods", "elsewhere", "on-n1", {"status": {"phase": "Succeeded"}})
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert released(cluster) == {"p0": "n1", "d0": "n1"}


async def test_one_phase_alone_waits_for_its_partner_and_says_so_in_time(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path, partner_after="400ms") as controller:
        came_s = monotonic_s()
        create(cluster, held("p0"))
        await until(lambda: controller.batch.plans > 0)
        await until(lambda: reasons(cluster, "p0") == ["WaitingForPartner"])
        assert monotonic_s() - came_s >= 0.4
        assert gated(cluster) == {"p0"}
        create(cluster, held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
    assert set(kinds(writes(cluster))) == {"nominate", "pod", "group"}


async def test_fewer_pods_than_the_minimum_wait_for_the_rest(cluster: FileCluster, tmp_path: Path) -> None:
    wishes = {MIN_DECODE: "2"}
    async with controlling(cluster, tmp_path, partner_after="100ms"):
        create(cluster, held("p0", annotations=wishes), held("d0", annotations=wishes))
        await until(lambda: reasons(cluster, "d0") == ["WaitingForGang"])
        create(cluster, held("d1", annotations=wishes))
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert gated(cluster) == set()
        assert groups(cluster)["isochrone-chat"]["spec"]["minMember"] == 3


# --- beyond the minimum ------------------------------------------------------------------------


async def test_whoever_does_not_fit_beyond_the_minimum_waits_alone(tmp_path: Path) -> None:
    async with FileCluster([{"name": "n1", "gpus": 3}]) as cluster, controlling(cluster, tmp_path):
        create(cluster, held("p0"), *(held(f"d{i}") for i in range(4)))
        await until(lambda: "isochrone-chat" in groups(cluster) and len(gated(cluster)) == 2)
        left = gated(cluster)
        await until(lambda: all(explained(pod) for pod in pods_of(cluster, *left)))
        assert bind_released(cluster)
        assert gated(cluster) == left
        for name in left:
            await until(lambda name=name: reasons(cluster, name) == ["InsufficientGPU"])  # type: ignore[misc]
            assert "has its minimum" in events(cluster, name)[0][1]
        # One that runs ends: its room is for one of those that wait.
        done = next(name for name in released(cluster) if name.startswith("d"))
        cluster.delete("pods", NAMESPACE, done)
        await until(lambda: len(gated(cluster)) == 1)
        not_overbooked(cluster)


async def test_joiners_come_to_the_partners_that_run(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path):
        create(cluster, held("p0", annotations={REACH: "100us"}, nodeSelector={HOSTNAME: "far"}), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
        bind_released(cluster)
        before = len(writes(cluster))
        create(
            cluster, held("d1"), held("d2"), held("d3")
        )  # two find room beside the partner; the others' zone is 2 ms away
        await until(lambda: len(released(cluster)) == 4)
        assert set(released(cluster).values()) == {"far"}
        await until(lambda: len(gated(cluster)) == 1 and all(explained(p) for p in pods_of(cluster)))
        assert "group" not in [kind for kind, _ in writes(cluster)[before:]]
        (last,) = gated(cluster)
        await until(lambda: reasons(cluster, last) == ["ReachExceeded"])
        not_overbooked(cluster)


# --- PodGroups ---------------------------------------------------------------------------------


async def test_a_pod_group_that_is_deleted_is_made_again(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path):
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
        for step in ("released", "bound"):
            uid = groups(cluster)["isochrone-chat"]["metadata"]["uid"]
            cluster.delete("podgroups", NAMESPACE, "isochrone-chat")
            await until(lambda: "isochrone-chat" in groups(cluster))
            assert groups(cluster)["isochrone-chat"]["metadata"]["uid"] != uid, step
            bind_released(cluster)


async def test_a_pod_group_that_went_before_the_watch_could_show_it_is_made_again(
    cluster: FileCluster, tmp_path: Path
) -> None:
    async with controlling(cluster, tmp_path) as controller:
        for _ in range(3):
            cluster.fail_next("WATCH", "/podgroups$", 500)
        cluster.cut_watches()
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
        cluster.delete("podgroups", NAMESPACE, "isochrone-chat")
        cluster.forget_history()  # the next list finds neither the group nor that it went
        assert controller.pod_groups.objects == {}
        await until(lambda: "isochrone-chat" in groups(cluster))


async def test_somebody_elses_pod_group_is_waited_for_and_never_written(cluster: FileCluster, tmp_path: Path) -> None:
    theirs = {GROUP_NAME: "training"}
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0", annotations=theirs), held("d0", annotations=theirs))
        await until(lambda: reasons(cluster, "p0") == ["WaitingForGang"])
        assert "training" in events(cluster, "p0")[0][1]
        assert gated(cluster) == {"p0", "d0"}
        assert controller.batch.plans == 0
        made = cluster.create(
            "podgroups", {"metadata": {"name": "training", "namespace": NAMESPACE}, "spec": {"minMember": 9}}
        )
        await until(lambda: gated(cluster) == set())
    assert groups(cluster) == {"training": made}
    assert {kind for kind, _ in writes(cluster)} == {"nominate", "pod"}
