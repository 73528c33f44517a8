"""`isochrone topology show --node` at a real API server: its proxy, the chart's Role, a controller and an agent."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import ClusterFactory
from e2e.slow_probes import ProbeWay
from e2e.stack.build import CHECKOUT
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import CONTROLLER, NAMESPACE, install
from e2e.stack.nodes import grid
from e2e.stack.processes import LIMIT_S
from tests.nvml import profiles
from tests.nvml.agents import agent_process

pytestmark = [pytest.mark.e2e, pytest.mark.full]

NODE = "gpu-000"
RBAC = {"apiVersion": "rbac.authorization.k8s.io/v1"}


def own_address() -> str:
    """An address of this machine that is no loopback: the API server proxies to no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but loopback's")
        return str(probe.getsockname()[0])


@contextmanager
def service(cluster: Cluster, port: int) -> Iterator[None]:
    """The chart's Service, with this machine as its pod; `port` is the controller's on the loopback.

    The API server proxies only to addresses that a Pod object has (its service registry, isValidAddress).
    """
    address, meta = own_address(), {"name": CONTROLLER}
    spec = {"schedulerName": "nobody", "containers": [{"name": "controller", "image": "isochrone"}]}
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, NAMESPACE)
    status = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{CONTROLLER}/status"
    cluster.api("PATCH", path, status, "application/merge-patch+json")
    ports = [{"name": "metrics", "port": 8081, "targetPort": port}]
    cluster.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": ports}}, NAMESPACE)
    target = {"kind": "Pod", "name": CONTROLLER, "namespace": NAMESPACE}
    there = {"addresses": [{"ip": address, "targetRef": target}], "ports": [{"name": "metrics", "port": port}]}
    endpoints = {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": [there]}
    cluster.api("POST", f"/api/v1/namespaces/{NAMESPACE}/endpoints", endpoints)
    way = ProbeWay(address, "127.0.0.1", port)
    try:
        yield
    finally:
        way.close()


def bind(cluster: Cluster, kind: str, role: str, account: str) -> None:
    """A right for a service account, in Isochrone's namespace or everywhere."""
    there = {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}}
    who = {"subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]}
    binding: dict[str, Any] = {
        **RBAC,
        "kind": f"{kind}Binding",
        "metadata": {"name": f"{account}-{role}"},
        **there,
        **who,
    }
    cluster.create(binding, *([NAMESPACE] if kind == "Role" else []))


def shown(kubeconfig: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "admission.cli", "topology", "show", "--node", NODE, "-o", "json"]
    done = subprocess.run(
        [*command, "--kubeconfig", str(kubeconfig)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_a_reader_sees_what_the_agent_sees(cluster_factory: ClusterFactory, tmp_path: Path) -> None:
    cluster = cluster_factory(grid(2))
    hub = cluster.ports.take()
    env = {"ISOCHRONE_HUB_LISTEN": f"127.0.0.1:{hub}", "ISOCHRONE_PROBE_EVERY": "off"}
    isochrone = install(cluster, ["agent.enabled=true", "agent.plaintext=true"], env)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}}
    cluster.create(account, NAMESPACE)
    cluster.create(
        {
            **RBAC,
            "kind": "ClusterRole",
            "metadata": {"name": "sees-nodes"},
            "rules": [
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
                {"apiGroups": ["topology.volcano.sh"], "resources": ["hypernodes"], "verbs": ["list"]},
            ],
        }
    )
    bind(cluster, "ClusterRole", "sees-nodes", "reader")
    reader = cluster.write_kubeconfig("reader", cluster.service_account_token(NAMESPACE, "reader"))
    with ExitStack() as stack:
        stack.enter_context(service(cluster, isochrone.controller.health_port))
        folder = profiles.write(profiles.hgx_h100(), tmp_path / NODE)
        settings = {"ISOCHRONE_HUB": f"127.0.0.1:{hub}", "ISOCHRONE_PLAINTEXT": "true"}
        stack.enter_context(agent_process(folder, NODE, settings))
        without = shown(reader)
        assert "no right to get services/proxy" in without["warnings"][-1]
        bind(cluster, "Role", "isochrone-topology-reader", "reader")
        value = shown(reader)
        until = time.monotonic() + LIMIT_S
        while len(value["nics"]) != 8:
            assert time.monotonic() < until, value["warnings"]
            time.sleep(1)  # the agent's first report is on its way
            value = shown(reader)
    assert [gpu["name"] for gpu in value["gpus"]] == [f"GPU{n}" for n in range(8)]
    assert {"a": "GPU0", "b": "GPU1", "kind": "NV18"} in value["links"]
    assert {gpu["numa"] for gpu in value["gpus"]} == {0, 1}
    assert [host["name"] for host in value["hosts"]] == [NODE]
