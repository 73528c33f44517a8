"""Held pods are let go by hand while Isochrone is away, and all of them before it is uninstalled."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.checks import bound_after, bound_pods, live_pods, seen, stays
from e2e.conftest import NamespaceFactory, Shared
from e2e.stack.build import CHECKOUT
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import (
    CONTROLLER,
    NAMESPACE,
    WEBHOOK,
    WEBHOOK_CONFIGURATION,
    Isochrone,
    render,
)
from e2e.stack.processes import LIMIT_S
from e2e.stack.volcano_conf import scheduler_conf
from e2e.workloads import GANG, PHASE, pair, phased, pod

pytestmark = pytest.mark.e2e

CHECK_S = 1.5
THEIRS = "other.example/gate"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture(scope="module")
def cluster(shared: Shared) -> Iterator[Cluster]:
    """Isochrone is uninstalled here: nobody can use the shared cluster afterwards."""
    yield shared.take().cluster
    shared.spoilt()


def command(*tokens: str, kubeconfig: Path) -> tuple[int, list[str]]:
    """`isochrone ...` as a person runs it: exit code and lines."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("ISOCHRONE_")}
    done = subprocess.run(
        [sys.executable, "-m", "admission.cli", *tokens],
        env=env | {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout.splitlines()


def hold(cluster: Cluster, namespace: str, gang: str = "chat") -> list[str]:
    """A gang that no plan can help (no node has 16 GPUs for both within 15 us): the names of its two held pods."""
    selector = f"isochrone.dev/gang={gang}"
    for item in pair(gang, gpus=8, reach="15us"):
        cluster.create(item, namespace)
    cluster.wait_for(lambda: len(live_pods(cluster, namespace, selector)) == 2, LIMIT_S, "two pods exist")
    pods = live_pods(cluster, namespace, selector)
    assert all(each.held for each in pods)
    return sorted(each.name for each in pods)


def test_by_hand_while_the_controller_is_away(
    isochrone: Isochrone, cluster: Cluster, new_namespace: NamespaceFactory
) -> None:
    namespace, other = new_namespace(), new_namespace("other")
    cluster.kill(CONTROLLER)
    try:
        names = hold(cluster, namespace)
        hold(cluster, other)
        stays(cluster, lambda: not bound_pods(cluster, namespace), CHECK_S, "held pods are held")
        code, lines = command("release", "-n", namespace, kubeconfig=cluster.kubeconfig)
        assert code == 0
        assert lines[0] == f"PodGroup {namespace}/isochrone-chat created, minMember 1"
        assert sorted(lines[1:-1]) == [f"{namespace}/{name} released" for name in names]
        assert lines[-1] == "released 2 pods, 0 failed"
        print(f"Volcano bound them after {bound_after(cluster, namespace, 2):.2f} s")
        assert all(each.held for each in live_pods(cluster, other)), "pods of another namespace were let go"
        assert command("release", "-n", namespace, kubeconfig=cluster.kubeconfig) == (0, ["released 0 pods, 0 failed"])
    finally:
        cluster.restart(CONTROLLER)
        isochrone.wait_ready(isochrone.controller)


def test_one_gang_and_one_pod_alone(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    hold(cluster, namespace, "one")
    first, second = hold(cluster, namespace, "two")
    assert command("release", "-n", namespace, "--gang", "one", kubeconfig=cluster.kubeconfig)[0] == 0
    assert {each.gang for each in live_pods(cluster, namespace) if each.held} == {"two"}
    assert command("release", "-n", namespace, second, kubeconfig=cluster.kubeconfig)[0] == 0
    assert [each.name for each in live_pods(cluster, namespace) if each.held] == [first]
    # The controller runs and must not refuse the nodes of those whose bound was given up by hand.
    print(f"Volcano bound them after {bound_after(cluster, namespace, 3):.2f} s")
    stays(cluster, lambda: len(bound_pods(cluster, namespace)) == 3, CHECK_S, "the third pod is held")
    code, lines = command("release", "-n", namespace, "nobody", kubeconfig=cluster.kubeconfig)
    assert (code, lines[0]) == (1, f"{namespace}/nobody is not there or not held by Isochrone")


def test_uninstalling_lets_everyone_go(isochrone: Isochrone, cluster: Cluster, new_namespace: NamespaceFactory) -> None:
    """The chart's own hook, with its own rights: first the webhook goes, then every pod, and new pods are not held."""
    namespaces = [new_namespace("one"), new_namespace("two")]
    for each in namespaces:
        hold(cluster, each)
    # Somebody else's gate is not ours to open, whether or not there is one of ours beside it.
    for name, labels in (("both", {PHASE: "decode", GANG: "gated"}), ("theirs", {})):
        gated = pod(name, gpus=1, labels=labels)
        gated["spec"]["schedulingGates"] = [{"name": THEIRS}]
        cluster.create(gated, namespaces[0])
    (job,) = [item for item in render(cluster) if item["kind"] == "Job"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    spec = job["spec"]["template"]["spec"]
    account = spec["serviceAccountName"]
    token = cluster.service_account_token(NAMESPACE, account)
    # The hook runs while both services run: the controller must not hold back or undo what it does.
    kubeconfig, arguments = cluster.write_kubeconfig(account, token), spec["containers"][0]["args"]
    code, lines = command(*arguments, kubeconfig=kubeconfig)
    assert code == 0
    assert lines[0] == f"webhook configuration {WEBHOOK_CONFIGURATION} removed"
    assert f"{namespaces[0]}/both released by us, still held by {THEIRS}" in lines
    assert lines[-1] == "released 5 pods, 0 failed"
    mine = [
        (event["verb"], event["objectRef"]["resource"])
        for event in cluster.audit_events()
        if event["user"]["username"] == f"system:serviceaccount:{NAMESPACE}:{account}"
    ]
    assert mine[0] == ("delete", "mutatingwebhookconfigurations")
    assert mine.count(("patch", "pods")) == 5
    assert mine.count(("create", "podgroups")) == 3
    assert cluster.get(f"{CONFIGURATIONS}/{WEBHOOK_CONFIGURATION}") is None
    for name in ("both", "theirs"):
        assert seen(cluster.api("GET", f"/api/v1/namespaces/{namespaces[0]}/pods/{name}")).gates == (THEIRS,)
    gone = [f"webhook configuration {WEBHOOK_CONFIGURATION} was gone already", "released 0 pods, 0 failed"]
    assert command(*arguments, kubeconfig=kubeconfig) == (0, gone)
    cluster.stop(CONTROLLER)
    cluster.stop(WEBHOOK)
    cluster.set_scheduler_conf(scheduler_conf())
    for each in namespaces:
        bound_after(cluster, each, 2)
    late = phased("decode", "late", gpus=1, scheduler="volcano")
    cluster.create(late, namespaces[0])
    bound_after(cluster, namespaces[0], 3)
