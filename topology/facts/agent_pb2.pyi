from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NvmlState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NVML_STATE_UNSPECIFIED: _ClassVar[NvmlState]
    NVML_OK: _ClassVar[NvmlState]
    NVML_ABSENT: _ClassVar[NvmlState]
    NVML_LOST: _ClassVar[NvmlState]

class Health(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEALTH_UNSPECIFIED: _ClassVar[Health]
    HEALTHY: _ClassVar[Health]
    UNHEALTHY: _ClassVar[Health]
    LOST: _ClassVar[Health]

class LinkState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LINK_STATE_UNSPECIFIED: _ClassVar[LinkState]
    LINK_INACTIVE: _ClassVar[LinkState]
    LINK_ACTIVE: _ClassVar[LinkState]

class LinkRemote(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LINK_REMOTE_UNSPECIFIED: _ClassVar[LinkRemote]
    REMOTE_GPU: _ClassVar[LinkRemote]
    REMOTE_SWITCH: _ClassVar[LinkRemote]
    REMOTE_NPU: _ClassVar[LinkRemote]

class FabricState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FABRIC_STATE_UNSPECIFIED: _ClassVar[FabricState]
    FABRIC_NOT_SUPPORTED: _ClassVar[FabricState]
    FABRIC_NOT_STARTED: _ClassVar[FabricState]
    FABRIC_IN_PROGRESS: _ClassVar[FabricState]
    FABRIC_COMPLETED: _ClassVar[FabricState]

class MemoryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_KIND_UNSPECIFIED: _ClassVar[MemoryKind]
    MEMORY_DEDICATED: _ClassVar[MemoryKind]
    MEMORY_UNIFIED: _ClassVar[MemoryKind]
    MEMORY_SUM_OF_MIG: _ClassVar[MemoryKind]

class PcieDistance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PCIE_DISTANCE_UNSPECIFIED: _ClassVar[PcieDistance]
    PCIE_SAME: _ClassVar[PcieDistance]
    PCIE_PIX: _ClassVar[PcieDistance]
    PCIE_PXB: _ClassVar[PcieDistance]
    PCIE_PHB: _ClassVar[PcieDistance]
    PCIE_NODE: _ClassVar[PcieDistance]
    PCIE_SYS: _ClassVar[PcieDistance]
NVML_STATE_UNSPECIFIED: NvmlState
NVML_OK: NvmlState
NVML_ABSENT: NvmlState
NVML_LOST: NvmlState
HEALTH_UNSPECIFIED: Health
HEALTHY: Health
UNHEALTHY: Health
LOST: Health
LINK_STATE_UNSPECIFIED: LinkState
LINK_INACTIVE: LinkState
LINK_ACTIVE: LinkState
LINK_REMOTE_UNSPECIFIED: LinkRemote
REMOTE_GPU: LinkRemote
REMOTE_SWITCH: LinkRemote
REMOTE_NPU: LinkRemote
FABRIC_STATE_UNSPECIFIED: FabricState
FABRIC_NOT_SUPPORTED: FabricState
FABRIC_NOT_STARTED: FabricState
FABRIC_IN_PROGRESS: FabricState
FABRIC_COMPLETED: FabricState
MEMORY_KIND_UNSPECIFIED: MemoryKind
MEMORY_DEDICATED: MemoryKind
MEMORY_UNIFIED: MemoryKind
MEMORY_SUM_OF_MIG: MemoryKind
PCIE_DISTANCE_UNSPECIFIED: PcieDistance
PCIE_SAME: PcieDistance
PCIE_PIX: PcieDistance
PCIE_PXB: PcieDistance
PCIE_PHB: PcieDistance
PCIE_NODE: PcieDistance
PCIE_SYS: PcieDistance

class AgentMessage(_message.Message):
    __slots__ = ("sequence", "hello", "full", "delta")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    hello: Hello
    full: Full
    delta: Delta
    def __init__(self, sequence: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., full: _Optional[_Union[Full, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("node", "agent_version", "boot_id", "protocol", "probe_address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PROBE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: str
    agent_version: str
    boot_id: str
    protocol: int
    probe_address: str
    def __init__(self, node: _Optional[str] = ..., agent_version: _Optional[str] = ..., boot_id: _Optional[str] = ..., protocol: _Optional[int] = ..., probe_address: _Optional[str] = ...) -> None: ...

class HubMessage(_message.Message):
    __slots__ = ("ack", "full_wanted", "probe_orders")
    ACK_FIELD_NUMBER: _ClassVar[int]
    FULL_WANTED_FIELD_NUMBER: _ClassVar[int]
    PROBE_ORDERS_FIELD_NUMBER: _ClassVar[int]
    ack: Ack
    full_wanted: FullWanted
    probe_orders: ProbeOrders
    def __init__(self, ack: _Optional[_Union[Ack, _Mapping]] = ..., full_wanted: _Optional[_Union[FullWanted, _Mapping]] = ..., probe_orders: _Optional[_Union[ProbeOrders, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("sequence", "pause_s")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_S_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    pause_s: float
    def __init__(self, sequence: _Optional[int] = ..., pause_s: _Optional[float] = ...) -> None: ...

class FullWanted(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class Full(_message.Message):
    __slots__ = ("node", "gpus", "memory", "pairs", "nics", "pods", "reach")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    NICS_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    node: Node
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    memory: _containers.RepeatedCompositeFieldContainer[GpuMemory]
    pairs: _containers.RepeatedCompositeFieldContainer[GpuPair]
    nics: _containers.RepeatedCompositeFieldContainer[Nic]
    pods: PodDevices
    reach: _containers.RepeatedCompositeFieldContainer[ReachSample]
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., memory: _Optional[_Iterable[_Union[GpuMemory, _Mapping]]] = ..., pairs: _Optional[_Iterable[_Union[GpuPair, _Mapping]]] = ..., nics: _Optional[_Iterable[_Union[Nic, _Mapping]]] = ..., pods: _Optional[_Union[PodDevices, _Mapping]] = ..., reach: _Optional[_Iterable[_Union[ReachSample, _Mapping]]] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("topology_generation", "node", "gpus", "memory", "nics", "pods", "reach", "collected_at_s")
    TOPOLOGY_GENERATION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    NICS_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    COLLECTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    topology_generation: int
    node: Node
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    memory: _containers.RepeatedCompositeFieldContainer[GpuMemory]
    nics: _containers.RepeatedCompositeFieldContainer[Nic]
    pods: PodDevices
    reach: _containers.RepeatedCompositeFieldContainer[ReachSample]
    collected_at_s: float
    def __init__(self, topology_generation: _Optional[int] = ..., node: _Optional[_Union[Node, _Mapping]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., memory: _Optional[_Iterable[_Union[GpuMemory, _Mapping]]] = ..., nics: _Optional[_Iterable[_Union[Nic, _Mapping]]] = ..., pods: _Optional[_Union[PodDevices, _Mapping]] = ..., reach: _Optional[_Iterable[_Union[ReachSample, _Mapping]]] = ..., collected_at_s: _Optional[float] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("collected_at_s", "topology_generation", "driver_version", "cuda_driver_version", "nvml", "nvml_problem", "nvml_good_at_s", "nvidia_peermem", "dma_buf", "problems", "system_memory_total_bytes", "system_memory_available_bytes", "network_good_at_s", "pods_good_at_s", "rdma_probe_port")
    COLLECTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_GENERATION_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CUDA_DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    NVML_FIELD_NUMBER: _ClassVar[int]
    NVML_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    NVML_GOOD_AT_S_FIELD_NUMBER: _ClassVar[int]
    NVIDIA_PEERMEM_FIELD_NUMBER: _ClassVar[int]
    DMA_BUF_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_GOOD_AT_S_FIELD_NUMBER: _ClassVar[int]
    PODS_GOOD_AT_S_FIELD_NUMBER: _ClassVar[int]
    RDMA_PROBE_PORT_FIELD_NUMBER: _ClassVar[int]
    collected_at_s: float
    topology_generation: int
    driver_version: str
    cuda_driver_version: int
    nvml: NvmlState
    nvml_problem: str
    nvml_good_at_s: float
    nvidia_peermem: bool
    dma_buf: bool
    problems: _containers.RepeatedScalarFieldContainer[str]
    system_memory_total_bytes: int
    system_memory_available_bytes: int
    network_good_at_s: float
    pods_good_at_s: float
    rdma_probe_port: int
    def __init__(self, collected_at_s: _Optional[float] = ..., topology_generation: _Optional[int] = ..., driver_version: _Optional[str] = ..., cuda_driver_version: _Optional[int] = ..., nvml: _Optional[_Union[NvmlState, str]] = ..., nvml_problem: _Optional[str] = ..., nvml_good_at_s: _Optional[float] = ..., nvidia_peermem: _Optional[bool] = ..., dma_buf: _Optional[bool] = ..., problems: _Optional[_Iterable[str]] = ..., system_memory_total_bytes: _Optional[int] = ..., system_memory_available_bytes: _Optional[int] = ..., network_good_at_s: _Optional[float] = ..., pods_good_at_s: _Optional[float] = ..., rdma_probe_port: _Optional[int] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("uuid", "index", "name", "bus_id", "health", "health_why", "numa_node", "pci_path", "nvlinks", "fabric", "mig", "xids", "refused", "bar1_total_bytes", "architecture")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUS_ID_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_WHY_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    PCI_PATH_FIELD_NUMBER: _ClassVar[int]
    NVLINKS_FIELD_NUMBER: _ClassVar[int]
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    MIG_FIELD_NUMBER: _ClassVar[int]
    XIDS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    BAR1_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    name: str
    bus_id: str
    health: Health
    health_why: str
    numa_node: int
    pci_path: _containers.RepeatedScalarFieldContainer[str]
    nvlinks: _containers.RepeatedCompositeFieldContainer[NvLink]
    fabric: Fabric
    mig: Mig
    xids: _containers.RepeatedCompositeFieldContainer[Xid]
    refused: _containers.RepeatedCompositeFieldContainer[Refused]
    bar1_total_bytes: int
    architecture: str
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., name: _Optional[str] = ..., bus_id: _Optional[str] = ..., health: _Optional[_Union[Health, str]] = ..., health_why: _Optional[str] = ..., numa_node: _Optional[int] = ..., pci_path: _Optional[_Iterable[str]] = ..., nvlinks: _Optional[_Iterable[_Union[NvLink, _Mapping]]] = ..., fabric: _Optional[_Union[Fabric, _Mapping]] = ..., mig: _Optional[_Union[Mig, _Mapping]] = ..., xids: _Optional[_Iterable[_Union[Xid, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[Refused, _Mapping]]] = ..., bar1_total_bytes: _Optional[int] = ..., architecture: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("field", "reason")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    field: str
    reason: str
    def __init__(self, field: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class NvLink(_message.Message):
    __slots__ = ("link", "state", "version", "speed_mbps", "remote", "remote_bus_id")
    LINK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SPEED_MBPS_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_BUS_ID_FIELD_NUMBER: _ClassVar[int]
    link: int
    state: LinkState
    version: str
    speed_mbps: int
    remote: LinkRemote
    remote_bus_id: str
    def __init__(self, link: _Optional[int] = ..., state: _Optional[_Union[LinkState, str]] = ..., version: _Optional[str] = ..., speed_mbps: _Optional[int] = ..., remote: _Optional[_Union[LinkRemote, str]] = ..., remote_bus_id: _Optional[str] = ...) -> None: ...

class Fabric(_message.Message):
    __slots__ = ("cluster_uuid", "clique_id", "state", "status", "health_mask", "health")
    CLUSTER_UUID_FIELD_NUMBER: _ClassVar[int]
    CLIQUE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_MASK_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    cluster_uuid: str
    clique_id: int
    state: FabricState
    status: int
    health_mask: int
    health: str
    def __init__(self, cluster_uuid: _Optional[str] = ..., clique_id: _Optional[int] = ..., state: _Optional[_Union[FabricState, str]] = ..., status: _Optional[int] = ..., health_mask: _Optional[int] = ..., health: _Optional[str] = ...) -> None: ...

class Mig(_message.Message):
    __slots__ = ("enabled", "enabled_after_reset", "instances", "profiles")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    ENABLED_AFTER_RESET_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    enabled_after_reset: bool
    instances: _containers.RepeatedCompositeFieldContainer[MigInstance]
    profiles: _containers.RepeatedCompositeFieldContainer[MigProfile]
    def __init__(self, enabled: _Optional[bool] = ..., enabled_after_reset: _Optional[bool] = ..., instances: _Optional[_Iterable[_Union[MigInstance, _Mapping]]] = ..., profiles: _Optional[_Iterable[_Union[MigProfile, _Mapping]]] = ...) -> None: ...

class MigInstance(_message.Message):
    __slots__ = ("gpu_instance_id", "compute_instance_id", "uuid", "profile", "start_slice", "size_slices", "compute_slices")
    GPU_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    START_SLICE_FIELD_NUMBER: _ClassVar[int]
    SIZE_SLICES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SLICES_FIELD_NUMBER: _ClassVar[int]
    gpu_instance_id: int
    compute_instance_id: int
    uuid: str
    profile: str
    start_slice: int
    size_slices: int
    compute_slices: int
    def __init__(self, gpu_instance_id: _Optional[int] = ..., compute_instance_id: _Optional[int] = ..., uuid: _Optional[str] = ..., profile: _Optional[str] = ..., start_slice: _Optional[int] = ..., size_slices: _Optional[int] = ..., compute_slices: _Optional[int] = ...) -> None: ...

class MigProfile(_message.Message):
    __slots__ = ("id", "name", "compute_slices", "most_instances", "remaining", "memory_bytes", "placements")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SLICES_FIELD_NUMBER: _ClassVar[int]
    MOST_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    compute_slices: int
    most_instances: int
    remaining: int
    memory_bytes: int
    placements: _containers.RepeatedCompositeFieldContainer[MigPlacement]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., compute_slices: _Optional[int] = ..., most_instances: _Optional[int] = ..., remaining: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., placements: _Optional[_Iterable[_Union[MigPlacement, _Mapping]]] = ...) -> None: ...

class MigPlacement(_message.Message):
    __slots__ = ("start_slice", "size_slices")
    START_SLICE_FIELD_NUMBER: _ClassVar[int]
    SIZE_SLICES_FIELD_NUMBER: _ClassVar[int]
    start_slice: int
    size_slices: int
    def __init__(self, start_slice: _Optional[int] = ..., size_slices: _Optional[int] = ...) -> None: ...

class Xid(_message.Message):
    __slots__ = ("code", "at_s", "count")
    CODE_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    code: int
    at_s: float
    count: int
    def __init__(self, code: _Optional[int] = ..., at_s: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...

class GpuMemory(_message.Message):
    __slots__ = ("uuid", "kind", "total_bytes", "reserved_bytes", "used_bytes", "free_bytes")
    UUID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    kind: MemoryKind
    total_bytes: int
    reserved_bytes: int
    used_bytes: int
    free_bytes: int
    def __init__(self, uuid: _Optional[str] = ..., kind: _Optional[_Union[MemoryKind, str]] = ..., total_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ...) -> None: ...

class GpuPair(_message.Message):
    __slots__ = ("a", "b", "distance")
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    a: str
    b: str
    distance: PcieDistance
    def __init__(self, a: _Optional[str] = ..., b: _Optional[str] = ..., distance: _Optional[_Union[PcieDistance, str]] = ...) -> None: ...

class Nic(_message.Message):
    __slots__ = ("name", "rdma", "interfaces", "bus_id", "numa_node", "pci_path", "ports", "gpus", "guid")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RDMA_FIELD_NUMBER: _ClassVar[int]
    INTERFACES_FIELD_NUMBER: _ClassVar[int]
    BUS_ID_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    PCI_PATH_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GUID_FIELD_NUMBER: _ClassVar[int]
    name: str
    rdma: bool
    interfaces: _containers.RepeatedScalarFieldContainer[str]
    bus_id: str
    numa_node: int
    pci_path: _containers.RepeatedScalarFieldContainer[str]
    ports: _containers.RepeatedCompositeFieldContainer[NicPort]
    gpus: _containers.RepeatedCompositeFieldContainer[GpuDistance]
    guid: str
    def __init__(self, name: _Optional[str] = ..., rdma: _Optional[bool] = ..., interfaces: _Optional[_Iterable[str]] = ..., bus_id: _Optional[str] = ..., numa_node: _Optional[int] = ..., pci_path: _Optional[_Iterable[str]] = ..., ports: _Optional[_Iterable[_Union[NicPort, _Mapping]]] = ..., gpus: _Optional[_Iterable[_Union[GpuDistance, _Mapping]]] = ..., guid: _Optional[str] = ...) -> None: ...

class NicPort(_message.Message):
    __slots__ = ("port", "active", "rate_mbps", "link_layer")
    PORT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    RATE_MBPS_FIELD_NUMBER: _ClassVar[int]
    LINK_LAYER_FIELD_NUMBER: _ClassVar[int]
    port: int
    active: bool
    rate_mbps: int
    link_layer: str
    def __init__(self, port: _Optional[int] = ..., active: _Optional[bool] = ..., rate_mbps: _Optional[int] = ..., link_layer: _Optional[str] = ...) -> None: ...

class GpuDistance(_message.Message):
    __slots__ = ("uuid", "distance")
    UUID_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    distance: PcieDistance
    def __init__(self, uuid: _Optional[str] = ..., distance: _Optional[_Union[PcieDistance, str]] = ...) -> None: ...

class PodDevices(_message.Message):
    __slots__ = ("holdings", "allocatable", "collected_at_s")
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATABLE_FIELD_NUMBER: _ClassVar[int]
    COLLECTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    holdings: _containers.RepeatedCompositeFieldContainer[Holding]
    allocatable: _containers.RepeatedCompositeFieldContainer[Allocatable]
    collected_at_s: float
    def __init__(self, holdings: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., allocatable: _Optional[_Iterable[_Union[Allocatable, _Mapping]]] = ..., collected_at_s: _Optional[float] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("namespace", "pod", "container", "resource", "device_ids")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[str] = ..., pod: _Optional[str] = ..., container: _Optional[str] = ..., resource: _Optional[str] = ..., device_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Allocatable(_message.Message):
    __slots__ = ("resource", "device_ids")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_IDS_FIELD_NUMBER: _ClassVar[int]
    resource: str
    device_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resource: _Optional[str] = ..., device_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReachSample(_message.Message):
    __slots__ = ("peer", "size_bytes", "p50_us", "p99_us", "p999_us", "count", "transport", "measured_at_s")
    PEER_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    P50_US_FIELD_NUMBER: _ClassVar[int]
    P99_US_FIELD_NUMBER: _ClassVar[int]
    P999_US_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_S_FIELD_NUMBER: _ClassVar[int]
    peer: str
    size_bytes: int
    p50_us: float
    p99_us: float
    p999_us: float
    count: int
    transport: str
    measured_at_s: float
    def __init__(self, peer: _Optional[str] = ..., size_bytes: _Optional[int] = ..., p50_us: _Optional[float] = ..., p99_us: _Optional[float] = ..., p999_us: _Optional[float] = ..., count: _Optional[int] = ..., transport: _Optional[str] = ..., measured_at_s: _Optional[float] = ...) -> None: ...

class ProbeOrders(_message.Message):
    __slots__ = ("orders",)
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    orders: _containers.RepeatedCompositeFieldContainer[ProbeOrder]
    def __init__(self, orders: _Optional[_Iterable[_Union[ProbeOrder, _Mapping]]] = ...) -> None: ...

class ProbeOrder(_message.Message):
    __slots__ = ("peer", "address", "size_bytes", "count", "transport", "serve")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    SERVE_FIELD_NUMBER: _ClassVar[int]
    peer: str
    address: str
    size_bytes: int
    count: int
    transport: str
    serve: bool
    def __init__(self, peer: _Optional[str] = ..., address: _Optional[str] = ..., size_bytes: _Optional[int] = ..., count: _Optional[int] = ..., transport: _Optional[str] = ..., serve: _Optional[bool] = ...) -> None: ...
