"""Nodes and pods as watches tell them, written shortly; and what they hold, counted anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topology.labels import DECISION, GANG, GATE, HOSTNAME, NVIDIA_GPU, PHASE
from topology.objects import (
    Container,
    Metadata,
    Node,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
    SchedulingGate,
)

Held = dict[tuple[str, str], int]
"""(node, resource) to the amount that is held there; zeros left out."""


def node(name: str, gpus: int = 8, *, version: str = "1", ready: bool = True, cordoned: bool = False) -> Node:
    return Node(
        metadata=Metadata(name=name, labels={HOSTNAME: name}, resource_version=version),
        spec=NodeSpec(unschedulable=cordoned),
        status=NodeStatus(
            allocatable={NVIDIA_GPU: gpus, "pods": "110"},
            conditions=(NodeCondition(type="Ready", status="True" if ready else "False"),),
        ),
    )


def pod(
    name: str,
    gpus: int | str = 1,
    *,
    uid: str = "",
    phase: str = "decode",
    gang: str = "chat",
    node: str = "",
    nominated: str = "",
    gated: bool = False,
    decision: bool = False,
    status: str = "",
    leaving: bool = False,
) -> Pod:
    """A pod of ours; without a gang it is somebody else's."""
    return Pod(
        metadata=Metadata(
            name=name,
            namespace="team",
            uid=uid or f"uid-{name}",
            labels={PHASE: phase, GANG: gang} if gang else {},
            annotations={DECISION: "abc"} if decision else None,
            deletion_timestamp="2026-11-02T10:41:07Z" if leaving else None,
        ),
        spec=PodSpec(
            node_name=node,
            containers=(Container(resources=Resources(limits={NVIDIA_GPU: gpus})),),
            scheduling_gates=(SchedulingGate(GATE),) if gated else None,
        ),
        status=PodStatus(phase=status or ("Running" if node else "Pending"), nominated_node_name=nominated),
    )


def held_by(holdings: Iterable[tuple[str, Mapping[str, int]]], names: Iterable[str]) -> Held:
    """(node, amounts) added up, for these nodes."""
    known, total = set(names), Held()
    for where, amounts in holdings:
        for resource, amount in amounts.items():
            if where in known and amount:
                total[where, resource] = total.get((where, resource), 0) + amount
    return total
