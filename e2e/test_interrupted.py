"""Between two steps the controller dies, or somebody takes the node: a successor finishes, and nobody lands outside."""

from collections.abc import Iterator

import pytest

from e2e.checks import (
    SAME_LEAF_US,
    all_within,
    beyond_bound,
    bound_after,
    bound_pods,
    live_pods,
    node_labels,
    reach_us,
    stays,
    wait_event,
)
from e2e.conftest import NamespaceFactory
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import CONTROLLER, WEBHOOK, Isochrone
from e2e.stack.processes import LIMIT_S
from e2e.stalling_proxy import GROUP, NOMINATE, RELEASE, Kind, StallingProxy, between, start_anew
from e2e.workloads import occupant, pair, pod, pod_group

pytestmark = pytest.mark.e2e

CHECK_S = 2.0
"""How long it is watched that nothing happens: two of Volcano's sessions."""


@pytest.fixture(scope="module")
def proxy(isochrone: Isochrone) -> Iterator[StallingProxy]:
    """The controller talks through a proxy that can hold its writes."""
    with between(isochrone) as made:
        yield made


def groups(cluster: Cluster, namespace: str) -> list[str]:
    """Names of the PodGroups of a namespace."""
    path = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups"
    return [item["metadata"]["name"] for item in cluster.api("GET", path)["items"]]


def test_while_it_is_away_others_go_on_and_the_held_wait(
    isochrone: Isochrone, cluster: Cluster, new_namespace: NamespaceFactory
) -> None:
    held, foreign = new_namespace("held"), new_namespace("foreign")
    cluster.kill(CONTROLLER)
    try:
        for item in pair():
            cluster.create(item, held)
        cluster.create(pod_group("train", 4), foreign)
        for index in range(4):
            cluster.create(pod(f"train-{index}", gpus=2, group="train"), foreign)
        cluster.create(pod("web"), foreign)
        print(f"foreign pods bound after {bound_after(cluster, foreign, 5):.2f} s")
        cluster.wait_for(lambda: len(live_pods(cluster, held)) == 2, LIMIT_S, "two held pods exist")
        stays(cluster, lambda: all(pod.held for pod in live_pods(cluster, held)), CHECK_S, "held pods are held")
        assert not bound_pods(cluster, held)
    finally:
        start_anew(isochrone)
    print(f"placed {bound_after(cluster, held, 2):.2f} s after its successor was ready")
    all_within(cluster, held)


STEPS = {
    "nominated and nobody released": (RELEASE, 0, 3),
    "one of three released": (RELEASE, 1, 2),
    "all released and no PodGroup": (GROUP, 0, 0),
}
"""Per step the kind of write that is held, how many of it go through first, and how many pods stay gated."""


@pytest.mark.parametrize("step", STEPS)
def test_killed_between_two_steps(
    isochrone: Isochrone, cluster: Cluster, namespace: str, proxy: StallingProxy, step: str
) -> None:
    kind, let_through, gated = STEPS[step]
    stop_at(cluster, namespace, proxy, kind, let_through, gated)
    cluster.kill(CONTROLLER)
    proxy.resume(forward=False)
    stays(cluster, lambda: not bound_pods(cluster, namespace), CHECK_S, "nobody is bound before the PodGroup")
    assert sum(pod.held for pod in live_pods(cluster, namespace)) == gated
    assert groups(cluster, namespace) == []
    start_anew(isochrone)
    print(f"placed {bound_after(cluster, namespace, 3):.2f} s after its successor was ready")
    all_within(cluster, namespace, at_least=2)
    assert groups(cluster, namespace) == ["isochrone-chat"]


def stop_at(cluster: Cluster, namespace: str, proxy: StallingProxy, kind: Kind, let_through: int, gated: int) -> None:
    """Creates a gang of one prefill and two decode pods and returns when the controller stands at this step."""
    proxy.hold(kind, let_through)
    for item in pair(decode=2, gpus=3, reach="100us"):
        cluster.create(item, namespace)
    proxy.wait_held(gated or 1)

    def there() -> bool:
        pods = live_pods(cluster, namespace)
        return len(pods) == 3 and all(pod.nominated for pod in pods) and sum(pod.held for pod in pods) == gated

    cluster.wait_for(there, LIMIT_S, f"all nominated, {gated} of 3 gated")


@pytest.mark.parametrize("what", ["nominate", "release", "group"])
def test_answers_get_lost(cluster: Cluster, namespace: str, proxy: StallingProxy, what: str) -> None:
    """A write was done and its answer never came: it is neither done twice to harm nor forgotten."""
    kind, count = {"nominate": (NOMINATE, 3), "release": (RELEASE, 2), "group": (GROUP, 1)}[what]
    rule = proxy.lose_answers(kind, count)
    for item in pair(decode=2, gpus=3, reach="100us"):
        cluster.create(item, namespace)
    print(f"placed after {bound_after(cluster, namespace, 3):.2f} s with lost answers")
    assert len(rule.lost) == count
    all_within(cluster, namespace, at_least=2)
    assert groups(cluster, namespace) == ["isochrone-chat"]
    assert not [each for each in live_pods(cluster, namespace) if each.node != each.nominated]


# --- the nominated node is taken -------------------------------------------------------------------------------


def nominated_and_released(cluster: Cluster, namespace: str, proxy: StallingProxy, reach: str) -> str:
    """A gang of two that waits for nothing but its PodGroup; the one node that both are nominated to."""
    proxy.hold(GROUP)
    for item in pair(gpus=2, reach=reach):
        cluster.create(item, namespace)
    proxy.wait_held()
    pods = live_pods(cluster, namespace)
    assert not [pod for pod in pods if pod.gates or pod.node]
    (node,) = {pod.nominated for pod in pods}
    return node


def take(cluster: Cluster, namespace: str, node: str, gpus: int = 8) -> None:
    """Somebody else's pod is bound to a node past every scheduler; if not told otherwise it fills it."""
    item = occupant(node, gpus)
    del item["spec"]["nodeName"]
    cluster.create(item, namespace)
    name = item["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    cluster.api("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)


def free(cluster: Cluster, namespace: str, node: str) -> None:
    """That pod goes."""
    name = occupant(node, 8)["metadata"]["name"]
    cluster.api("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")


def test_the_nominated_node_is_taken_and_the_set_has_room(
    cluster: Cluster, new_namespace: NamespaceFactory, proxy: StallingProxy
) -> None:
    namespace, strangers = new_namespace(), new_namespace("strangers")
    node = nominated_and_released(cluster, namespace, proxy, reach="100us")
    take(cluster, strangers, node)
    proxy.resume(forward=True)
    print(f"bound beside the taken node after {bound_after(cluster, namespace, 2):.2f} s")
    assert all_within(cluster, namespace) <= SAME_LEAF_US
    labels = node_labels(cluster)
    for each in live_pods(cluster, namespace):
        assert each.node != node
        assert reach_us(labels[node], labels[each.node]) == SAME_LEAF_US, "outside the set of the plan"


@pytest.mark.parametrize(("reach", "farthest_us"), [("15us", 0.0), ("100us", SAME_LEAF_US)])
def test_the_whole_set_is_taken(
    cluster: Cluster, new_namespace: NamespaceFactory, proxy: StallingProxy, reach: str, farthest_us: float
) -> None:
    namespace, strangers = new_namespace(), new_namespace("strangers")
    node = nominated_and_released(cluster, namespace, proxy, reach)
    labels = node_labels(cluster)
    inside = {node} | {name for name in labels if reach_us(labels[node], labels[name]) <= farthest_us}
    for name in sorted(inside):
        take(cluster, strangers, name)
    proxy.resume(forward=True)
    cluster.wait_for(lambda: groups(cluster, namespace), LIMIT_S, "the gang's PodGroup")
    stays(cluster, lambda: not bound_pods(cluster, namespace), 2 * CHECK_S, "nobody is bound outside the set")
    free(cluster, strangers, node)
    print(f"bound {bound_after(cluster, namespace, 2):.2f} s after there was room in the set again")
    assert {pod.node for pod in live_pods(cluster, namespace)} <= inside
    assert not beyond_bound(cluster, namespace)


def test_room_is_left_for_less_than_the_minimum(
    cluster: Cluster, new_namespace: NamespaceFactory, proxy: StallingProxy
) -> None:
    namespace, strangers = new_namespace(), new_namespace("strangers")
    # Four pods of 4 GPUs that must start together fill both nodes of a leaf; then there is room for three.
    proxy.hold(GROUP)
    for item in pair(decode=3, gpus=4, reach="100us", annotations={"isochrone.dev/min-decode": "3"}):
        cluster.create(item, namespace)
    proxy.wait_held()
    nodes = {each.nominated for each in live_pods(cluster, namespace)}
    assert len(nodes) == 2
    take(cluster, strangers, max(nodes), 4)
    proxy.resume(forward=True)
    cluster.wait_for(lambda: groups(cluster, namespace), LIMIT_S, "the gang's PodGroup")
    stays(cluster, lambda: not bound_pods(cluster, namespace), 2 * CHECK_S, "nobody starts below the minimum")
    free(cluster, strangers, max(nodes))
    print(f"bound {bound_after(cluster, namespace, 4):.2f} s after there was room for all again")
    assert {each.node for each in live_pods(cluster, namespace)} == nodes
    all_within(cluster, namespace, at_least=3)


def test_while_the_webhook_is_away_pods_are_created_untouched(
    isochrone: Isochrone, cluster: Cluster, namespace: str
) -> None:
    cluster.kill(WEBHOOK)
    try:
        for item in pair(scheduler="volcano"):
            cluster.create(item, namespace)
        print(f"bound without the webhook after {bound_after(cluster, namespace, 2):.2f} s")
        for each in live_pods(cluster, namespace):
            assert not each.gates
            wait_event(cluster, namespace, each.name, "NotRecognised")
    finally:
        cluster.restart(WEBHOOK)
        isochrone.wait_ready(isochrone.webhook)
