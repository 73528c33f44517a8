"""Machines as an agent would find them: what NVML answers, and the sysfs tree around it.

    python -m tests.nvml.profiles NAME FOLDER    writes FOLDER/nvml, FOLDER/sys, FOLDER/proc

Shapes follow public pictures of these machines (`nvidia-smi topo -m`, vendors' data sheets); identifiers are made up.
Memory totals and reserved parts are those that `nvidia-smi -q` prints for these models.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MIB = 2**20


@dataclass
class Card:
    """A PCI function: path from the root complex, NUMA node."""

    path: tuple[str, ...]
    numa: int

    @property
    def bus(self) -> str:
        return self.path[-1]


@dataclass
class NicCard(Card):
    """A network card; without `rdma` a plain interface."""

    rdma: str = ""
    interface: str = ""
    rate: str = "400 Gb/sec (4X NDR)"
    layer: str = "InfiniBand"
    state: str = "4: ACTIVE"


@dataclass
class Machine:
    """`nvml` is the profile of the test library; see nvml.c for its keys."""

    name: str
    nvml: dict[str, object] = field(default_factory=dict)
    gpus: list[Card] = field(default_factory=list)
    nics: list[NicCard] = field(default_factory=list)
    modules: tuple[str, ...] = ("nvidia", "nvidia_peermem")
    open_driver: bool = False
    numa_nodes: int = 2

    def uuid(self, gpu: int) -> str:
        return str(self.nvml[f"gpu.{gpu}.uuid"])


SWITCHES = ("0000:c4:00.0", "0000:c5:00.0", "0000:c6:00.0", "0000:c7:00.0")


def _gpus(machine: Machine, model: str, arch: int, total_mib: int, reserved_mib: int, devices: list[Card]) -> Machine:
    machine.gpus = devices
    machine.nvml |= {"driver": "580.105.08", "cuda": 13000, "count": len(devices)}
    for n, device in enumerate(devices):
        machine.nvml |= {
            f"gpu.{n}.uuid": f"GPU-{n:08x}-{arch:04x}-4000-8000-{sum(map(ord, machine.name)):012x}",
            f"gpu.{n}.name": model,
            f"gpu.{n}.bus": device.bus,
            f"gpu.{n}.arch": arch,
            f"gpu.{n}.total": total_mib * MIB,
            f"gpu.{n}.reserved": reserved_mib * MIB,
            f"gpu.{n}.used": 0,
            f"gpu.{n}.bar1": 128 * 1024 * MIB,
            f"gpu.{n}.mig": 0,
        }
    return machine


def _links(machine: Machine, count: int, version: int, mb_s: int, peers: Callable[[int, int], tuple[int, str]]) -> None:
    """`peers(gpu, link)` gives (remote type, its address)."""
    for n in range(len(machine.gpus)):
        machine.nvml[f"gpu.{n}.links"] = count
        for link in range(count):
            remote, bus = peers(n, link)
            at = f"gpu.{n}.link.{link}"
            machine.nvml |= {f"{at}.state": 1, f"{at}.version": version, f"{at}.speed": mb_s, f"{at}.remote": remote}
            machine.nvml[f"{at}.bus"] = bus


def _switched(n: int, link: int) -> tuple[int, str]:
    return 2, SWITCHES[link % 4]


def _levels(machine: Machine, level: Callable[[int, int], int]) -> None:
    for a in range(len(machine.gpus)):
        for b in range(a + 1, len(machine.gpus)):
            machine.nvml[f"pair.{a}.{b}"] = level(a, b)


def _behind_switch(root: int, port: int, bus: int) -> tuple[str, ...]:
    """Root complex, root port, upstream and downstream port of a PCIe switch, function."""
    return (
        f"pci0000:{root:02x}",
        f"0000:{root:02x}:01.0",
        f"0000:{root + 1:02x}:00.0",
        f"0000:{root + 2:02x}:{port:02x}.0",
        f"0000:{bus:02x}:00.0",
    )


def dgx_a100() -> Machine:
    """8 GPUs, NVSwitch, 12 links each; two GPUs and two NICs behind each PCIe switch, four switches, two sockets."""
    machine = Machine("dgx-a100")
    roots = (0x00, 0x40, 0x80, 0xB0)
    devices = [Card(_behind_switch(roots[n // 2], n % 2, roots[n // 2] + 7 + n % 2), n // 4) for n in range(8)]
    _gpus(machine, "NVIDIA A100-SXM4-80GB", 7, 81920, 685, devices)
    _links(machine, 12, 4, 25000, _switched)
    _levels(machine, lambda a, b: 10 if a // 2 == b // 2 else 40 if a // 4 == b // 4 else 50)
    machine.nics = [
        NicCard(_behind_switch(roots[n // 2], 2 + n % 2, roots[n // 2] + 10 + n % 2), n // 4, f"mlx5_{n}", f"ibs{n}")
        for n in range(8)
    ]
    for nic in machine.nics:
        nic.rate = "200 Gb/sec (4X HDR)"
    storage = ("pci0000:20", "0000:20:03.1", "0000:21:00.0")
    machine.nics.append(NicCard(storage, 0, "", "enp33s0f0", rate="100000", layer="Ethernet"))
    _mig_profiles(machine, {"1g": 10, "2g": 20, "3g": 40, "4g": 40, "7g": 80})
    return machine


def _hgx(name: str, model: str, arch: int, total_mib: int, reserved_mib: int, version: int, mb_s: int) -> Machine:
    """8 GPUs, NVSwitch, 18 links each; each GPU with its NIC behind a PCIe switch of its own."""
    machine = Machine(name, open_driver=True, modules=("nvidia",))
    roots = (0x15, 0x26, 0x37, 0x48, 0x85, 0x96, 0xA7, 0xB8)
    devices = [Card(_behind_switch(roots[n], 0, roots[n] + 3), n // 4) for n in range(8)]
    _gpus(machine, model, arch, total_mib, reserved_mib, devices)
    _links(machine, 18, version, mb_s, _switched)
    _levels(machine, lambda a, b: 40 if a // 4 == b // 4 else 50)
    machine.nics = [NicCard(_behind_switch(roots[n], 1, roots[n] + 4), n // 4, f"mlx5_{n}", f"ib{n}") for n in range(8)]
    for n in range(8):  # one node's fabric: started, but no cluster
        machine.nvml |= {f"gpu.{n}.fabric.state": 3, f"gpu.{n}.fabric.status": 0, f"gpu.{n}.fabric.summary": 1}
    return machine


def hgx_h100() -> Machine:
    return _hgx("hgx-h100", "NVIDIA H100 80GB HBM3", 9, 81559, 480, 6, 26562)


def hgx_h200() -> Machine:
    return _hgx("hgx-h200", "NVIDIA H200", 9, 143771, 612, 6, 26562)


def hgx_b200() -> Machine:
    return _hgx("hgx-b200", "NVIDIA B200", 10, 183359, 728, 7, 53125)


def gb200_nvl72(tray: int = 0) -> Machine:
    """One of 18 compute trays: 4 GPUs, 18 links each to the rack's switches, which are no PCI devices here."""
    machine = Machine("gb200-nvl72", open_driver=True, modules=("nvidia",))
    domains = (0x08, 0x09, 0x18, 0x19)
    devices = [
        Card((f"pci00{d:02x}:00", f"00{d:02x}:00:00.0", f"00{d:02x}:01:00.0"), n // 2) for n, d in enumerate(domains)
    ]
    _gpus(machine, "NVIDIA GB200", 10, 189471, 742, devices)
    _links(machine, 18, 7, 53125, lambda n, link: (2, ""))
    _levels(machine, lambda a, b: 40 if a // 2 == b // 2 else 50)
    for n in range(4):
        del machine.nvml[f"gpu.{n}.mig"]
        for link in range(18):
            del machine.nvml[f"gpu.{n}.link.{link}.bus"]
        machine.nvml |= {
            f"gpu.{n}.uuid": f"GPU-{n:08x}-000a-4000-8000-{tray:012x}",
            f"gpu.{n}.fabric.uuid": "6f4a0000000000000000000000000001",
            f"gpu.{n}.fabric.clique": 2,
            f"gpu.{n}.fabric.state": 3,
            f"gpu.{n}.fabric.status": 0,
            f"gpu.{n}.fabric.mask": 0x6A,
            f"gpu.{n}.fabric.summary": 1,
        }
    for n, d in enumerate((0x00, 0x02, 0x10, 0x12)):
        path = (f"pci00{d:02x}:00", f"00{d:02x}:00:00.0", f"00{d:02x}:01:00.0")
        machine.nics.append(NicCard(path, n // 2, f"mlx5_{n}", f"ibp{n}"))
    return machine


def l40s_pcie() -> Machine:
    """4 GPUs without NVLink, a socket for each two, one 100G Ethernet card with RoCE."""
    machine = Machine("l40s-pcie", modules=("nvidia",))
    devices = [
        Card((f"pci0000:{root:02x}", f"0000:{root:02x}:01.0", f"0000:{root + 1:02x}:00.0"), n // 2)
        for n, root in enumerate((0x30, 0x40, 0xB0, 0xC0))
    ]
    _gpus(machine, "NVIDIA L40S", 8, 46068, 609, devices)
    _levels(machine, lambda a, b: 40 if a // 2 == b // 2 else 50)
    nic = ("pci0000:30", "0000:30:03.0", "0000:33:00.0")
    machine.nics = [NicCard(nic, 0, "mlx5_0", "ens3", "100 Gb/sec (4X EDR)", "Ethernet")]
    for n in range(4):
        del machine.nvml[f"gpu.{n}.mig"]
    return machine


def a30_mig() -> Machine:
    """2 GPUs, both divided: 2g at 0 and 1g at 2 on the first, which leaves slice 3; four 1g on the second."""
    machine = Machine("a30-mig", modules=("nvidia",), numa_nodes=1)
    devices = [Card((f"pci0000:{r:02x}", f"0000:{r:02x}:01.0", f"0000:{r + 1:02x}:00.0"), -1) for r in (0x10, 0x20)]
    _gpus(machine, "NVIDIA A30", 7, 24576, 512, devices)
    _levels(machine, lambda a, b: 40)
    machine.nvml |= {
        **_profile(0, 14, 1, 4, 5952, "1g.6gb", "0:1,1:1,2:1,3:1"),
        **_profile(1, 5, 2, 2, 11968, "2g.12gb", "0:2,2:2"),
        **_profile(3, 0, 4, 1, 24064, "4g.24gb", "0:4"),
    }
    give_mig(machine, 0, [(1, 5, 2, 0, 2, 11968), (5, 14, 1, 2, 1, 5952)], {14: 1, 5: 0, 0: 0})
    give_mig(machine, 1, [(3 + n, 14, 1, n, 1, 5952) for n in range(4)], {14: 0, 5: 0, 0: 0})
    return machine


def give_mig(
    machine: Machine, gpu: int, instances: list[tuple[int, int, int, int, int, int]], left: dict[int, int]
) -> None:
    """Divides a GPU: (instance id, profile id, compute slices, start, size, MiB), and what remains by profile id."""
    nvml = machine.nvml
    for key in [key for key in nvml if key.startswith((f"gpu.{gpu}.mig.", f"gpu.{gpu}.gi."))]:
        del nvml[key]
    nvml |= {f"gpu.{gpu}.mig": 1, f"gpu.{gpu}.migmax": 7}
    nvml |= {f"gpu.{gpu}.remaining.{profile}": count for profile, count in left.items()}
    for index, (instance, profile, slices, start, size, mib) in enumerate(instances):
        at = f"gpu.{gpu}.gi.{index}"
        nvml |= {f"{at}.id": instance, f"{at}.profile": profile, f"{at}.start": start, f"{at}.size": size}
        at = f"gpu.{gpu}.mig.{index}"
        nvml |= {f"{at}.uuid": f"MIG-{gpu:08x}-{instance:04x}-5000-8000-000000000000", f"{at}.gi": instance}
        nvml |= {f"{at}.ci": 0, f"{at}.slices": slices, f"{at}.mb": mib, f"{at}.used": 25 * MIB}


def _profile(number: int, id_: int, slices: int, most: int, mib: int, name: str, places: str) -> dict[str, object]:
    at = f"profile.{number}"
    return {
        f"{at}.id": id_,
        f"{at}.slices": slices,
        f"{at}.most": most,
        f"{at}.mb": mib,
        f"{at}.name": f"MIG {name}",
        f"{at}.places": places,
    }


def _mig_profiles(machine: Machine, gigabytes: dict[str, int]) -> None:
    """The geometry of 8-slice parts, as NVIDIA's MIG user guide has it for A100."""
    geometry = {
        "1g": (0, 19, 1, 7, "0:1,1:1,2:1,3:1,4:1,5:1,6:1"),
        "2g": (1, 14, 2, 3, "0:2,2:2,4:2"),
        "3g": (2, 9, 3, 2, "0:4,4:4"),
        "4g": (3, 5, 4, 1, "0:4"),
        "7g": (4, 0, 7, 1, "0:8"),
    }
    for name, (number, id_, slices, most, places) in geometry.items():
        mib = gigabytes[name] * 1024 - (768 if name == "3g" else 128)
        machine.nvml |= _profile(number, id_, slices, most, mib, f"{name}.{gigabytes[name]}gb", places)


def as_node(machine: Machine, number: int) -> Machine:
    """The same machine with identifiers of its own, so that many can be in one cluster."""
    for key, value in machine.nvml.items():
        if key.endswith(".uuid") and str(value).startswith(("GPU-", "MIG-")):
            machine.nvml[key] = f"{str(value)[:-12]}{number:012x}"
    return machine


def one_card_lost() -> Machine:
    """HGX H100 whose GPU 3 is off the bus from the start of the fault on; see `lose`."""
    machine = hgx_h100()
    machine.name = "one-card-lost"
    return machine


def lose(machine: Machine, gpu: int) -> None:
    """From now on this GPU answers nothing, and pairs with it neither."""
    machine.nvml[f"error.gpu.{gpu}"] = 15


def vgpu_guest() -> Machine:
    """A virtual machine with a vGPU: no links, no MIG, no PCIe levels, every device under one made-up root, no NUMA."""
    machine = Machine("vgpu-guest", modules=("nvidia",), numa_nodes=1)
    devices = [Card(("pci0000:00", f"0000:00:{5 + n:02x}.0"), -1) for n in range(2)]
    _gpus(machine, "NVIDIA A100D-20C", 7, 20480, 1344, devices)
    machine.nics = [NicCard(("pci0000:00", "0000:00:09.0"), -1, "", "ens9", "10000 Gb/sec")]
    for n in range(2):
        del machine.nvml[f"gpu.{n}.mig"]
    machine.nvml |= {"error.nvmlDeviceGetSupportedEventTypes": 3, "error.nvmlDeviceGetBAR1MemoryInfo": 3}
    return machine


def wsl() -> Machine:
    """Windows Subsystem for Linux: NVML answers, and there is no PCI tree of the GPU to be seen."""
    machine = Machine("wsl", modules=(), numa_nodes=1)
    _gpus(machine, "NVIDIA RTX 6000 Ada Generation", 8, 49140, 600, [Card(("pci0000:00", "0000:01:00.0"), -1)])
    del machine.nvml["gpu.0.mig"]
    machine.nvml |= {"error.nvmlEventSetCreate": 3, "error.nvmlDeviceGetSupportedEventTypes": 3}
    machine.gpus = []
    return machine


def clique_in_progress() -> Machine:
    """A GB200 tray whose fabric is still starting: 3 of 4 GPUs done."""
    machine = gb200_nvl72()
    machine.name = "clique-in-progress"
    machine.nvml |= {"gpu.3.fabric.state": 2, "gpu.3.fabric.status": 0}
    return machine


MACHINES: dict[str, Callable[[], Machine]] = {
    "dgx-a100": dgx_a100,
    "hgx-h100": hgx_h100,
    "hgx-h200": hgx_h200,
    "hgx-b200": hgx_b200,
    "gb200-nvl72": gb200_nvl72,
    "l40s-pcie": l40s_pcie,
    "a30-mig": a30_mig,
    "one-card-lost": one_card_lost,
    "clique-in-progress": clique_in_progress,
    "vgpu-guest": vgpu_guest,
    "wsl": wsl,
}


def write_nvml(machine: Machine, folder: Path) -> Path:
    """The file that the test library reads; replaced as a whole, so that it may be read at any moment."""
    path, aside = folder / "nvml", folder / "nvml.new"
    aside.write_bytes("".join(f"{key}={value}\n" for key, value in machine.nvml.items()).encode("latin-1"))
    aside.replace(path)
    return path


def write(machine: Machine, folder: Path) -> Path:
    """FOLDER/nvml, FOLDER/sys and FOLDER/proc; gives FOLDER."""
    from tests.nvml.sysfs_tree import write_proc, write_sysfs

    folder.mkdir(parents=True, exist_ok=True)
    write_nvml(machine, folder)
    write_sysfs(machine, folder / "sys")
    write_proc(machine, folder / "proc")
    return folder


if __name__ == "__main__":
    write(MACHINES[sys.argv[1]](), Path(sys.argv[2]))
