"""`isochrone release` against a small API server on loopback."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from admission.commands.release import release
from topology.kube.api import KubeApi
from topology.kube.errors import ApiError
from topology.labels import GANG, GATE, GROUP_NAME, QUEUE_NAME


def pod(name: str, *, namespace: str = "prod", gang: str = "chat", gates: tuple[str, ...] = (GATE,)) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": {GANG: gang},
            "annotations": {GROUP_NAME: f"isochrone-{gang}", QUEUE_NAME: "serving"},
        },
        "spec": {"schedulingGates": [{"name": gate} for gate in gates]},
    }


class Cluster:
    """The few verbs that a release uses, with the API server's own answers."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        self.webhooks = {"zz-isochrone"}
        self.calls: list[str] = []
        self.page = 2
        self.podgroup_answer: web.Response | None = None
        self.before_patch: Callable[[dict[str, Any]], None] = lambda _: None
        self.after_list: Callable[[], None] = lambda: None
        app = web.Application()
        app.router.add_get("/api/v1/pods", self.list)
        app.router.add_get("/api/v1/namespaces/{ns}/pods", self.list)
        app.router.add_route("*", "/api/v1/namespaces/{ns}/pods/{name}", self.one)
        groups = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{ns}/podgroups"
        app.router.add_get(groups + "/{name}", self.get_group)
        app.router.add_post(groups, self.create_group)
        app.router.add_delete(
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{name}", self.delete_webhook
        )
        self.app = app

    def add(self, *pods: dict[str, Any]) -> None:
        for each in pods:
            self.pods[(each["metadata"]["namespace"], each["metadata"]["name"])] = each

    def gates(self, name: str, namespace: str = "prod") -> list[str]:
        return [gate["name"] for gate in self.pods[(namespace, name)]["spec"]["schedulingGates"]]

    async def list(self, request: web.Request) -> web.Response:
        assert request.query["fieldSelector"] == "spec.nodeName=,status.phase=Pending"
        namespace = request.match_info.get("ns")
        found = [each for (ns, _), each in sorted(self.pods.items()) if namespace in (None, ns)]
        start = int(request.query.get("continue", "0"))
        end = start + self.page
        rest = str(end) if end < len(found) else ""
        self.calls.append("list")
        self.after_list()
        return web.json_response({"metadata": {"continue": rest}, "items": found[start:end]})

    async def one(self, request: web.Request) -> web.Response:
        key = (request.match_info["ns"], request.match_info["name"])
        if request.method == "PATCH" and key in self.pods:
            self.before_patch(self.pods[key])
        if key not in self.pods:
            return failure(404, "NotFound")
        if request.method == "PATCH":
            assert request.content_type == "application/json-patch+json"
            self.calls.append(f"patch {key[1]}")
            if not patched(self.pods[key], json.loads(await request.read())):
                return failure(422, "Invalid")
        return web.json_response(self.pods[key])

    async def get_group(self, request: web.Request) -> web.Response:
        found = self.groups.get((request.match_info["ns"], request.match_info["name"]))
        return web.json_response(found) if found else failure(404, "NotFound")

    async def create_group(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.calls.append(f"create {body['metadata']['name']}")
        if self.podgroup_answer is not None:
            return self.podgroup_answer
        self.groups[(request.match_info["ns"], body["metadata"]["name"])] = body
        return web.json_response(body, status=201)

    async def delete_webhook(self, request: web.Request) -> web.Response:
        self.calls.append("delete webhook")
        if request.match_info["name"] not in self.webhooks:
            return failure(404, "NotFound")
        self.webhooks.remove(request.match_info["name"])
        return web.json_response({})


def failure(code: int, reason: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": "no"}, status=code)


def patched(target: dict[str, Any], ops: list[dict[str, Any]]) -> bool:
    """Just enough of RFC 6902: tests first, then removal from a list."""
    for op in ops:
        *parents, last = op["path"].strip("/").split("/")
        holder: Any = target
        try:
            for part in parents:
                holder = holder[int(part)] if isinstance(holder, list) else holder[part]
            if op["op"] == "test" and holder[last] != op["value"]:
                return False
            if op["op"] == "remove":
                del holder[int(last)]
        except (IndexError, KeyError):
            return False
    return True


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def api(cluster: Cluster, tmp_path: Path) -> AsyncIterator[KubeApi]:
    async with TestServer(cluster.app, host="127.0.0.1") as server:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": str(server.make_url("/"))}}],
            "users": [{"name": "it", "user": {"token": "t"}}],
        }
        file = tmp_path / "kubeconfig"
        file.write_text(yaml.safe_dump(config))
        async with await KubeApi.connect(str(file)) as client:
            yield client


async def test_held_pods_of_a_namespace_go_after_their_podgroup(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0"), pod("d-0"), pod("d-1"), pod("free", gates=()), pod("other", namespace="dev"))
    value: list[str] = []
    summary = await release(api, namespace="prod", printer=value.append)
    assert str(summary) == "released 3 pods, 0 failed"
    assert cluster.groups[("prod", "isochrone-chat")]["spec"] == {"minMember": 1, "queue": "serving"}
    assert cluster.calls.index("create isochrone-chat") < cluster.calls.index("patch d-0")
    assert [cluster.gates(name) for name in ("p-0", "d-0", "d-1")] == [[], [], []]
    assert cluster.gates("other", "dev") == [GATE]
    assert value[0] == "PodGroup prod/isochrone-chat created, minMember 1"
    assert sorted(value[1:]) == ["prod/d-0 released", "prod/d-1 released", "prod/p-0 released"]


async def test_an_existing_podgroup_is_left_as_it_is(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0"))
    cluster.groups[("prod", "isochrone-chat")] = {"spec": {"minMember": 7}}
    assert (await release(api, namespace="prod")).released == 1
    assert cluster.groups[("prod", "isochrone-chat")] == {"spec": {"minMember": 7}}
    assert "create isochrone-chat" not in cluster.calls


async def test_one_that_appears_meanwhile_is_left_as_it_is(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0"))
    cluster.podgroup_answer = failure(409, "AlreadyExists")
    assert str(await release(api, namespace="prod")) == "released 1 pod, 0 failed"


async def test_other_systems_gates_stay(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0", gates=("a.example/one", GATE, "b.example/two")))
    value: list[str] = []
    await release(api, namespace="prod", printer=value.append)
    assert cluster.gates("p-0") == ["a.example/one", "b.example/two"]
    assert value[-1] == "prod/p-0 released by us, still held by a.example/one, b.example/two"


async def test_a_gate_that_moved_is_found_again(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0", gates=("a.example/one", GATE, "b.example/two")))
    gates = cluster.pods[("prod", "p-0")]["spec"]["schedulingGates"]
    cluster.before_patch = lambda _: gates.pop(0) if gates[0]["name"] == "a.example/one" else None
    assert str(await release(api, namespace="prod")) == "released 1 pod, 0 failed"
    assert cluster.gates("p-0") == ["b.example/two"]
    assert cluster.calls.count("patch p-0") == 2


async def test_a_pod_of_the_same_name_that_came_meanwhile_is_not_touched(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0"))
    cluster.before_patch = lambda each: each["metadata"].update(uid="uid-new")
    value: list[str] = []
    await release(api, namespace="prod", printer=value.append)
    assert cluster.gates("p-0") == [GATE]
    assert value[-1] == "prod/p-0 was replaced by a new pod"


async def test_a_gate_that_never_holds_still_ends(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0"))
    cluster.before_patch = lambda each: each["spec"]["schedulingGates"].insert(0, {"name": "new.example/gate"})
    value: list[str] = []
    assert str(await release(api, namespace="prod", printer=value.append)) == "released 0 pods, 1 failed"
    assert cluster.calls.count("patch p-0") == 5
    assert value[-1].startswith("prod/p-0 stays held: ")


async def test_a_podgroup_that_is_refused_keeps_its_pods_and_nobody_elses(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0"), pod("x-0", gang="code"))
    cluster.groups[("prod", "isochrone-code")] = {"spec": {}}
    cluster.podgroup_answer = failure(403, "Forbidden")
    value: list[str] = []
    assert str(await release(api, namespace="prod", printer=value.append)) == "released 1 pod, 1 failed"
    assert (cluster.gates("p-0"), cluster.gates("x-0")) == ([GATE], [])
    assert value[0].startswith("prod/p-0 stays held, its PodGroup cannot be made: ")


async def test_without_volcano_the_gate_opens_all_the_same(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0"))
    cluster.podgroup_answer = failure(404, "NotFound")
    assert str(await release(api, namespace="prod")) == "released 1 pod, 0 failed"


async def test_by_gang_and_by_name(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0"), pod("x-0", gang="code"), pod("x-1", gang="code"))
    assert (await release(api, gang="code", namespace="prod", pods=["x-0"])).released == 1
    assert [cluster.gates(name) for name in ("p-0", "x-0", "x-1")] == [[GATE], [], [GATE]]
    value: list[str] = []
    assert str(await release(api, namespace="prod", pods=["x-0", "x-1"], printer=value.append)) == (
        "released 1 pod, 1 failed"
    )
    assert value[-1] == "prod/x-0 is not there or not held by Isochrone"


@pytest.mark.parametrize(
    ("gang", "namespace", "reported"),
    [
        ("chta", "prod", "no held pod of gang chta in namespace prod; did you mean chat?"),
        ("nosuch", None, "no held pod of gang nosuch in any namespace; held there: chat, code"),
        (
            "chat",
            "dev",
            "no held pod of gang chat in namespace dev; nothing is held there: name another with -n, or --all",
        ),
        ("gone", "prod", "no held pod of gang gone in namespace prod; held there: chat, code"),
    ],
)
async def test_a_gang_that_nobody_holds_is_said_with_names_that_are_close(
    cluster: Cluster, api: KubeApi, gang: str, namespace: str | None, reported: str
) -> None:
    cluster.add(pod("p-0"), pod("x-0", gang="code"), pod("y-0", gang="gone", gates=()))
    value: list[str] = []
    summary = await release(api, gang=gang, namespace=namespace, printer=value.append)
    assert (value, summary.well, str(summary)) == ([reported], False, "released 0 pods, 0 failed")
    assert (await release(api, gang="chat", namespace="prod")).well
    assert (await release(api, namespace="prod")).well  # nothing to do is well, where no gang is named


async def test_all_with_the_webhook_first_and_a_late_pod(cluster: Cluster, api: KubeApi) -> None:
    cluster.add(pod("p-0"), pod("q-0", namespace="dev"))

    def late() -> None:
        if cluster.calls.count("list") == 1:
            cluster.add(pod("r-0", namespace="zone"))

    cluster.after_list = late
    value: list[str] = []
    summary = await release(api, remove_webhook=True, printer=value.append, settle_s=0.01)
    assert summary.released == 3
    assert cluster.calls[0] == "delete webhook"
    assert value[0] == "webhook configuration zz-isochrone removed"
    again: list[str] = []
    assert (await release(api, remove_webhook=True, printer=again.append, settle_s=0.01)).released == 0
    assert again == ["webhook configuration zz-isochrone was gone already"]


async def test_a_group_name_cannot_lead_elsewhere(cluster: Cluster, api: KubeApi) -> None:
    strange = pod("p-0")
    strange["metadata"]["annotations"][GROUP_NAME] = "../../kube-system/podgroups/x\n"
    cluster.add(strange)
    cluster.podgroup_answer = failure(422, "Invalid")
    value: list[str] = []
    assert (await release(api, namespace="prod", printer=value.append)).failed == 1
    assert all("\n" not in line for line in value)


async def test_a_list_that_is_refused_is_an_error(cluster: Cluster, api: KubeApi) -> None:
    def refuse() -> None:
        raise web.HTTPForbidden

    cluster.after_list = refuse
    with pytest.raises(ApiError):
        await release(api, namespace="prod")
