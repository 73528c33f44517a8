"""Reads NCCL's system XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): processors, PCI bridges, GPUs, adapters, NVLinks.

Shape (NVIDIA/nccl src/graph/xml.cc): system > cpu > pci > ... > gpu > nvlink, and nic > net. Clouds ship these files
for machines whose PCI tree is hidden, so they also serve as the override where a guest shows none.

What such a file leaves out NCCL asks the machine: a missing `class` in sysfs (ncclTopoGetXmlFromSys), the NVLinks of a
`gpu` that has none in NVML (ncclTopoGetXmlFromGpu). A reader has no machine: without a class nobody can say which of
the devices are GPUs, and the file is refused; without NVLinks there is a warning. A dump was written after NCCL looked.

GPUs and bridges are named by their PCI address; adapters by their `net` name, or by the address where there is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from topology.graph.link_types import C2C, MAX_NVLINKS, nvlink, pcie_word
from topology.graph.parts import GraphPart, PartKind, Topology, TopologyBuilder, bad
from topology.readers.xml_tree import Element

SOURCE: Final = "NCCL system XML"
MAX_DEVICES: Final = 256

_BUS_ID = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_CLASS = re.compile(r"0x[0-9a-fA-F]{6}")
_GPU_CLASSES, _NIC_CLASSES = ("0x0300", "0x0302"), ("0x0200", "0x0207")  # PCI Code and ID Assignment Specification
_BRIDGE, _NVSWITCH = "0x0604", "0x0680"
_HIDDEN = "NVSwitch"
"""All switches that are named by no address: NCCL writes -1 or all ones (NVIDIA/nccl#1182)."""


@dataclass(slots=True)
class _PciDevice:
    """A GPU or an adapter, with what is above it: processor first."""

    name: str
    kind: PartKind
    above: tuple[str, ...]
    numa: int | None
    device: str = ""
    to_gpus: dict[str, int] = field(default_factory=dict)
    to_switches: dict[str, int] = field(default_factory=dict)


def read(root: Element) -> Topology:
    """The topology of one machine. Raises BadInput with line and reason."""
    build = TopologyBuilder(SOURCE)
    devices: dict[str, _PciDevice] = {}
    unnamed: list[Element] = []
    for number, cpu in enumerate(root.named("cpu")):
        value = cpu.number("numaid", -1, 4095, default=-1)
        numa = value if value >= 0 else None
        name = f"CPU {number}" if numa is None else f"NUMA {numa}"
        build.part(GraphPart(name, PartKind.NUMA, numa=numa), cpu.line)
        for nic in cpu.named("nic"):
            _nets(nic, (name,), numa, "", build, devices)
        for pci in cpu.named("pci"):
            _pci(pci, (name,), numa, build, devices, unnamed)
    gpus = [device for device in devices.values() if device.kind is PartKind.GPU]
    _check_gpus(root, gpus, unnamed)
    _warn_of_gaps(list(devices.values()), gpus, unnamed, build)
    _nvlinks(gpus, build)
    _distances(list(devices.values()), build)
    return build.build()


def _check_gpus(root: Element, gpus: list[_PciDevice], unnamed: list[Element]) -> None:
    """Raises BadInput where the file has no GPU, or no class that says which devices are."""
    if unnamed and not gpus:
        allowed = (
            "0x0302.. is a GPU, 0x02.. an adapter, and no device of the file says so: NCCL asks the machine, where "
            "NCCL_TOPO_DUMP_FILE writes a whole file and isochrone topology show --here needs none"
        )
        first = unnamed[0]
        raise bad(first.line, f"class of pci {first.get('busid')}", first.get("class") or "missing", allowed)
    if not gpus:
        raise bad(root.line, "number of GPUs", 0, "at least one pci of class 0x030200, or one gpu, is needed")


def _warn_of_gaps(
    devices: list[_PciDevice], gpus: list[_PciDevice], unnamed: list[Element], build: TopologyBuilder
) -> None:
    """What the file leaves out: classes, NUMA nodes, NVLinks."""
    if unnamed:
        build.warn(f"line {unnamed[0].line}: {len(unnamed)} PCI devices of no known class are left out")
    if any(device.numa is None for device in devices):
        build.warn("the NUMA node of some devices is unknown; distances through their processor are too")
    if len(gpus) > 1 and not all(gpu.device for gpu in gpus) and not any(g.to_gpus or g.to_switches for g in gpus):
        build.warn(
            "the file names no NVLinks; NCCL looks for them on the machine, so GPUs may be nearer than said here"
        )


def _pci(
    pci: Element,
    above: tuple[str, ...],
    numa: int | None,
    build: TopologyBuilder,
    devices: dict[str, _PciDevice],
    unnamed: list[Element],
) -> None:
    bus_id, kind = _address_and_class(pci)
    gpu = next(pci.named("gpu"), None)
    nics = list(pci.named("nic"))
    if gpu is not None or kind[:6] in _GPU_CLASSES:
        device = _PciDevice(bus_id, PartKind.GPU, above, numa)
        _add(device, pci.line, build, devices)
        if gpu is not None:
            device.device = f"GPU{gpu.number('dev', 0, 1023)}"
            build.parts[bus_id] = GraphPart(bus_id, PartKind.GPU, above[-1], numa=numa, device=device.device)
            _targets(gpu, device, build)
    elif nics or kind[:6] in _NIC_CLASSES:
        for nic in nics:
            _nets(nic, above, numa, bus_id, build, devices)
        if not any(True for nic in nics for _ in nic.named("net")):
            _add(_PciDevice(bus_id, PartKind.NIC, above, numa), pci.line, build, devices)
    elif kind[:6] == _BRIDGE or next(pci.named("pci"), None) is not None:
        build.part(GraphPart(bus_id, PartKind.PCIE_SWITCH, above[-1], numa=numa), pci.line)
        for below in pci.named("pci"):
            _pci(below, (*above, bus_id), numa, build, devices, unnamed)
        for nic in nics:
            _nets(nic, (*above, bus_id), numa, "", build, devices)
    elif kind[:6] == _NVSWITCH:
        build.part(GraphPart(bus_id, PartKind.NVSWITCH, above[-1], numa=numa), pci.line)
    else:
        unnamed.append(pci)


def _address_and_class(pci: Element) -> tuple[str, str]:
    """In small letters; the class is empty where the file leaves it out."""
    bus_id = pci.get("busid").lower()
    if not _BUS_ID.fullmatch(bus_id):
        raise bad(pci.line, "busid of pci", pci.get("busid"), "it is an address like 0000:0f:00.0")
    kind = pci.get("class").lower()
    if kind and not _CLASS.fullmatch(kind):
        raise bad(pci.line, f"class of pci {bus_id}", kind, "it is six hexadecimal digits like 0x030200")
    return bus_id, kind


def _nets(
    nic: Element,
    above: tuple[str, ...],
    numa: int | None,
    bus_id: str,
    build: TopologyBuilder,
    devices: dict[str, _PciDevice],
) -> None:
    for net in nic.named("net"):
        _add(_PciDevice(net.get("name"), PartKind.NIC, above, numa, bus_id), net.line, build, devices)


def _add(device: _PciDevice, line: int, build: TopologyBuilder, devices: dict[str, _PciDevice]) -> None:
    if device.name in devices:
        raise bad(line, "device", device.name, "it is there twice; every device has one place")
    if len(devices) >= MAX_DEVICES:
        raise bad(line, "number of devices", f"above {MAX_DEVICES}", "the file is no description of one machine")
    build.part(GraphPart(device.name, device.kind, device.above[-1], numa=device.numa, device=device.device), line)
    devices[device.name] = device


def _targets(gpu: Element, device: _PciDevice, build: TopologyBuilder) -> None:
    """The far ends of a GPU's NVLinks. The far end of a link into a switch is the switch, never the other GPU."""
    for link in gpu.named("nvlink"):
        target = link.get("target").lower()
        count = link.number("count", 1, MAX_NVLINKS)
        kind = link.get("tclass").lower()
        if target == device.name:
            build.warn(f"line {link.line}: {target} names itself as the far end of {count} NVLinks; left out")
        elif target.startswith("-") or set(target) <= set("f:."):
            device.to_switches[_HIDDEN] = device.to_switches.get(_HIDDEN, 0) + count
        elif not _BUS_ID.fullmatch(target):
            raise bad(link.line, "target of nvlink", target, "it is an address like 0000:0f:00.0, or -1")
        elif kind[:6] == _NVSWITCH:
            device.to_switches[target] = device.to_switches.get(target, 0) + count
        elif kind[:6] in _GPU_CLASSES:
            device.to_gpus[target] = device.to_gpus.get(target, 0) + count
        else:
            build.warn(f"line {link.line}: {count} NVLinks of {device.name} end in a device of class {kind}; left out")
    if next(gpu.named("c2c"), None) is not None:
        build.link(device.name, device.above[0], C2C)


def _nvlinks(gpus: list[_PciDevice], build: TopologyBuilder) -> None:
    """NVSwitches as parts, and the bond of each pair."""
    by_name = {gpu.name: gpu for gpu in gpus}
    for gpu in gpus:
        for switch, count in gpu.to_switches.items():
            if switch not in build.parts:
                build.part(GraphPart(switch, PartKind.NVSWITCH))
            elif build.parts[switch].kind is not PartKind.NVSWITCH:
                raise bad(0, f"NVSwitch of {gpu.name}", switch, "the file has another device at that address")
            build.link(gpu.name, switch, nvlink(min(count, MAX_NVLINKS)))
        for peer in gpu.to_gpus:
            if peer not in by_name:
                build.warn(f"the far end of {gpu.name}'s NVLinks, {peer}, is not in the file; left out")
    for a, b in combinations(gpus, 2):
        if count := _bond(a, b, build):
            build.link(a.name, b.name, nvlink(min(count, MAX_NVLINKS)))


def _bond(a: _PciDevice, b: _PciDevice, build: TopologyBuilder) -> int:
    """NVLinks between two GPUs: the smaller of what both ends say, else through the switches that they share."""
    value = [count for count in (a.to_gpus.get(b.name), b.to_gpus.get(a.name)) if count]
    if len(value) == 1 or len(set(value)) > 1:
        build.warn(f"{a.name} and {b.name} disagree about the NVLinks between them; the smaller bond is taken")
    if value:
        return min(value)
    # Through switches a GPU reaches every other one with all its links; the weaker end sets the pace.
    shared = a.to_switches.keys() & b.to_switches.keys()
    return min(sum(end.to_switches.values()) for end in (a, b)) if shared else 0


def _distances(devices: list[_PciDevice], build: TopologyBuilder) -> None:
    for a, b in combinations(devices, 2):
        if build.linked(a.name, b.name):
            continue
        trusted = a.numa is not None and b.numa is not None
        build.link(a.name, b.name, pcie_word(a.above, b.above, trusted=trusted))
