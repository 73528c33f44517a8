"""Small clusters and gangs, written shortly: for case files and for tests that build their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.model.request import GangRequest, Partner, PodRequest, ReachBound
from topology.cluster.snapshot import Snapshot, snapshot_of
from topology.labels import DECODE, GPU_PRODUCT, HOSTNAME, LEAF, PHASES, PREFILL, SPINE, TRANSPORT, ZONE
from topology.objects import Container, Metadata, Node, NodeCondition, NodeSpec, NodeStatus, PodSpec, Resources, Taint
from topology.resources import Amounts
from topology.units import parse_duration_us

READY = (NodeCondition(type="Ready", status="True"),)


def node(
    name: str,
    *,
    gpus: int = 8,
    zone: str = "",
    spine: str = "",
    leaf: str = "",
    rdma: bool = False,
    nvswitch: bool = False,
    ready: bool = True,
    cpu: str = "96",
    memory: str = "1Ti",
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
) -> Node:
    """One GPU node. Without `nvswitch` its GPUs meet over PCIe, without `rdma` it talks TCP."""
    known = {
        HOSTNAME: name,
        ZONE: zone,
        SPINE: spine,
        LEAF: leaf,
        TRANSPORT: "rdma" if rdma else "tcp",
        GPU_PRODUCT: "NVIDIA-H100-SXM5-80GB" if nvswitch else "NVIDIA-L40S",
    }
    allocatable: dict[str, str | int | float] = {"cpu": cpu, "memory": memory, "pods": "110"}
    if gpus:
        allocatable["nvidia.com/gpu"] = gpus
    return Node(
        metadata=Metadata(name=name, labels={k: v for k, v in known.items() if v} | dict(labels or {})),
        spec=NodeSpec(taints=tuple(taints) or None),
        status=NodeStatus(allocatable=allocatable, conditions=READY if ready else ()),
    )


def pod(
    name: str, phase: str, gpus: int = 4, *, spec: PodSpec | None = None, amounts: Amounts | None = None
) -> PodRequest:
    """One pod that asks for whole GPUs."""
    asked = {"nvidia.com/gpu": gpus, "pods": 1} if amounts is None else amounts
    return PodRequest(f"uid-{name}", "prod", name, phase, {k: v for k, v in asked.items() if v}, spec or PodSpec())


def gang(
    prefill: int = 1,
    decode: int = 1,
    gpus: int = 4,
    *,
    partners: Sequence[Partner] = (),
    reach_us: float = 1000.0,
    minimum: tuple[int, int] = (1, 1),
    name: str = "chat",
) -> GangRequest:
    """A gang of alike pods, called chat-prefill-0 and so on, numbered after its partners."""
    before = {phase: sum(1 for p in partners if p.phase == phase) for phase in PHASES}
    wanted = {PREFILL: prefill, DECODE: decode}
    members = tuple(
        pod(f"{name}-{phase}-{before[phase] + i}", phase, gpus) for phase in PHASES for i in range(wanted[phase])
    )
    return GangRequest(
        namespace="prod",
        name=name,
        members=members,
        partners=tuple(partners),
        bound=ReachBound(us=reach_us),
        min_prefill=minimum[0],
        min_decode=minimum[1],
    )


def partner(name: str, phase: str, *nodes: str, gpus: int = 0) -> Partner:
    """A pod that has its place, or with several nodes one that was released. It is known to hold these GPUs."""
    spec = PodSpec(containers=(Container(resources=Resources(requests={"nvidia.com/gpu": gpus})),))
    return Partner(f"uid-{name}", name, phase, nodes, bound=len(nodes) == 1, spec=spec if gpus else None)


def snapshot_from(case: Mapping[str, Any]) -> Snapshot:
    """A cluster of a case file: a list of `{names, zone, leaf, gpus, used, ...}`, one entry for alike nodes."""
    nodes, held = [], []
    for entry in case["cluster"]:
        given = {k: v for k, v in entry.items() if k not in ("names", "used")}
        for name in entry["names"]:
            nodes.append(node(name, **given))
            if entry.get("used"):
                held.append((name, {"nvidia.com/gpu": entry["used"]}))
    return snapshot_of(nodes, held)


def gang_from(case: Mapping[str, Any]) -> GangRequest:
    """A gang of a case file: `{prefill, decode, gpus, reach, minimum, partners: {pod: node}}`."""
    asked = dict(case["gang"])
    partners = [
        partner(name, PREFILL if f"-{PREFILL}-" in name else DECODE, where)
        for name, where in asked.pop("partners", {}).items()
    ]
    reach = parse_duration_us(asked.pop("reach", "1ms"), "reach")
    minimum = asked.pop("minimum", [1, 1])
    return gang(partners=partners, reach_us=reach, minimum=(minimum[0], minimum[1]), **asked)
