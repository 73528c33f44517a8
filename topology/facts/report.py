"""What an agent knows of its node: GPUs, links, MIG, fabric, NICs, who holds which device. Values, nothing else.

The wire form of the same is `agent.proto`, which has the unit and the meaning of every field; topology/facts/wire.py
turns one into the other by the fields' names, types and the bounds declared here. `None` means "not known" and never
"zero"; why a GPU's field is not known stands in `Gpu.refused`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

MOST_MEMORIES: Final = 128 * 9  # a GPU and up to eight MIG instances each
MOST_REACH: Final = 20_000
MOST_PROBLEMS: Final = 64
MOST_HOLDINGS: Final = 20_000
NO_CLUSTER: Final = "00000000-0000-0000-0000-000000000000"  # NVML's answer where no multi-node domain is set up


@dataclass(frozen=True, slots=True)
class Most:
    """At most so many entries in a repeated field; with a `key`, that field of an entry is there and comes once."""

    count: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class Below:
    """A number from 0 up to, and without, `limit`."""

    limit: float
    meaning: str


WallTime = Annotated[float, Below(1e11, "seconds since 1970")]
PciPath = Annotated[tuple[str, ...], Most(32)]
DeviceIds = Annotated[tuple[str, ...], Most(20_000)]


class NvmlState(StrEnum):
    """How NVML answers."""

    OK = "ok"
    ABSENT = "absent"  # no library or no driver
    LOST = "lost"  # it answered before


class Health(StrEnum):
    """Whether a GPU may be used."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    LOST = "lost"


class Remote(StrEnum):
    """What is at the other end of an NVLink."""

    GPU = "gpu"
    SWITCH = "switch"
    NPU = "npu"


class FabricState(StrEnum):
    """How far the start of the multi-node NVLink fabric is."""

    NOT_SUPPORTED = "not-supported"
    NOT_STARTED = "not-started"
    IN_PROGRESS = "in-progress"
    COMPLETED = "completed"


class MemoryKind(StrEnum):
    """Whose memory the numbers are about."""

    DEDICATED = "dedicated"
    UNIFIED = "unified"
    SUM_OF_MIG = "sum-of-mig"


class Distance(StrEnum):
    """PCIe between two devices of a node, nearest first; the words of `nvidia-smi topo -m`."""

    SAME = "SAME"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvLink:
    """One link of a GPU that exists, up or not. `speed_mbps` is one direction."""

    link: int
    active: bool
    version: str | None = None
    speed_mbps: int | None = None
    remote: Remote | None = None
    remote_bus_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Membership in a multi-node NVLink domain, as told."""

    state: FabricState
    cluster_uuid: str | None = None
    clique_id: int | None = None
    status: int | None = None
    health_mask: int | None = None
    health: str | None = None

    @property
    def domain(self) -> tuple[str, int] | None:
        """The domain's key, (cluster uuid, clique id), or None unless the fabric is up and usable.

        A clique id alone repeats between racks, and a completed start may still have failed.
        """
        if self.state is not FabricState.COMPLETED or self.why_unusable:
            return None
        if self.cluster_uuid is None or self.clique_id is None:
            return None
        return self.cluster_uuid, self.clique_id

    @property
    def why_unusable(self) -> str:
        """Why there is no domain although the GPU could have one, in words; "" if there is one, or could be none."""
        if self.state is FabricState.NOT_SUPPORTED:
            return ""
        if self.state is not FabricState.COMPLETED:
            return "its fabric is not started" if self.state is FabricState.NOT_STARTED else "its fabric is starting"
        if self.status != 0:
            return f"its fabric ended with NVML status {'unknown' if self.status is None else self.status}"
        return "its fabric is unhealthy" if self.health == "unhealthy" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A GPU instance. Slices are memory slices; `uuid` is None while no compute instance uses it."""

    gpu_instance_id: int
    compute_instance_id: int | None = None
    uuid: str | None = None
    profile: str | None = None
    start_slice: int | None = None
    size_slices: int | None = None
    compute_slices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A kind of GPU instance; `placements` are (start, size) in memory slices, all legal ones."""

    id: int
    name: str | None = None
    compute_slices: int | None = None
    most_instances: int | None = None
    remaining: int | None = None
    memory_bytes: int | None = None
    placements: Annotated[tuple[tuple[int, int], ...], Most(16)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mig:
    """How a GPU is, or could be, divided."""

    enabled: bool
    enabled_after_reset: bool | None = None
    instances: Annotated[tuple[MigInstance, ...], Most(16)] = ()
    profiles: Annotated[tuple[MigProfile, ...], Most(64)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error that the driver reported; `at_s` is a wall time, the last one's."""

    code: int
    at_s: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, without its memory readings. Of a lost one only uuid, index, bus id, name and place are known."""

    uuid: str
    index: int | None = None
    name: str | None = None
    bus_id: str | None = None
    health: Health = Health.HEALTHY
    health_why: str | None = None
    numa_node: int | None = None
    pci_path: PciPath = ()
    nvlinks: Annotated[tuple[NvLink, ...], Most(64)] = ()
    fabric: Fabric | None = None
    mig: Mig | None = None
    xids: Annotated[tuple[Xid, ...], Most(32)] = ()
    refused: Annotated[tuple[tuple[str, str], ...], Most(64)] = ()  # (field, reason)
    bar1_total_bytes: int | None = None
    architecture: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A reading of a GPU's or MIG instance's memory, as NVML gives it; `used_bytes` is without the reserved part."""

    uuid: str
    kind: MemoryKind = MemoryKind.DEDICATED
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def allocatable_bytes(self) -> int | None:
        """Total less the driver's own part; the total itself where that part is not told."""
        return None if self.total_bytes is None else max(0, self.total_bytes - (self.reserved_bytes or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPair:
    """PCIe between two GPUs by uuid, a < b."""

    a: str
    b: str
    distance: Distance


@dataclass(frozen=True, slots=True, kw_only=True)
class NicPort:
    """One port; `rate_mbps` is one direction."""

    port: int
    active: bool | None = None
    rate_mbps: int | None = None
    link_layer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A network card; `gpus` are (GPU uuid, distance)."""

    name: str
    rdma: bool
    interfaces: Annotated[tuple[str, ...], Most(32)] = ()
    bus_id: str | None = None
    numa_node: int | None = None
    pci_path: PciPath = ()
    ports: Annotated[tuple[NicPort, ...], Most(8)] = ()
    gpus: Annotated[tuple[tuple[str, Distance], ...], Most(128)] = ()
    guid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The devices of one resource that a container holds."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: DeviceIds


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDevices:
    """What the kubelet says; `allocatable` is (resource, device ids): the capacity, not what is free."""

    collected_at_s: WallTime
    holdings: Annotated[tuple[Holding, ...], Most(MOST_HOLDINGS)] = ()
    allocatable: Annotated[tuple[tuple[str, DeviceIds], ...], Most(1_000)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachSample:
    """How long one message of `size_bytes` took to `peer`, one way, set-up left out."""

    peer: str
    size_bytes: int
    p50_us: float
    p99_us: float
    p999_us: float
    count: int
    transport: str
    measured_at_s: WallTime


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The node as a whole. Times are wall times of the agent's clock."""

    collected_at_s: WallTime
    topology_generation: int
    nvml: NvmlState
    nvml_problem: str | None = None
    nvml_good_at_s: WallTime | None = None
    driver_version: str | None = None
    cuda_driver_version: int | None = None
    nvidia_peermem: bool | None = None
    dma_buf: bool | None = None
    problems: Annotated[tuple[str, ...], Most(MOST_PROBLEMS)] = ()
    system_memory_total_bytes: int | None = None
    system_memory_available_bytes: int | None = None
    network_good_at_s: WallTime | None = None  # while sysfs is silent: when it answered last
    pods_good_at_s: WallTime | None = None  # the same of the kubelet
    rdma_probe_port: int | None = None  # where a program for probes over RDMA can be met

    @property
    def gpudirect(self) -> bool | None:
        """Whether a NIC can reach GPU memory without a copy through the CPU; None where neither way is known."""
        known = [way for way in (self.nvidia_peermem, self.dma_buf) if way is not None]
        return any(known) if known else None


Gpus = Annotated[tuple[Gpu, ...], Most(128, key="uuid")]
Memories = Annotated[tuple[Memory, ...], Most(MOST_MEMORIES, key="uuid")]
Nics = Annotated[tuple[Nic, ...], Most(256, key="name")]
ReachSamples = Annotated[tuple[ReachSample, ...], Most(MOST_REACH)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Everything one agent reports, each tuple sorted by its key."""

    state: NodeState
    gpus: Gpus = ()
    memory: Memories = ()
    pairs: Annotated[tuple[GpuPair, ...], Most(128 * 127 // 2)] = ()
    nics: Nics = ()
    pods: PodDevices | None = None
    reach: ReachSamples = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """What is new since the report before; `state` is None if nothing but its times changed."""

    topology_generation: int
    collected_at_s: WallTime
    state: NodeState | None = None
    gpus: Gpus = ()
    memory: Memories = ()
    nics: Nics = ()
    pods: PodDevices | None = None
    reach: ReachSamples = ()
