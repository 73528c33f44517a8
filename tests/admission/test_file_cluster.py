"""The cluster from a file: the API server's semantics that Isochrone rests on, told by its own clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admission.demo.cluster_kinds import Refused
from admission.demo.file_cluster import FileCluster
from tests.topology.list_watch_server import LIMIT_S, running, until
from topology.kube.api import ApiError, ApiFailure, ApiUnreachable, KubeApi
from topology.kube.events import NORMAL, EventSink, Involved
from topology.kube.informer import Informer, InformerSettings
from topology.labels import GATE, ZONE
from topology.objects import Node, Pod, PodGroup

QUICK = InformerSettings(backoff_first_s=0.01, backoff_cap_s=0.02, brief_s=0.0, absent_retry_s=0.05)
NODES: list[dict[str, Any]] = [
    {"name": "n1", "zone": "a", "spine": "s", "leaf": "l1", "used": 3, "rdma": True},
    {"name": "n2", "zone": "a", "spine": "s", "leaf": "l1"},
]
PODS = "/api/v1/namespaces/team/pods"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/team/podgroups"
HOST = "kubernetes.io/hostname"


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster(NODES) as made:
        yield made


@pytest.fixture
async def api(cluster: FileCluster, tmp_path: Path) -> AsyncGenerator[KubeApi]:
    async with await KubeApi.connect(cluster.kubeconfig(tmp_path / "kubeconfig")) as made:
        yield made


def pod(name: str = "p", *, gates: tuple[str, ...] = (GATE,), **spec: Any) -> dict[str, Any]:
    gated = {"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}
    return {
        "metadata": {"name": name, "namespace": "team", "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "i"}], **gated, **spec},
    }


def decoded(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(body)
    return found


def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def within(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


# --- reading -----------------------------------------------------------------------------------


async def test_lists_come_in_pages_and_by_selector(cluster: FileCluster, api: KubeApi) -> None:
    for name in ("a", "b", "c"):
        cluster.create_pod(pod(name))
    names: list[str] = []
    params = {"limit": "2", "labelSelector": "app in (a,b,c)"}
    for _ in range(2):
        page = decoded(await api.get("/api/v1/pods", params=params))
        names += [item["metadata"]["name"] for item in page["items"]]
        params["continue"] = page["metadata"].get("continue", "")
    assert names == ["a", "b", "c"]
    waiting = {"fieldSelector": "spec.nodeName=,status.phase=Pending", "labelSelector": "app!=b"}
    page = decoded(await api.get(PODS, params=waiting))
    assert [item["metadata"]["name"] for item in page["items"]] == ["a", "c"]


async def test_a_page_after_a_change_is_refused(cluster: FileCluster, api: KubeApi) -> None:
    for name in ("a", "b", "c"):
        cluster.create_pod(pod(name))
    token = decoded(await api.get(PODS, params={"limit": "1"}))["metadata"]["continue"]
    cluster.create_pod(pod("d"))
    with pytest.raises(ApiError) as error:
        await api.get(PODS, params={"limit": "1", "continue": token})
    assert error.value.gone


@pytest.mark.parametrize("path", ["/apis/example.com/v1/things", "/api/v1/pods/p", "/nothing", f"{PODS}/p"])
async def test_what_is_not_there_is_a_status(api: KubeApi, path: str) -> None:
    with pytest.raises(ApiError) as error:
        await api.get(path)
    assert error.value.not_found
    assert error.value.reason == "NotFound"


async def test_another_token_is_not_let_in(cluster: FileCluster, tmp_path: Path) -> None:
    cluster.token, retained = "wrong", cluster.token
    path = cluster.kubeconfig(tmp_path / "wrong")
    cluster.token = retained
    async with await KubeApi.connect(path) as api:
        with pytest.raises(ApiError) as error:
            await api.get("/api/v1/nodes")
    assert error.value.status == 401


# --- writing -----------------------------------------------------------------------------------


async def test_created_objects_get_what_the_server_gives(api: KubeApi) -> None:
    made = decoded(await api.create(PODS, {**pod(), "status": {"phase": "Running"}}))
    meta = made["metadata"]
    assert meta["uid"]
    assert int(meta["resourceVersion"]) > 0
    assert meta["creationTimestamp"].endswith("Z")
    assert made["status"]["phase"] == "Pending"  # the status of a creation is not believed
    assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
    with pytest.raises(ApiError) as error:
        await api.create(PODS, pod())
    assert error.value.already_exists
    named = decoded(await api.create(PODS, {**pod(), "metadata": {"generateName": "chat-"}}))
    assert named["metadata"]["name"].startswith("chat-")


async def test_a_json_patch_with_a_test_that_fails_changes_nothing(cluster: FileCluster, api: KubeApi) -> None:
    cluster.create_pod(pod())
    ops = [
        {"op": "test", "path": "/metadata/uid", "value": "another"},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]
    with pytest.raises(ApiError) as error:
        await api.patch_json(f"{PODS}/p", ops)
    assert error.value.invalid
    assert cluster.pod("team", "p")["spec"]["schedulingGates"]


async def test_a_release_opens_the_gate_and_narrows_the_affinity_in_one_patch(
    cluster: FileCluster, api: KubeApi
) -> None:
    cluster.create_pod(pod(affinity=affinity([within(ZONE, "a", "b")])))
    uid = cluster.pod("team", "p")["metadata"]["uid"]
    path = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0"
    ops = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
        {"op": "add", "path": f"{path}/matchExpressions/-", "value": within(HOST, "n1")},
    ]
    released = decoded(await api.patch_json(f"{PODS}/p", ops))
    assert "schedulingGates" not in released["spec"]
    with pytest.raises(ApiError) as error:  # a second time, its own test fails
        await api.patch_json(f"{PODS}/p", ops)
    assert error.value.invalid


@pytest.mark.parametrize(
    ("gates", "patch"),
    [
        ((), {"spec": {"affinity": affinity([within(HOST, "n1")])}}),
        ((), {"spec": {"schedulingGates": [{"name": GATE}]}}),
        ((GATE,), {"spec": {"schedulingGates": [{"name": GATE}, {"name": "another"}]}}),
        ((GATE,), {"spec": {"affinity": affinity([within(ZONE, "b")])}}),
        ((GATE,), {"spec": {"affinity": affinity([within(ZONE, "a")], [within(ZONE, "b")])}}),
        ((GATE,), {"spec": {"nodeSelector": {"disk": "other"}}}),
        ((GATE,), {"spec": {"schedulerName": "volcano"}}),
    ],
)
async def test_a_change_that_the_api_server_forbids_is_refused(
    cluster: FileCluster, api: KubeApi, gates: tuple[str, ...], patch: dict[str, Any]
) -> None:
    made = pod(gates=gates)
    if gates:
        made["spec"] |= {"affinity": affinity([within(ZONE, "a")]), "nodeSelector": {"disk": "ssd"}}
    before = cluster.create_pod(made)
    with pytest.raises(ApiError) as error:
        await api.patch_merge(f"{PODS}/p", patch)
    assert error.value.invalid
    assert cluster.pod("team", "p") == before


async def test_status_and_spec_have_separate_doors(cluster: FileCluster, api: KubeApi) -> None:
    cluster.create_pod(pod())
    both = {"status": {"nominatedNodeName": "n1"}, "metadata": {"annotations": {"a": "b"}}}
    plain = decoded(await api.patch_merge(f"{PODS}/p", both))
    assert plain["metadata"]["annotations"] == {"a": "b"}
    assert "nominatedNodeName" not in plain["status"]
    reported = decoded(await api.patch_merge(f"{PODS}/p", both, subresource="status"))
    assert reported["status"]["nominatedNodeName"] == "n1"
    cleared = {"status": {"nominatedNodeName": None}, "spec": {"schedulingGates": []}}
    reported = decoded(await api.patch_merge(f"{PODS}/p", cleared, subresource="status"))
    assert "nominatedNodeName" not in reported["status"]
    assert reported["spec"]["schedulingGates"]


async def test_apply_creates_and_then_merges(cluster: FileCluster, api: KubeApi) -> None:
    group: dict[str, Any] = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "team"},
        "spec": {"minMember": 2, "minTaskMember": {"prefill": 1, "decode": 1}},
    }
    first = decoded(await api.apply(f"{GROUPS}/g", group))
    cluster.change("podgroups", "team", "g", {"status": {"phase": "Inqueue"}})
    group["spec"] = {"minMember": 3}
    second = decoded(await api.apply(f"{GROUPS}/g", group))
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert second["spec"] == {"minMember": 3, "minTaskMember": {"prefill": 1, "decode": 1}}
    assert second["status"] == {"phase": "Inqueue"}
    third = decoded(await api.apply(f"{GROUPS}/g", group))
    assert third == second  # a write that says nothing new is no write
    with pytest.raises(ApiError):
        await api.apply(f"{GROUPS}/g", group | {"apiVersion": "v1"})


async def test_a_put_with_an_old_version_is_a_conflict(api: KubeApi) -> None:
    secrets = "/api/v1/namespaces/team/secrets"
    made = decoded(await api.create(secrets, {"metadata": {"name": "s"}, "data": {"a": "YQ=="}}))
    await api.request("PUT", f"{secrets}/s", body=msgspec.json.encode(made | {"data": {"a": "Yg=="}}))
    with pytest.raises(ApiError) as error:
        await api.request("PUT", f"{secrets}/s", body=msgspec.json.encode(made | {"data": {"a": "Yw=="}}))
    assert error.value.conflict


async def test_a_pod_is_bound_once_and_only_without_gates(cluster: FileCluster, api: KubeApi) -> None:
    cluster.create_pod(pod())
    cluster.create_pod(pod("free", gates=()))
    binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n2"}}
    with pytest.raises(ApiError) as error:
        await api.create(f"{PODS}/p/binding", binding)
    assert error.value.conflict
    await api.create(f"{PODS}/free/binding", binding)
    assert cluster.pod("team", "free")["spec"]["nodeName"] == "n2"
    with pytest.raises(Refused, match="already assigned"):
        cluster.bind("team", "free", "n1")


async def test_a_pod_is_deleted_only_if_it_is_that_one(cluster: FileCluster, api: KubeApi) -> None:
    cluster.create_pod(pod())
    assert not await api.delete(f"{PODS}/p", uid="another")
    assert await api.delete(f"{PODS}/p", uid=cluster.pod("team", "p")["metadata"]["uid"])
    assert not await api.delete(f"{PODS}/p")


# --- watching ----------------------------------------------------------------------------------


def names(informer: Informer[Any]) -> set[str]:
    return set(informer.objects)


async def test_an_informer_sees_every_change(cluster: FileCluster, api: KubeApi) -> None:
    pods = Informer(api, "/api/v1/pods", Pod, settings=QUICK)
    groups = Informer(api, "/apis/scheduling.volcano.sh/v1beta1/podgroups", PodGroup, settings=QUICK)
    lws = Informer(api, "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets", Pod, absent_ok=True, settings=QUICK)
    async with running(pods.run()), running(groups.run()), running(lws.run()):
        await until(lambda: pods.synced.is_set() and groups.synced.is_set() and lws.synced.is_set())
        assert names(pods) == {"elsewhere/on-n1"}
        cluster.create_pod(pod(gates=()))
        await until(lambda: "team/p" in pods.objects)
        cluster.bind("team", "p", "n2")
        await until(lambda: pods.objects["team/p"].spec.node_name == "n2")
        cluster.delete("pods", "team", "p")
        await until(lambda: "team/p" not in pods.objects)
        assert (pods.relists, pods.undecodable) == (1, 0)


async def test_an_object_that_stops_matching_is_gone_for_that_watch(cluster: FileCluster, api: KubeApi) -> None:
    cluster.create_pod(pod(gates=()))
    waiting = Informer(api, "/api/v1/pods", Pod, field_selector="spec.nodeName=", settings=QUICK)
    async with running(waiting.run()):
        await until(lambda: names(waiting) == {"team/p"})
        cluster.bind("team", "p", "n1")
        await until(lambda: not waiting.objects)


@pytest.mark.parametrize(
    "trouble",
    [
        lambda cluster: cluster.cut_watches(),
        lambda cluster: (cluster.forget_history(), cluster.cut_watches()),
        lambda cluster: (cluster.fail_next("WATCH", "nodes", 410), cluster.cut_watches()),
    ],
)
async def test_a_broken_watch_loses_nothing(
    cluster: FileCluster, api: KubeApi, trouble: Callable[[FileCluster], object]
) -> None:
    nodes = Informer(api, "/api/v1/nodes", Node, settings=QUICK)
    async with running(nodes.run()):
        await until(lambda: names(nodes) == {"n1", "n2"})
        trouble(cluster)
        cluster.delete("nodes", "", "n1")
        cluster.create("nodes", {"metadata": {"name": "n3"}})
        trouble(cluster)
        await until(lambda: names(nodes) == {"n2", "n3"})


async def test_a_watch_that_is_left_behind_is_told_to_list_again(tmp_path: Path) -> None:
    async with (
        FileCluster(NODES, remembered=4) as cluster,
        await KubeApi.connect(cluster.kubeconfig(tmp_path / "kubeconfig")) as api,
    ):
        version = cluster.objects("nodes")[0]["metadata"]["resourceVersion"]
        for name in "abcdef":
            cluster.create_pod(pod(name))
        stream = api.watch_lines(PODS, params={"resourceVersion": version}, silence_s=LIMIT_S)
        with pytest.raises(ApiError) as error:
            await asyncio.wait_for(anext(stream), LIMIT_S)
        assert error.value.gone


# --- what tests ask for ------------------------------------------------------------------------


async def test_requests_fail_on_demand_once(cluster: FileCluster, api: KubeApi) -> None:
    cluster.create_pod(pod())
    cluster.fail_next("PATCH", "/pods/p$", 409)
    with pytest.raises(ApiError) as error:
        await api.patch_merge(f"{PODS}/p", {"metadata": {"annotations": {"a": "1"}}})
    assert error.value.status == 409
    assert "annotations" not in cluster.pod("team", "p")["metadata"]
    await api.patch_merge(f"{PODS}/p", {"metadata": {"annotations": {"a": "1"}}})
    assert cluster.requests == [("PATCH", f"{PODS}/p")] * 2


@pytest.mark.parametrize(("status", "raised"), [(500, ApiError), (0, ApiUnreachable)])
async def test_an_answer_is_lost_on_demand(
    cluster: FileCluster, api: KubeApi, status: int, raised: type[ApiFailure]
) -> None:
    cluster.fail_next("POST", "/pods$", status, after=True)
    with pytest.raises(raised):
        await api.create(PODS, pod())
    assert cluster.pod("team", "p")


async def test_events_are_kept_and_found_by_uid(cluster: FileCluster, api: KubeApi) -> None:
    uid = cluster.create_pod(pod())["metadata"]["uid"]
    sink = EventSink(api, "test")
    about = Involved("Pod", "v1", "team", "p", uid)
    async with running(sink.run()):
        sink.post(about, NORMAL, "Placed", "first", key="k", window_s=0.0)
        assert await sink.drain(LIMIT_S)
        sink.post(about, NORMAL, "Placed", "second", key="k", window_s=0.0)
        assert await sink.drain(LIMIT_S)
    (event,) = cluster.events_of(uid)
    assert (event["reason"], event["message"], event["count"]) == ("Placed", "second", 2)
