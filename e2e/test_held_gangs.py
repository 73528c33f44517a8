"""What cannot be within its bound waits, whole and with its reason, and goes by itself as soon as it can."""

import json

import pytest

from e2e.checks import (
    all_within,
    bound_after,
    bound_pods,
    live_pods,
    seconds_until,
    stays,
    wait_event,
)
from e2e.conftest import NamespaceFactory
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import Isochrone
from e2e.stack.nodes import gpu_node
from e2e.stack.processes import LIMIT_S
from e2e.workloads import PLACEMENT, occupant, pair

pytestmark = pytest.mark.e2e

CHECK_S = 2.0


def annotation(cluster: Cluster, namespace: str, name: str) -> str:
    """The explanation that a pod carries now."""
    pod = cluster.api("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
    return str(pod["metadata"].get("annotations", {}).get(PLACEMENT, ""))


def wait_told(cluster: Cluster, namespace: str, name: str, reason: str) -> str:
    """Waits until a pod carries its reason as an Event and as an annotation; the Event's text."""
    event = wait_event(cluster, namespace, name, reason)
    seconds_until(cluster, lambda: "none " in annotation(cluster, namespace, name), LIMIT_S, f"annotation of {name}")
    assert event["type"] == "Warning"
    return str(event["message"])


def status_of(cluster: Cluster, namespace: str) -> set[str]:
    """The STATUS column that a person sees."""
    lines = cluster.kubectl("get", "pods", "-n", namespace, "--no-headers").splitlines()
    return {line.split()[2] for line in lines}


def scale(cluster: Cluster, namespace: str, name: str, replicas: int) -> None:
    """`kubectl scale`, as a person or an autoscaler does it."""
    cluster.kubectl("scale", "deployment", name, f"--replicas={replicas}", "-n", namespace)


def test_a_gang_beyond_its_bound_waits_whole_until_a_node_fits(
    isochrone: Isochrone, cluster: Cluster, namespace: str
) -> None:
    # Two pods of 8 GPUs within 15 us need one node of 16, and there is none.
    for item in pair(gpus=8, reach="15us"):
        cluster.create(item, namespace)
    cluster.wait_for(lambda: len(live_pods(cluster, namespace)) == 2, LIMIT_S, "two pods exist")
    pods = live_pods(cluster, namespace)
    for each in pods:
        text = wait_told(cluster, namespace, each.name, "ReachExceeded")
        assert "bound of 15 us" in text
        assert "16 nodes checked" in text
        assert "within 15 us" in annotation(cluster, namespace, each.name)
    stays(cluster, lambda: all(each.held for each in live_pods(cluster, namespace)), CHECK_S, "the gang is held whole")
    assert status_of(cluster, namespace) == {"SchedulingGated"}
    node = gpu_node("gpu-wide", "zone-c", "leaf-c1", gpus=16)
    try:
        cluster.kubectl("create", "-f", "-", input=json.dumps(node))
        print(f"placed {bound_after(cluster, namespace, 2):.2f} s after a fitting node was created")
        assert {each.node for each in live_pods(cluster, namespace)} == {"gpu-wide"}
        all_within(cluster, namespace)
    finally:
        cluster.api("DELETE", "/api/v1/nodes/gpu-wide")


def running_pair(cluster: Cluster, namespace: str, gpus: int, reach: str) -> dict[str, str]:
    """A gang of one prefill and one decode pod that is bound; the node of each pod by its uid."""
    for item in pair(gpus=gpus, reach=reach):
        cluster.create(item, namespace)
    bound_after(cluster, namespace, 2)
    return {each.uid: each.node for each in live_pods(cluster, namespace)}


def test_scaled_out_with_room(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    before = running_pair(cluster, namespace, gpus=2, reach="100us")
    scale(cluster, namespace, "chat-decode", 4)
    print(f"three more bound after {bound_after(cluster, namespace, 5):.2f} s")
    worst = all_within(cluster, namespace, at_least=4)
    print(f"worst reach {worst} us")
    pods = live_pods(cluster, namespace)
    assert len({each.node for each in pods}) == 2, "five pods of 2 GPUs fill more than one node"
    assert before.items() <= {each.uid: each.node for each in pods}.items(), "a running pod was moved"
    for each in pods:
        if each.uid not in before:
            assert each.node == each.nominated
            wait_event(cluster, namespace, each.name, "Placed")


def test_scaled_out_with_room_for_some(isochrone: Isochrone, cluster: Cluster, new_namespace: NamespaceFactory) -> None:
    # One node of 8 GPUs has room for four pods of two: a stranger, the pair and one more.
    namespace, strangers = new_namespace(), new_namespace("strangers")
    before = running_pair(cluster, namespace, gpus=2, reach="15us")
    (node,) = set(before.values())
    stranger = occupant(node, 2)
    cluster.create(stranger, strangers)
    scale(cluster, namespace, "chat-decode", 4)
    print(f"one more bound after {bound_after(cluster, namespace, 3):.2f} s")
    cluster.wait_for(lambda: len(live_pods(cluster, namespace)) == 5, LIMIT_S, "five pods exist")
    held = [each for each in live_pods(cluster, namespace) if not each.node]
    for each in held:
        assert each.held
        text = wait_told(cluster, namespace, each.name, "ReachExceeded")
        assert "15 us" in text
        assert "beyond reach" in text
        assert "this pod alone waits" in annotation(cluster, namespace, each.name)
    stays(cluster, lambda: len(bound_pods(cluster, namespace)) == 3, CHECK_S, "two decode pods are held")
    all_within(cluster, namespace, at_least=2)
    cluster.api("DELETE", f"/api/v1/namespaces/{strangers}/pods/{stranger['metadata']['name']}?gracePeriodSeconds=0")
    print(f"the stranger's room was taken after {bound_after(cluster, namespace, 4):.2f} s")
    all_within(cluster, namespace, at_least=3)
    assert sum(each.held for each in live_pods(cluster, namespace)) == 1


def test_pods_of_a_rollout_come_to_their_partners(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    """A new ReplicaSet is a new owner: its pods belong to the same gang all the same."""
    before = running_pair(cluster, namespace, gpus=2, reach="100us")
    cluster.kubectl("rollout", "restart", "deployment/chat-decode", "-n", namespace)

    def replaced() -> bool:
        pods = live_pods(cluster, namespace)
        return (
            len(pods) == 2 and all(each.node for each in pods) and len({each.uid for each in pods} - set(before)) == 1
        )

    cluster.wait_for(replaced, LIMIT_S, "a new decode pod is bound and the old one gone")
    all_within(cluster, namespace)
