"""Templates that are replaced while their gang is held, by owners that wait for the new pods to run."""

import pytest

from e2e.checks import all_within, bound_pods, events, live_pods, stays, wait_event
from e2e.conftest import ClusterFactory
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import Isochrone, install
from e2e.stack.nodes import grid
from e2e.stack.processes import LIMIT_S
from e2e.test_gang_lives import CHECK_S, patch_template, stateful
from e2e.workloads import DECODE, PREFILL, phased, resources

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="module")
def cluster(cluster_factory: ClusterFactory) -> Cluster:
    """Four nodes of 8 GPUs in one zone."""
    return cluster_factory(grid(4, zones=1, leaves_per_zone=2))


@pytest.fixture(scope="module")
def isochrone(cluster: Cluster) -> Isochrone:
    return install(cluster)


@pytest.mark.parametrize("policy", ["Parallel", "OrderedReady"])
def test_a_held_stateful_set_whose_minimum_is_lowered(
    isochrone: Isochrone, cluster: Cluster, namespace: str, policy: str
) -> None:
    """Made at once, its last pod is replaced and the others wait for that one to run; made one after the other, the
    first is not replaced before it runs, so people delete it."""
    cluster.create(phased(PREFILL), namespace)
    decode = stateful("decode", DECODE, 6, 6, {"isochrone.dev/min-decode": "6"})
    decode["spec"]["podManagementPolicy"] = policy
    cluster.create(decode, namespace)
    try:
        count = 7 if policy == "Parallel" else 2
        cluster.wait_for(lambda: len(live_pods(cluster, namespace)) == count, LIMIT_S, f"{count} pods")
        wait_event(cluster, namespace, "decode-0", "InsufficientGPU")
        cluster.kubectl("scale", "statefulset", "decode", "--replicas=2", "-n", namespace)
        cluster.wait_for(lambda: len(live_pods(cluster, namespace)) <= 3, LIMIT_S, "two decode pods at most")
        template = {"metadata": {"annotations": {"isochrone.dev/min-decode": "2"}}}
        patch_template(cluster, namespace, "statefulset/decode", template)
        if policy == "OrderedReady":
            stays(cluster, lambda: not bound_pods(cluster, namespace), CHECK_S, "the first pod is not replaced")
            cluster.kubectl("delete", "pod", "decode-0", "-n", namespace)
        cluster.kubectl("rollout", "status", "statefulset/decode", "-n", namespace, "--timeout=60s")
        cluster.wait_for(lambda: len(bound_pods(cluster, namespace)) == 3, LIMIT_S, "one and two run")
        all_within(cluster, namespace, at_least=2)
    finally:
        cluster.api("DELETE", f"/apis/apps/v1/namespaces/{namespace}/statefulsets/decode")


def test_an_older_template_that_has_no_room_is_ended_as_advised(
    isochrone: Isochrone, cluster: Cluster, namespace: str
) -> None:
    """No node has the 9 GPUs that the first template asks for. The second asks for 2; the old ReplicaSet is deleted."""
    cluster.create(phased(PREFILL), namespace)
    cluster.create(phased(DECODE, replicas=2, gpus=9, annotations={"isochrone.dev/min-decode": "2"}), namespace)
    cluster.wait_for(lambda: len(live_pods(cluster, namespace)) == 3, LIMIT_S, "three pods")
    sets = cluster.api("GET", f"/apis/apps/v1/namespaces/{namespace}/replicasets")["items"]
    (old,) = [each["metadata"]["name"] for each in sets if each["metadata"]["name"].startswith("chat-decode")]
    patch_template(
        cluster,
        namespace,
        "deployment/chat-decode",
        {"spec": {"containers": [{"name": "engine", "resources": resources(2)}]}},
    )

    def advised() -> bool:
        texts = [e["message"] for p in live_pods(cluster, namespace) for e in events(cluster, namespace, p.name)]
        return any(f"delete ReplicaSet {old}, none of whose pods runs" in text for text in texts)

    cluster.wait_for(advised, LIMIT_S, "the way out is told")
    cluster.kubectl("delete", "replicaset", old, "-n", namespace)
    cluster.kubectl("rollout", "status", "deployment/chat-decode", "-n", namespace, "--timeout=60s")
    all_within(cluster, namespace, at_least=2)
