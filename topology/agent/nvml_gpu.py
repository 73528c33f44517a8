"""EDGE: one GPU through NVML: identity, memory, NVLinks, fabric. Each question that is refused costs only its field.

It must never know other GPUs, nor whether the GPU is fit for use.

Public sources: NVML API reference; for links behind NVSwitch, NVIDIA/go-gpuallocator `internal/links/device.go`.
"""

from __future__ import annotations

import ctypes
import uuid
from typing import Any, Final

from topology.agent.nvml_mig import read_mig
from topology.agent.nvml_session import (
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    TIMEOUT,
    VERSION_MISMATCH,
    NvmlQuery,
    reason,
)
from topology.facts.report import NO_CLUSTER, Fabric, FabricState, Gpu, Memory, MemoryKind, NvLink, Remote

_MIB: Final = 2**20
_MOST_LINKS: Final = 36
# NVML_NVLINK_VERSION_*: an enum, not a decimal number.
_VERSIONS: Final = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_REMOTES: Final = {0: Remote.GPU, 1: Remote.NPU, 2: Remote.SWITCH}
_FABRIC: Final = {
    0: FabricState.NOT_SUPPORTED,
    1: FabricState.NOT_STARTED,
    2: FabricState.IN_PROGRESS,
    3: FabricState.COMPLETED,
}
_HEALTH: Final = {1: "healthy", 2: "unhealthy", 3: "limited"}
_ARCHITECTURES: Final = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
_SPEED_FIELD, _STATE_FIELD, _COUNT_FIELD = 164, 165, 91  # NVML_FI_DEV_NVLINK_GET_SPEED, _GET_STATE, _LINK_COUNT


_NO_ADDRESS: Final = ("0000:00:00.0", "ffff:ff:1f.7", "ffffffff:ffff:ff.0", "ffffffff:ff:ff.0", "ffff:ff:ff.0")
"""What stands where the far end of a link has no PCI address, as with newer NVSwitches and in guests."""


def bus_id(info: Any) -> str:
    """NVML's `00000000:1B:00.0` as the kernel writes it: `0000:1b:00.0`; a domain above ffff keeps its digits."""
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain or '0', 16):04x}:{rest}"


def read_gpu(
    query: NvmlQuery, handle: Any, index: int, gpu_uuid: str, *, patient: bool = True
) -> tuple[Gpu, list[Memory]]:
    """The GPU and its memory readings, those of its MIG instances after its own.

    Raises GpuGone, NvmlGone, and, if `patient`, MigChanging while somebody divides it anew.
    """
    nvml = query.nvml
    name = query.demand("name", "nvmlDeviceGetName", handle)
    pci = query.demand("bus_id", "nvmlDeviceGetPciInfo_v3", handle)
    bar1 = query.demand("bar1_total_bytes", "nvmlDeviceGetBAR1MemoryInfo", handle)
    architecture = query.demand("architecture", "nvmlDeviceGetArchitecture", handle)
    own = read_memory(query, handle, gpu_uuid)
    mig, instances = read_mig(query, handle, own.total_bytes if own else None, patient=patient)
    if mig is not None and mig.enabled and (own is None or own.kind is MemoryKind.UNIFIED):
        query.refused.pop("memory", None)  # the instances' sum stands for it
        own = _sum(gpu_uuid, instances)
    found = Gpu(
        uuid=gpu_uuid,
        index=index,
        name=name or None,
        bus_id=None if pci is None else bus_id(pci),
        nvlinks=read_links(query, handle),
        fabric=read_fabric(query, handle, nvml),
        mig=mig,
        bar1_total_bytes=None if bar1 is None else int(bar1.bar1Total),
        architecture=_ARCHITECTURES.get(architecture),
        refused=tuple(sorted(query.refused.items())),
    )
    return found, ([own] if own else []) + instances


# --- memory --------------------------------------------------------------------------------------


def read_memory(query: NvmlQuery, handle: Any, gpu_uuid: str) -> Memory | None:
    """A reading; None (and a reason) if it is refused. NotSupported from both versions means unified memory."""
    code, new = query.answer("nvmlDeviceGetMemoryInfo", handle, query.nvml.nvmlMemory_v2)
    if code == 0:
        reserved, used = int(new.reserved), int(new.used)
        total, free = int(new.total), int(new.free)
        # Headers contradict each other on whether `used` holds the reserved part: the sum tells.
        if abs(total - reserved - used - free) > _MIB >= abs(total - used - free):
            used = max(0, used - reserved)
        return Memory(uuid=gpu_uuid, total_bytes=total, reserved_bytes=reserved, used_bytes=used, free_bytes=free)
    first = code
    code, old = query.answer("nvmlDeviceGetMemoryInfo", handle)
    if code == 0:
        return Memory(uuid=gpu_uuid, total_bytes=int(old.total), used_bytes=int(old.used), free_bytes=int(old.free))
    query.refused["memory"] = reason(code if first == FUNCTION_NOT_FOUND else first)
    # Both versions must say so: a slow or half-broken driver that refuses one of them has memory of its own.
    if code == NOT_SUPPORTED and first in (NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH):
        return Memory(uuid=gpu_uuid, kind=MemoryKind.UNIFIED)
    return None


def _sum(gpu_uuid: str, instances: list[Memory]) -> Memory | None:
    """A divided GPU that does not tell of itself has what its instances have."""
    if not instances:
        return None

    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return Memory(
        uuid=gpu_uuid,
        kind=MemoryKind.SUM_OF_MIG,
        total_bytes=total([m.total_bytes for m in instances]),
        reserved_bytes=total([m.reserved_bytes for m in instances]),
        used_bytes=total([m.used_bytes for m in instances]),
        free_bytes=total([m.free_bytes for m in instances]),
    )


# --- NVLink --------------------------------------------------------------------------------------


def read_links(query: NvmlQuery, handle: Any) -> tuple[NvLink, ...]:
    """Every link that exists. Behind an NVSwitch the remote address is the switch's, never a GPU's."""
    count = _fields(query, handle, [(_COUNT_FIELD, 0)])[0]
    links = range(min(count, _MOST_LINKS) if count is not None else _MOST_LINKS)
    speeds = _fields(query, handle, [(_SPEED_FIELD, link) for link in links])  # one call for all: megabytes a second
    found, refusals = [], []
    for link, speed in zip(links, speeds, strict=True):
        code, state = query.answer("nvmlDeviceGetNvLinkState", handle, link)
        if code:
            refusals.append(code)
            state = _fields(query, handle, [(_STATE_FIELD, link)])[0]
            if state is None:
                continue  # absent links say NotSupported or InvalidArgument
        active = state in (1, 2)  # 2 is asleep: it wakes when it is used
        remote, address, version = None, None, None
        if active:
            remote = _REMOTES.get(query.demand("", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, quiet=True))
            pci = query.demand("", "nvmlDeviceGetNvLinkRemotePciInfo", handle, link, quiet=True)
            address = bus_id(pci) if pci is not None and pci.busId else None
            address = None if address in _NO_ADDRESS else address
            version = _VERSIONS.get(query.demand("", "nvmlDeviceGetNvLinkVersion", handle, link, quiet=True))
        found.append(
            NvLink(
                link=link,
                active=active,
                version=version,
                speed_mbps=speed * 8 if active and speed else None,
                remote=remote,
                remote_bus_id=address,
            )
        )
    if refusals and not found:
        query.refused["nvlinks"] = reason(refusals[0])
    elif TIMEOUT in refusals:
        query.refused["nvlinks"] = reason(TIMEOUT)  # those that are not in the list were not asked for
    return tuple(found)


def _fields(query: NvmlQuery, handle: Any, wanted: list[tuple[int, int]]) -> list[int | None]:
    """Integers from nvmlDeviceGetFieldValues; each of its entries has a return code of its own."""
    code, values = query.answer("nvmlDeviceGetFieldValues", handle, wanted) if wanted else (0, ())
    if code:
        return [None] * len(wanted)
    return [None if value.nvmlReturn else _integer(value.valueType, value.value) for value in values]


def _integer(kind: int, value: Any) -> int | None:
    names = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}  # NVML_VALUE_TYPE_*
    return int(getattr(value, names[kind])) if kind in names else None


# --- fabric --------------------------------------------------------------------------------------


def read_fabric(query: NvmlQuery, handle: Any, nvml: Any) -> Fabric | None:
    """Multi-node NVLink: the newest version of the struct that the driver knows."""
    first = 0
    for kind, function in (
        ("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
    ):
        struct = getattr(nvml, kind, None)
        if struct is None:
            continue
        info = struct()
        if kind.endswith("v3_t"):
            info.version = nvml.nvmlGpuFabricInfo_v3
        code, _ = query.answer(function, handle, ctypes.byref(info))
        if code == 0:
            return _fabric(info)
        first = first or code
        if code in (NOT_SUPPORTED, NO_PERMISSION):
            break
    query.refused["fabric"] = reason(first or FUNCTION_NOT_FOUND)
    return None


def _fabric(info: Any) -> Fabric:
    state = _FABRIC.get(int(info.state) & 0xFF, FabricState.NOT_SUPPORTED)
    cluster = str(uuid.UUID(bytes=bytes(info.clusterUuid)))
    if state is FabricState.NOT_SUPPORTED:
        return Fabric(state=state)
    mask = getattr(info, "healthMask", None)
    return Fabric(
        state=state,
        cluster_uuid=None if cluster == NO_CLUSTER else cluster,
        clique_id=int(info.cliqueId) if state is FabricState.COMPLETED else None,
        status=int(info.status) if state is FabricState.COMPLETED else None,
        health_mask=None if mask is None else int(mask),
        health=_HEALTH.get(int(getattr(info, "healthSummary", 0))) or _by_mask(int(mask or 0)),
    )


def _by_mask(mask: int) -> str | None:
    """What the parts of the health mask come to where the driver gives no summary; None: nothing is known to be wrong.

    nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: two bits each, 1 is true; four bits of configuration, above 1 is a fault.
    """
    degraded, unhealthy, configuration = mask & 3, mask >> 4 & 3, mask >> 8 & 0xF
    if unhealthy == 1 or configuration > 1:
        return "unhealthy"
    return "limited" if degraded == 1 else None
