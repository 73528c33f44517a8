"""Bad input to the running services: one clear sentence, nothing changed, the next request works."""

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator

import pytest

from e2e.checks import all_within, bound_after, counted, live_pods, wait_event
from e2e.conftest import NamespaceFactory
from e2e.stack.build import CHECKOUT
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import CONTROLLER, NAMESPACE, WEBHOOK, WEBHOOK_CONFIGURATION, Isochrone
from e2e.stack.processes import LIMIT_S
from e2e.stalling_proxy import start_anew
from e2e.workloads import ENABLED, PLACEMENT, Object, pair, pod, vllm

pytestmark = pytest.mark.e2e

JSON = "application/json"
LIMIT_BYTES = 256 * 1024
PHASE = "isochrone.dev/phase"

Call = tuple[str, str, str, bytes]
"""Method, path, content type, body."""


@pytest.fixture(scope="module")
def small(isochrone: Isochrone, cluster: Cluster) -> Iterator[Isochrone]:
    """Isochrone whose controller accepts small calls only."""
    env = cluster.group[CONTROLLER].env
    env["ISOCHRONE_MAX_BODY"] = "256Ki"
    start_anew(isochrone)
    yield isochrone
    del env["ISOCHRONE_MAX_BODY"]
    start_anew(isochrone)


def extender_connection(isochrone: Isochrone) -> http.client.HTTPConnection:
    """As Volcano's scheduler connects."""
    return http.client.HTTPConnection("127.0.0.1", isochrone.controller.port, timeout=LIMIT_S)


def webhook_connection(isochrone: Isochrone) -> http.client.HTTPConnection:
    """As the API server connects: the certificate must be the Service's, signed by the configured authority."""
    path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{WEBHOOK_CONFIGURATION}"
    bundle = isochrone.cluster.api("GET", path)["webhooks"][0]["clientConfig"]["caBundle"]
    context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    plain = socket.create_connection(("127.0.0.1", isochrone.webhook.port), timeout=LIMIT_S)
    connection = http.client.HTTPConnection("127.0.0.1", isochrone.webhook.port, timeout=LIMIT_S)
    connection.sock = context.wrap_socket(plain, server_hostname=f"{WEBHOOK}.{NAMESPACE}.svc")
    return connection


def exchange(connection: http.client.HTTPConnection, call: Call) -> tuple[int, str]:
    """One call: status and body."""
    method, path, kind, body = call
    connection.request(method, path, body, {"Content-Type": kind})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


PRIORITIZE = json.dumps({"task": {"name": "x"}, "nodes": []}).encode()

TO_EXTENDER: dict[str, tuple[Call, int, str]] = {
    "malformed JSON": (("POST", "/prioritize", JSON, b'{"task": '), 400, "JSON"),
    "not an object": (("POST", "/allocateFunc", JSON, b"[1, 2]"), 400, "object"),
    "not UTF-8": (("POST", "/prioritize", JSON, b'{"task": {"name": "\xff\xfe"}, "nodes": []}'), 400, "UTF-8"),
    "a wrong content type": (("POST", "/prioritize", "text/plain", PRIORITIZE), 415, "use 'application/json'"),
    "an unknown verb": (("POST", "/prioritise", JSON, PRIORITIZE), 404, "use POST to one of"),
    "a wrong method": (("PUT", "/prioritize", JSON, PRIORITIZE), 405, "use 'POST'"),
    "a body above the limit": (
        ("POST", "/prioritize", JSON, b'{"task": "' + b"x" * LIMIT_BYTES + b'"}'),
        413,
        "ISOCHRONE_MAX_BODY",
    ),
}


@pytest.mark.parametrize("what", TO_EXTENDER)
def test_the_extender_refuses(small: Isochrone, what: str) -> None:
    call, status, tokens = TO_EXTENDER[what]
    before = counted(small.controller.metrics(), "isochrone_extender_requests_total", result="rejected")
    connection = extender_connection(small)
    try:
        code, text = exchange(connection, call)
        assert code == status, text
        sentence = json.loads(text)["error"]
        assert tokens in sentence
        assert "\n" not in sentence
        assert exchange(connection, ("POST", "/prioritize", JSON, PRIORITIZE))[0] == 200
    finally:
        connection.close()
    after = counted(small.controller.metrics(), "isochrone_extender_requests_total", result="rejected")
    assert after == before + 1


REVIEW = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "resource": {"version": "v1", "resource": "pods"}, "object": {}},
    }
).encode()

TO_WEBHOOK: dict[str, tuple[Call, int, str]] = {
    "malformed JSON": (("POST", "/mutate/labelled", JSON, b'{"kind": '), 400, "must be an AdmissionReview"),
    "another kind": (("POST", "/mutate/labelled", JSON, b'{"kind": "Pod", "apiVersion": "v1"}'), 400, "v1 Pod"),
    "not UTF-8": (("POST", "/mutate/namespace", JSON, b'{"kind": "\xff"}'), 400, "must be UTF-8"),
    "a wrong content type": (("POST", "/mutate/labelled", "text/plain", REVIEW), 415, "use 'application/json'"),
    "an unknown path": (("POST", "/mutate/all", JSON, REVIEW), 404, "use POST to one of"),
    "a wrong method": (("GET", "/mutate/labelled", JSON, b""), 405, "use 'POST'"),
    "a body above the limit": (("POST", "/mutate/labelled", JSON, b" " * (3 * 2**20 + 1)), 413, "at most"),
}


@pytest.mark.parametrize("what", TO_WEBHOOK)
def test_the_webhook_refuses(small: Isochrone, what: str) -> None:
    call, status, tokens = TO_WEBHOOK[what]
    connection = webhook_connection(small)
    try:
        code, text = exchange(connection, call)
        assert code == status, text
        assert tokens in text
        assert text.count("\n") == 1
        assert text.endswith("\n")
    finally:
        connection.close()
    again = webhook_connection(small)
    try:
        code, text = exchange(again, ("POST", "/mutate/labelled", JSON, REVIEW))
        assert (code, json.loads(text)["response"]["allowed"]) == (200, True)
    finally:
        again.close()


def test_after_all_that_a_gang_is_placed(small: Isochrone, cluster: Cluster, namespace: str) -> None:
    for item in pair(gpus=1):
        cluster.create(item, namespace)
    print(f"bound after {bound_after(cluster, namespace, 2):.2f} s")
    all_within(cluster, namespace)


def applied(cluster: Cluster, namespace: str, item: Object) -> str:
    """What kubectl says when it creates this, refused or not."""
    try:
        return cluster.kubectl("create", "-n", namespace, "-f", "-", input=json.dumps(item))
    except RuntimeError as refused:
        return str(refused)


def test_a_wrong_template_is_refused_with_its_owner(small: Isochrone, cluster: Cluster, namespace: str) -> None:
    prefill, _ = pair("chat", gpus=1)
    prefill["spec"]["template"]["metadata"]["labels"][PHASE] = "prefil"
    output = applied(cluster, namespace, prefill)
    assert 'isochrone.dev/phase is \'prefil\'; use "prefill" or "decode". Did you mean "prefill"?' in output
    assert live_pods(cluster, namespace) == []


def warned(cluster: Cluster, namespace: str, item: Object, *verb: str) -> list[str]:
    """The warnings that kubectl prints for this; nothing is stored."""
    flags = ("--dry-run=server", "--warnings-as-errors", "-n", namespace, "-f", "-")
    try:
        cluster.kubectl(*(verb or ("apply",)), *flags, input=json.dumps(item))
    except RuntimeError as reported:
        return [line for line in str(reported).splitlines() if "Warning:" in line]
    return []


def test_who_applies_an_owner_hears_what_its_pods_would_be_told_and_only_then(
    small: Isochrone, cluster: Cluster, namespace: str
) -> None:
    item, _ = pair("chat", gpus=1)
    item["spec"]["replicas"] = 0
    reported = "isochrone.dev/reech is no key of Isochrone and means nothing; did you mean isochrone.dev/reach?"
    item["spec"]["template"]["metadata"].setdefault("annotations", {})["isochrone.dev/reech"] = "1ms"
    assert [reported in line for line in warned(cluster, namespace, item)] == [True]
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(item))
    item["spec"]["minReadySeconds"] = 1
    assert warned(cluster, namespace, item) == []  # the template is as it was
    item["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    item["metadata"].setdefault("annotations", {})["isochrone.dev/reach"] = "1ms"
    both = warned(cluster, namespace, item)  # by one of the two webhooks, each once
    assert ["stands on the Deployment" in line for line in both] == [False, True], both
    cluster.kubectl("scale", "-n", namespace, "deployment", item["metadata"]["name"], "--replicas=0")
    template = item["spec"]["template"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}},
    }
    template["spec"]["restartPolicy"] = "Never"
    assert [reported in line for line in warned(cluster, namespace, job)] == [True]


def test_an_lws_is_told_of_either_template(small: Isochrone, cluster: Cluster, namespace: str) -> None:
    group, schema = "leaderworkerset.x-k8s.io", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "leaderworkersets", "singular": "leaderworkerset", "kind": "LeaderWorkerSet"}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
    item = {**kind, "metadata": {"name": f"leaderworkersets.{group}"}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(item))
    try:
        cluster.kubectl("wait", "--for=condition=Established", f"crd/leaderworkersets.{group}", "--timeout=30s")
        wrong = pair("chat", gpus=1)[0]["spec"]["template"]
        right = json.loads(json.dumps(wrong))
        wrong["metadata"]["annotations"] = {"isochrone.dev/reech": "1ms"}
        for templates in ({"workerTemplate": wrong}, {"leaderTemplate": wrong, "workerTemplate": right}):
            workers = {"leaderWorkerTemplate": {"size": 2, **templates}}
            lws = {"apiVersion": f"{group}/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "l"}, "spec": workers}
            reported = warned(cluster, namespace, lws)
            assert [f"spec.leaderWorkerTemplate.{next(iter(templates))}: " in line for line in reported] == [True], (
                reported
            )
    finally:
        cluster.kubectl("delete", "crd", f"leaderworkersets.{group}", "--wait=false")


def test_signals_that_disagree_are_told_and_the_gang_is_placed(
    small: Isochrone, cluster: Cluster, new_namespace: NamespaceFactory
) -> None:
    namespace = new_namespace(labels={ENABLED: "true"})
    prefill, decode = vllm("prefill", "qwen3", gpus=1), vllm("decode", "qwen3", gpus=1)
    # The role label of a framework against the engine's argument: the label wins.
    decode["spec"]["template"]["metadata"]["labels"]["llm-d.ai/role"] = "decode"
    text = json.dumps(decode["spec"]["template"]["spec"]).replace("kv_consumer", "kv_producer")
    decode["spec"]["template"]["spec"] = json.loads(text)
    for item in (prefill, decode):
        cluster.create(item, namespace)
    bound_after(cluster, namespace, 2)
    all_within(cluster, namespace)
    (reported,) = [each.name for each in live_pods(cluster, namespace) if "decode" in each.name]
    assert "the high signal wins" in wait_event(cluster, namespace, reported, "PhaseConflict")["message"]


def test_nobody_else_changes_what_isochrone_wrote(small: Isochrone, cluster: Cluster, namespace: str) -> None:
    for item in pair("chat", gpus=1):
        cluster.create(item, namespace)
    bound_after(cluster, namespace, 2)
    name = live_pods(cluster, namespace)[0].name
    assert applied_patch(cluster, namespace, name, {"team": "x"}) == ""
    assert "written by Isochrone" in applied_patch(cluster, namespace, name, {PLACEMENT: "elsewhere"})
    found = json.loads(cluster.kubectl("get", "pod", name, "-n", namespace, "-o", "json"))
    assert "planned" in found["metadata"]["annotations"][PLACEMENT]


def applied_patch(cluster: Cluster, namespace: str, name: str, annotations: dict[str, str]) -> str:
    """Why a patch was refused; empty when it was not."""
    body = json.dumps({"metadata": {"annotations": annotations}})
    try:
        cluster.kubectl("patch", "pod", name, "-n", namespace, "--type=merge", "-p", body)
    except RuntimeError as refused:
        return str(refused)
    return ""


def test_a_forged_plan_is_taken_off_at_creation(small: Isochrone, cluster: Cluster, namespace: str) -> None:
    item = pod("forged", gpus=1)
    item["metadata"]["labels"] = {PHASE: "decode", "isochrone.dev/gang": "chat"}
    item["metadata"]["annotations"] = {"isochrone.dev/decision": "a1b2"}
    output = applied(cluster, namespace, item)
    assert "created" in output
    found = json.loads(cluster.kubectl("get", "pod", "forged", "-n", namespace, "-o", "json"))
    assert "isochrone.dev/decision" not in found["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("command", "setting", "value", "allowed"),
    [
        ("controller", "ISOCHRONE_EXTENDER_LISTEN", "x", "HOST:PORT"),
        ("controller", "ISOCHRONE_MAX_BODY", "big", "use a size"),
        ("controller", "ISOCHRONE_SETTLE", "soon", "use a duration"),
        ("webhook", "ISOCHRONE_LISTEN", "0.0.0.0:99999", "port up to 65535"),
        ("webhook", "ISOCHRONE_LOG_LEVEL", "loud", "warning or error"),
        ("webhook", "ISOCHRONE_KUBECONFIG", "/nowhere/config", "no such file"),
    ],
)
def test_a_wrong_setting_at_start(command: str, setting: str, value: str, allowed: str) -> None:
    env = {name: text for name, text in os.environ.items() if not name.startswith(("ISOCHRONE_", "KUBE"))}
    done = subprocess.run(
        [sys.executable, "-m", "admission.cli", command],
        env=env | {setting: value, "PYTHONPATH": str(CHECKOUT), "ISOCHRONE_HEALTH_LISTEN": "127.0.0.1:0"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert done.stdout == ""
    assert value in line
    assert allowed in line
    assert setting.removeprefix("ISOCHRONE_").lower() in line.lower()
