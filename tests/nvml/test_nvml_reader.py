"""The real pynvml on a real library that answers for machines we do not have. Expectations are made by hand."""

from __future__ import annotations

import ctypes
import importlib.metadata
import itertools
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml  # type: ignore[import-untyped]  # it has no types
import pytest

from tests.nvml import profiles
from tests.nvml.library import LIBRARY, ROOT, NvmlProcess, build, environment, nvml_process
from topology.agent import nvml_session
from topology.facts import report as f
from topology.facts.nvlinks import nvlink_pairs

GIB, MIB = 2**30, 2**20


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvmlProcess]:
    with nvml_process(tmp_path_factory.mktemp("nvml")) as process:
        yield process


@pytest.mark.parametrize(
    ("struct", "size"),
    [
        (pynvml.nvmlPciInfo_t, 68),
        (pynvml.c_nvmlMemory_v2_t, 40),
        (pynvml.c_nvmlFieldValue_t, 40),
        (pynvml.c_nvmlGpuFabricInfo_v2_t, 36),
        (pynvml.c_nvmlGpuFabricInfo_v3_t, 40),
        (pynvml.c_nvmlGpuInstanceProfileInfo_v2_t, 152),
        (pynvml.c_nvmlDeviceAttributes, 40),
        (pynvml.c_nvmlEventData_t, 32),
        (pynvml.c_nvmlGpuInstanceInfo_t, 24),
    ],
)
def test_the_library_has_the_layouts_of_the_installed_pynvml(struct: type[ctypes.Structure], size: int) -> None:
    """The sizes are those of the C structs in nvml.c; a version word holds the size in its low bytes."""
    assert ctypes.sizeof(struct) == size


# --- machines ------------------------------------------------------------------------------------


def test_dgx_a100(nvml: NvmlProcess) -> None:
    machine = profiles.dgx_a100()
    seen = nvml.read(machine, fresh=True)
    assert (seen.state, seen.problem, seen.driver_version, seen.cuda_driver_version) == (
        "ok",
        None,
        "580.105.08",
        13000,
    )
    first = seen.gpus[0]
    assert (first.uuid, first.index, first.name) == (machine.uuid(0), 0, "NVIDIA A100-SXM4-80GB")
    assert (first.bus_id, first.architecture, first.health) == ("0000:07:00.0", "ampere", f.Health.HEALTHY)
    assert len(seen.gpus) == 8
    assert all(len(gpu.nvlinks) == 12 for gpu in seen.gpus)
    # NVLink 3: 25 GB/s a link and direction = 200,000 Mbit/s.
    assert first.nvlinks[0] == f.NvLink(
        link=0, active=True, version="3.0", speed_mbps=200_000, remote=f.Remote.SWITCH, remote_bus_id="0000:c4:00.0"
    )
    # 80 GiB less 685 MiB of the driver's own; nothing used.
    assert seen.memory[0] == f.Memory(
        uuid=first.uuid, total_bytes=80 * GIB, reserved_bytes=685 * MIB, used_bytes=0, free_bytes=80 * GIB - 685 * MIB
    )
    assert first.fabric is None
    assert first.refused == (("fabric", "not_supported"),)
    assert first.mig is not None
    assert not first.mig.enabled
    assert {p.name: (p.most_instances, p.placements) for p in first.mig.profiles}["3g.40gb"] == (2, ((0, 4), (4, 4)))
    distances = {(p.a, p.b): p.distance for p in seen.pairs}
    assert len(distances) == 28
    assert distances[machine.uuid(0), machine.uuid(1)] is f.Distance.PIX
    assert distances[machine.uuid(1), machine.uuid(2)] is f.Distance.NODE
    assert distances[machine.uuid(3), machine.uuid(4)] is f.Distance.SYS


def test_c071_behind_switches_all_28_pairs_have_nvlink_with_the_weaker_count(nvml: NvmlProcess) -> None:
    machine = profiles.hgx_h100()
    pairs = nvlink_pairs(nvml.read(machine, fresh=True).gpus)
    assert len(pairs) == 28
    # 18 links of 26,562 MB/s: 18 * 212,496 Mbit/s.
    assert {(p.links, p.speed_mbps, p.switched) for p in pairs} == {(18, 3_824_928, True)}
    for link in range(4):
        machine.nvml[f"gpu.2.link.{link}.state"] = 0
    weaker = nvlink_pairs(nvml.read(machine).gpus)
    assert {p.links for p in weaker if machine.uuid(2) in (p.a, p.b)} == {14}
    assert {p.links for p in weaker if machine.uuid(2) not in (p.a, p.b)} == {18}


def test_c071_direct_bridges_are_matched_by_address(nvml: NvmlProcess) -> None:
    machine = profiles.l40s_pcie()  # pretend bridges 0-1 and 2-3, four links each
    profiles._links(machine, 4, 4, 14062, lambda n, link: (0, machine.gpus[n ^ 1].bus))
    pairs = {(p.a, p.b): p for p in nvlink_pairs(nvml.read(machine, fresh=True).gpus)}
    assert set(pairs) == {(machine.uuid(0), machine.uuid(1)), (machine.uuid(2), machine.uuid(3))}
    assert all((p.links, p.switched) == (4, False) for p in pairs.values())


def test_c073_links_that_are_not_told_are_unknown_and_not_absent(nvml: NvmlProcess) -> None:
    machine = profiles.hgx_h100()
    machine.nvml |= {"error.nvmlDeviceGetNvLinkState": 3, "error.nvmlDeviceGetFieldValues": 3}
    unknown = nvml.read(machine, fresh=True)
    assert all(gpu.nvlinks == () and ("nvlinks", "not_supported") in gpu.refused for gpu in unknown.gpus)
    # The state call alone refused: the field value knows.
    del machine.nvml["error.nvmlDeviceGetFieldValues"]
    known = nvml.read(machine, fresh=True)
    assert all(len(gpu.nvlinks) == 18 and all(link.active for link in gpu.nvlinks) for gpu in known.gpus)


@pytest.mark.parametrize(
    ("name", "gpus", "architecture", "links", "version", "mib"),
    [
        ("hgx-h100", 8, "hopper", 18, "4.0", (81559, 480)),
        ("hgx-h200", 8, "hopper", 18, "4.0", (143771, 612)),
        ("hgx-b200", 8, "blackwell", 18, "5.0", (183359, 728)),
        ("gb200-nvl72", 4, "blackwell", 18, "5.0", (189471, 742)),
        ("l40s-pcie", 4, "ada", 0, None, (46068, 609)),
    ],
)
def test_machines(
    nvml: NvmlProcess,
    name: str,
    gpus: int,
    architecture: str,
    links: int,
    version: str | None,
    mib: tuple[int, int],
) -> None:
    seen = nvml.read(profiles.MACHINES[name](), fresh=True)
    assert len(seen.gpus) == gpus
    assert {gpu.architecture for gpu in seen.gpus} == {architecture}
    assert {len(gpu.nvlinks) for gpu in seen.gpus} == {links}
    assert {link.version for gpu in seen.gpus for link in gpu.nvlinks} == ({version} if links else set())
    assert {((m.total_bytes or 0) // MIB, (m.reserved_bytes or 0) // MIB) for m in seen.memory} == {mib}
    assert len(seen.pairs) == gpus * (gpus - 1) // 2


def test_gb200_is_in_the_domain_of_its_rack(nvml: NvmlProcess) -> None:
    seen = nvml.read(profiles.gb200_nvl72(), fresh=True)
    assert {gpu.fabric.domain for gpu in seen.gpus if gpu.fabric} == {("6f4a0000-0000-0000-0000-000000000001", 2)}
    fabric = seen.gpus[0].fabric
    assert fabric is not None
    assert (fabric.status, fabric.health_mask, fabric.health) == (0, 0x6A, "healthy")
    # Its switches are no PCI devices of the tray: the links have no address, and pairs exist all the same.
    assert {link.remote_bus_id for gpu in seen.gpus for link in gpu.nvlinks} == {None}
    assert len(nvlink_pairs(seen.gpus)) == 6


def test_one_nodes_own_fabric_is_no_domain(nvml: NvmlProcess) -> None:
    seen = nvml.read(profiles.hgx_h100(), fresh=True)
    fabric = seen.gpus[0].fabric
    assert fabric is not None
    assert (fabric.state, fabric.cluster_uuid, fabric.domain) == (f.FabricState.COMPLETED, None, None)


def test_an_older_driver_tells_the_fabric_without_a_summary(nvml: NvmlProcess) -> None:
    machine = profiles.gb200_nvl72()
    for n in range(4):
        del machine.nvml[f"gpu.{n}.fabric.summary"]
    fabric = nvml.read(machine, fresh=True).gpus[0].fabric
    assert fabric is not None
    assert fabric.domain == ("6f4a0000-0000-0000-0000-000000000001", 2)
    assert (fabric.health, fabric.health_mask) == (None, 0x6A)


def test_c076_a_fabric_in_progress_or_failed_is_no_domain(nvml: NvmlProcess) -> None:
    seen = nvml.read(profiles.clique_in_progress(), fresh=True)
    fabrics = [gpu.fabric for gpu in sorted(seen.gpus, key=lambda gpu: gpu.index or 0)]
    assert [fabric.domain is not None for fabric in fabrics if fabric] == [True, True, True, False]
    assert fabrics[3] is not None
    assert fabrics[3].why_unusable == "its fabric is starting"
    done = nvml.read(profiles.gb200_nvl72())  # asked again at every look
    assert all(gpu.fabric and gpu.fabric.domain for gpu in done.gpus)
    failed = profiles.gb200_nvl72()
    failed.nvml["gpu.1.fabric.status"] = 26
    bad = next(gpu for gpu in nvml.read(failed).gpus if gpu.index == 1)
    assert bad.fabric is not None
    assert (bad.fabric.domain, bad.fabric.why_unusable) == (None, "its fabric ended with NVML status 26")


# --- MIG -----------------------------------------------------------------------------------------


def test_a30_with_mig(nvml: NvmlProcess) -> None:
    machine = profiles.a30_mig()
    seen = nvml.read(machine, fresh=True)
    mig = seen.gpus[0].mig
    assert mig is not None
    assert mig.enabled
    assert [(i.gpu_instance_id, i.profile, i.start_slice, i.size_slices, i.compute_slices) for i in mig.instances] == [
        (1, "2g.12gb", 0, 2, 2),
        (5, "1g.6gb", 2, 1, 1),
    ]
    # Slice 3 is free: one more 1g, and no 2g although half of another would be.
    assert {profile.name: profile.remaining for profile in mig.profiles} == {"1g.6gb": 1, "2g.12gb": 0, "4g.24gb": 0}
    assert {p.name: p.placements for p in mig.profiles}["2g.12gb"] == ((0, 2), (2, 2))
    readings = {m.uuid: m for m in seen.memory}
    instance = readings["MIG-00000000-0001-5000-8000-000000000000"]
    assert (instance.total_bytes, instance.used_bytes) == (11968 * MIB, 25 * MIB)
    assert len(readings) == 2 + 2 + 4


def test_c094_a_divided_gpu_that_tells_nothing_has_what_its_instances_have(nvml: NvmlProcess) -> None:
    machine = profiles.a30_mig()
    for function in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"):
        machine.nvml[f"error.gpu.0.{function}"] = 4
    seen = nvml.read(machine, fresh=True)
    parent = {m.uuid: m for m in seen.memory}[machine.uuid(0)]
    # 11968 + 5952 MiB; 25 MiB used in each of two.
    assert parent == f.Memory(
        uuid=machine.uuid(0),
        kind=f.MemoryKind.SUM_OF_MIG,
        total_bytes=17920 * MIB,
        reserved_bytes=0,
        used_bytes=50 * MIB,
        free_bytes=17870 * MIB,
    )
    gpu = next(gpu for gpu in seen.gpus if gpu.uuid == machine.uuid(0))
    assert gpu.health is f.Health.HEALTHY
    assert "memory" not in dict(gpu.refused)


def test_without_the_right_to_see_placements_the_instances_are_still_there(nvml: NvmlProcess) -> None:
    machine = profiles.a30_mig()
    machine.nvml |= {"error.nvmlDeviceGetGpuInstances": 4, "error.nvmlDeviceGetGpuInstanceProfileInfoV": 4}
    gpu = nvml.read(machine, fresh=True).gpus[0]
    assert gpu.mig is not None
    # 24 GiB in eighths of 3 GiB: 11968 MiB is 4 of them (12), 5952 MiB is 2 (6).
    assert [(i.profile, i.start_slice) for i in gpu.mig.instances] == [("2g.12gb", None), ("1g.6gb", None)]
    assert dict(gpu.refused)["mig.profiles"] == "no_permission"


def test_c103_a_look_while_mig_changes_is_skipped_and_the_new_layout_follows(nvml: NvmlProcess) -> None:
    machine = profiles.dgx_a100()
    profiles.give_mig(machine, 0, [(1, 9, 3, 0, 4, 40192), (2, 9, 3, 4, 4, 40192)], {9: 0})
    first = nvml.read(machine, fresh=True)
    assert first.gpus[0].mig is not None
    assert [i.profile for i in first.gpus[0].mig.instances] == ["3g.40gb", "3g.40gb"]
    machine.nvml["error.gpu.0.nvmlDeviceGetMigDeviceHandleByIndex"] = 2
    between = nvml.read(machine)
    assert (between.state, between.skipped, between.gpus) == ("ok", "the MIG layout is being changed", ())
    del machine.nvml["error.gpu.0.nvmlDeviceGetMigDeviceHandleByIndex"]
    profiles.give_mig(machine, 0, [(7 + n, 19, 1, n, 1, 9984) for n in range(7)], {19: 0})
    after = nvml.read(machine)
    assert after.gpus[0].mig is not None
    assert [(i.profile, i.start_slice) for i in after.gpus[0].mig.instances] == [("1g.10gb", n) for n in range(7)]


# --- what goes wrong -----------------------------------------------------------------------------


def test_c100_one_lost_gpu_costs_only_itself(nvml: NvmlProcess) -> None:
    machine = profiles.one_card_lost()
    assert all(gpu.health is f.Health.HEALTHY for gpu in nvml.read(machine, fresh=True).gpus)
    profiles.lose(machine, 3)
    machine.nvml |= {"error.gpu.1.nvmlDeviceGetMemoryInfo_v2": 10, "error.gpu.1.nvmlDeviceGetMemoryInfo": 10}
    seen = nvml.read(machine)
    by_uuid = {gpu.uuid: gpu for gpu in seen.gpus}
    lost = by_uuid[machine.uuid(3)]
    assert (lost.health, lost.index, lost.nvlinks) == (f.Health.LOST, 3, ())
    assert sum(gpu.health is f.Health.HEALTHY for gpu in seen.gpus) == 7
    assert not [pair for pair in seen.pairs if machine.uuid(3) in (pair.a, pair.b)]
    assert len(seen.pairs) == 21
    assert machine.uuid(3) not in {m.uuid for m in seen.memory}
    slow = by_uuid[machine.uuid(1)]
    assert (dict(slow.refused)["memory"], len(slow.nvlinks)) == ("timeout", 18)
    del machine.nvml["error.gpu.3"]
    assert all(gpu.health is f.Health.HEALTHY for gpu in nvml.read(machine).gpus)  # back after a reset


def test_c100_a_gpu_that_was_lost_before_the_agent_came_is_told_in_words(nvml: NvmlProcess) -> None:
    machine = profiles.one_card_lost()
    profiles.lose(machine, 3)
    seen = nvml.read(machine, fresh=True)
    assert len(seen.gpus) == 7
    assert seen.problems == ("GPU 3 does not answer and was never seen: it fell off the bus",)


def test_c100_a_slow_gpu_costs_a_look_no_more_than_its_share(tmp_path: Path) -> None:
    machine = profiles.hgx_h100()
    with nvml_process(tmp_path, per_gpu_s=0.5) as own:
        first = own.read(machine)
        machine.nvml["slow.gpu.6"] = 30_000  # 100 questions about it would take three seconds
        seen = own.read(machine)
    slow = next(gpu for gpu in seen.gpus if gpu.index == 6)
    assert "timeout" in dict(slow.refused).values()
    assert slow.nvlinks == next(gpu for gpu in first.gpus if gpu.index == 6).nvlinks  # as seen before
    assert [len(gpu.nvlinks) for gpu in seen.gpus] == [18] * 8
    assert {gpu.health for gpu in seen.gpus} == {f.Health.HEALTHY}


def test_c091_unified_memory_is_unknown_and_said_so(nvml: NvmlProcess) -> None:
    machine = profiles.l40s_pcie()
    machine.nvml |= {"gpu.0.name": "NVIDIA GB10", "gpu.0.bus": "000f:01:00.0"}
    for function in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetNvLinkState"):
        machine.nvml[f"error.gpu.0.{function}"] = 3
    seen = nvml.read(machine, fresh=True)
    unified = {m.uuid: m for m in seen.memory}[machine.uuid(0)]
    assert unified == f.Memory(uuid=machine.uuid(0), kind=f.MemoryKind.UNIFIED)
    assert next(gpu for gpu in seen.gpus if gpu.index == 0).bus_id == "000f:01:00.0"
    assert sum(m.kind is f.MemoryKind.DEDICATED for m in seen.memory) == 3


def test_an_old_driver_without_memory_version_2_leaves_the_reserved_part_unknown(nvml: NvmlProcess) -> None:
    machine = profiles.l40s_pcie()
    machine.nvml["gpu.0.oldmemory"] = 1
    reading = {m.uuid: m for m in nvml.read(machine, fresh=True).memory}[machine.uuid(0)]
    # Version 1 counts the driver's 609 MiB as used.
    assert (reading.total_bytes, reading.reserved_bytes, reading.used_bytes) == (46068 * MIB, None, 609 * MIB)
    assert reading.allocatable_bytes == 46068 * MIB


OPTIONAL = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetBAR1MemoryInfo": "bar1_total_bytes",
    "nvmlDeviceGetGpuFabricInfoV": "fabric",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetPciInfo_v3": "bus_id",
    "nvmlDeviceGetMemoryInfo_v2": "memory",
}
REFUSALS = {3: "not_supported", 13: "function_not_found", 4: "no_permission", 999: "unknown"}


@pytest.mark.parametrize("rounds", [6, pytest.param(1000, marks=pytest.mark.full)])
def test_c104_any_mix_of_refusals_costs_only_the_fields_refused(nvml: NvmlProcess, rounds: int) -> None:
    chance = random.Random(rounds)
    for _ in range(rounds):
        _a_round_of_refusals(nvml, chance)


def _a_round_of_refusals(nvml: NvmlProcess, chance: random.Random) -> None:
    machine = profiles.hgx_h100()
    refused: dict[int, dict[str, int]] = {}
    for index, function in itertools.product(range(8), OPTIONAL):
        if chance.random() < 0.4:
            code = chance.choice(list(REFUSALS))
            refused.setdefault(index, {})[function] = code
            machine.nvml[f"error.gpu.{index}.{function}"] = code
            if function == "nvmlDeviceGetGpuFabricInfoV":  # else its predecessor stands in
                machine.nvml[f"error.gpu.{index}.nvmlDeviceGetGpuFabricInfo"] = code
    seen = nvml.read(machine, fresh=True)
    assert len(seen.gpus) == 8
    readings = {m.uuid: m for m in seen.memory}
    for gpu in seen.gpus:
        assert gpu.index is not None
        codes = refused.get(gpu.index, {})
        value = dict(gpu.refused)
        for function, field in OPTIONAL.items():
            if function == "nvmlDeviceGetMemoryInfo_v2":
                assert (readings[gpu.uuid].reserved_bytes is None) == (function in codes)  # version 1 stood in
            elif function in codes:
                assert getattr(gpu, field) is None
                assert value[field] == REFUSALS[codes[function]]
            else:
                assert getattr(gpu, field) is not None
                assert field not in value
        assert len(gpu.nvlinks) == 18


def test_xids_are_counted_and_those_of_the_gpu_itself_make_it_unfit(nvml: NvmlProcess, tmp_path: Path) -> None:
    machine = profiles.hgx_h100()
    machine.nvml |= {"xid.0": "2 13", "xid.1": "2 13", "xid.2": "5 79"}
    with nvml_process(tmp_path) as own:
        seen = own.read(machine)
        by_index = {gpu.index: gpu for gpu in seen.gpus}
        assert by_index[2].xids == (f.Xid(code=13, at_s=1010.0, count=2),)
        assert by_index[2].health is f.Health.HEALTHY  # an application's fault
        assert by_index[5].health is f.Health.UNHEALTHY
        assert by_index[5].health_why == "the driver reported Xid 79"
        again = {gpu.index: gpu for gpu in own.read().gpus}
        assert again[5] == by_index[5]
        profiles.lose(machine, 5)
        lost = {gpu.index: gpu for gpu in own.read(machine).gpus}[5]
        assert (lost.health, [xid.code for xid in lost.xids]) == (f.Health.LOST, [79])
        del machine.nvml["error.gpu.5"]
        back = {gpu.index: gpu for gpu in own.read(machine).gpus}[5]  # after a reset
        assert (back.health, back.xids) == (f.Health.HEALTHY, ())


def test_c104_an_answer_that_the_bindings_cannot_read_costs_its_field_only(nvml: NvmlProcess) -> None:
    machine = profiles.l40s_pcie()
    machine.nvml["gpu.1.name"] = "NVIDIA \xff"
    seen = nvml.read(machine, fresh=True)
    odd = next(gpu for gpu in seen.gpus if gpu.index == 1)
    assert (odd.name, dict(odd.refused)["name"], odd.architecture) == (None, "unknown", "ada")
    assert len(seen.gpus) == 4


def test_c098_every_call_fails_then_nvml_is_lost_and_comes_back(nvml: NvmlProcess) -> None:
    machine = profiles.hgx_h100()
    for _ in range(2):
        assert nvml.read(machine, fresh=True).state is f.NvmlState.OK
    machine.nvml["error"] = 999
    lost = nvml.read(machine)
    assert (lost.state, lost.problem, lost.gpus) == (f.NvmlState.LOST, "NVML does not answer: unknown", ())
    machine.nvml["error"] = 1
    machine.nvml["error.nvmlInitWithFlags"] = 999
    assert nvml.read(machine).problem == "NVML does not start: unknown"
    del machine.nvml["error"], machine.nvml["error.nvmlInitWithFlags"]
    back = nvml.read(machine)
    assert (back.state, len(back.gpus)) == (f.NvmlState.OK, 8)


def test_a_driver_changed_under_the_agent_needs_a_restart(tmp_path: Path) -> None:
    machine = profiles.l40s_pcie()
    with nvml_process(tmp_path) as own:
        assert own.read(machine).state is f.NvmlState.OK
        machine.nvml |= {"error": 18, "error.nvmlInitWithFlags": 18}
        assert (
            own.read(machine).problem
            == "the NVIDIA driver was changed under the running agent: it must be started again"
        )
        assert own.read(profiles.l40s_pcie()).state is f.NvmlState.LOST  # no new start is tried


def test_a_library_that_comes_later_is_found_without_a_restart(tmp_path: Path) -> None:
    late = tmp_path / "late"
    late.mkdir()
    with nvml_process(tmp_path, late) as own:
        absent = own.read(profiles.l40s_pcie())
        assert (absent.state, absent.problem) == (f.NvmlState.ABSENT, "NVML does not start: library_not_found")
        shutil.copy(build() / LIBRARY, late / LIBRARY)
        assert own.read().state is f.NvmlState.OK


# --- the module ----------------------------------------------------------------------------------


def test_c101_the_installed_module_is_nvidias_own() -> None:
    assert nvml_session.module_problem(pynvml) == ""
    assert nvml_session.load_module() == (pynvml, "")


@pytest.mark.parametrize(
    "content", ["raise FutureWarning('old')\n", "import warnings\nwarnings.warn('use another', FutureWarning)\n"]
)
def test_c101_a_foreign_module_is_told_by_its_path(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "pynvml"
    folder.mkdir()
    (folder / "__init__.py").write_text(content)
    code = "from topology.agent.nvml_session import Session; s = Session(); print(s.start(), s.hopeless, s.problem)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment(build(), tmp_path) | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    version = importlib.metadata.version("nvidia-ml-py")
    assert done.stdout.startswith("False True pynvml is ")
    assert f"not that of nvidia-ml-py {version}; remove that file and install nvidia-ml-py again" in done.stdout
    assert "FutureWarning" not in done.stderr
