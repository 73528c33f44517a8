"""The stack itself: it comes up fast, does what Kubernetes and Volcano do, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import ClusterFactory
from e2e.stack.build import CHECKOUT, Stack
from e2e.stack.cluster import Cluster
from e2e.stack.nodes import GPU, LEAF, ZONE, grid
from e2e.stack.processes import LIMIT_S, wait_until
from e2e.stack.volcano_conf import scheduler_conf

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cluster(cluster_factory: ClusterFactory) -> Cluster:
    """One of the module's own, without Isochrone."""
    return cluster_factory(grid(16), audit=True)


def gpu_pod(name: str, group: str | None = None) -> dict[str, Any]:
    """A pod for Volcano that wants one GPU."""
    annotations = {"scheduling.k8s.io/group-name": group} if group else {}
    container = {"name": "main", "image": "engine", "resources": {"limits": {GPU: "1"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"schedulerName": "volcano", "containers": [container]},
    }


def bound(cluster: Cluster, namespace: str, count: int) -> bool:
    """Whether this many pods of a namespace run on nodes."""
    running = [pod for pod in cluster.pods(namespace) if pod["status"]["phase"] == "Running"]
    return len(running) == count and all("nodeName" in pod["spec"] for pod in running)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_comes_up_with_16_nodes(cluster: Cluster) -> None:
    print(f"steps of the start, in seconds: {cluster.timings}")
    nodes = cluster.api("GET", "/api/v1/nodes")["items"]
    assert len(nodes) == 16
    assert {node["metadata"]["labels"][ZONE] for node in nodes} == {"zone-a", "zone-b", "zone-c", "zone-d"}
    assert len({node["metadata"]["labels"][LEAF] for node in nodes}) == 8
    assert all(node["status"]["allocatable"][GPU] == "8" for node in nodes)
    assert not any(node["spec"].get("taints") for node in nodes)


def test_volcano_binds_a_gang(cluster: Cluster, namespace: str) -> None:
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gang"},
        "spec": {"minMember": 2},
    }
    cluster.create(group, namespace)
    cluster.create(gpu_pod("one", "gang"), namespace)
    time.sleep(1.5)
    assert not bound(cluster, namespace, 1), "half a gang was bound"
    cluster.create(gpu_pod("two", "gang"), namespace)
    cluster.wait_for(lambda: bound(cluster, namespace, 2), LIMIT_S, "two pods of a gang run")


def test_a_deployment_makes_pods(cluster: Cluster, namespace: str) -> None:
    pod = gpu_pod("unused")
    template = {"metadata": {"labels": {"app": "engine"}}, "spec": pod["spec"]}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "engine"}}, "template": template}
    cluster.create(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "engine"}, "spec": spec}, namespace
    )
    cluster.wait_for(lambda: bound(cluster, namespace, 3), LIMIT_S, "a Deployment's three pods run")
    writers = {event["user"]["username"] for event in cluster.audit_events()}
    assert {"admin", "kube-controller-manager", "volcano-scheduler", "kwok"} <= writers


def test_the_scheduler_takes_a_new_conf(cluster: Cluster) -> None:
    cluster.set_scheduler_conf(scheduler_conf(actions="enqueue, allocate"))
    assert "backfill" not in cluster.log("vc-scheduler").rpartition("Final state: actions=")[2].partition("]")[0]
    cluster.set_scheduler_conf(scheduler_conf())


def test_a_service_account_has_only_its_rights(cluster: Cluster, namespace: str) -> None:
    token = cluster.service_account_token(namespace, "default")
    path = cluster.write_kubeconfig("nobody", token)
    assert path.stat().st_mode & 0o077 == 0
    code, text = cluster.client.request("GET", f"/api/v1/namespaces/{namespace}/pods", token=token)
    assert code == 403, text
    assert f"system:serviceaccount:{namespace}:default" in text


def test_a_node_can_fail_and_recover(cluster: Cluster) -> None:
    def tainted() -> bool:
        taints = cluster.api("GET", "/api/v1/nodes/gpu-015")["spec"].get("taints", [])
        return any(taint["key"] == "node.kubernetes.io/not-ready" for taint in taints)

    cluster.set_node_ready("gpu-015", False)
    cluster.wait_for(tainted, LIMIT_S, "an unready node is tainted")
    cluster.set_node_ready("gpu-015", True)
    cluster.wait_nodes_ready({"gpu-015"})
    cluster.wait_for(lambda: not tainted(), LIMIT_S, "the taint of a recovered node goes")


@pytest.mark.parametrize("victim", ["vc-scheduler", "kube-apiserver"])
def test_a_killed_process_can_be_restarted(cluster: Cluster, namespace: str, victim: str) -> None:
    before = cluster.pids()[victim]
    cluster.kill(victim)
    assert not alive(before)
    cluster.check()
    cluster.restart(victim)
    assert cluster.pids()[victim] != before
    cluster.wait_for(lambda: cluster.client.request("GET", "/readyz")[0] == 200, LIMIT_S, "kube-apiserver ready again")
    cluster.create(gpu_pod("after"), namespace)
    cluster.wait_for(lambda: bound(cluster, namespace, 1), LIMIT_S, f"a pod runs after {victim} came back")


def test_teardown_leaves_nothing(stack_bin: Stack) -> None:
    with Cluster(grid(1), name="teardown", stack=stack_bin) as mine:
        extra = mine.start_process("extra", [sys.executable, "-c", "import time; time.sleep(600)"])
        pids = mine.pids()
        assert extra.pid in pids.values()
    assert [name for name, pid in pids.items() if alive(pid)] == []
    assert not mine.workdir.exists()


UP = [sys.executable, "-m", "e2e.stack", "up", "--no-isochrone", "--nodes", "1"]


def start_up(argv: list[str]) -> tuple[subprocess.Popen[str], Path]:
    """A program that runs `up`, with the cluster's work folder once it is ready."""
    child = subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    with child.stdout:
        line = child.stdout.readline()
    assert line.startswith("KUBECONFIG="), f"up said {line!r}"
    return child, Path(line.strip().removeprefix("KUBECONFIG=")).parents[1]


def processes_naming(text: str) -> list[int]:
    """Pids whose command line holds a text."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and text in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if alive(pid)]


def assert_nothing_left(workdir: Path) -> None:
    """No process that names the work folder, and no work folder."""
    wait_until(lambda: not processes_naming(str(workdir)), LIMIT_S, "no process is left")
    wait_until(lambda: not workdir.exists(), LIMIT_S, "no folder is left")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full), signal.SIGKILL]
)
def test_up_ends_clean_by_any_signal(stack_bin: Stack, number: signal.Signals) -> None:
    child, workdir = start_up(UP)
    try:
        assert len(processes_naming(str(workdir))) >= 7
    finally:
        os.kill(child.pid, number)
        code = child.wait(LIMIT_S)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    assert_nothing_left(workdir)


def test_up_schedules_pods_that_name_no_scheduler_and_ends_with_its_parent(stack_bin: Stack) -> None:
    parent, workdir = start_up([sys.executable, "-c", f"import subprocess; subprocess.run({UP!r})"])
    assert processes_naming(str(workdir))
    kubectl = [str(stack_bin.bin("kubectl")), f"--kubeconfig={workdir / 'kubeconfigs' / 'admin.yaml'}"]
    try:
        subprocess.run([*kubectl, "run", "router", "--image=router"], check=True, timeout=LIMIT_S)
        scheduled = [*kubectl, "wait", "pod/router", "--for=condition=PodScheduled", f"--timeout={LIMIT_S:.0f}s"]
        subprocess.run(scheduled, check=True, timeout=2 * LIMIT_S)
    finally:
        parent.kill()
    parent.wait(LIMIT_S)
    assert_nothing_left(workdir)
