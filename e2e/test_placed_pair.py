"""Two Deployments of one gang come near each other, by every way a person can ask for it, and it is explained."""

import re

import pytest

from e2e.checks import (
    SAME_LEAF_US,
    all_within,
    bound_after,
    counted,
    live_pods,
    wait_event,
)
from e2e.conftest import NamespaceFactory
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import CONTROLLER, Isochrone
from e2e.workloads import ENABLED, GATE, PHASES, REACH_MODE, Object, occupant, pair, phased, vllm

pytestmark = pytest.mark.e2e

REVIEWS = "isochrone_admission_reviews_total"
CALLS = "isochrone_extender_requests_total"
MODEL = "meta-llama/Llama-3.1-70B-Instruct"


def assert_nominated(cluster: Cluster, namespace: str) -> None:
    """Every pod stands where Isochrone nominated it, and nothing holds it any more."""
    for pod in live_pods(cluster, namespace):
        assert pod.node == pod.nominated, pod
        assert GATE not in pod.gates


def described(cluster: Cluster, namespace: str, name: str) -> str:
    """What a person reads, once the placement was announced."""
    wait_event(cluster, namespace, name, "Placed")
    return cluster.kubectl("describe", "pod", name, "-n", namespace)


def assert_explained(text: str, phase: str, partner: str) -> None:
    """The reach and its bound, with whom, the runners-up, the age of the facts, and the Event with its sender."""
    number = r"\d[\d.]* (us|ms)"
    assert re.search(rf"pair +worst: {partner}\S* on gpu-\d+  {number} modelled  bound {number}", text), text
    assert re.search(r"planned +gpu-\d+  score \d+ = reach \d+/\d+", text), text
    assert re.search(r"next +\S", text), text
    assert re.search(r"facts +\d[\d.]*s old", text), text
    other = "decode" if phase == "prefill" else "prefill"
    assert re.search(
        rf"Normal +Placed +\S+ +isochrone-controller +On gpu-\d+, {number} from {other} {partner}", text
    ), text


def owners_of_group(cluster: Cluster, namespace: str, gang: str) -> Object:
    """The gang's one PodGroup, with the minimum of one pod a phase."""
    groups = cluster.api("GET", f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups")["items"]
    assert [group["metadata"]["name"] for group in groups] == [f"isochrone-{gang}"]
    (group,) = groups
    assert group["spec"]["minMember"] == 2
    assert group["spec"]["minTaskMember"] == {"prefill": 1, "decode": 1}
    owners = group["metadata"]["ownerReferences"]
    assert not [owner for owner in owners if owner.get("blockOwnerDeletion")]
    return {owner["name"]: (owner["kind"], owner["uid"]) for owner in owners}


def test_a_labelled_pair(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    asked = counted(isochrone.webhook.metrics(), REVIEWS, entry="labelled", result="tagged")
    made = [cluster.create(item, namespace) for item in pair(gpus=5)]
    print(f"bound after {bound_after(cluster, namespace, 2):.2f} s")
    print(f"worst reach {all_within(cluster, namespace)} us")
    assert_nominated(cluster, namespace)
    for pod in live_pods(cluster, namespace):
        partner = "chat-decode-" if pod.phase == "prefill" else "chat-prefill-"
        assert_explained(described(cluster, namespace, pod.name), pod.phase, partner)
    owners = {item["metadata"]["name"]: ("Deployment", item["metadata"]["uid"]) for item in made}
    assert owners_of_group(cluster, namespace, "chat") == owners
    assert counted(isochrone.webhook.metrics(), REVIEWS, entry="labelled", result="tagged") == asked + 2


def test_a_pair_known_by_its_arguments_alone(
    isochrone: Isochrone, cluster: Cluster, new_namespace: NamespaceFactory
) -> None:
    namespace = new_namespace(labels={ENABLED: "true"})
    asked = counted(isochrone.webhook.metrics(), REVIEWS, entry="namespace", result="tagged")
    for phase in PHASES:
        item = vllm(phase, MODEL, gpus=5)
        assert "isochrone" not in str(item)
        cluster.create(item, namespace)
    print(f"bound after {bound_after(cluster, namespace, 2):.2f} s")
    pods = live_pods(cluster, namespace)
    assert {pod.phase for pod in pods} == set(PHASES)
    assert all_within(cluster, namespace) > 0
    assert_nominated(cluster, namespace)
    for pod in pods:
        partner = "vllm-decode-" if pod.phase == "prefill" else "vllm-prefill-"
        assert_explained(described(cluster, namespace, pod.name), pod.phase, partner)
    assert set(owners_of_group(cluster, namespace, pods[0].gang)) == {"vllm-prefill", "vllm-decode"}
    assert counted(isochrone.webhook.metrics(), REVIEWS, entry="namespace", result="tagged") == asked + 2


@pytest.mark.parametrize("how", ["selected", "cordoned", "full"])
def test_one_single_feasible_node(
    isochrone: Isochrone, cluster: Cluster, new_namespace: NamespaceFactory, how: str
) -> None:
    namespace, only = new_namespace(), "gpu-009"
    others = [name for index in range(16) if (name := f"gpu-{index:03}") != only]
    if how == "cordoned":
        for name in others:
            cluster.api("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    if how == "full":
        cluster.create_many((occupant(name, 7) for name in others), new_namespace("full"))
    try:
        for item in pair(gpus=3, reach="15us", hostname=only if how == "selected" else ""):
            cluster.create(item, namespace)
        print(f"bound after {bound_after(cluster, namespace, 2):.2f} s")
    finally:
        if how == "cordoned":
            for name in others:
                cluster.api("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})
    pods = live_pods(cluster, namespace)
    assert {pod.node for pod in pods} == {only}
    assert_nominated(cluster, namespace)
    for pod in pods:
        text = described(cluster, namespace, pod.name)
        assert_explained(text, pod.phase, "chat-decode-" if pod.phase == "prefill" else "chat-prefill-")
        assert re.search(r"next +none: the only feasible node of 16", text), text
        assert re.search(r"15 of 16", text), text


def preferred(cluster: Cluster, namespace: str) -> None:
    """A gang that wishes and does not insist, for Volcano."""
    for item in pair("soft", scheduler="volcano", annotations={REACH_MODE: "preferred"}):
        cluster.create(item, namespace)


def test_a_preferred_gang_is_placed_by_scores(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    before = counted(isochrone.controller.metrics(), CALLS, verb="prioritize", result="answered")
    preferred(cluster, namespace)
    print(f"bound after {bound_after(cluster, namespace, 2):.2f} s")
    asked = counted(isochrone.controller.metrics(), CALLS, verb="prioritize", result="answered") - before
    assert asked >= 2, "Volcano did not ask for scores"
    assert not [pod for pod in live_pods(cluster, namespace) if pod.nominated]
    assert all_within(cluster, namespace) <= SAME_LEAF_US
    for pod in live_pods(cluster, namespace):
        assert "score" in described(cluster, namespace, pod.name)


def test_a_preferred_gang_needs_no_controller(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    cluster.kill(CONTROLLER)
    try:
        preferred(cluster, namespace)
        print(f"bound without the controller after {bound_after(cluster, namespace, 2):.2f} s")
    finally:
        cluster.restart(CONTROLLER)
        isochrone.wait_ready(isochrone.controller)


def test_a_wrong_value_is_refused_in_one_sentence(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    asked = counted(isochrone.webhook.metrics(), REVIEWS, result="refused")
    item = phased("prefill", reach="soon")
    template = item["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": template["metadata"] | {"name": "wrong"}}
    code, text = cluster.client.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    assert code == 400, text
    assert "isochrone.dev/reach" in text
    assert "soon" in text
    assert counted(isochrone.webhook.metrics(), REVIEWS, result="refused") == asked + 1
