"""What Linux tells, on trees rendered from the same machines that NVML answers for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nvml import profiles
from tests.nvml.profiles import Machine, NicCard
from topology.agent.sysfs_reader import Host, SysfsReader
from topology.facts import report as f
from topology.facts.pci_paths import distance

LEVELS = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def gpus_of(machine: Machine) -> tuple[f.Gpu, ...]:
    return tuple(f.Gpu(uuid=machine.uuid(n), index=n, bus_id=device.bus) for n, device in enumerate(machine.gpus))


def read(machine: Machine, folder: Path) -> Host:
    profiles.write(machine, folder)
    return SysfsReader(str(folder / "sys"), str(folder / "proc")).read(gpus_of(machine), ())


@pytest.mark.parametrize("name", ["dgx-a100", "hgx-h100", "gb200-nvl72", "l40s-pcie", "a30-mig"])
def test_paths_say_what_nvml_says_of_every_pair(name: str, tmp_path: Path) -> None:
    """NVML's common ancestors are the oracle for the distances reckoned from sysfs."""
    machine = profiles.MACHINES[name]()
    seen = read(machine, tmp_path)
    index = {machine.uuid(n): n for n in range(len(machine.gpus))}
    found = {(index[p.a], index[p.b]): str(p.distance) for p in seen.pairs}
    value = {key: LEVELS[int(str(machine.nvml[f"pair.{key[0]}.{key[1]}"]))] for key in found}
    assert found == value
    assert len(found) == len(index) * (len(index) - 1) // 2


def test_dgx_a100_cards_and_their_gpus(tmp_path: Path) -> None:
    machine = profiles.dgx_a100()
    seen = read(machine, tmp_path)
    by_name = {nic.name: nic for nic in seen.nics}
    assert sorted(by_name) == ["enp33s0f0", *(f"mlx5_{n}" for n in range(8))]
    first = by_name["mlx5_0"]
    assert (first.rdma, first.interfaces, first.bus_id, first.numa_node) == (True, ("ibs0",), "0000:0a:00.0", 0)
    assert first.ports == (f.NicPort(port=1, active=True, rate_mbps=200_000, link_layer="InfiniBand"),)
    assert first.guid == "0c42:a103:000a:0001"
    # Behind GPU 0's and 1's switch; the other switches of its socket are NODE, the other socket SYS.
    assert [str(far) for _, far in first.gpus] == ["PIX", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    storage = by_name["enp33s0f0"]
    assert (storage.rdma, storage.ports[0].rate_mbps, storage.ports[0].active) == (False, 100_000, True)
    assert (seen.gpus[7].numa_node, seen.gpus[7].pci_path[0]) == (1, "pci0000:b0")
    assert (seen.nvidia_peermem, seen.dma_buf) == (True, False)  # the closed driver exports no dma-buf
    assert (seen.memory_total_bytes, seen.memory_available_bytes) == (131_072_000 * 1024, 94_371_840 * 1024)


def test_the_open_driver_on_a_new_kernel_has_dma_buf_and_an_old_kernel_not(tmp_path: Path) -> None:
    seen = read(profiles.hgx_h100(), tmp_path)
    assert (seen.nvidia_peermem, seen.dma_buf) == (False, True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("5.4.0-190-generic\n")
    assert SysfsReader(str(tmp_path / "sys"), str(tmp_path / "proc")).read((), ()).dma_buf is False
    (tmp_path / "proc/driver/nvidia/version").unlink()
    assert SysfsReader(str(tmp_path / "sys"), str(tmp_path / "proc")).read((), ()).dma_buf is None


def test_an_unknown_numa_node_is_unknown_and_not_0(tmp_path: Path) -> None:
    machine = profiles.l40s_pcie()
    for device in machine.gpus:
        device.numa = -1
    seen = read(machine, tmp_path)
    assert {gpu.numa_node for gpu in seen.gpus} == {None}
    assert {pair.distance for pair in seen.pairs} == {f.Distance.SYS}  # two sockets, none known: the worst
    assert {pair.distance for pair in read(profiles.a30_mig(), tmp_path / "one").pairs} == {f.Distance.NODE}


def test_a_link_that_is_down_has_no_rate_and_a_virtual_function_is_no_card(tmp_path: Path) -> None:
    machine = profiles.l40s_pcie()
    machine.nics[0].state, machine.nics[0].rate = "1: DOWN", "0 Gb/sec"
    down = NicCard(("pci0000:40", "0000:40:04.0", "0000:44:00.0"), 0, "", "ens9", rate="-1")
    virtual = NicCard(("pci0000:30", "0000:30:03.0", "0000:33:00.1"), 0, "mlx5_1", "ens3v0")
    machine.nics += [down, virtual]
    profiles.write(machine, tmp_path)
    function = tmp_path / "sys/devices" / Path(*virtual.path)
    (function / "physfn").symlink_to("../0000:33:00.0")
    seen = SysfsReader(str(tmp_path / "sys"), str(tmp_path / "proc")).read((), ())
    assert {nic.name: (nic.ports[0].active, nic.ports[0].rate_mbps) for nic in seen.nics} == {
        "mlx5_0": (False, None),
        "ens9": (True, None),
    }


def test_a_container_that_sees_nothing_costs_nothing(tmp_path: Path) -> None:
    seen = SysfsReader(str(tmp_path / "none"), str(tmp_path / "none")).read(
        (f.Gpu(uuid="GPU-a", bus_id="0000:07:00.0"),), ()
    )
    assert (seen.nics, seen.pairs, seen.nvidia_peermem, seen.dma_buf) == ((), (), None, None)
    assert (seen.gpus[0].numa_node, seen.gpus[0].pci_path) == (None, ())


@pytest.mark.parametrize(
    ("a", "b", "numa", "far"),
    [
        ("r p u d1 x", "r p u d2 y", (0, 0), "PIX"),  # one switch
        ("r p u d1 x", "r p u d2 u2 d3 y", (0, 0), "PXB"),  # a switch behind a switch
        ("r p u d1 x", "r q y", (0, 0), "PHB"),
        ("r p x", "s q y", (1, 1), "NODE"),
        ("r p x", "s q y", (0, 1), "SYS"),
        ("r p x", "s q y", (None, 1), "SYS"),
        ("r p x", "r p x", (0, 0), "SAME"),
        ("r p x0", "r p x1", (0, 0), "PIX"),  # two functions of one card
    ],
)
def test_distances(a: str, b: str, numa: tuple[int | None, int | None], far: str) -> None:
    assert str(distance(a.split(), b.split(), *numa, 2)) == far
    assert str(distance(b.split(), a.split(), numa[1], numa[0], 2)) == far


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_a_distance_is_the_same_both_ways(a: list[str], b: list[str]) -> None:
    assert distance(a, b, 0, 1, 2) == distance(b, a, 1, 0, 2)
    assert (distance(a, b, 0, 1) is None) == (not a or not b)
