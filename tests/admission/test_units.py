"""Members of several pods, and pods that come only once others are ready: read, planned and let go as wholes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from admission.demo.cluster_file import expand
from admission.demo.file_cluster import FileCluster
from admission.recognition.replica_group import (
    LWS_GROUP,
    LWS_GROUP_KEY,
    LWS_NAME,
    LWS_SIZE,
    LWS_WORKER,
    identified_by,
    short_units,
    size_of,
    unit_of,
)
from scheduler.model.decision import Outcome
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, PodRequest
from scheduler.planning.plan import plan
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
from tests.admission.held_pods import NAMESPACE, held, stored
from tests.admission.pods import Raw
from tests.topology.list_watch_server import until
from topology.cluster.snapshot import snapshot_of
from topology.labels import MIN_DECODE, NVIDIA_GPU
from topology.objects import Node


def lws(group: int, worker: int, size: int, name: str = "decode", **more: object) -> Raw:
    """One pod of an LWS group as LWS labels it; worker 0 is the leader."""
    pod = held(
        f"d{group}" + (f"-{worker}" if worker else ""),
        annotations={LWS_SIZE: str(size)},
        **more,  # type: ignore[arg-type]
    )
    pod["metadata"]["labels"] |= {
        LWS_NAME: name,
        LWS_GROUP: str(group),
        LWS_WORKER: str(worker),
        LWS_GROUP_KEY: f"key-{group}",
    }
    return pod


# --- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("output", "size"), [("4", 4), ("1", 1), ("", 1), ("x", 1), ("-2", 1), ("0", 1), ("99999", 1)])
def test_sizes(output: str, size: int) -> None:
    pod = stored(lws(0, 0, 2))
    annotations = {**(pod.metadata.annotations or {}), LWS_SIZE: output}
    changed = stored({"metadata": {"name": "d0", "labels": pod.metadata.labels, "annotations": annotations}})
    assert size_of(changed) == size
    assert unit_of(changed) == ("decode/0" if size > 1 else "")


KTHENA = {"modelserving.volcano.sh/group-name": "chat-0", "modelserving.volcano.sh/role-id": "prefill-1"}
RBG = {"rbg.workloads.x-k8s.io/role-instance-name": "chat-prefill-1"}
AIBRIX = {"stormservice.orchestration.aibrix.ai/podset-name": "chat-prefill-1"}


@pytest.mark.parametrize(
    ("labels", "variables", "unit", "size", "apart"),
    [
        (KTHENA, {"GROUP_SIZE": "3"}, "chat-0/prefill-1", 3, "modelserving.volcano.sh/role-id"),
        (RBG, {"RBG_LWP_GROUP_SIZE": "2"}, "chat-prefill-1", 2, "rbg.workloads.x-k8s.io/role-instance-name"),
        (AIBRIX, {"POD_GROUP_SIZE": "4"}, "chat-prefill-1", 4, "stormservice.orchestration.aibrix.ai/podset-name"),
        (KTHENA, {"GROUP_SIZE": "1"}, "", 1, ""),
        (KTHENA, {"GROUP_SIZE": "many"}, "", 1, ""),
        (KTHENA, {}, "", 1, ""),
        ({"modelserving.volcano.sh/role-id": "prefill-1"}, {"GROUP_SIZE": "3"}, "", 1, ""),  # of which group?
        ({}, {"GROUP_SIZE": "3", "POD_GROUP_SIZE": "3"}, "", 1, ""),  # anybody's variable
    ],
)
def test_units_of_other_systems(
    labels: dict[str, str], variables: dict[str, str], unit: str, size: int, apart: str
) -> None:
    env = [{"name": name, "value": value} for name, value in variables.items()]
    spec = {"containers": [{"name": "sidecar"}, {"name": "engine", "env": env}]}
    pod = stored({"metadata": {"name": "p0", "labels": labels}, "spec": spec})
    assert (unit_of(pod), size_of(pod), identified_by(pod)) == (unit, size, apart)


def kthena(role: str, copy: int, worker: int, size: int, **more: object) -> Raw:
    pod = held(f"{role[0]}{copy}-{worker}", **more)  # type: ignore[arg-type]
    pod["metadata"]["labels"] |= {
        "modelserving.volcano.sh/group-name": "chat-0",
        "modelserving.volcano.sh/role-id": f"{role}-{copy}",
    }
    pod["spec"]["containers"][0]["env"] = [{"name": "GROUP_SIZE", "value": str(size)}]
    return pod


def test_what_is_missing_of_a_unit() -> None:
    """Two of four are here; one more is expected: one is missing."""
    pods = [stored(lws(0, 0, 4)), stored(lws(0, 1, 4)), stored(held("p0"))]
    assert short_units(pods) == {"decode/0": 2}
    assert short_units(pods, {"decode/0": 1}) == {"decode/0": 1}
    assert short_units(pods, {"decode/0": 2}) == {}


# --- carried out -------------------------------------------------------------------------------


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    nodes = [{"name": f"n{i}", "zone": "a", "leaf": "l", "gpus": 8} for i in range(1, 5)]
    async with FileCluster(nodes) as made:
        yield made


async def test_a_group_of_four_over_four_nodes_goes_as_one_member(cluster: FileCluster, tmp_path: Path) -> None:
    """Each pod takes 7 GPUs of a node of 8, the prefill pod the eighth of one."""
    async with controlling(cluster, tmp_path):
        create(cluster, held("p0"), *(lws(0, worker, 4, gpus=7) for worker in range(4)))
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert gated(cluster) == set()
        assert sorted(node for pod, node in nominations(cluster).items() if pod != "p0") == ["n1", "n2", "n3", "n4"]
        spec = groups(cluster)["isochrone-chat"]["spec"]
        assert spec["minMember"] == 5
        assert "minTaskMember" not in spec
        assert spec["subGroupPolicy"] == [
            {
                "name": "decode",
                "labelSelector": {"matchLabels": {"isochrone.dev/phase": "decode"}},
                "matchLabelKeys": [LWS_GROUP_KEY],
                "subGroupSize": 4,
                "minSubGroups": 1,
            }
        ]


async def test_a_copy_of_a_role_of_kthena_goes_as_one_member(cluster: FileCluster, tmp_path: Path) -> None:
    """Decode pods of 5 GPUs, two to a copy: of four nodes with 8 and a prefill pod of 5, one copy fits and no half."""
    async with controlling(cluster, tmp_path) as controller:
        copies = [kthena("decode", copy, worker, 2, gpus=5) for copy in range(2) for worker in range(2)]
        create(cluster, held("p0", gpus=5), *copies)
        await until(lambda: "isochrone-chat" in groups(cluster))
        await until(lambda: not controller.batch.busy)
        assert gated(cluster) in ({"d0-0", "d0-1"}, {"d1-0", "d1-1"})
        spec = groups(cluster)["isochrone-chat"]["spec"]
        (policy,) = spec["subGroupPolicy"]
        assert (spec["minMember"], policy["subGroupSize"]) == (3, 2)
        assert policy["matchLabelKeys"] == ["modelserving.volcano.sh/role-id"]


async def test_a_group_is_not_torn_apart(cluster: FileCluster, tmp_path: Path) -> None:
    """Two groups of two pods with 7 GPUs each fit four nodes; of a third group nobody goes."""
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), *(lws(g, w, 2, gpus=7) for g in range(3) for w in range(2)))
        await until(lambda: "isochrone-chat" in groups(cluster))
        await until(lambda: not controller.batch.busy)
        assert gated(cluster) == {"d2", "d2-1"}
        assert groups(cluster)["isochrone-chat"]["spec"]["minMember"] == 3


async def test_three_nodes_for_a_group_of_four_are_not_enough(tmp_path: Path) -> None:
    nodes = [{"name": f"n{i}", "zone": "a", "leaf": "l", "gpus": 8} for i in range(3)]
    async with FileCluster(nodes) as cluster, controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), *(lws(0, worker, 4, gpus=7) for worker in range(4)))
        await until(lambda: controller.batch.held_gangs() == 1)
        assert released(cluster) == {}


async def test_a_group_that_is_not_all_there_waits(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path, partner_after="100ms"):
        create(cluster, held("p0"), lws(0, 0, 3), lws(0, 1, 3))
        await until(lambda: reasons(cluster, "d0") == reasons(cluster, "d0-1") == ["WaitingForGang"])
        assert events(cluster, "d0")[0][1].startswith("1 pods of its group decode/0 are missing")
        await until(lambda: reasons(cluster, "p0") == ["WaitingForPartner"])  # and not that there are no decode pods
        assert events(cluster, "p0")[0][1].startswith("1 pods of the group decode/0 of its gang are missing")
        create(cluster, lws(0, 2, 3))
        await until(lambda: not gated(cluster))


# --- owners that wait for readiness ------------------------------------------------------------


def stateful_set(cluster: FileCluster, name: str, replicas: int, policy: str = "") -> Raw:
    spec: Raw = {"replicas": replicas} | ({"podManagementPolicy": policy} if policy else {})
    return cluster.create("statefulsets", {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})


async def test_an_ordered_owner_is_planned_with_what_it_will_make(cluster: FileCluster, tmp_path: Path) -> None:
    """decode-1 comes when decode-0 is ready. Both are planned; one goes, the other's room is kept."""
    owner = stateful_set(cluster, "decode", 2)
    wishes = {MIN_DECODE: "2"}
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0", gpus=8), held("d0", gpus=8, owner=owner, annotations=wishes))
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert gated(cluster) == set()
        assert groups(cluster)["isochrone-chat"]["spec"]["minMember"] == 2
        bind_released(cluster)
        create(cluster, *(held(f"{x}-other", gang="other", gpus=8) for x in "pd"))
        await until(lambda: controller.batch.held_gangs() == 1)  # one node is free, one is kept
        assert {"p-other", "d-other"} <= gated(cluster)
        create(cluster, held("d1", gpus=8, owner=owner, annotations=wishes))
        await until(lambda: "d1" in released(cluster))
        await until(lambda: groups(cluster)["isochrone-chat"]["spec"]["minMember"] == 3)


async def test_kept_room_is_given_back_in_time(cluster: FileCluster, tmp_path: Path) -> None:
    owner = stateful_set(cluster, "decode", 2)
    async with controlling(cluster, tmp_path, reserve_for="1s"):
        create(cluster, held("p0", gpus=8), held("d0", gpus=8, owner=owner, annotations={MIN_DECODE: "2"}))
        await until(lambda: "isochrone-chat" in groups(cluster))
        bind_released(cluster)
        create(cluster, *(held(f"{x}-other", gang="other", gpus=8) for x in "pd"))
        await until(lambda: "isochrone-other" in groups(cluster))


async def test_an_owner_that_makes_all_at_once_is_waited_for(cluster: FileCluster, tmp_path: Path) -> None:
    owner = stateful_set(cluster, "decode", 2, "Parallel")
    async with controlling(cluster, tmp_path, partner_after="100ms"):
        create(cluster, held("p0"), held("d0", owner=owner, annotations={MIN_DECODE: "2"}))
        await until(lambda: reasons(cluster, "d0") == ["WaitingForGang"])
        assert gated(cluster) == {"p0", "d0"}


async def test_a_leader_that_must_be_ready_first(cluster: FileCluster, tmp_path: Path) -> None:
    """LWS makes the workers once the leader is ready: the leader goes, the workers' room is kept."""
    template = {"containers": [{"name": "w", "resources": {"requests": {"nvidia.com/gpu": "8"}}}]}
    group = cluster.create(
        "leaderworkersets",
        {
            "metadata": {"name": "decode", "namespace": NAMESPACE},
            "spec": {
                "replicas": 1,
                "startupPolicy": "LeaderReady",
                "leaderWorkerTemplate": {"size": 3, "workerTemplate": {"spec": template}},
            },
        },
    )
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), lws(0, 0, 3, owner=group))
        await until(lambda: "isochrone-chat" in groups(cluster))
        bind_released(cluster)
        retained = [uid for uid in controller.state._assumed if uid.startswith("expected/")]
        assert len(retained) == 2
        create(cluster, lws(0, 1, 3, gpus=8), lws(0, 2, 3, gpus=8))
        await until(lambda: not gated(cluster))
        assert not [uid for uid in controller.state._assumed if uid.startswith("expected/")]


# --- planned as wholes -------------------------------------------------------------------------


def rigid(*groups: tuple[int, ...], min_decode: int = 1) -> GangRequest:
    """One prefill pod of 1 GPU, and decode groups whose pods take so many GPUs each."""
    members = [PodRequest("p0", "team", "p0", "prefill", {NVIDIA_GPU: 1})]
    for number, gpus in enumerate(groups):
        for worker, amount in enumerate(gpus):
            uid = f"d{number}-{worker}"
            members.append(PodRequest(uid, "team", uid, "decode", {NVIDIA_GPU: amount}, unit=f"decode/{number}"))
    return GangRequest("team", "chat", tuple(members), min_decode=min_decode * len(groups[0]))


@pytest.mark.parametrize(
    ("groups", "nodes", "goes"),
    [
        (((1, 8), (1, 8)), 3, ""),  # two leaders would fit and be pods enough: of no group all fit
        (((1, 8), (1, 2)), 3, "d1"),  # the second group fits whole: 1 + 1 + 2 on nodes of 4
        (((2, 4), (2, 4)), 2, "d0"),  # 1 + 2 on one node, 4 on the other; the other leader has no room
        (((4, 4), (4, 4)), 2, ""),  # 1 + 4 + 4 are more than two nodes of 4
    ],
)
def test_a_minimum_is_made_of_whole_groups(groups: tuple[tuple[int, ...], ...], nodes: int, goes: str) -> None:
    """And what is held is held for room, with a decision for everybody: it is not said to wait for pods."""
    made, _ = expand([{"name": f"n{i}", "zone": "a", "leaf": "l", "gpus": 4} for i in range(nodes)], None, ())
    cluster = [msgspec.convert(node, Node, strict=False) for node in made]
    gang = rigid(*groups)
    result = plan(gang, snapshot_of(cluster, []), Policy(), advise=False)
    assert {uid.partition("-")[0] for uid in result.places} == ({"p0", goes} if goes else set())
    assert result.outcome == (Outcome.PLANNED if goes else Outcome.HELD)
    if not goes:
        assert result.decisions.keys() == {m.uid for m in gang.members}
        assert {m.uid for m in result.request.members} == {m.uid for m in gang.members}
        assert (result.request.min_decode, result.shortfall is not None) == (gang.min_decode, True)


async def test_a_gang_whose_groups_have_no_room_goes_when_room_comes(tmp_path: Path) -> None:
    """Only the leaders would fit, as many pods as the minimum asks for: it waits for room, and is asked again."""
    small, large = ({"name": f"n{gpus}", "zone": "a", "leaf": "l", "gpus": gpus} for gpus in (4, 9))
    async with FileCluster([small]) as cluster, controlling(cluster, tmp_path):
        create(cluster, held("p0"), *(lws(g, w, 2, gpus=1 + 7 * w) for g in (0, 1) for w in (0, 1)))
        names = {"p0", "d0", "d0-1", "d1", "d1-1"}
        await until(lambda: all(reasons(cluster, name) for name in names))
        assert {reasons(cluster, name)[0] for name in names} <= {"InsufficientGPU", "Fragmented"}
        cluster.create("nodes", FileCluster([large]).objects("nodes")[0])
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert len(gated(cluster)) == 2
