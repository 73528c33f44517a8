"""What the uninstall hook does, with the chart's own rights, on a real API server with a real Volcano."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.stack.cluster import Cluster
from e2e.stack.nodes import grid
from e2e.stack.processes import LIMIT_S
from manifests.render import CHART, INSTALL, NAMESPACE, find_helm
from topology.labels import GANG, GATE, GROUP_NAME, PHASE

pytestmark = pytest.mark.e2e

OTHER = "other.example/gate"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(grid(4), name="uninstall") as started:
        started.kubectl("apply", "--server-side", "-f", str(INSTALL))
        yield started


def held(name: str, *gates: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {PHASE: "decode", GANG: "chat"},
            "annotations": {GROUP_NAME: "isochrone-chat"},
        },
        "spec": {
            "schedulerName": "volcano",
            "schedulingGates": [{"name": gate} for gate in gates],
            "containers": [{"name": "engine", "image": "engine", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }


def hook() -> dict[str, Any]:
    """The chart's uninstall Job."""
    command = [find_helm(), "template", "isochrone", str(CHART), "--namespace", NAMESPACE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    (job,) = [each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "Job"]
    return dict(job["spec"]["template"]["spec"])


def test_the_hook_lets_every_held_pod_go_and_takes_the_webhook_along(cluster: Cluster) -> None:
    for name, gates in {"a": (GATE,), "b": (OTHER, GATE), "c": (OTHER,)}.items():
        cluster.create(held(name, *gates), "default")
    spec = hook()
    token = cluster.service_account_token(NAMESPACE, spec["serviceAccountName"])
    kubeconfig = cluster.write_kubeconfig("release", token)
    command = [sys.executable, "-m", "admission.cli", *spec["containers"][0]["args"], "--kubeconfig", str(kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == [
        "webhook configuration zz-isochrone removed",
        "PodGroup default/isochrone-chat created, minMember 1",
    ]
    assert sorted(done.stdout.splitlines()[2:]) == [
        "default/a released",
        f"default/b released by us, still held by {OTHER}",
        "released 2 pods, 0 failed",
    ]
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/zz-isochrone"
    assert cluster.get(hooks) is None
    pods = {pod["metadata"]["name"]: pod["spec"] for pod in cluster.pods("default")}
    assert [gate["name"] for gate in pods["b"]["schedulingGates"]] == [OTHER]
    assert [gate["name"] for gate in pods["c"]["schedulingGates"]] == [OTHER]
    cluster.wait_for(
        lambda: cluster.get("/api/v1/namespaces/default/pods/a")["spec"].get("nodeName"), LIMIT_S, "a is bound"
    )
    again = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert again.stdout == "webhook configuration zz-isochrone was gone already\nreleased 0 pods, 0 failed\n"
