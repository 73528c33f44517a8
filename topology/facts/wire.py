"""Facts to messages and back; what a message may hold is judged here.

Decides the bounds of a report: a message within the size limit could still unfold into hundreds of megabytes of small
objects. It must never decide what facts mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from topology.bad_input import BadInput
from topology.facts import agent_pb2 as wire
from topology.facts import report as f

MOST: Final = {
    "gpus": 128,
    "memory": 128 * 9,  # a GPU and up to eight MIG instances each
    "pairs": 128 * 127 // 2,
    "nics": 256,
    "nvlinks": 64,
    "xids": 32,
    "refused": 64,
    "pci_path": 32,
    "instances": 16,
    "profiles": 64,
    "placements": 16,
    "ports": 8,
    "interfaces": 32,
    "holdings": 20_000,
    "allocatable": 1_000,
    "device_ids": 20_000,
    "problems": 64,
    "reach": 20_000,
}
_LONGEST: Final = 512  # of a string, in characters
_NVML: Final = {f.NvmlState.OK: wire.NVML_OK, f.NvmlState.ABSENT: wire.NVML_ABSENT, f.NvmlState.LOST: wire.NVML_LOST}
_HEALTH: Final = {
    f.Health.HEALTHY: wire.HEALTHY,
    f.Health.UNHEALTHY: wire.UNHEALTHY,
    f.Health.LOST: wire.LOST,
}
_REMOTE: Final = {
    f.Remote.GPU: wire.REMOTE_GPU,
    f.Remote.SWITCH: wire.REMOTE_SWITCH,
    f.Remote.NPU: wire.REMOTE_NPU,
}
_FABRIC: Final = {
    f.FabricState.NOT_SUPPORTED: wire.FABRIC_NOT_SUPPORTED,
    f.FabricState.NOT_STARTED: wire.FABRIC_NOT_STARTED,
    f.FabricState.IN_PROGRESS: wire.FABRIC_IN_PROGRESS,
    f.FabricState.COMPLETED: wire.FABRIC_COMPLETED,
}
_MEMORY: Final = {
    f.MemoryKind.DEDICATED: wire.MEMORY_DEDICATED,
    f.MemoryKind.UNIFIED: wire.MEMORY_UNIFIED,
    f.MemoryKind.SUM_OF_MIG: wire.MEMORY_SUM_OF_MIG,
}
_DISTANCE: Final = {
    f.Distance.SAME: wire.PCIE_SAME,
    f.Distance.PIX: wire.PCIE_PIX,
    f.Distance.PXB: wire.PCIE_PXB,
    f.Distance.PHB: wire.PCIE_PHB,
    f.Distance.NODE: wire.PCIE_NODE,
    f.Distance.SYS: wire.PCIE_SYS,
}
_NVML_BACK: Final = {number: value for value, number in _NVML.items()}
_HEALTH_BACK: Final = {number: value for value, number in _HEALTH.items()}
_REMOTE_BACK: Final = {number: value for value, number in _REMOTE.items()}
_FABRIC_BACK: Final = {number: value for value, number in _FABRIC.items()}
_MEMORY_BACK: Final = {number: value for value, number in _MEMORY.items()}
_DISTANCE_BACK: Final = {number: value for value, number in _DISTANCE.items()}

T = TypeVar("T")


# --- facts to messages ---------------------------------------------------------------------------


def full_message(facts: f.NodeFacts) -> wire.Full:
    """A full report."""
    return wire.Full(
        node=node_message(facts.state),
        gpus=[gpu_message(gpu) for gpu in facts.gpus],
        memory=[memory_message(reading) for reading in facts.memory],
        pairs=[wire.GpuPair(a=p.a, b=p.b, distance=_DISTANCE[p.distance]) for p in facts.pairs],
        nics=[nic_message(nic) for nic in facts.nics],
        pods=pods_message(facts.pods) if facts.pods else None,
        reach=[reach_message(sample) for sample in facts.reach],
    )


def node_message(state: f.NodeState) -> wire.Node:
    """The node as a whole."""
    return wire.Node(nvml=_NVML[state.nvml], **_fields(state, but=("nvml",)))


def gpu_message(gpu: f.Gpu) -> wire.Gpu:
    """One GPU."""
    links = [
        wire.NvLink(
            state=wire.LINK_ACTIVE if link.active else wire.LINK_INACTIVE,
            remote=None if link.remote is None else _REMOTE[link.remote],
            **_fields(link, but=("active", "remote")),
        )
        for link in gpu.nvlinks
    ]
    fabric = gpu.fabric
    return wire.Gpu(
        health=_HEALTH[gpu.health],
        nvlinks=links,
        fabric=wire.Fabric(state=_FABRIC[fabric.state], **_fields(fabric, but=("state",))) if fabric else None,
        mig=_mig_message(gpu.mig) if gpu.mig else None,
        xids=[wire.Xid(code=xid.code, at_s=xid.at_s, count=xid.count) for xid in gpu.xids],
        refused=[wire.Refused(field=field, reason=reason) for field, reason in gpu.refused],
        **_fields(gpu, but=("health", "nvlinks", "fabric", "mig", "xids", "refused")),
    )


def _mig_message(mig: f.Mig) -> wire.Mig:
    return wire.Mig(
        enabled=mig.enabled,
        enabled_after_reset=mig.enabled_after_reset,
        instances=[wire.MigInstance(**_fields(instance)) for instance in mig.instances],
        profiles=[
            wire.MigProfile(
                placements=[wire.MigPlacement(start_slice=start, size_slices=size) for start, size in p.placements],
                **_fields(p, but=("placements",)),
            )
            for p in mig.profiles
        ],
    )


def memory_message(reading: f.Memory) -> wire.GpuMemory:
    """One memory reading."""
    return wire.GpuMemory(kind=_MEMORY[reading.kind], **_fields(reading, but=("kind",)))


def nic_message(nic: f.Nic) -> wire.Nic:
    """One network card."""
    return wire.Nic(
        ports=[wire.NicPort(**_fields(port)) for port in nic.ports],
        gpus=[wire.GpuDistance(uuid=uuid, distance=_DISTANCE[distance]) for uuid, distance in nic.gpus],
        **_fields(nic, but=("ports", "gpus")),
    )


def pods_message(pods: f.PodDevices) -> wire.PodDevices:
    """Who holds what."""
    return wire.PodDevices(
        collected_at_s=pods.collected_at_s,
        holdings=[wire.Holding(**_fields(holding)) for holding in pods.holdings],
        allocatable=[wire.Allocatable(resource=resource, device_ids=ids) for resource, ids in pods.allocatable],
    )


def reach_message(sample: f.ReachSample) -> wire.ReachSample:
    """One measurement."""
    return wire.ReachSample(**_fields(sample))


def _fields(value: Any, but: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a dataclass that are known, under the names they share with the message."""
    names = (name for name in type(value).__slots__ if name not in but)
    return {name: found for name in names if (found := getattr(value, name)) is not None}


# --- messages to facts ---------------------------------------------------------------------------


def read_full(message: wire.Full) -> f.NodeFacts:
    """The facts of a full report. Raises BadInput naming the field that is out of bounds."""
    if not message.HasField("node"):
        raise BadInput("node", "missing", "a full report names the state of its node")
    return f.NodeFacts(
        state=read_node(message.node),
        gpus=_by_key("gpus", message.gpus, read_gpu, "uuid"),
        memory=_by_key("memory", message.memory, read_memory, "uuid"),
        pairs=tuple(
            f.GpuPair(a=_text("pairs.a", p.a), b=_text("pairs.b", p.b), distance=_enum(_DISTANCE_BACK, p, "distance"))
            for p in _few("pairs", message.pairs)
        ),
        nics=_by_key("nics", message.nics, read_nic, "name"),
        pods=read_pods(message.pods) if message.HasField("pods") else None,
        reach=read_reach(message.reach),
    )


def read_node(message: wire.Node) -> f.NodeState:
    """The node as a whole."""
    return f.NodeState(
        collected_at_s=time_s("collected_at_s", message.collected_at_s),
        topology_generation=message.topology_generation,
        nvml=_enum(_NVML_BACK, message, "nvml"),
        problems=_texts("problems", message.problems),
        **_known(
            message,
            *("nvml_problem", "nvml_good_at_s", "driver_version", "cuda_driver_version", "nvidia_peermem", "dma_buf"),
            *("system_memory_total_bytes", "system_memory_available_bytes", "network_good_at_s", "pods_good_at_s"),
            *("rdma_probe_port",),
        ),
    )


def read_gpu(message: wire.Gpu) -> f.Gpu:
    """One GPU."""
    links = tuple(
        _link(
            link.link,
            link.state == wire.LINK_ACTIVE,
            _REMOTE_BACK.get(link.remote) if link.HasField("remote") else None,
            **_known(link, "version", "speed_mbps", "remote_bus_id"),
        )
        for link in _few("nvlinks", message.nvlinks)
    )
    fabric = None
    if message.HasField("fabric"):
        known = _known(message.fabric, "cluster_uuid", "clique_id", "status", "health_mask", "health")
        fabric = f.Fabric(state=_enum(_FABRIC_BACK, message.fabric, "state"), **known)
    return f.Gpu(
        uuid=_text("gpus.uuid", message.uuid),
        health=_enum(_HEALTH_BACK, message, "health"),
        pci_path=_texts("pci_path", message.pci_path),
        nvlinks=links,
        fabric=fabric,
        mig=_read_mig(message.mig) if message.HasField("mig") else None,
        xids=tuple(f.Xid(code=x.code, at_s=x.at_s, count=x.count) for x in _few("xids", message.xids)),
        refused=tuple(
            (_text("refused.field", r.field), _text("refused.reason", r.reason))
            for r in _few("refused", message.refused)
        ),
        **_known(message, "index", "name", "bus_id", "health_why", "numa_node", "bar1_total_bytes", "architecture"),
    )


@lru_cache(maxsize=4096)
def _link(
    link: int,
    active: bool,
    remote: f.Remote | None,
    version: str | None = None,
    speed_mbps: int | None = None,
    remote_bus_id: str | None = None,
) -> f.NvLink:
    """Thousands of nodes of one kind have the same few hundred links: one object each."""
    return f.NvLink(
        link=link, active=active, remote=remote, version=version, speed_mbps=speed_mbps, remote_bus_id=remote_bus_id
    )


@lru_cache(maxsize=2**16)
def _one(text: str) -> str:
    """The same text as one object: a GPU's uuid stands in every pair and at every network card."""
    return text


def _read_mig(message: wire.Mig) -> f.Mig:
    instances = tuple(
        f.MigInstance(
            gpu_instance_id=i.gpu_instance_id,
            **_known(i, "compute_instance_id", "uuid", "profile", "start_slice", "size_slices", "compute_slices"),
        )
        for i in _few("instances", message.instances)
    )
    profiles = tuple(
        f.MigProfile(
            id=p.id,
            placements=tuple((at.start_slice, at.size_slices) for at in _few("placements", p.placements)),
            **_known(p, "name", "compute_slices", "most_instances", "remaining", "memory_bytes"),
        )
        for p in _few("profiles", message.profiles)
    )
    after = _known(message, "enabled_after_reset")
    return f.Mig(enabled=message.enabled, instances=instances, profiles=profiles, **after)


def read_memory(message: wire.GpuMemory) -> f.Memory:
    """One memory reading."""
    return f.Memory(
        uuid=_text("memory.uuid", message.uuid),
        kind=_enum(_MEMORY_BACK, message, "kind"),
        **_known(message, "total_bytes", "reserved_bytes", "used_bytes", "free_bytes"),
    )


def read_nic(message: wire.Nic) -> f.Nic:
    """One network card."""
    return f.Nic(
        name=_text("nics.name", message.name),
        rdma=message.rdma,
        interfaces=_texts("interfaces", message.interfaces),
        pci_path=_texts("pci_path", message.pci_path),
        ports=tuple(
            f.NicPort(port=p.port, **_known(p, "active", "rate_mbps", "link_layer"))
            for p in _few("ports", message.ports)
        ),
        gpus=tuple(
            (_text("nics.gpus.uuid", g.uuid), _enum(_DISTANCE_BACK, g, "distance")) for g in _few("gpus", message.gpus)
        ),
        **_known(message, "bus_id", "numa_node", "guid"),
    )


def read_pods(message: wire.PodDevices) -> f.PodDevices:
    """Who holds what."""
    return f.PodDevices(
        collected_at_s=time_s("pods.collected_at_s", message.collected_at_s),
        holdings=tuple(
            f.Holding(
                namespace=_text("namespace", h.namespace),
                pod=_text("pod", h.pod),
                container=_text("container", h.container),
                resource=_text("resource", h.resource),
                device_ids=_texts("device_ids", h.device_ids),
            )
            for h in _few("holdings", message.holdings)
        ),
        allocatable=tuple(
            (_text("resource", a.resource), _texts("device_ids", a.device_ids))
            for a in _few("allocatable", message.allocatable)
        ),
    )


def read_reach(messages: Sequence[wire.ReachSample]) -> tuple[f.ReachSample, ...]:
    """Measurements; one that is no measurement (negative, not a number, no count) is refused."""
    found = []
    for m in _few("reach", messages):
        times = m.p50_us, m.p99_us, m.p999_us
        if not (0 <= times[0] <= times[1] <= times[2] < float("inf")) or not m.count or not m.size_bytes:
            raise BadInput(
                "reach", f"{times} us of {m.count}", "use 0 <= p50 <= p99 <= p99.9, a count and a size above 0"
            )
        found.append(
            f.ReachSample(
                peer=_text("reach.peer", m.peer),
                size_bytes=m.size_bytes,
                p50_us=m.p50_us,
                p99_us=m.p99_us,
                p999_us=m.p999_us,
                count=m.count,
                transport=_text("reach.transport", m.transport),
                measured_at_s=time_s("reach.measured_at_s", m.measured_at_s),
            )
        )
    return tuple(found)


def _by_key(field: str, messages: Sequence[Any], read: Any, key: str) -> tuple[Any, ...]:
    found = {getattr(value, key): value for value in map(read, _few(field, messages))}
    if len(found) != len(messages):
        raise BadInput(field, f"{len(messages)} entries", f"each {key} may come once")
    if "" in found:
        raise BadInput(f"{field}.{key}", "", "it must not be empty")
    return tuple(found[name] for name in sorted(found))


def _few(field: str, items: Sequence[T]) -> Sequence[T]:
    if len(items) > MOST[field]:
        raise BadInput(field, f"{len(items)} entries", f"at most {MOST[field]} are taken")
    return items


def time_s(field: str, value: float) -> float:
    """A wall time. Raises BadInput for what is none."""
    if not 0 <= value < 1e11:
        raise BadInput(field, value, "use seconds since 1970")
    return value


def _text(field: str, value: str) -> str:
    if len(value) > _LONGEST:
        raise BadInput(field, value, f"at most {_LONGEST} characters are taken")
    return _one(value)


def _texts(field: str, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(_text(field, value) for value in _few(field, values))


def _known(message: Any, *names: str) -> dict[str, Any]:
    """The optional fields that are there."""
    found = {name: getattr(message, name) for name in names if message.HasField(name)}
    for name, value in found.items():
        if isinstance(value, str):
            found[name] = _text(name, value)
    return found


def _enum(table: dict[Any, Any], message: Any, field: str) -> Any:
    number = getattr(message, field)
    if number not in table:
        raise BadInput(field, number, f"use one of {', '.join(str(known) for known in table)}")
    return table[number]
