"""EDGE: how one GPU is divided (MIG): the instances that exist and what could still be made.

It must never decide where an instance should go.

Public sources: NVML API reference ("Multi Instance GPU Management"), NVIDIA MIG user guide. Slices are memory slices.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from topology.agent.nvml_session import INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, GpuGone, NvmlQuery, reason
from topology.facts.report import Memory, Mig, MigInstance, MigProfile

_PROFILES: Final = 0x12  # NVML_GPU_INSTANCE_PROFILE_COUNT
_MOST_PLACEMENTS: Final = 16
_MIB: Final = 2**20


class MigChanging(Exception):  # noqa: N818  # says what happened
    """Instances came or went between two questions: this look at the GPU is worth nothing."""


def read_mig(
    query: NvmlQuery, handle: Any, total_bytes: int | None, *, patient: bool = True
) -> tuple[Mig | None, list[Memory]]:
    """The division and the memory of each instance; None for a GPU that cannot be divided.

    `total_bytes` of the whole GPU, where it is known, names the profiles if the driver does not. Raises MigChanging if
    `patient`; else what is not answered of an instance costs that instance only.
    """
    modes = query.demand("mig", "nvmlDeviceGetMigMode", handle)
    if modes is None:
        return None, []
    enabled, after = bool(modes[0]), bool(modes[1])
    profiles = _profiles(query, handle)
    if not enabled:
        return Mig(enabled=False, enabled_after_reset=after, profiles=tuple(profiles)), []
    try:
        instances, memory = _devices(query, handle, profiles, total_bytes, patient=patient)
    except GpuGone:
        raise MigChanging from None  # of an instance that is no more; a lost GPU says so at the next look
    places = _instances(query, handle, profiles)
    used = {instance.gpu_instance_id for instance in instances}
    names: dict[int | None, MigProfile] = {profile.id: profile for profile in profiles}
    merged = []
    for instance in instances:
        profile_id, start, size = places.get(instance.gpu_instance_id, (None, None, None))
        merged.append(_placed(instance, names.get(profile_id), start, size))
    for instance_id, (profile_id, start, size) in places.items():
        if instance_id not in used:  # nobody made a compute instance in it yet
            merged.append(_placed(MigInstance(gpu_instance_id=instance_id), names.get(profile_id), start, size))
    merged.sort(key=lambda each: (each.gpu_instance_id, each.compute_instance_id or 0))
    return (
        Mig(enabled=True, enabled_after_reset=after, instances=tuple(merged), profiles=tuple(profiles)),
        sorted(memory, key=lambda each: each.uuid),
    )


def _placed(instance: MigInstance, profile: MigProfile | None, start: int | None, size: int | None) -> MigInstance:
    return MigInstance(
        gpu_instance_id=instance.gpu_instance_id,
        compute_instance_id=instance.compute_instance_id,
        uuid=instance.uuid,
        profile=(profile.name if profile else None) or instance.profile,
        start_slice=start,
        size_slices=size,
        compute_slices=instance.compute_slices or (profile.compute_slices if profile else None),
    )


def _devices(
    query: NvmlQuery, handle: Any, profiles: list[MigProfile], total_bytes: int | None, *, patient: bool
) -> tuple[list[MigInstance], list[Memory]]:
    """MIG devices: the instances that work can be put on. Indices have gaps."""
    count = query.demand("mig.instances", "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    instances, memory = [], []
    for index in range(min(count, 64)):
        code, device = query.answer("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if code == NOT_FOUND:
            continue
        if code == INVALID_ARGUMENT and patient:
            raise MigChanging
        if code:
            query.refused["mig.instances"] = reason(code)
            break
        name = _sure(query, patient, "nvmlDeviceGetUUID", device)
        gpu_instance = _sure(query, patient, "nvmlDeviceGetGpuInstanceId", device)
        if name is None or gpu_instance is None:
            continue
        attributes = _sure(query, patient, "nvmlDeviceGetAttributes_v2", device)
        profile = None if attributes is None else _profile_name(attributes, profiles, total_bytes)
        instances.append(
            MigInstance(
                gpu_instance_id=int(gpu_instance),
                compute_instance_id=_sure(query, patient, "nvmlDeviceGetComputeInstanceId", device),
                uuid=str(name),
                profile=profile,
                compute_slices=None if attributes is None else int(attributes.gpuInstanceSliceCount),
            )
        )
        reading = _sure(query, patient, "nvmlDeviceGetMemoryInfo", device, query.nvml.nvmlMemory_v2)
        reserved = None if reading is None else int(reading.reserved)
        reading = _sure(query, patient, "nvmlDeviceGetMemoryInfo", device) if reading is None else reading
        if reading is not None:
            memory.append(
                Memory(
                    uuid=str(name),
                    total_bytes=int(reading.total),
                    reserved_bytes=reserved,
                    used_bytes=int(reading.used),
                    free_bytes=int(reading.free),
                )
            )
    return instances, memory


def _profile_name(attributes: Any, profiles: list[MigProfile], total_bytes: int | None) -> str | None:
    """By the driver's own profiles, else as NVIDIA/go-nvlib reckons it: eighths of the GPU's memory, rounded up."""
    slices, memory_bytes = int(attributes.gpuInstanceSliceCount), int(attributes.memorySizeMB) * _MIB
    for profile in profiles:
        if profile.compute_slices == slices and profile.memory_bytes == memory_bytes and profile.name:
            return profile.name
    if not total_bytes:
        return None
    eighths = -(-memory_bytes * 8 // total_bytes)
    return f"{slices}g.{round(eighths / 8 * -(-total_bytes // 2**30))}gb"


def _sure(query: NvmlQuery, patient: bool, function: str, *args: Any) -> Any:
    """An answer about a MIG device; the device being gone spoils the whole look."""
    code, found = query.answer(function, *args)
    if code in (INVALID_ARGUMENT, NOT_FOUND) and patient:
        raise MigChanging
    if code:
        query.refused.setdefault("mig.instances", reason(code))
    return found


def _profiles(query: NvmlQuery, handle: Any) -> list[MigProfile]:
    """What could be made. Placement questions take the profile's id, which is not the profile's number."""
    found = []
    for number in range(_PROFILES):
        code, info = query.answer("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
        if code == NO_PERMISSION:
            query.refused["mig.profiles"] = reason(code)
            break
        if code:
            continue  # this GPU has no such profile
        name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
        found.append(
            MigProfile(
                id=int(info.id),
                name=name.removeprefix("MIG ") or None,
                compute_slices=int(info.sliceCount),
                most_instances=int(info.instanceCount),
                remaining=query.demand("", "nvmlDeviceGetGpuInstanceRemainingCapacity", handle, info.id, quiet=True),
                memory_bytes=int(info.memorySizeMB) * _MIB,
                placements=_placements(query, handle, int(info.id)),
            )
        )
    return sorted(found, key=lambda profile: profile.id)


def _placements(query: NvmlQuery, handle: Any, profile_id: int) -> tuple[tuple[int, int], ...]:
    array = (query.nvml.c_nvmlGpuInstancePlacement_t * _MOST_PLACEMENTS)()
    count = ctypes.c_uint(_MOST_PLACEMENTS)
    arguments = (
        "nvmlDeviceGetGpuInstancePossiblePlacements",
        handle,
        profile_id,
        ctypes.byref(array),
        ctypes.byref(count),
    )
    if query.answer(*arguments)[0]:
        return ()
    return tuple(sorted((int(array[i].start), int(array[i].size)) for i in range(min(count.value, _MOST_PLACEMENTS))))


def _instances(query: NvmlQuery, handle: Any, profiles: list[MigProfile]) -> dict[int, tuple[int, int, int]]:
    """GPU instance id to (profile id, start, size). Needs rights that a container often lacks."""
    found: dict[int, tuple[int, int, int]] = {}
    for profile in profiles:
        array = (query.nvml.c_nvmlGpuInstance_t * _MOST_PLACEMENTS)()
        count = ctypes.c_uint(_MOST_PLACEMENTS)
        code, _ = query.answer(
            "nvmlDeviceGetGpuInstances", handle, profile.id, ctypes.byref(array), ctypes.byref(count)
        )
        if code == NO_PERMISSION:
            query.refused["mig.placements"] = reason(code)
            break
        for index in range(0 if code else min(count.value, _MOST_PLACEMENTS)):
            info = query.demand("mig.placements", "nvmlGpuInstanceGetInfo", array[index])
            if info is not None:
                found[int(info.id)] = (int(info.profileId), int(info.placement.start), int(info.placement.size))
    return found
