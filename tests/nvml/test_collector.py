"""Collections from NVML, sysfs and kubelet together: what stays, what is marked, what counts as a new topology.

NVML is scripted here as readings; the real library is in test_nvml_reader.py and test_agent.py.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.nvml import profiles
from tests.nvml.kubelet import Kubelet, serving
from tests.topology.list_watch_server import LIMIT_S
from topology.agent.collector import Collector
from topology.agent.nvml_reader import NvmlReading
from topology.agent.pod_resources import PodResources
from topology.agent.sysfs_reader import Host, SysfsReader
from topology.facts import report as f
from topology.facts.alarms import alarms


class Script:
    """In place of the NVML reader: the readings in turn, the last one again and again."""

    def __init__(self, *readings: NvmlReading) -> None:
        self._readings = list(readings)
        self.session = SimpleNamespace(hopeless=False, was_up=True, problem="")

    def read(self, _now_s: float) -> NvmlReading:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]

    def close(self) -> None:
        """Nothing to end."""


def gpu(n: int, **given: Any) -> f.Gpu:
    return f.Gpu(uuid=f"GPU-{n}", index=n, **given)


def good(*gpus: f.Gpu) -> NvmlReading:
    memory = tuple(f.Memory(uuid=each.uuid, total_bytes=100, used_bytes=1) for each in gpus)
    return NvmlReading(state=f.NvmlState.OK, gpus=gpus, memory=memory, driver_version="580")


LOST = NvmlReading(state=f.NvmlState.LOST, problem="NVML does not answer: unknown")


def collector(script: Script, folder: Path, clock: list[float], **given: Any) -> Collector:
    return Collector(
        script,  # type: ignore[arg-type]  # the two calls of a reader
        SysfsReader(str(folder / "sys"), str(folder / "proc")),
        PodResources(str(folder / "k.sock"), limit_s=LIMIT_S),
        wall_s=lambda: clock[0],
        **given,
    )


async def test_c098_what_was_seen_stays_marked_while_nvml_is_lost(tmp_path: Path) -> None:
    clock = [1000.0]
    made = collector(Script(good(gpu(0)), LOST, LOST, good(gpu(0))), tmp_path, clock, give_up_s=0.0)
    first = await made.collect()
    assert (first.state.nvml, first.state.nvml_good_at_s) == (f.NvmlState.OK, 1000.0)
    assert made.why_restart() == ""
    clock[0] = 1015.0
    lost = await made.collect()
    assert (lost.gpus, lost.memory) == (first.gpus, first.memory)
    assert (lost.state.nvml, lost.state.nvml_good_at_s) == (f.NvmlState.LOST, 1000.0)
    assert lost.state.nvml_problem == "NVML does not answer: unknown"
    assert lost.state.topology_generation == first.state.topology_generation
    assert made.why_restart().startswith("NVML is lost for")  # the liveness probe fails once patience (here 0) is over
    await made.collect()
    back = await made.collect()
    assert back.state.nvml is f.NvmlState.OK
    assert made.why_restart() == ""
    await made.close()


async def test_c103_a_new_layout_is_a_new_generation_and_a_skipped_look_is_not(tmp_path: Path) -> None:
    def divided(*profiles: str) -> f.Gpu:
        instances = tuple(
            f.MigInstance(gpu_instance_id=n, uuid=f"MIG-{n}", profile=p, start_slice=n) for n, p in enumerate(profiles)
        )
        return gpu(0, mig=f.Mig(enabled=True, instances=instances))

    skipped = NvmlReading(state=f.NvmlState.OK, skipped="the MIG layout is being changed")
    script = Script(good(divided("3g.40gb", "3g.40gb")), skipped, good(divided(*["1g.10gb"] * 7)))
    made = collector(script, tmp_path, [1000.0])
    first, second, third = [await made.collect() for _ in range(3)]
    assert first.state.topology_generation == 1000
    assert second.gpus == first.gpus
    assert second.state.topology_generation == 1000
    assert "the MIG layout is being changed" in second.state.problems
    assert third.state.topology_generation == 1001
    assert len((third.gpus[0].mig or f.Mig(enabled=False)).instances) == 7
    await made.close()


async def test_a_hanging_driver_is_lost_and_the_loop_goes_on(tmp_path: Path) -> None:
    answering = threading.Event()

    class Hanging(Script):
        def read(self, now_s: float) -> NvmlReading:
            assert answering.wait(LIMIT_S)
            return super().read(now_s)

    made = collector(Hanging(good(gpu(0))), tmp_path, [1000.0])
    answering.set()
    first = await made.collect()
    answering.clear()
    made._limit_s, patient_s = 0.1, made._limit_s
    for _ in range(2):  # the second look starts no second read
        lost = await made.collect()
        assert (lost.state.nvml, lost.gpus) == (f.NvmlState.LOST, first.gpus)
        assert lost.state.nvml_problem == "NVML does not answer for 0.1s"
    made._limit_s = patient_s
    answering.set()
    assert (await made.collect()).state.nvml is f.NvmlState.OK
    await made.close()


async def test_a_hanging_driver_does_not_stop_the_network_and_a_hanging_sysfs_not_the_gpus(tmp_path: Path) -> None:
    profiles.write(profiles.hgx_h100(), tmp_path)
    let_go = threading.Event()

    class Hanging(Script):
        hangs = False

        def read(self, now_s: float) -> NvmlReading:
            return super().read(now_s) if not self.hangs or let_go.wait(LIMIT_S) else LOST

    class Sysfs(SysfsReader):
        hangs = False

        def read(self, gpus: tuple[f.Gpu, ...], pairs: tuple[f.GpuPair, ...]) -> Host:
            assert not self.hangs or let_go.wait(LIMIT_S)
            return super().read(gpus, pairs)

    clock, script = [1000.0], Hanging(good(gpu(0, bus_id=profiles.hgx_h100().gpus[0].bus)))
    made = collector(script, tmp_path, clock)
    patient_s = made._limit_s
    made._sysfs = sysfs = Sysfs(str(tmp_path / "sys"), str(tmp_path / "proc"))
    first = await made.collect()
    assert (len(first.nics), first.state.gpudirect, first.state.network_good_at_s) == (8, True, None)
    clock[0], script.hangs = 1015.0, True
    (tmp_path / "sys/class/infiniband/mlx5_3/ports/1/state").write_text("1: DOWN\n")
    made._limit_s = 0.1
    no_driver = await made.collect()
    made._limit_s = patient_s
    assert (no_driver.state.nvml, no_driver.gpus) == (f.NvmlState.LOST, first.gpus)
    assert [nic.ports[0].active for nic in no_driver.nics].count(False) == 1  # seen while the driver hangs
    assert no_driver.state.network_good_at_s is None
    let_go.set()
    script.hangs = False
    await made.collect()
    clock[0], sysfs.hangs = 1045.0, True
    let_go.clear()
    made._limit_s = 0.1
    while (no_sysfs := await made.collect()).state.nvml is not f.NvmlState.OK:  # a short limit for both
        continue
    made._limit_s = patient_s
    assert (no_sysfs.state.nvml, no_sysfs.state.nvml_good_at_s) == (f.NvmlState.OK, 1045.0)
    assert (no_sysfs.gpus, no_sysfs.nics) == (first.gpus, no_driver.nics)  # with their places of before
    assert (no_sysfs.state.network_good_at_s, no_sysfs.state.gpudirect) == (1015.0, True)
    assert no_sysfs.state.topology_generation == first.state.topology_generation
    assert "sysfs does not answer for 0.1s" in no_sysfs.state.problems
    let_go.set()
    back = await made.collect()
    assert back.state.network_good_at_s is None
    await made.close()


async def test_a_silent_kubelet_costs_only_its_part(tmp_path: Path) -> None:
    kubelet = Kubelet()
    kubelet.held = {("ml", "p", "c"): {"nvidia.com/gpu": ["GPU-0"]}}
    kubelet.allocatable = {"nvidia.com/gpu": ["GPU-0", "GPU-1"]}
    made = collector(Script(good(gpu(0))), tmp_path, [1000.0])
    async with serving(kubelet, tmp_path / "k.sock"):
        first = await made.collect()
    assert first.pods is not None
    assert first.pods.holdings[0].pod == "p"
    assert first.state.problems == ("nvidia.com/gpu has 2 devices, but 1 whole GPUs answer",)
    assert first.state.pods_good_at_s is None
    later = await made.collect()
    assert later.pods == first.pods  # with the time at which it was told
    assert later.state.pods_good_at_s == 1000.0
    assert any(problem.startswith("the kubelet did not answer List: UNAVAILABLE") for problem in later.state.problems)
    await made.close()


async def test_c091_a_gpu_with_unified_memory_brings_the_systems(tmp_path: Path) -> None:
    profiles.write(profiles.l40s_pcie(), tmp_path)
    reading = replace(good(gpu(0)), memory=(f.Memory(uuid="GPU-0", kind=f.MemoryKind.UNIFIED),))
    made = collector(Script(reading), tmp_path, [1000.0])
    state = (await made.collect()).state
    assert (state.system_memory_total_bytes, state.system_memory_available_bytes) == (
        131_072_000 * 1024,
        94_371_840 * 1024,
    )
    await made.close()


async def test_c073_where_nvml_and_sysfs_differ_nvml_is_taken_and_that_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = profiles.l40s_pcie()
    profiles.write(machine, tmp_path)
    gpus = tuple(f.Gpu(uuid=f"GPU-{n}", index=n, bus_id=machine.gpus[n].bus) for n in range(2))
    pair = f.GpuPair(a="GPU-0", b="GPU-1", distance=f.Distance.PIX)
    made = collector(Script(replace(good(*gpus), pairs=(pair,))), tmp_path, [1000.0])
    with caplog.at_level("WARNING"):
        first, again = await made.collect(), await made.collect()
    assert first.pairs == again.pairs == (pair,)
    value = [record.getMessage() for record in caplog.records if record.getMessage().startswith("PCIe:")]
    # In this machine the two GPUs are under two root complexes of one NUMA node.
    assert value == ["PCIe: GPU-0 to GPU-1 is PIX by NVML and NODE by sysfs; NVML's word is taken"]
    await made.close()


def test_alarms_in_words() -> None:
    state = f.NodeState(
        collected_at_s=1, topology_generation=1, nvml=f.NvmlState.OK, nvidia_peermem=False, dma_buf=False
    )
    starting = f.Fabric(state=f.FabricState.IN_PROGRESS)
    gpus = (
        gpu(0, fabric=starting),
        gpu(1, fabric=starting),
        gpu(2, health=f.Health.LOST, health_why="it does not answer any more"),
    )
    devices = tuple(f"GPU-{n}::{share}" for n in range(3) for share in range(4))
    pods = f.PodDevices(collected_at_s=1, allocatable=(("nvidia.com/gpu", devices),))
    nics = (f.Nic(name="mlx5_0", rdma=True),)
    assert alarms(state, gpus, nics, pods) == (
        "GPU 2 is lost: it does not answer any more",
        "GPU 0, 1: its fabric is starting",
        "nvidia.com/gpu has 3 devices, but 2 whole GPUs answer",
        "no GPUDirect: neither nvidia_peermem nor dma-buf, so RDMA goes through host memory",
    )
    assert alarms(replace(state, dma_buf=True), (gpu(0), gpu(1), gpu(3)), nics, pods) == ()
    unknown = replace(state, nvidia_peermem=None, dma_buf=None)
    assert alarms(unknown, (gpu(0),), nics, None) == ()
