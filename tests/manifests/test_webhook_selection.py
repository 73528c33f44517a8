"""Which pods the API server sends to which path, asked of a real one with install.yaml applied."""

from __future__ import annotations

import base64
import itertools
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from e2e.stack.build import build
from e2e.stack.control_plane import ControlPlane
from e2e.stack.processes import LIMIT_S
from manifests.render import INSTALL
from topology.labels import DECISION, ENABLED, GANG, PHASE, PLACEMENT, REACH

pytestmark = pytest.mark.e2e

GPU = {"limits": {"nvidia.com/gpu": "1"}}
CPU = {"requests": {"cpu": "1"}}


class Recorder(BaseHTTPRequestHandler):
    """Allows everything and notes the path for each pod."""

    seen: dict[str, list[str]]  # pod name -> paths
    evaluated: dict[str, list[str]]  # object name -> paths of the validating part

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        path = self.path.split("?")[0]
        book = type(self).evaluated if path == "/validate" else type(self).seen
        book.setdefault(review["object"]["metadata"]["name"], []).append(path)
        answer = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        body = json.dumps({**answer, "response": {"uid": review["uid"], "allowed": True}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Says nothing."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """An API server with everything of install.yaml, and the recorder in the webhook's place."""
    control_plane = ControlPlane(build(), "selection", audit=False)
    Recorder.seen, Recorder.evaluated = {}, {}
    pair = control_plane.authority.issue("recorder")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        control_plane.start_api_server()
        control_plane.start_controllers()
        # Server-side, validation strict: an unknown or misspelt field would be refused.
        control_plane.kubectl("apply", "--server-side", "--validate=strict", "-f", str(INSTALL))
        url = f"https://127.0.0.1:{server.server_address[1]}"
        bundle = base64.b64encode(control_plane.ca_file.read_bytes()).decode()
        control_plane.kubectl("replace", "-f", "-", input=recorded_at(url, bundle))
        control_plane.create_namespace("on", {ENABLED: "true"})
        control_plane.create_namespace("off")
        control_plane.wait_for(lambda: sent(control_plane, "off", {PHASE: "decode"}), LIMIT_S, "the webhook is called")
        yield control_plane
    finally:
        server.shutdown()
        thread.join(LIMIT_S)
        server.server_close()
        control_plane.close()


def recorded_at(url: str, bundle: str) -> str:
    """Both webhook configurations with the recorder's address."""
    found = [each for each in yaml.safe_load_all(INSTALL.read_text()) if "webhooks" in each]
    assert len(found) == 2
    for hook in itertools.chain.from_iterable(each["webhooks"] for each in found):
        hook["clientConfig"] = {"url": url + hook["clientConfig"]["service"]["path"], "caBundle": bundle}
    return yaml.safe_dump_all(found)


_numbers = itertools.count()


def sent(
    plane: ControlPlane,
    namespace: str,
    labels: dict[str, str],
    *,
    resources: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    spec: dict[str, Any] | None = None,
) -> list[str]:
    """Creates a pod and tells the paths that it was sent to."""
    name = f"pod-{next(_numbers)}"
    container = {"name": "engine", "image": "engine", "resources": resources or {}}
    plane.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations or {}},
            "spec": {"containers": [container], **(spec or {})},
        },
        namespace,
    )
    return Recorder.seen.get(name, [])


@pytest.mark.parametrize("namespace", ["on", "off"])
@pytest.mark.parametrize("labels", [{PHASE: "decode"}, {GANG: "chat"}, {PHASE: "decode", GANG: "chat"}])
def test_labelled_pods_are_sent_once_whatever_they_ask_for(
    plane: ControlPlane, namespace: str, labels: dict[str, str]
) -> None:
    for resources in (GPU, CPU, None):
        assert sent(plane, namespace, labels, resources=resources) == ["/mutate/labelled"]


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/gpumem",
        "volcano.sh/vgpu-number",
        "volcano.sh/gpu-memory",
        "aliyun.com/gpu-mem",
        "tke.cloud.tencent.com/qgpu-core",
        "koordinator.sh/gpu.shared",
        "amd.com/gpu",
    ],
)
def test_in_an_enabled_namespace_gpu_pods_are_sent(plane: ControlPlane, name: str) -> None:
    assert sent(plane, "on", {}, resources={"limits": {name: "1"}}) == ["/mutate/namespace"]
    assert sent(plane, "off", {}, resources={"limits": {name: "1"}}) == []


def test_in_an_enabled_namespace_other_ways_to_ask_for_a_gpu_count(plane: ControlPlane) -> None:
    claim = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}
    sidecar = {"name": "side", "image": "side", "resources": GPU}
    assert sent(plane, "on", {}, spec=claim) == ["/mutate/namespace"]
    assert sent(plane, "on", {}, spec={"initContainers": [sidecar]}) == ["/mutate/namespace"]
    assert sent(plane, "on", {}, annotations={"gpu-fraction": "0.5"}) == ["/mutate/namespace"]
    assert sent(plane, "on", {}, annotations={REACH: "2ms"}) == ["/mutate/namespace"]


def test_in_an_enabled_namespace_other_pods_cost_nothing(plane: ControlPlane) -> None:
    assert sent(plane, "on", {}, resources=CPU) == []
    assert sent(plane, "on", {"app": "router"}, annotations={"team": "x"}) == []


def test_who_opts_out_is_placed_already_or_lives_elsewhere_is_never_sent(plane: ControlPlane) -> None:
    for namespace in ("on", "off"):
        assert sent(plane, namespace, {PHASE: "decode", ENABLED: "false"}, resources=GPU) == []
        assert sent(plane, namespace, {ENABLED: "false"}, resources=GPU) == []
    assert sent(plane, "on", {}, resources=GPU, spec={"nodeName": "n1"}) == []
    assert sent(plane, "kube-system", {PHASE: "decode"}) == []


def test_a_labelled_pod_comes_without_a_condition_and_placed_or_not(plane: ControlPlane) -> None:
    # A condition would have the API server read every labelled pod as a whole; the webhook leaves placed ones alone.
    for labels in ({PHASE: "decode"}, {GANG: "chat"}):
        assert sent(plane, "off", labels, spec={"nodeName": "n1"}) == ["/mutate/labelled"]


def test_a_change_is_never_sent(plane: ControlPlane) -> None:
    sent(plane, "off", {PHASE: "decode"})
    name = f"pod-{next(_numbers) - 1}"
    plane.api("PATCH", f"/api/v1/namespaces/off/pods/{name}", {"metadata": {"labels": {GANG: "chat"}}})
    assert Recorder.seen[name] == ["/mutate/labelled"]


def test_only_owners_of_labelled_templates_are_judged(plane: ControlPlane) -> None:
    labelled, other = {PHASE: "decode"}, {"team": "web"}
    for labels in (labelled, {GANG: "chat"}, other):
        sent(plane, "on", labels, resources=GPU)
        assert f"pod-{next(_numbers) - 1}" not in Recorder.evaluated
        name = f"owner-{next(_numbers)}"
        template = {
            "metadata": {"labels": {"app": name, **labels}},
            "spec": {"containers": [{"name": "e", "image": "e"}]},
        }
        spec = {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template}
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
        plane.kubectl("create", "-n", "on", "-f", "-", input=json.dumps(owner))
        assert Recorder.evaluated.get(name, []) == ([] if labels is other else ["/validate"])


def test_owners_with_keys_that_no_pod_gets_are_shown(plane: ControlPlane) -> None:
    """Once each, changed or new; those without such keys, and those whose template is labelled, are not shown again."""

    def owner(kind: str, labels: dict[str, str], annotations: dict[str, str], pods: dict[str, str]) -> dict[str, Any]:
        name = f"owner-{next(_numbers)}"
        template = {
            "metadata": {"labels": {"app": name, **pods}},
            "spec": {"containers": [{"name": "e", "image": "e"}], "nodeSelector": {"no": "node"}},
        }
        spec: dict[str, Any] = {"selector": {"matchLabels": {"app": name}}, "template": template}
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}

    def shown(content: dict[str, Any]) -> int:
        plane.kubectl("create", "-n", "on", "-f", "-", input=json.dumps(content))
        return len(Recorder.evaluated.get(content["metadata"]["name"], []))

    assert shown(owner("Deployment", {GANG: "chat"}, {}, {})) == 1
    assert shown(owner("DaemonSet", {}, {REACH: "2ms"}, {})) == 1
    assert shown(owner("Deployment", {GANG: "chat"}, {}, {GANG: "chat"})) == 1, "by one webhook of the two"
    assert shown(owner("StatefulSet", {"team": "x"}, {"team": "x"}, {})) == 0
    changed = owner("Deployment", {}, {}, {})
    assert shown(changed) == 0
    name = changed["metadata"]["name"]
    plane.kubectl("annotate", "deployment", name, "-n", "on", f"{REACH}=2ms")
    assert len(Recorder.evaluated[name]) == 1


def test_what_isochrone_wrote_cannot_be_changed_by_others(plane: ControlPlane) -> None:
    sent(plane, "on", {PHASE: "decode"}, annotations={DECISION: "a1b2", "team": "x"})
    pod = f"pod-{next(_numbers) - 1}"

    def patch(annotations: dict[str, str | None]) -> str:
        body = json.dumps({"metadata": {"annotations": annotations}})
        try:
            plane.kubectl("patch", "pod", pod, "-n", "on", "--type=merge", "-p", body)
        except Exception as refused:
            return str(refused)
        return ""

    # The policy is in force a moment after it was made; until then a forgery is written, and the same one again is no
    # change and thus allowed for ever: every attempt forges another value.
    attempts = itertools.count()
    refused = lambda: "written by Isochrone" in patch({DECISION: f"forged-{next(attempts)}"})  # noqa: E731
    plane.wait_for(refused, LIMIT_S, "the policy is in force")
    assert "written by Isochrone" in patch({DECISION: None})
    assert "written by Isochrone" in patch({PLACEMENT: "elsewhere"})
    assert patch({"team": "y", REACH: "2ms"}) == ""
