"""What the controller asks of a real API server for agents and nodes: whose a token is, its Secret, labels on nodes.

With the chart's own rights, and nothing else running than etcd and kube-apiserver.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from admission.controller.enrolment import EnrolmentServer, listening
from admission.controller.hub_certificate import HubCertificate
from admission.serving import background
from admission.settings import ControllerSettings
from e2e.stack.build import build
from e2e.stack.control_plane import ControlPlane
from e2e.stack.isochrone import CONTROLLER, NAMESPACE, ORDER, render
from e2e.stack.nodes import gpu_node
from tests.topology.list_watch_server import LIMIT_S, until
from tests.topology.node_facts import two_gpus
from topology.agent.hub_client import HubClient
from topology.agent.settings import AgentSettings
from topology.cluster.agent_links import AgentLinks
from topology.cluster.domain_sources import Sources
from topology.hub import server as hub_side
from topology.hub.state import HubState
from topology.hypernodes.label_publisher import FIELD_MANAGER, NodeLabelPublisher
from topology.kube.api import KubeApi
from topology.kube.errors import ApiError
from topology.labels import CLIQUE, IN_LEAF, IN_SPINE
from topology.objects import Node
from topology.units import HostPort

pytestmark = pytest.mark.e2e

HUB_NAME = f"{CONTROLLER}.{NAMESPACE}.svc"
AGENT = ControllerSettings().agent_account
AUDIENCE = "isochrone-hub"
POLICY = "isochrone-own-node-labels"
NODES = ("gpu-000", "gpu-001")
OTHERS = {"account": {"account": "other"}, "audience": {"audience": "vault"}}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """An API server with the chart's accounts and rights, two nodes, and the pod of an agent on each."""
    made = ControlPlane(build(), "hub", audit=False)
    try:
        made.start_api_server()
        made.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for item in render(made, ["agent.enabled=true", "controller.publishNodeLabels=true"]):
            if item["kind"] in ORDER or item["metadata"]["name"] == POLICY:
                made.create(item, NAMESPACE)
        made.create_nodes([gpu_node(name, "zone-a", "leaf-a0") for name in NODES], ready=False)
        for name in NODES:
            made.create(agent_pod(name, AGENT), NAMESPACE)
        yield made
    finally:
        made.close()


def agent_pod(node: str, account: str) -> dict[str, Any]:
    spec = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "nodeName": node,
        "containers": [{"name": "agent", "image": "isochrone"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{account}-{node}"}, "spec": spec}


def token(plane: ControlPlane, node: str, audience: str = AUDIENCE, account: str = AGENT) -> str:
    """What the kubelet puts into that node's agent's pod."""
    pod = plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{account}-{node}")["metadata"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
    spec = {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    return str(plane.api("POST", path, body)["status"]["token"])


@contextlib.asynccontextmanager
async def connected(plane: ControlPlane) -> AsyncIterator[KubeApi]:
    """As the controller's account."""
    kubeconfig = plane.write_kubeconfig("hub", plane.service_account_token(NAMESPACE, CONTROLLER))
    async with await KubeApi.connect(str(kubeconfig)) as api:
        yield api


@pytest.mark.parametrize("certificates", ["agent.enrol=true", "agent.enrol=false", "agent.plaintext=true"])
def test_the_objects_of_every_option_have_no_field_that_the_api_server_does_not_know(
    plane: ControlPlane, certificates: str
) -> None:
    options = [
        "agent.enabled=true",
        certificates,
        "controller.publishHyperNodes=true",
        "controller.topologyFile=fabric",
    ]
    options += ["controller.measuredReach=ours", "controller.networkPolicy.enabled=true"]
    objects = yaml.safe_dump_all(item for item in render(plane, options) if "helm.sh/hook" not in str(item))
    how = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    assert "daemonset.apps/isochrone-agent" in plane.kubectl("apply", *how, "-f", "-", input=objects)


async def test_an_agent_gets_a_certificate_for_its_own_node_by_the_token_of_its_pod(
    plane: ControlPlane, tmp_path: Path
) -> None:
    plane.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "other"}}, NAMESPACE)
    plane.create(agent_pod("gpu-001", "other"), NAMESPACE)
    known = HubState()
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(connected(plane))
        certificate = HubCertificate(api, NAMESPACE, "isochrone-hub-cert", "isochrone-hub-ca", (HUB_NAME,))
        await stack.enter_async_context(background(certificate.run()))
        enrolment = EnrolmentServer(api, certificate.bundle, NAMESPACE, AGENT)
        enrol = await stack.enter_async_context(listening(enrolment, HostPort("127.0.0.1", 0), certificate.parts))
        served = hub_side.listening(hub_side.Hub(known), "127.0.0.1", 0, tls=certificate.parts)
        port = await stack.enter_async_context(served)
        await until(lambda: certificate.bundle() is not None)
        config_map = plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/isochrone-hub-ca")

        async def asked(name: str, node: str, shown: str) -> HubClient:
            folder = tmp_path / name
            folder.mkdir()
            (folder / "token").write_text(shown)
            (folder / "ca.crt").write_text(config_map["data"]["ca.crt"])
            settings = AgentSettings(
                node_name=node,
                hub=f"127.0.0.1:{port}",
                hub_name=HUB_NAME,
                enrol=str(enrol),
                enrol_dir=str(folder),
            )
            client = HubClient(settings, boot_id=name, version="e2e", chance=lambda: 0.0)
            client.report(two_gpus())
            await stack.enter_async_context(background(client.run()))
            return client

        mine = token(plane, "gpu-000")
        client = await asked("own", "gpu-000", mine)
        await until(lambda: client.connected)
        assert client.problem == ""
        assert known.nodes() == ["gpu-000"]
        others = {name: token(plane, "gpu-001", **given) for name, given in OTHERS.items()}
        for name, (node, shown, why) in {
            "another-node": ("gpu-001", mine, "PERMISSION_DENIED: the token is of a pod on node 'gpu-000', not on"),
            "another-account": ("gpu-001", others["account"], "PERMISSION_DENIED: the token is of"),
            "another-audience": ("gpu-001", others["audience"], "UNAUTHENTICATED: the API server does not vouch"),
            "rubbish": ("gpu-001", "rubbish", "UNAUTHENTICATED: the API server does not vouch"),
        }.items():
            await refused_for(why, await asked(name, node, shown))
        late = token(plane, "gpu-001")
        plane.api("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{AGENT}-gpu-001?gracePeriodSeconds=0")
        await refused_for("UNAUTHENTICATED", await asked("pod-is-gone", "gpu-001", late))
        assert known.nodes() == ["gpu-000"]
        assert enrolment.answers["issued"] == 1
        # What is kept is kept for the next process, and this one may read no other Secret.
        plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/isochrone-hub-cert")
        with pytest.raises(ApiError) as unread:
            await api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/isochrone-webhook-cert")
        assert unread.value.forbidden


async def refused_for(why: str, client: HubClient) -> None:
    """It tries again and again, and what is in its way is this, or becomes this: a first try may be cut off."""
    await until(lambda: client.connected or why in client.problem)
    assert not client.connected


async def refused(api: KubeApi, path: str, patch: dict[str, Any]) -> str:
    """What the API server says against a change of a node; "" if it is made."""
    try:
        await api.patch_merge(path, patch)
    except ApiError as error:
        return error.message
    return ""


async def test_node_labels_are_ours_alone_by_the_api_servers_own_book(plane: ControlPlane) -> None:
    agents = {name: AgentLinks(fabric="6f4a4bf1-52e6-4aa5-9c3e-7b1d0c9a8e11.32766") for name in NODES}

    def shown() -> list[Node]:
        return [msgspec.convert(plane.api("GET", f"/api/v1/nodes/{name}"), Node) for name in NODES]

    def ours(node: Node) -> dict[str, str]:
        return {key: node.metadata.label(key) for key in (CLIQUE, IN_LEAF, IN_SPINE) if node.metadata.label(key)}

    path = f"/api/v1/nodes/{NODES[1]}"
    plane.api("PATCH", f"{path}?fieldManager=somebody", {"metadata": {"labels": {IN_LEAF: "theirs"}}})
    async with connected(plane) as api:
        publisher = NodeLabelPublisher(api)
        await publisher.publish(shown(), Sources(agents))
        one, other = shown()
        assert ours(one).keys() == {CLIQUE, IN_LEAF, IN_SPINE}
        assert ours(one)[IN_LEAF].startswith("isochrone-leaf-leaf-a0-")
        assert ours(other) == {**ours(one), IN_LEAF: "theirs"}
        await publisher.publish(shown(), Sources(agents))
        writes = publisher.writes
        await publisher.publish(shown(), Sources(agents))
        assert publisher.writes == writes
        # The agent says that the fabric is broken: the label goes, all others of the node stay.
        before = one.metadata.labels or {}
        await publisher.publish(shown(), Sources({**agents, NODES[0]: AgentLinks(fabric="")}))
        one, other = shown()
        assert one.metadata.labels == {key: value for key, value in before.items() if key != CLIQUE}
        assert ours(other)[IN_LEAF] == "theirs"
        # A node that went meanwhile is not made anew.
        stranger = msgspec.convert(gpu_node("gpu-009", "zone-a", "leaf-a0"), Node)
        with pytest.raises(ApiError) as unwanted:
            await publisher.publish([stranger], Sources())
        assert unwanted.value.forbidden
        numbers = itertools.count()
        async with asyncio.timeout(LIMIT_S):  # it takes the API server a moment to know a policy
            while not await refused(api, path, {"metadata": {"labels": {"pool": str(next(numbers))}}}):
                pass
        others = [{"labels": {"nvidia.com/gpu.product": None}}, {"annotations": {"a": "b"}}, {"finalizers": ["a.b/c"]}]
        assert "and nothing else" in await refused(api, path, {"spec": {"unschedulable": True}})
        for meta in others:
            assert "and nothing else" in await refused(api, path, {"metadata": meta})
    managers = {each["manager"] for each in plane.api("GET", path)["metadata"]["managedFields"]}
    assert {FIELD_MANAGER, "somebody"} <= managers
