"""What is not ours costs nothing: bound at once, no call to the extender, no write by us, no look where none is due."""

import re
from collections.abc import Iterator

import pytest

from e2e.checks import all_within, bound_after, counted, live_pods, our_writes, seconds_until, stays, writes
from e2e.conftest import NamespaceFactory, empty
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import Isochrone
from e2e.stack.processes import LIMIT_S
from e2e.workloads import ENABLED, Object, pair, pod, pod_group

pytestmark = pytest.mark.e2e

CALLS = "isochrone_extender_requests_total"
REVIEWS = "isochrone_admission_reviews_total"
UNFILTERED = ("onSessionClose",)
"""Volcano calls these once a session whatever is in it."""

SETTLE_S = 2.5
"""Two of Volcano's sessions and the controller's quiet time: what is to come has come."""


def calls(isochrone: Isochrone) -> float:
    """Calls of the extender that are about a pod."""
    text = isochrone.controller.metrics()
    return counted(text, CALLS) - sum(counted(text, CALLS, verb=verb) for verb in UNFILTERED)


def reviews(isochrone: Isochrone) -> float:
    """Pods that the webhook was shown."""
    return counted(isochrone.webhook.metrics(), REVIEWS)


def training(gangs: int) -> list[Object]:
    """Foreign GPU gangs: PodGroups of their own that want all four members."""
    groups = [pod_group(f"train-{gang}", 4) for gang in range(gangs)]
    pods = [pod(f"train-{gang}-{index}", gpus=1, group=f"train-{gang}") for gang in range(gangs) for index in range(4)]
    return groups + pods


CROWDS: dict[str, list[Object]] = {
    "cpu pods": [pod(f"web-{index}") for index in range(6)],
    "gpu pods": [pod(f"notebook-{index}", gpus=1) for index in range(6)],
    "gpu gangs": training(2),
}


@pytest.fixture(scope="module")
def ours(isochrone: Isochrone, cluster: Cluster) -> Iterator[str]:
    """A namespace with a gang that is placed and one that waits: Isochrone has something to do."""
    namespace = cluster.create_namespace("ours")
    asked = calls(isochrone)
    for item in [*pair("placed"), *pair("waits", gpus=8, reach="15us")]:
        cluster.create(item, namespace)
    bound_after(cluster, namespace, 2)
    seconds_until(cluster, lambda: calls(isochrone) >= asked + 2, LIMIT_S, "what Volcano tells of the two pods")
    cluster.wait_for(lambda: len(live_pods(cluster, namespace)) == 4, LIMIT_S, "four pods of ours")
    all_within(cluster, namespace)
    yield namespace
    empty(cluster, namespace)


@pytest.mark.parametrize("crowd", CROWDS)
def test_strangers_are_bound_at_once_and_left_alone(
    isochrone: Isochrone, cluster: Cluster, namespace: str, ours: str, crowd: str
) -> None:
    items = CROWDS[crowd]
    asked, shown = calls(isochrone), reviews(isochrone)
    for item in items:
        cluster.create(item, namespace)
    count = sum(item["kind"] == "Pod" for item in items)
    print(f"{count} {crowd} bound after {bound_after(cluster, namespace, count):.2f} s")
    stays(cluster, lambda: calls(isochrone) == asked, SETTLE_S, "the extender is not asked about strangers")
    assert reviews(isochrone) == shown, "the webhook was shown a stranger"
    audit = cluster.audit_events()
    assert our_writes(audit, namespace) == []
    assert {user for user, verb, what in writes(audit, namespace) if (verb, what) == ("create", "pods/binding")} == {
        "volcano-scheduler"
    }
    for each in cluster.pods(namespace):
        assert "isochrone" not in str(each["metadata"].get("labels")) + str(each["metadata"].get("annotations"))
        assert "schedulingGates" not in each["spec"]


def test_the_same_probes_see_what_is_ours(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    asked, shown = calls(isochrone), reviews(isochrone)
    for item in pair(gpus=1):
        cluster.create(item, namespace)
    bound_after(cluster, namespace, 2)
    assert reviews(isochrone) == shown + 4, "two owners to be judged and two pods to be tagged, each once"
    seconds_until(cluster, lambda: calls(isochrone) >= asked + 2, LIMIT_S, "allocateFunc for each of the two pods")
    made = {(verb, what) for _, verb, what in our_writes(cluster.audit_events(), namespace)}
    assert {("patch", "pods/status"), ("patch", "pods")} <= made
    assert any(what == "podgroups" for _, what in made)


def test_an_enabled_namespace_is_shown_engines_only(
    isochrone: Isochrone, cluster: Cluster, new_namespace: NamespaceFactory
) -> None:
    namespace = new_namespace(labels={ENABLED: "true"})
    shown, asked = reviews(isochrone), calls(isochrone)
    cluster.create(pod("cpu"), namespace)
    assert reviews(isochrone) == shown, "a pod without GPUs was shown to the webhook"
    cluster.create(pod("notebook", gpus=1), namespace)
    assert reviews(isochrone) == shown + 1
    bound_after(cluster, namespace, 2)
    assert calls(isochrone) == asked, "a pod without a phase was asked about"
    assert our_writes(cluster.audit_events(), namespace) == []


def test_a_pod_that_opts_out_is_left_alone(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    shown = reviews(isochrone)
    labels = {"isochrone.dev/phase": "prefill", "isochrone.dev/gang": "chat", ENABLED: "false"}
    cluster.create(pod("aside", gpus=1, labels=labels), namespace)
    bound_after(cluster, namespace, 1)
    assert reviews(isochrone) == shown
    (seen,) = cluster.pods(namespace)
    assert not re.search("isochrone.dev/(reach|pair|signal)", str(seen["spec"]) + str(seen["metadata"]["annotations"]))
