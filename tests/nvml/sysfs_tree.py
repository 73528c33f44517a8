"""A machine's /sys and /proc, as far as an agent reads them, as files in a folder."""

from __future__ import annotations

import os
from pathlib import Path

from tests.nvml.profiles import Card, Machine, NicCard


def write_sysfs(machine: Machine, root: Path) -> None:
    """PCI functions with their bridges, RDMA devices, network interfaces, modules, NUMA nodes."""
    for node in range(machine.numa_nodes):
        (root / "devices/system/node" / f"node{node}").mkdir(parents=True, exist_ok=True)
    for module in machine.modules:
        (root / "module" / module).mkdir(parents=True, exist_ok=True)
    for folder in ("bus/pci/devices", "class/infiniband", "class/net"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for gpu in machine.gpus:
        _function(root, gpu, "0x10de")
    for nic in machine.nics:
        at = _function(root, nic, "0x15b3")
        if nic.rdma:
            _rdma(root, nic, at)
        if nic.interface:
            _interface(root, nic, at)
    lo = root / "devices/virtual/net/lo"
    lo.mkdir(parents=True, exist_ok=True)
    _link(root / "class/net/lo", lo)


def write_proc(machine: Machine, root: Path) -> None:
    """meminfo, the driver's version, the kernel's."""
    (root / "driver/nvidia").mkdir(parents=True, exist_ok=True)
    (root / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
    kind = "Open Kernel Module for x86_64" if machine.open_driver else "x86_64 Kernel Module"
    (root / "driver/nvidia/version").write_text(f"NVRM version: NVIDIA UNIX {kind}  580.105.08  Release Build\n")
    (root / "sys/kernel/osrelease").write_text("6.8.0-45-generic\n")
    (root / "sys/kernel/random/boot_id").write_text("b7a0c0de-0000-4000-8000-000000000001\n")
    (root / "meminfo").write_text("MemTotal:       131072000 kB\nMemFree:  1000 kB\nMemAvailable:   94371840 kB\n")


def _function(root: Path, gpu: Card, vendor: str) -> Path:
    at = root / "devices" / Path(*gpu.path)
    at.mkdir(parents=True, exist_ok=True)
    (at / "numa_node").write_text(f"{gpu.numa}\n")
    (at / "vendor").write_text(f"{vendor}\n")
    _link(root / "bus/pci/devices" / gpu.bus, at)
    return at


def _rdma(root: Path, nic: NicCard, at: Path) -> None:
    device = at / "infiniband" / nic.rdma
    port = device / "ports/1"
    port.mkdir(parents=True, exist_ok=True)
    (device / "node_guid").write_text(f"0c42:a103:00{nic.bus[5:7]}:0001\n")
    (port / "state").write_text(f"{nic.state}\n")
    (port / "rate").write_text(f"{nic.rate}\n")
    (port / "link_layer").write_text(f"{nic.layer}\n")
    _link(device / "device", at)
    _link(root / "class/infiniband" / nic.rdma, device)


def _interface(root: Path, nic: NicCard, at: Path) -> None:
    device = at / "net" / nic.interface
    device.mkdir(parents=True, exist_ok=True)
    (device / "operstate").write_text("up\n")
    (device / "speed").write_text(f"{nic.rate.split()[0]}\n" if not nic.rdma else "200000\n")
    _link(device / "device", at)
    _link(root / "class/net" / nic.interface, device)


def _link(at: Path, to: Path) -> None:
    if not at.is_symlink():
        at.symlink_to(os.path.relpath(to, at.parent))
