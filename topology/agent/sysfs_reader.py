"""EDGE: what Linux tells of PCI, network cards and GPUDirect, below a root that a test may choose.

Decides which cards count (virtual functions count as their physical one) and which kernel has peer memory. It must
never ask a driver. What cannot be read is left out and costs only itself.

Public sources: Linux Documentation/ABI (sysfs-bus-pci, stable/sysfs-class-infiniband, testing/sysfs-class-net);
NVIDIA GPU Operator documentation, "GPUDirect RDMA": DMA-BUF wants the open kernel module and Linux 5.12 or newer.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from topology.facts.pci_paths import distance
from topology.facts.report import Distance, Gpu, GpuPair, Health, Nic, NicPort

_MOST_NICS: Final = 256
_MOST_PORTS: Final = 8
_LONGEST: Final = 4096
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine around the GPUs. `gpus` and `pairs` are those given, with what sysfs adds."""

    gpus: tuple[Gpu, ...]
    pairs: tuple[GpuPair, ...]
    nics: tuple[Nic, ...]
    nvidia_peermem: bool | None
    dma_buf: bool | None
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    differs: str = ""  # one sentence where PCIe distances by NVML and by sysfs are not the same


class SysfsReader:
    """Reads below `sys_root` and `proc_root`."""

    def __init__(self, sys_root: str = "/sys", proc_root: str = "/proc") -> None:
        self._sys, self._proc = Path(sys_root), Path(proc_root)

    def read(self, gpus: tuple[Gpu, ...], pairs: tuple[GpuPair, ...]) -> Host:
        """One look. Pairs that NVML did not tell are reckoned from the paths."""
        numa_nodes = self._numa_nodes()
        placed = tuple(self._placed(gpu) for gpu in gpus)
        nics = tuple(
            replace(nic, gpus=tuple(_near(nic, placed, numa_nodes)))
            for nic in sorted(self._rdma() + self._plain(), key=lambda nic: nic.name)[:_MOST_NICS]
        )
        memory = self._memory()
        return Host(
            gpus=placed,
            pairs=_filled(placed, pairs, numa_nodes),
            nics=nics,
            nvidia_peermem=self._peermem(),
            dma_buf=self._dma_buf(),
            memory_total_bytes=memory.get("MemTotal"),
            memory_available_bytes=memory.get("MemAvailable"),
            differs=_differing(placed, pairs, numa_nodes),
        )

    def boot_id(self) -> str:
        """Of the running kernel; "" if it is not told."""
        return _text(self._proc / "sys/kernel/random/boot_id")

    def _numa_nodes(self) -> int:
        return sum(1 for name in _names(self._sys / "devices/system/node") if re.fullmatch(r"node[0-9]+", name))

    # --- PCI -----------------------------------------------------------------------------------------

    def _placed(self, gpu: Gpu) -> Gpu:
        if gpu.bus_id is None:
            return gpu
        where = self._sys / "bus/pci/devices" / gpu.bus_id
        return replace(gpu, pci_path=_pci_path(where), numa_node=_numa(where))

    # --- network cards -------------------------------------------------------------------------------

    def _rdma(self) -> list[Nic]:
        found = []
        for name in _names(self._sys / "class/infiniband")[:_MOST_NICS]:
            where = self._sys / "class/infiniband" / name
            if (where / "device/physfn").exists():
                continue
            path = _pci_path(where / "device")
            found.append(
                Nic(
                    name=name,
                    rdma=True,
                    interfaces=tuple(_names(where / "device/net")[:32]),
                    bus_id=path[-1] if path else None,
                    numa_node=_numa(where / "device"),
                    pci_path=path,
                    ports=tuple(_ports(where / "ports")),
                    guid=_text(where / "node_guid") or None,
                )
            )
        return found

    def _plain(self) -> list[Nic]:
        """Interfaces on PCI cards that no RDMA device has."""
        taken = {interface for name in _names(self._sys / "class/infiniband") for interface in self._of_rdma(name)}
        found = []
        for name in _names(self._sys / "class/net")[:1024]:
            where = self._sys / "class/net" / name
            path = _pci_path(where / "device")
            if name in taken or not path or (where / "device/physfn").exists():
                continue
            state, speed = _text(where / "operstate"), _text(where / "speed")
            rate_mbps = int(speed) if speed.isdigit() and int(speed) > 0 else None  # -1 while the link is down
            port = NicPort(
                port=1,
                active=None if state in ("", "unknown") else state == "up",
                rate_mbps=rate_mbps,
                link_layer="Ethernet",
            )
            found.append(
                Nic(
                    name=name,
                    rdma=False,
                    interfaces=(name,),
                    bus_id=path[-1],
                    numa_node=_numa(where / "device"),
                    pci_path=path,
                    ports=(port,),
                )
            )
        return found

    def _of_rdma(self, name: str) -> list[str]:
        return _names(self._sys / "class/infiniband" / name / "device/net")

    # --- GPUDirect, memory ---------------------------------------------------------------------------

    def _peermem(self) -> bool | None:
        modules = _names(self._sys / "module")
        return any(name in modules for name in ("nvidia_peermem", "nv_peer_mem")) if modules else None

    def _dma_buf(self) -> bool | None:
        driver = _text(self._proc / "driver/nvidia/version")
        kernel = re.match(r"([0-9]+)\.([0-9]+)", _text(self._proc / "sys/kernel/osrelease"))
        if not driver or kernel is None:
            return None
        return "Open Kernel Module" in driver and (int(kernel[1]), int(kernel[2])) >= (5, 12)

    def _memory(self) -> dict[str, int]:
        found = {}
        for line in _text(self._proc / "meminfo").splitlines():
            key, _, value = line.partition(":")
            number, _, unit = value.strip().partition(" ")
            if key in ("MemTotal", "MemAvailable") and number.isdigit() and unit == "kB":
                found[key] = int(number) * 1024
        return found


def _near(nic: Nic, gpus: tuple[Gpu, ...], numa_nodes: int) -> list[tuple[str, Distance]]:
    found = []
    for gpu in gpus:
        far = distance(nic.pci_path, gpu.pci_path, nic.numa_node, gpu.numa_node, numa_nodes)
        if far is not None:
            found.append((gpu.uuid, far))
    return found


def _filled(gpus: tuple[Gpu, ...], pairs: tuple[GpuPair, ...], numa_nodes: int) -> tuple[GpuPair, ...]:
    known = {(pair.a, pair.b): pair for pair in pairs}
    usable = sorted((gpu for gpu in gpus if gpu.health is not Health.LOST), key=lambda gpu: gpu.uuid)
    for number, a in enumerate(usable):
        for b in usable[number + 1 :]:
            if (a.uuid, b.uuid) not in known:
                far = distance(a.pci_path, b.pci_path, a.numa_node, b.numa_node, numa_nodes)
                if far is not None:
                    known[a.uuid, b.uuid] = GpuPair(a=a.uuid, b=b.uuid, distance=far)
    return tuple(known[key] for key in sorted(known))


def _differing(gpus: tuple[Gpu, ...], pairs: tuple[GpuPair, ...], numa_nodes: int) -> str:
    """Where NVML and sysfs say different things of a pair, NVML's word is taken; this says so."""
    by_uuid, found = {gpu.uuid: gpu for gpu in gpus}, []
    for pair in pairs:
        if pair.a in by_uuid and pair.b in by_uuid:
            a, b = by_uuid[pair.a], by_uuid[pair.b]
            far = distance(a.pci_path, b.pci_path, a.numa_node, b.numa_node, numa_nodes)
            if far is not None and far is not pair.distance:
                found.append(f"{pair.a} to {pair.b} is {pair.distance} by NVML and {far} by sysfs")
    more = f", and {len(found) - 1} more pairs differ" if len(found) > 1 else ""
    return f"{found[0]}{more}; NVML's word is taken" if found else ""


def _ports(where: Path) -> list[NicPort]:
    found = []
    for name in _names(where)[:_MOST_PORTS]:
        if not name.isdigit():
            continue
        state, rate = _text(where / name / "state"), _RATE.match(_text(where / name / "rate"))
        found.append(
            NicPort(
                port=int(name),
                active="ACTIVE" in state if state else None,
                rate_mbps=round(float(rate[1]) * 1000) if rate and float(rate[1]) > 0 else None,
                link_layer=_text(where / name / "link_layer") or None,
            )
        )
    return found


def _pci_path(where: Path) -> tuple[str, ...]:
    """From the root complex down: `pci0000:16`, bridges, the function; () for what is no PCI function."""
    try:
        parts = Path(os.path.realpath(where, strict=True)).parts
    except OSError:
        return ()
    first = next((i for i, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part)), None)
    if first is None:
        return ()
    chain = [parts[first]]
    for part in parts[first + 1 :]:
        if not _FUNCTION.fullmatch(part):
            break
        chain.append(part)
    return tuple(chain[:32]) if len(chain) > 1 else ()


def _numa(where: Path) -> int | None:
    """None where the kernel does not know (-1), never 0."""
    text = _text(where / "numa_node")
    return int(text) if text.isdigit() else None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: Path) -> str:
    """The first 4 KiB of a small file, without the blanks around; "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_LONGEST).decode("utf-8", "replace").strip()
    except OSError:
        return ""
