"""Device lists that sharing plugins write into annotations: what a node has, and what a pod was given.

Read, never written. Sources: volcano-sh/volcano pkg/scheduler/api/devices/nvidia/vgpu/utils.go (register and allocation
strings), Project-HAMi/HAMi docs/develop/protocol.md (the same with seven or nine fields, or JSON), volcano-sh/volcano
docs/user-guide/how_to_use_gpu_sharing.md (`volcano.sh/gpu-index`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from topology.bad_input import BadInput
from topology.gpus.amounts import MOST_MIB
from topology.gpus.forms import FORMS

VOLCANO_REGISTER: Final = "volcano.sh/node-vgpu-register"
HAMI_REGISTER: Final = "hami.io/node-nvidia-register"
GPU_INDEX: Final = "volcano.sh/gpu-index"
REGISTERS: Final = (VOLCANO_REGISTER, HAMI_REGISTER)
ALLOCATIONS: Final = tuple(key for form in FORMS for key in form.allocated if key != GPU_INDEX)
ALLOCATED: Final = frozenset((*ALLOCATIONS, GPU_INDEX))
"""Pod annotations that may say which cards were given."""

MOST_DEVICES: Final = 64
"""Cards read of one node at most; the largest machines have 16."""

_NUMBER: Final = re.compile(r"[0-9]{1,9}")


class Device(NamedTuple):
    """One card as its plugin registered it. `splits` is how many pods may share it."""

    uuid: str
    splits: int
    memory_mib: int
    model: str
    healthy: bool
    mig: bool


class Share(NamedTuple):
    """A part of one card that a pod was given: a UUID, or an index as text. `compute_percent` 0: not limited."""

    gpu: str
    memory_mib: int
    compute_percent: int


class _HamiDevice(msgspec.Struct, frozen=True):
    id: str
    count: int = 1
    devmem: int = 0
    type: str = ""
    mode: str = ""
    health: bool = True


def node_devices(annotations: Mapping[str, str] | None) -> tuple[tuple[Device, ...], str]:
    """The cards a node's plugin registered, in its order, and the annotation they came from; nothing without one.

    Raises BadInput for a list that cannot be read: half a list would hide cards.
    """
    for key in REGISTERS:
        text = (annotations or {}).get(key, "").strip()
        if text:
            devices = _json_devices(text, key) if text.startswith("[") else _devices(text, key)
            if len(devices) > MOST_DEVICES:
                raise BadInput(key, text, f"a node registers at most {MOST_DEVICES} devices")
            return devices, key
    return (), ""


def _devices(text: str, key: str) -> tuple[Device, ...]:
    """`uuid,count,MiB,type,healthy[,mode]:` of Volcano, or `uuid,count,MiB,cores,type,numa,healthy[,index,mode]:` of
    HAMi."""
    devices = []
    for part in text.split(":"):
        if not part.strip():
            continue
        fields = [field.strip() for field in part.split(",")]
        if key == VOLCANO_REGISTER and len(fields) in (5, 6):
            uuid, count, memory, model, healthy = fields[:5]
            mode = fields[5] if len(fields) == 6 else ""
        elif key == HAMI_REGISTER and len(fields) in (7, 9):
            uuid, count, memory, _, model, _, healthy = fields[:7]
            mode = fields[8] if len(fields) == 9 else ""
        else:
            raise BadInput(key, part, "a device has 5 or 6 fields (Volcano), or 7 or 9 (HAMi)")
        if not uuid or not _NUMBER.fullmatch(count) or not _NUMBER.fullmatch(memory) or int(memory) > MOST_MIB:
            raise BadInput(key, part, "a device is a name, a count and MiB of memory")
        devices.append(Device(uuid, int(count), int(memory), model, healthy.lower() == "true", mode == "mig"))
    return tuple(devices)


def _json_devices(text: str, key: str) -> tuple[Device, ...]:
    try:
        listed = msgspec.json.decode(text.encode(), type=list[_HamiDevice])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise BadInput(key, text, "a JSON list of devices with id, count and devmem") from error
    if any(not d.id or d.count < 0 or not 0 <= d.devmem <= MOST_MIB for d in listed):
        raise BadInput(key, text, "a device has an id, a count and MiB of memory, none negative")
    return tuple(Device(d.id, d.count, d.devmem, d.type, d.health, d.mode == "mig") for d in listed)


def pod_shares(annotations: Mapping[str, str] | None) -> tuple[Share, ...] | None:
    """The cards a pod was given, or None where no annotation says so. Raises BadInput where one cannot be read."""
    given = annotations or {}
    for key in ALLOCATIONS:
        if text := given.get(key, "").strip(" ;:"):
            return tuple(_share(part, key) for part in re.split(r"[;:]", text) if part.strip())
    if GPU_INDEX in given:
        indices = [part.strip() for part in given[GPU_INDEX].split(",")]
        if not all(_NUMBER.fullmatch(i) for i in indices):
            raise BadInput(GPU_INDEX, given[GPU_INDEX], "card numbers separated by commas")
        return tuple(Share(i, 0, 0) for i in indices)
    return None


def _share(part: str, key: str) -> Share:
    """`uuid,type,MiB,cores`."""
    fields = [field.strip() for field in part.split(",")]
    if len(fields) != 4 or not fields[0] or not all(_NUMBER.fullmatch(n) for n in fields[2:]):
        raise BadInput(key, part, "a share is a device, its type, MiB of memory and percent of the cores")
    if int(fields[2]) > MOST_MIB or int(fields[3]) > 100:
        raise BadInput(key, part, f"at most {MOST_MIB} MiB and 100 percent of a card")
    return Share(fields[0], int(fields[2]), int(fields[3]))
