"""Where two features meet: units with queues and preemption, room kept for pods to come with pods that come one by one,
overtaking with gangs that stop waiting. Through a real controller over a cluster from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from admission.demo.file_cluster import FileCluster
from admission.gangs.expected_pods import expected_of
from admission.gangs.gang_view import request_of, view_of
from admission.upkeep.stuck_pod_policy import Step, StuckPodPolicy
from tests.admission.controllers import bind_released, controlling, create, gated, groups, reasons, released, writes
from tests.admission.held_pods import CHAT, NAMESPACE, held, stored
from tests.admission.held_pods import released as let_go
from tests.admission.test_fairness import pair, pod_group, queue, tenant
from tests.admission.test_units import lws, stateful_set
from tests.topology.list_watch_server import until
from topology.cluster.state import ClusterState
from topology.labels import GPU_MEMORY, MIN_DECODE, QUEUE_NAME
from topology.objects import Metadata, Pod, Workload, WorkloadSpec

SMALL = {QUEUE_NAME: "small"}


# --- units -------------------------------------------------------------------------------------


async def test_a_queue_tears_no_unit_apart(tmp_path: Path) -> None:
    """4 GPUs in the queue: one prefill pod and a unit of two take 3; half of the second unit would fit the last."""
    async with FileCluster([{"name": "n1", "gpus": 8}]) as cluster:
        queue(cluster, "small", 4)
        async with controlling(cluster, tmp_path) as controller:
            pods = [lws(group, worker, 2) for group in range(2) for worker in range(2)]
            for pod in pods:
                pod["metadata"]["annotations"] |= SMALL
            create(cluster, held("p0", annotations=SMALL), *pods)
            await until(lambda: "isochrone-chat" in groups(cluster))
            await until(lambda: reasons(cluster, "d1") == reasons(cluster, "d1-1") == ["WaitingForQueue"])
            await until(lambda: not controller.batch.busy)
            assert released(cluster).keys() == {"p0", "d0", "d0-1"}


async def test_preemption_tears_no_unit_apart(tmp_path: Path) -> None:
    """Four of five inferiors may leave; of a prefill pod and two units of two, one unit goes and one stays."""
    async with FileCluster([{"name": "n1", "gpus": 5}]) as cluster:
        pod_group(cluster, "batch", 1)
        for i in range(5):
            tenant(cluster, f"t{i}", 1)
        async with controlling(cluster, tmp_path) as controller:
            units = [lws(group, worker, 2, priority=10) for group in range(2) for worker in range(2)]
            create(cluster, held("p0", priority=10), *units)
            await until(lambda: "isochrone-chat" in groups(cluster))
            await until(lambda: not controller.batch.busy)
            assert len({"d0", "d0-1"} & gated(cluster)) != 1
            assert len({"d1", "d1-1"} & gated(cluster)) != 1


async def test_of_a_unit_that_cannot_be_nominated_whole_nobody_goes(tmp_path: Path) -> None:
    """One nomination of the second unit is refused: its other pod stays with it, and both go at the next try."""
    async with FileCluster([{"name": "n1", "gpus": 8}]) as cluster, controlling(cluster, tmp_path):
        cluster.fail_next("PATCH", "/pods/d1-1/status$", 422)
        create(cluster, held("p0"), *(lws(group, worker, 2) for group in range(2) for worker in range(2)))
        await until(lambda: not gated(cluster))
        value = writes(cluster)
        last_nomination = max(i for i, write in enumerate(value) if write == ("nominate", "d1-1"))
        assert value.count(("nominate", "d1-1")) == 2
        assert value.index(("pod", "d1")) > last_nomination
        assert value.index(("pod", "d0")) < last_nomination


@pytest.mark.parametrize("size", [1, 2])
def test_a_pod_of_an_lws_is_never_made_anew(size: int) -> None:
    """Its controller is a StatefulSet that LWS made; deleting it makes LWS restart the group, running pods included."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "decode", "uid": "u1"}}
    pod = stored(let_go(lws(0, 0, size, owner=owner), "n1"))
    read = StuckPodPolicy(60)
    read.step(CHAT, pod, 0, fits_nomination=True)
    assert read.step(CHAT, pod, 60, fits_nomination=True) is Step.REPORT


# --- pods to come ------------------------------------------------------------------------------


def test_copies_of_a_pod_ask_for_the_memory_it_asks_for() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "decode", "uid": "u1"}}
    pods = [
        stored(held("p0")),
        stored(held("d0", owner=owner, annotations={MIN_DECODE: "2", GPU_MEMORY: "30Gi"})),
    ]
    view = view_of(CHAT, pods)
    decode = Workload(Metadata(name="decode", uid="u1"), WorkloadSpec(replicas=2))

    def controller_of(pod: Pod) -> Workload | None:
        return decode if pod.metadata.controller else None

    asked = request_of(view, ClusterState().table())
    (copy,) = expected_of(view, asked, controller_of, controller_of).pods
    (like,) = (m for m in asked.members if m.name == "d0")
    assert like.gpu is not None
    assert (copy.gpu, copy.hold) == (like.gpu, like.hold)


async def test_room_kept_for_a_unit_is_kept_while_its_pods_come_one_by_one(tmp_path: Path) -> None:
    """The first worker is here, the second is not: another gang must not take the second one's node."""
    template = {"containers": [{"name": "w", "resources": {"requests": {"nvidia.com/gpu": "8"}}}]}
    spec = {
        "replicas": 1,
        "startupPolicy": "LeaderReady",
        "leaderWorkerTemplate": {"size": 3, "workerTemplate": {"spec": template}},
    }
    nodes = [{"name": f"n{i}", "zone": "a", "leaf": "l", "gpus": 8} for i in range(4)]
    async with FileCluster(nodes) as cluster:
        group = cluster.create(
            "leaderworkersets", {"metadata": {"name": "decode", "namespace": NAMESPACE}, "spec": spec}
        )
        async with controlling(cluster, tmp_path) as controller:
            create(cluster, held("p0", gpus=8), lws(0, 0, 3, owner=group, gpus=8))
            await until(lambda: "isochrone-chat" in groups(cluster))
            bind_released(cluster)
            create(cluster, lws(0, 1, 3, gpus=8))
            plans = controller.batch.plans
            create(cluster, *(held(f"{x}-other", gang="other", gpus=4) for x in "pd"))
            await until(lambda: controller.batch.plans > plans and not controller.batch.busy)
            assert {"p-other", "d-other"} <= gated(cluster)
            create(cluster, lws(0, 2, 3, gpus=8))
            await until(lambda: gated(cluster) == {"p-other", "d-other"})
            assert not [uid for uid in controller.state._assumed if uid.startswith("expected/")]


async def test_a_leader_whose_workers_are_to_come_says_that_it_waits_for_a_partner(tmp_path: Path) -> None:
    spec = {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": {"size": 3}}
    async with FileCluster([{"name": "n1", "gpus": 8}]) as cluster:
        group = cluster.create(
            "leaderworkersets", {"metadata": {"name": "decode", "namespace": NAMESPACE}, "spec": spec}
        )
        async with controlling(cluster, tmp_path, partner_after="100ms"):
            create(cluster, lws(0, 0, 3, owner=group))
            await until(lambda: reasons(cluster, "d0") == ["WaitingForPartner"])


@pytest.mark.parametrize("how", ["nodes", "quota"])
async def test_pods_for_whom_room_was_kept_wait_behind_nobody(tmp_path: Path, how: str) -> None:
    """One of three nodes is kept for d1. A gang of higher priority wants two and may not be passed at all: it gets
    neither the kept node nor the kept quota, and d1 goes all the same."""
    nodes = [{"name": f"n{i}", "zone": "a", "leaf": "l", "gpus": 8} for i in range(4 if how == "quota" else 3)]
    async with FileCluster(nodes) as cluster:
        queue(cluster, "default", 24)
        owner = stateful_set(cluster, "decode", 2)
        wishes = {MIN_DECODE: "2"}
        async with controlling(cluster, tmp_path, bypass_limit="0", preemption="false"):
            create(cluster, held("p0", gpus=8), held("d0", gpus=8, owner=owner, annotations=wishes))
            await until(lambda: "isochrone-chat" in groups(cluster))
            bind_released(cluster)
            create(cluster, *pair("vip", 4 if how == "quota" else 6, priority=10))
            if how == "quota":
                await until(lambda: reasons(cluster, "p-vip") == ["WaitingForQueue"])
            else:
                await until(lambda: bool(reasons(cluster, "p-vip")))
            create(cluster, held("d1", gpus=8, owner=owner, annotations=wishes))
            await until(lambda: "d1" in released(cluster))
            assert gated(cluster) == {"p-vip", "d-vip"}


# --- waiting behind an older gang --------------------------------------------------------------


@pytest.mark.parametrize("how", ["a pod goes", "a gate comes"])
async def test_who_waited_behind_a_gang_that_stops_waiting_goes(tmp_path: Path, how: str) -> None:
    """The old gang loses a pod (or cannot be planned at all any more); nothing else happens in the cluster."""
    async with (
        FileCluster([{"name": "n1", "gpus": 8}]) as cluster,
        controlling(cluster, tmp_path, bypass_limit="0") as controller,
    ):
        create(cluster, *pair("first"))
        await until(lambda: len(bind_released(cluster)) == 2)
        create(cluster, *pair("old", 4))
        await until(lambda: controller.batch.held_gangs() == 1)
        create(cluster, *pair("young"))
        await until(lambda: reasons(cluster, "p-young") == ["WaitingForQueue"])
        if how == "a pod goes":
            cluster.delete("pods", NAMESPACE, "p-old")
        else:
            for name in ("p-old", "d-old"):
                gates = cluster.pod(NAMESPACE, name)["spec"]["schedulingGates"]
                cluster.change("pods", NAMESPACE, name, {"spec": {"schedulingGates": [*gates, {"name": "x"}]}})
        await until(lambda: "isochrone-young" in groups(cluster))


async def test_a_gang_whose_queue_is_closed_stands_before_nobody(tmp_path: Path) -> None:
    """Held for room, passed as often as it may be; then its queue closes, so room is not what it waits for."""
    async with FileCluster([{"name": "n1", "gpus": 8}]) as cluster:
        queue(cluster, "default", None)
        queue(cluster, "small", None)
        async with controlling(cluster, tmp_path, bypass_limit="0") as controller:
            create(cluster, *pair("first"))
            await until(lambda: len(bind_released(cluster)) == 2)
            create(cluster, *pair("old", 4, annotations=SMALL))
            await until(lambda: controller.batch.held_gangs() == 1)
            create(cluster, *pair("young"))
            await until(lambda: reasons(cluster, "p-young") == ["WaitingForQueue"])
            cluster.change("queues", "", "small", {"status": {"state": "Closed"}})
            cluster.delete("pods", NAMESPACE, "d-first")  # the old gang is asked again: it has its queue to wait for
            await until(lambda: "isochrone-young" in groups(cluster))
