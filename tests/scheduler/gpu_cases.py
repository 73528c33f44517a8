"""Clusters of case files that are about cards: nodes as they describe themselves, pods as they come and go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.extender.decide import decide
from scheduler.model.decision import Decision
from scheduler.model.policy import Policy
from scheduler.model.request import Partner, pod_request_of
from tests.scheduler.clusters import READY
from topology.cluster.snapshot import Assumed, Snapshot
from topology.cluster.state import ClusterState
from topology.gpus.allocations import allocation_of
from topology.labels import DECODE, HOSTNAME, PHASE, PREFILL, TRANSPORT, ZONE
from topology.objects import Container, Metadata, Node, NodeStatus, Pod, PodSpec, Resources
from topology.resources import pod_request


def node_from(entry: Mapping[str, Any]) -> Node:
    """`{name, have: {resource: amount}, labels, notes}`."""
    labels = {HOSTNAME: entry["name"], ZONE: "z1", TRANSPORT: "rdma"} | entry.get("labels", {})
    return Node(
        metadata=Metadata(name=entry["name"], labels=labels, annotations=entry.get("notes")),
        status=NodeStatus(allocatable={"cpu": 96, "pods": 110} | entry["have"], conditions=READY),
    )


def pod_from(entry: Mapping[str, Any], name: str) -> Pod:
    """`{uid, node, phase, limits, notes}`; `containers` are the limits of each where there are several."""
    return Pod(
        metadata=Metadata(
            name=name,
            namespace="prod",
            uid=entry.get("uid", f"uid-{name}"),
            labels={PHASE: entry["phase"]} if "phase" in entry else {},
            annotations=entry.get("notes"),
        ),
        spec=PodSpec(
            node_name=entry.get("node", ""),
            containers=tuple(
                Container(resources=Resources(limits=dict(limits)))
                for limits in entry.get("containers", (entry.get("limits"),))
            ),
        ),
    )


def state_from(case: Mapping[str, Any]) -> ClusterState:
    """The nodes, then every entry of `pods` in turn: add, change, delete, replace (another uid), assume."""
    state = ClusterState()
    state.apply_nodes([(None, node_from(entry)) for entry in case["nodes"]])
    seen: dict[str, Pod] = {}
    for entry in case.get("pods", ()):
        ((what, name),) = [(k, v) for k, v in entry.items() if k in ("add", "change", "delete", "replace", "assume")]
        if what == "delete":
            state.apply_pods([(seen.pop(name), None)])
            continue
        pod = pod_from(entry, name)
        if what == "assume":
            state.assume(pod.metadata.uid, pod.spec.node_name, pod_request(pod.spec), allocation_of(pod))
            continue
        state.apply_pods([(seen.get(name), pod)])
        seen[name] = pod
    return state


@dataclass(frozen=True, slots=True)
class Asked:
    """How many pods found a place, what was said of the first that did not, and the cluster afterwards."""

    placed: int
    refused: Decision | None
    snapshot: Snapshot


def ask(case: Mapping[str, Any]) -> Asked:
    """Ask for the same pod `times` over, each placed on the best node before the next, until one is refused."""
    snapshot = state_from(case).snapshot(0.0, 0.0)
    policy = Policy(**case.get("policy", {}))
    pod = pod_from(case["ask"], "new")
    partner = Partner("up", "partner", PREFILL if case["ask"]["phase"] == DECODE else DECODE, snapshot.table.names[:1])
    for placed in range(case.get("times", 1)):
        request = pod_request_of(pod, uid=f"uid-new-{placed}")
        decision = decide(request, snapshot, snapshot.table.names, [partner], policy=policy).decision
        if not decision.eligible:
            return Asked(placed, decision, snapshot)
        where = decision.ranked[0].node
        snapshot = snapshot.with_assumed({request.uid: Assumed(where, request.amounts, request.hold)})
    return Asked(case.get("times", 1), None, snapshot)
