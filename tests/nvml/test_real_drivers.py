"""What real drivers do that none here does: each doubt of the public documentation as a machine of the test library.

No real driver was seen. The sources are named beside each case.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import pynvml  # type: ignore[import-untyped]  # it has no types
import pytest

from tests.nvml import profiles
from tests.nvml.library import ROOT, NvmlProcess, nvml_process
from topology.agent.nvml_gpu import _by_mask
from topology.agent.sysfs_reader import SysfsReader
from topology.facts import report as f
from topology.facts.nvlinks import nvlink_pairs
from topology.graph.of_facts import of_facts
from topology.graph.parts import PartKind


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvmlProcess]:
    with nvml_process(tmp_path_factory.mktemp("nvml")) as process:
        yield process


def test_every_function_we_ask_is_in_the_bindings() -> None:
    """A misspelt one would be "function_not_found" on every driver and nobody would notice."""
    sources = [path.read_text() for path in (ROOT / "topology/agent").glob("nvml_*.py")]
    asked = {name for text in sources for name in re.findall(r"\"(nvml[A-Z]\w+)\"", text)}
    asked |= {name for text in sources for name in re.findall(r"nvml\.(nvml[A-Z]\w+)\(", text)}
    assert len(asked) > 30
    assert [name for name in sorted(asked) if not callable(getattr(pynvml, name, None))] == ["nvmlMemory_v2"]


@pytest.mark.parametrize(
    ("struct", "version"),
    [
        (pynvml.c_nvmlGpuFabricInfo_v2_t, 0x02000024),
        (pynvml.c_nvmlGpuFabricInfo_v3_t, 0x03000028),
        (pynvml.c_nvmlGpuInstanceProfileInfo_v2_t, 0x02000098),
    ],
)
def test_a_versioned_struct_says_its_size_and_version(struct: type[ctypes.Structure], version: int) -> None:
    """nvml.h, NVML_STRUCT_VERSION: size in the low 24 bits, version above; a driver refuses another (code 25)."""
    assert struct().version == version
    assert ctypes.sizeof(struct) == version & 0xFFFFFF


# --- links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["0000:00:00.0", "ffffffff:ff:ff.0"])
def test_a_far_end_without_an_address_is_none_at_all(nvml: NvmlProcess, address: str) -> None:
    """NVIDIA/go-gpuallocator internal/links/device.go: newer switches are no PCI devices; their address is all zero."""
    machine = profiles.hgx_h100()
    for key in [key for key in machine.nvml if ".link." in key and key.endswith(".bus")]:
        machine.nvml[key] = address
    seen = nvml.read(machine, fresh=True)
    assert {link.remote_bus_id for gpu in seen.gpus for link in gpu.nvlinks} == {None}
    assert {(p.links, p.switched) for p in nvlink_pairs(seen.gpus)} == {(18, True)}
    switches = of_facts("n", f.NodeFacts(state=_state(), gpus=seen.gpus)).of_kind(PartKind.NVSWITCH)
    assert switches == ()


def test_a_driver_that_cannot_tell_the_kind_of_a_far_end_tells_it_by_the_address(nvml: NvmlProcess) -> None:
    """openucx/ucc pull request 423: without the function, an address that is no GPU's is a switch's."""
    machine = profiles.dgx_a100()
    machine.nvml["error.nvmlDeviceGetNvLinkRemoteDeviceType"] = 13
    pairs = nvlink_pairs(nvml.read(machine, fresh=True).gpus)
    assert len(pairs) == 28
    assert {(p.links, p.switched) for p in pairs} == {(12, True)}
    bridged = profiles.l40s_pcie()
    profiles._links(bridged, 4, 4, 14062, lambda n, link: (0, bridged.gpus[n ^ 1].bus))
    bridged.nvml["error.nvmlDeviceGetNvLinkRemoteDeviceType"] = 13
    direct = nvlink_pairs(nvml.read(bridged, fresh=True).gpus)
    assert {(p.a, p.b, p.links, p.switched) for p in direct} == {
        (bridged.uuid(0), bridged.uuid(1), 4, False),
        (bridged.uuid(2), bridged.uuid(3), 4, False),
    }


# --- memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "old", "unified"),
    [(3, 3, True), (13, 3, True), (25, 3, True), (3, 10, False), (10, 3, False), (999, 3, False), (3, 4, False)],
)
def test_memory_is_shared_with_the_cpu_only_if_both_versions_say_so(
    nvml: NvmlProcess, new: int, old: int, unified: bool
) -> None:
    """kubernetes-sigs/dra-driver-nvidia-gpu#1073: GB10 refuses both. A slow or half-broken driver refuses one."""
    machine = profiles.l40s_pcie()
    machine.nvml |= {"error.gpu.0.nvmlDeviceGetMemoryInfo_v2": new, "error.gpu.0.nvmlDeviceGetMemoryInfo": old}
    reading = {m.uuid: m for m in nvml.read(machine, fresh=True).memory}.get(machine.uuid(0))
    assert (reading is not None and reading.kind is f.MemoryKind.UNIFIED) is unified


# --- fabric ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "health", "usable"),
    [
        (0x1AA, None, True),  # nothing degraded, routes healthy, no timeout, configuration right
        (0x19A, "unhealthy", False),  # route unhealthy
        (0x5AA, "unhealthy", False),  # too few NVLinks
        (0x1A9, "limited", True),  # less bandwidth
        (0x0, None, True),  # nothing is told
    ],
)
def test_a_driver_without_a_summary_of_health_tells_it_by_the_mask(
    nvml: NvmlProcess, mask: int, health: str | None, usable: bool
) -> None:
    """nvml.h: version 2 of the struct has the mask alone (drivers before R570); a torn fabric must be no domain."""
    machine = profiles.gb200_nvl72()
    for n in range(4):
        del machine.nvml[f"gpu.{n}.fabric.summary"]
        machine.nvml[f"gpu.{n}.fabric.mask"] = mask
    fabric = nvml.read(machine, fresh=True).gpus[0].fabric
    assert fabric is not None
    assert (fabric.health, fabric.domain is not None) == (health, usable)
    assert _by_mask(mask) == health


# --- GPUs that are ill -------------------------------------------------------------------------------


def test_a_gpu_that_must_be_reset_is_unfit_and_the_rest_is_as_before(nvml: NvmlProcess) -> None:
    """NVML API reference: NVML_ERROR_RESET_REQUIRED, "the GPU requires a reset before it can be used again"."""
    machine = profiles.hgx_h100()
    machine.nvml |= {"error.gpu.2.nvmlDeviceGetMemoryInfo_v2": 16, "error.gpu.2.nvmlDeviceGetMemoryInfo": 16}
    by_index = {gpu.index: gpu for gpu in nvml.read(machine, fresh=True).gpus}
    assert (by_index[2].health, by_index[2].health_why) == (f.Health.UNHEALTHY, "the driver wants it to be reset")
    assert dict(by_index[2].refused)["memory"] == "reset_required"
    assert {gpu.health for i, gpu in by_index.items() if i != 2} == {f.Health.HEALTHY}


def test_a_slow_driver_changes_no_hardware(nvml: NvmlProcess) -> None:
    """Calls take long without persistence mode: what the time did not suffice for stays as it was seen before."""
    machine = profiles.a30_mig()
    first = nvml.read(machine, fresh=True).gpus[0]
    machine.nvml |= {f"error.gpu.0.{name}": 10 for name in ("nvmlDeviceGetMigMode", "nvmlDeviceGetGpuFabricInfoV")}
    slow = nvml.read(machine).gpus[0]
    assert (slow.mig, dict(slow.refused)["mig"]) == (first.mig, "timeout")
    links = profiles.hgx_h100()
    before = nvml.read(links, fresh=True).gpus[5]
    links.nvml |= {f"error.gpu.5.{name}": 10 for name in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues")}
    after = nvml.read(links).gpus[5]
    assert (after.nvlinks, dict(after.refused)["nvlinks"]) == (before.nvlinks, "timeout")
    links.nvml |= {f"error.gpu.5.{name}": 3 for name in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetFieldValues")}
    assert nvml.read(links).gpus[5].nvlinks == ()  # refused for good is not slow


def test_errors_of_a_gpu_that_came_back_are_heard(tmp_path: Path) -> None:
    """A registration ends with the GPU: after a reset it must be made again."""
    machine = profiles.hgx_h100()
    with nvml_process(tmp_path) as own:
        own.read(machine)
        profiles.lose(machine, 5)
        assert own.read(machine).gpus[5].health is f.Health.LOST
        del machine.nvml["error.gpu.5"]
        assert own.read(machine).gpus[5].health is f.Health.HEALTHY
        machine.nvml["xid.0"] = "5 79"
        assert own.read(machine).gpus[5].health_why == "the driver reported Xid 79"


# --- MIG ---------------------------------------------------------------------------------------------


def test_a_mig_layout_that_seems_to_change_for_ever_costs_its_fields_only(nvml: NvmlProcess) -> None:
    """A driver that refuses one question about an instance as INVALID_ARGUMENT must not silence the whole node."""
    machine = profiles.a30_mig()
    nvml.read(machine, fresh=True)
    machine.nvml["error.gpu.0.nvmlDeviceGetAttributes_v2"] = 2
    skipped = [nvml.read(machine).skipped for _ in range(4)]
    assert [bool(why) for why in skipped] == [True, True, True, False]
    seen = nvml.read(machine)
    assert seen.skipped == ""
    assert len(seen.gpus) == 2
    assert dict(seen.gpus[0].refused)["mig.instances"] == "invalid_argument"
    assert seen.gpus[0].mig is not None
    assert [i.start_slice for i in seen.gpus[0].mig.instances] == [0, 2]  # places are told by another question
    del machine.nvml["error.gpu.0.nvmlDeviceGetAttributes_v2"]
    assert "mig.instances" not in dict(nvml.read(machine).gpus[0].refused)


def test_an_instance_that_is_lost_is_a_layout_that_changes(nvml: NvmlProcess) -> None:
    """The handle of a destroyed instance may answer as a lost GPU; the GPU itself is asked again at the next look."""
    machine = profiles.a30_mig()
    nvml.read(machine, fresh=True)
    machine.nvml["error.gpu.0.nvmlDeviceGetAttributes_v2"] = 15
    assert nvml.read(machine).skipped == "the MIG layout is being changed"
    del machine.nvml["error.gpu.0.nvmlDeviceGetAttributes_v2"]
    assert {gpu.health for gpu in nvml.read(machine).gpus} == {f.Health.HEALTHY}


# --- guests ------------------------------------------------------------------------------------------


def _state() -> f.NodeState:
    return f.NodeState(collected_at_s=0.0, topology_generation=1, nvml=f.NvmlState.OK)


def test_a_vgpu_guest_tells_little_and_nothing_is_made_up(nvml: NvmlProcess, tmp_path: Path) -> None:
    """NVIDIA vGPU documentation: links, MIG, levels and events of the physical GPU are not told to a guest."""
    machine = profiles.vgpu_guest()
    seen = nvml.read(machine, fresh=True)
    assert [(gpu.name, gpu.health, gpu.nvlinks, gpu.mig) for gpu in seen.gpus] == [
        ("NVIDIA A100D-20C", f.Health.HEALTHY, (), None)
    ] * 2
    assert seen.pairs == ()
    assert {m.allocatable_bytes for m in seen.memory} == {(20480 - 1344) * 2**20}
    profiles.write(machine, tmp_path)
    host = SysfsReader(str(tmp_path / "sys"), str(tmp_path / "proc")).read(seen.gpus, seen.pairs)
    drawn = of_facts("guest", f.NodeFacts(state=_state(), gpus=host.gpus, pairs=host.pairs, nics=host.nics))
    assert {link.kind for link in drawn.links} == {"unknown"}
    assert [part.numa for part in drawn.of_kind(PartKind.GPU)] == [None, None]


def test_wsl_has_gpus_and_no_tree(nvml: NvmlProcess, tmp_path: Path) -> None:
    """NVIDIA's CUDA on WSL guide: NVML is there with limits; /sys has no PCI function of the GPU."""
    machine = profiles.wsl()
    seen = nvml.read(machine, fresh=True)
    [gpu] = seen.gpus
    assert (gpu.name, gpu.bus_id, gpu.health) == (
        "NVIDIA RTX 6000 Ada Generation",
        "0000:01:00.0",
        f.Health.HEALTHY,
    )
    profiles.write(machine, tmp_path)
    host = SysfsReader(str(tmp_path / "sys"), str(tmp_path / "proc")).read(seen.gpus, seen.pairs)
    assert (host.gpus[0].pci_path, host.gpus[0].numa_node, host.nics) == ((), None, ())
    assert of_facts("wsl", f.NodeFacts(state=_state(), gpus=host.gpus)).of_kind(PartKind.GPU)[0].inside == "wsl"
