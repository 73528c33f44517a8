"""What becomes of gangs on a real cluster: groups of several pods, queues, priorities, rules unknown to the plan.

Its Volcano has the `preempt` action, which Volcano's default conf leaves out.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.checks import (
    all_within,
    bound_after,
    bound_pods,
    events,
    live_pods,
    seconds_until,
    stays,
    wait_event,
)
from e2e.conftest import ClusterFactory, NamespaceFactory
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import CONTROLLER, Isochrone, conf_with_extender, install
from e2e.stack.nodes import GPU, HOSTNAME, grid
from e2e.stack.processes import LIMIT_S
from e2e.stack.volcano_conf import scheduler_conf
from e2e.stalling_proxy import start_anew
from e2e.workloads import (
    DECODE,
    ENABLED,
    GANG,
    PHASE,
    PREFILL,
    Object,
    deployment,
    leader_worker_sets,
    occupant,
    pair,
    phased,
    resources,
)

pytestmark = pytest.mark.e2e

CHECK_S = 2.0
SOON = "3s"
"""After so long a pod that is not placed is made anew, where that is what is tested."""
LWS = "leaderworkerset.sigs.k8s.io"


@pytest.fixture(scope="module")
def cluster(cluster_factory: ClusterFactory) -> Cluster:
    """Four nodes of 8 GPUs in one zone."""
    return cluster_factory(grid(4, zones=1, leaves_per_zone=2))


@pytest.fixture(scope="module")
def isochrone(cluster: Cluster) -> Isochrone:
    made = install(cluster)
    conf = scheduler_conf(actions="enqueue, allocate, preempt, backfill")
    cluster.set_scheduler_conf(conf_with_extender(made.extender_url, conf))
    for name, value in (("low", 10), ("high", 1000)):
        cluster.create(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        )
    return made


@pytest.fixture
def impatient(isochrone: Isochrone, cluster: Cluster) -> Iterator[Isochrone]:
    """A controller that makes anew soon; a busy machine's pods of other tests would not be placed by then."""
    env = cluster.group[CONTROLLER].env
    before = env["ISOCHRONE_REPLAN_AFTER"]
    env["ISOCHRONE_REPLAN_AFTER"] = SOON
    start_anew(isochrone)
    yield isochrone
    env["ISOCHRONE_REPLAN_AFTER"] = before
    start_anew(isochrone)


def group_pod(name: str, group: int, worker: int, size: int, gpus: int) -> Object:
    """One pod of an LWS group, with the labels that LWS gives it."""
    labels = {
        PHASE: DECODE,
        GANG: "chat",
        f"{LWS}/name": name,
        f"{LWS}/group-index": str(group),
        f"{LWS}/worker-index": str(worker),
        f"{LWS}/group-key": f"{name}-{group}",
    }
    meta = {
        "name": f"{name}-{group}" + (f"-{worker}" if worker else ""),
        "labels": labels,
        "annotations": {f"{LWS}/size": str(size)},
    }
    container = {"name": "engine", "image": "engine", "resources": resources(gpus)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}


def test_an_lws_group_of_four_runs_as_one_member(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    """Four pods of 7 GPUs need all four nodes; the prefill pod fits beside one of them."""
    cluster.create(phased(PREFILL, gpus=1), namespace)
    for worker in range(3):
        cluster.create(group_pod("engine", 0, worker, 4, 7), namespace)
    stays(cluster, lambda: not bound_pods(cluster, namespace), CHECK_S, "three of four do not go")
    cluster.create(group_pod("engine", 0, 3, 4, 7), namespace)
    print(f"five pods bound after {bound_after(cluster, namespace, 5):.2f} s")
    nodes = [each.node for each in live_pods(cluster, namespace) if each.phase == DECODE]
    assert len(set(nodes)) == 4
    all_within(cluster, namespace, at_least=4)
    (group,) = cluster.api("GET", f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups")["items"]
    assert group["spec"]["minMember"] == 5
    assert group["spec"]["subGroupPolicy"][0]["subGroupSize"] == 4


@pytest.mark.full
def test_a_leader_whose_worker_comes_when_it_is_ready(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    """The leader is placed without its worker, whose room is kept: while the controller is away and when it is back a
    gang that would need that room does not get it. With its worker the group is counted as a whole."""
    cluster.create(leader_worker_sets())
    template = {"spec": {"containers": [{"name": "w", "image": "w", "resources": resources(7)}]}}
    parts = {"size": 2, "workerTemplate": template}
    spec: Object = {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": parts}
    owner = {"apiVersion": f"{LWS.split('.')[0]}.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
    path = f"/apis/{owner['apiVersion']}/namespaces/{namespace}/leaderworkersets"
    cluster.wait_for(lambda: cluster.client.request("GET", path)[0] == 200, LIMIT_S, "the kind is served")
    made = cluster.api("POST", path, {**owner, "metadata": {"name": "engine"}, "spec": spec})
    start_anew(isochrone)  # else it looks for the kind every half minute only
    reference = {**owner, "name": "engine", "uid": made["metadata"]["uid"], "controller": True}

    def of(worker: int) -> Object:
        pod = group_pod("engine", 0, worker, 2, 7)
        pod["metadata"]["ownerReferences"] = [reference]
        return pod

    cluster.create(phased(PREFILL, gpus=7), namespace)
    cluster.create(of(0), namespace)
    print(f"two pods bound after {bound_after(cluster, namespace, 2):.2f} s")
    groups = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups"
    (group,) = cluster.api("GET", groups)["items"]
    assert group["spec"]["minMember"] == 2
    assert "subGroupPolicy" not in group["spec"]
    start_anew(isochrone)
    for item in pair("other", gpus=7):
        cluster.create(item, namespace)
    other = f"{GANG}=other"
    stays(cluster, lambda: not bound_pods(cluster, namespace, other), CHECK_S, "one of two free nodes is kept")
    cluster.create(of(1), namespace)
    print(f"the worker bound after {bound_after(cluster, namespace, 3, selector=f'{GANG}=chat'):.2f} s")
    all_within(cluster, namespace, at_least=2)
    assert not bound_pods(cluster, namespace, other)

    def counted_whole() -> bool:
        (now,) = [g for g in cluster.api("GET", groups)["items"] if g["metadata"]["name"] == "isochrone-chat"]
        return bool(now["spec"]["minMember"] == 3 and now["spec"].get("subGroupPolicy"))

    cluster.wait_for(counted_whole, LIMIT_S, "the group is counted as a whole")


def kthena_pod(role: str, worker: int, size: int, gpus: int) -> Object:
    """One pod of the first copy of a role as Kthena makes it, without a label of ours; the worker only joins Ray."""
    labels = {
        "modelserving.volcano.sh/group-name": "chat-0",
        "modelserving.volcano.sh/role": role,
        "modelserving.volcano.sh/role-id": f"{role}-0",
    }
    container = {
        "name": "engine",
        "image": "engine",
        "command": ["sh", "-c", "ray start --block --address=$ENTRY_ADDRESS" if worker else "vllm serve chat"],
        "env": [{"name": "GROUP_SIZE", "value": str(size)}],
        "resources": resources(gpus),
    }
    meta = {"name": f"chat-0-{role}-0-{worker}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}


@pytest.mark.full
def test_a_role_of_kthena_over_two_nodes_runs_as_one_member(
    isochrone: Isochrone, cluster: Cluster, new_namespace: NamespaceFactory
) -> None:
    """Its PodGroup is ours, for it has no gang policy of its own; Volcano counts whole copies by their role id."""
    namespace = new_namespace(labels={ENABLED: "true"})
    cluster.create(kthena_pod("prefill", 0, 1, 1), namespace)
    cluster.create(kthena_pod("decode", 0, 2, 7), namespace)
    stays(cluster, lambda: not bound_pods(cluster, namespace), CHECK_S, "half of a copy does not go")
    cluster.create(kthena_pod("decode", 1, 2, 7), namespace)
    print(f"three pods bound after {bound_after(cluster, namespace, 3):.2f} s")
    assert len({each.node for each in live_pods(cluster, namespace) if each.phase == DECODE}) == 2
    (group,) = cluster.api("GET", f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups")["items"]
    (policy,) = group["spec"]["subGroupPolicy"]
    assert (policy["subGroupSize"], policy["matchLabelKeys"]) == (2, ["modelserving.volcano.sh/role-id"])


def test_a_gang_waits_for_its_queue(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    queue: Object = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "small"},
        "spec": {"weight": 1, "capability": {GPU: "6"}},
    }
    cluster.create(queue)
    output = {"scheduling.volcano.sh/queue-name": "small"}
    for item in (*pair("first", annotations=output), *pair("second", annotations=output)):
        cluster.create(item, namespace)
    bound_after(cluster, namespace, 2)
    (waits,) = {each.gang for each in live_pods(cluster, namespace) if not each.node}
    for each in live_pods(cluster, namespace):
        if each.gang == waits:
            text = wait_event(cluster, namespace, each.name, "WaitingForQueue")["message"]
            assert text.startswith("Queue small has 2 of 6 GPUs left and 4 are needed")
    stays(cluster, lambda: all(p.held for p in live_pods(cluster, namespace) if p.gang == waits), CHECK_S, "held whole")
    cluster.kubectl(
        "patch",
        "queues.scheduling.volcano.sh",
        "small",
        "--type=merge",
        "-p",
        '{"spec":{"capability":{"nvidia.com/gpu":"8"}}}',
    )
    print(f"the other two bound after {bound_after(cluster, namespace, 4):.2f} s")


def test_a_gang_of_higher_priority_finds_room_among_inferiors(
    isochrone: Isochrone, cluster: Cluster, namespace: str
) -> None:
    """Eight batch pods of 4 GPUs fill the cluster; the gang needs the room of two of them."""
    batch = {"schedulerName": "volcano", "priorityClassName": "low"}
    container = {"name": "main", "image": "main", "resources": resources(4)}
    cluster.create(deployment("batch", 8, {}, {}, {**batch, "containers": [container]}), namespace)
    bound_after(cluster, namespace, 8, selector="app=batch")
    for item in pair(gpus=4):
        item["spec"]["template"]["spec"]["priorityClassName"] = "high"
        cluster.create(item, namespace)
    print(f"the gang bound after {bound_after(cluster, namespace, 2, selector=GANG):.2f} s")
    all_within(cluster, namespace)
    for each in live_pods(cluster, namespace, GANG):
        assert "leave: released inside" in wait_event(cluster, namespace, each.name, "InsufficientGPU")["message"]
    assert len(bound_pods(cluster, namespace, "app=batch")) == 6


def test_what_volcano_does_not_place_is_made_anew_ever_more_rarely(
    impatient: Isochrone, cluster: Cluster, namespace: str
) -> None:
    """The plan knows nothing of pod anti-affinity; Volcano does: no place for the decode pod until the strangers go."""
    strangers = [occupant(f"{node['metadata']['name']}", 0) for node in cluster.api("GET", "/api/v1/nodes")["items"]]
    for each in strangers:
        each["metadata"]["labels"] = {"app": "blocker"}
        cluster.create(each, namespace)
    decode = phased(DECODE)
    term = {"labelSelector": {"matchLabels": {"app": "blocker"}}, "topologyKey": HOSTNAME}
    decode["spec"]["template"]["spec"]["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    }
    for item in (phased(PREFILL), decode):
        cluster.create(item, namespace)

    def renewals() -> list[Any]:
        sets = cluster.api("GET", f"/apis/apps/v1/namespaces/{namespace}/replicasets")["items"]
        return [e for s in sets for e in events(cluster, namespace, s["metadata"]["name"], "Replanned")]

    seconds_until(cluster, renewals, LIMIT_S, "a pod is made anew")
    assert "deleted for ReplicaSet chat-" in renewals()[0]["message"]
    assert not bound_pods(cluster, namespace, GANG)
    for each in strangers:
        name = each["metadata"]["name"]
        cluster.api("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
    print(f"bound {bound_after(cluster, namespace, 2, selector=GANG):.2f} s after the strangers went")
    all_within(cluster, namespace)


def stateful(name: str, phase: str, replicas: int, gpus: int, annotations: dict[str, str]) -> Object:
    container = {"name": "engine", "image": "engine", "resources": resources(gpus)}
    labels = {"app": name, PHASE: phase, GANG: "chat"}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "serviceName": name, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


@pytest.mark.full
def test_a_stateful_set_that_makes_one_pod_after_the_other(
    isochrone: Isochrone, cluster: Cluster, namespace: str
) -> None:
    """decode-1 exists once decode-0 runs, and the gang wants two: without looking ahead both would wait for ever."""
    cluster.create(phased(PREFILL), namespace)
    cluster.create(stateful("decode", DECODE, 3, 4, {"isochrone.dev/min-decode": "2"}), namespace)
    try:
        print(f"all four bound after {bound_after(cluster, namespace, 4):.2f} s")
        all_within(cluster, namespace, at_least=3)
    finally:
        cluster.api("DELETE", f"/apis/apps/v1/namespaces/{namespace}/statefulsets/decode")


@pytest.mark.full
def test_two_gangs_that_each_need_more_than_half(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    """20 of 32 GPUs each: one runs, the other waits whole and runs when the first is gone."""
    wishes = {"isochrone.dev/min-prefill": "2", "isochrone.dev/min-decode": "3"}
    for gang in ("one", "two"):
        for item in pair(gang, prefill=2, decode=3, gpus=4, annotations=wishes):
            cluster.create(item, namespace)
    bound_after(cluster, namespace, 5)
    (runs,) = {each.gang for each in bound_pods(cluster, namespace)}
    (waits,) = {"one", "two"} - {runs}
    stays(cluster, lambda: all(p.held for p in live_pods(cluster, namespace) if p.gang == waits), CHECK_S, "held whole")
    for phase in (PREFILL, DECODE):
        cluster.kubectl("delete", "deployment", f"{runs}-{phase}", "-n", namespace, "--grace-period=0", "--force")
    bound_after(cluster, namespace, 5, selector=f"{GANG}={waits}")
    all_within(cluster, namespace, at_least=6)


@pytest.mark.full
def test_down_to_nothing_and_up_again(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    """Scale 0, 1, 0, 1 of both halves: the gang comes back each time, with a PodGroup that serves it."""
    for item in pair():
        cluster.create(item, namespace)
    bound_after(cluster, namespace, 2)
    for replicas in (0, 1, 0, 1):
        for phase in (PREFILL, DECODE):
            cluster.kubectl("scale", "deployment", f"chat-{phase}", f"--replicas={replicas}", "-n", namespace)
        want = 2 * replicas
        cluster.wait_for(lambda: len(live_pods(cluster, namespace)) == want, LIMIT_S, f"{want} pods")  # noqa: B023
        bound_after(cluster, namespace, want)
    all_within(cluster, namespace)


@pytest.mark.full
def test_a_rolling_update_that_may_lose_nobody(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    """maxUnavailable 0: the new decode pod must run before the old one goes."""
    items = pair()
    items[1]["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    for item in items:
        cluster.create(item, namespace)
    bound_after(cluster, namespace, 2)
    cluster.kubectl("rollout", "restart", "deployment/chat-decode", "-n", namespace)
    cluster.kubectl("rollout", "status", "deployment/chat-decode", "-n", namespace, "--timeout=120s")
    all_within(cluster, namespace)


def patch_template(cluster: Cluster, namespace: str, owner: str, template: Object) -> None:
    """Another pod template; `owner` is `kind/name`."""
    change = json.dumps({"spec": {"template": template}})
    cluster.kubectl("patch", owner, "-n", namespace, "--type=strategic", "-p", change)


def test_a_held_gang_whose_minimum_is_lowered(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    """Six decode pods of 6 GPUs do not fit four nodes, two do. The Deployment adds one new pod to the two that are
    left, and removes none of them before that one runs."""
    cluster.create(phased(PREFILL, replicas=2), namespace)
    cluster.create(phased(DECODE, replicas=6, gpus=6, annotations={"isochrone.dev/min-decode": "6"}), namespace)
    cluster.wait_for(lambda: len(live_pods(cluster, namespace)) == 8, LIMIT_S, "eight pods")
    wait_event(cluster, namespace, live_pods(cluster, namespace)[0].name, "InsufficientGPU")
    cluster.kubectl("scale", "deployment", "chat-decode", "--replicas=2", "-n", namespace)
    cluster.wait_for(lambda: len(live_pods(cluster, namespace)) == 4, LIMIT_S, "four pods")
    patch_template(
        cluster, namespace, "deployment/chat-decode", {"metadata": {"annotations": {"isochrone.dev/min-decode": "2"}}}
    )
    cluster.kubectl("rollout", "status", "deployment/chat-decode", "-n", namespace, "--timeout=60s")
    cluster.wait_for(lambda: len(bound_pods(cluster, namespace)) == 4, LIMIT_S, "two and two run")
    all_within(cluster, namespace, at_least=4)
    (group,) = cluster.api("GET", f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups")["items"]
    assert group["spec"]["minTaskMember"] == {PREFILL: 1, DECODE: 2}


@pytest.mark.full
def test_a_pod_changes_its_gang(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    """A held pod that is given another gang's label is planned with that gang."""
    for item in (phased(PREFILL, "one"), phased(DECODE, "two")):
        cluster.create(item, namespace)
    cluster.wait_for(lambda: len(live_pods(cluster, namespace)) == 2, LIMIT_S, "two pods")
    stays(cluster, lambda: all(p.held for p in live_pods(cluster, namespace)), CHECK_S, "each waits for a partner")
    (lonely,) = [p.name for p in live_pods(cluster, namespace) if p.gang == "two"]
    cluster.kubectl("label", "pod", lonely, f"{GANG}=one", "--overwrite", "-n", namespace)
    bound_after(cluster, namespace, 2)
    all_within(cluster, namespace)
