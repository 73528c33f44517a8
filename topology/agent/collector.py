"""EDGE: one collection: NVML and sysfs each in a thread, the kubelet on the loop, made into the facts of the node.

Decides what stays when a source is silent, when the topology counts as changed, and when only a restart of the process
can help. It must never know who gets the facts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Generic, TypeVar

from topology.agent.nvml_reader import NvmlReader, NvmlReading
from topology.agent.pod_resources import KubeletSilent, PodResources
from topology.agent.sysfs_reader import Host, SysfsReader
from topology.clock import monotonic_s, wall_time_s
from topology.facts.alarms import alarms
from topology.facts.report import MOST_PROBLEMS, Gpu, MemoryKind, NodeFacts, NodeState, NvmlState, PodDevices

log = logging.getLogger(__name__)

LIMIT_S: Final = 30.0  # a driver that takes longer hangs
T = TypeVar("T")
GIVE_UP_S: Final = 300.0  # so long NVML may be lost before the kubelet is to restart the agent


class SourceThread(Generic[T]):
    """Questions to a source that may hang, one at a time in a thread of its own. The next is asked only after the last
    one was answered, so that a source that hangs holds one thread and no other source."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._running: asyncio.Future[T] | None = None

    async def demand(self, question: Callable[[], T], limit_s: float) -> T | None:
        """The answer, or that to the question before if it comes only now; None if there is none within the limit."""
        if self._running is None:
            self._running = asyncio.get_running_loop().run_in_executor(self._thread, question)
        done, _ = await asyncio.wait([self._running], timeout=limit_s)
        if not done:
            return None
        found, self._running = self._running.result(), None
        return found

    def end(self, last: Callable[[], None] | None = None) -> None:
        """No more questions; `last` is still done if the source does not hang. Waits for nothing."""
        if last is not None and (self._running is None or self._running.done()):
            self._thread.submit(last)
        self._thread.shutdown(wait=False, cancel_futures=False)


class Collector:
    """Belongs to one event loop."""

    def __init__(
        self,
        nvml: NvmlReader,
        sysfs: SysfsReader,
        pods: PodResources,
        *,
        limit_s: float = LIMIT_S,
        give_up_s: float = GIVE_UP_S,
        wall_s: Callable[[], float] = wall_time_s,
    ) -> None:
        self._nvml, self._sysfs, self._pods = nvml, sysfs, pods
        self._limit_s, self._give_up_s, self._wall_s = limit_s, give_up_s, wall_s
        self._nvml_thread = SourceThread[NvmlReading]("nvml")
        self._sysfs_thread = SourceThread[tuple[tuple[Gpu, ...], Host]]("sysfs")
        self._last: NodeFacts | None = None
        self._pods_last: PodDevices | None = None
        self._network_good_at_s: float | None = None
        self._differs = ""
        self._bad_since_s: float | None = None
        self.took_s = 0.0
        self.rdma_port: Callable[[], int | None] = lambda: None  # by the facts before: devices are known from then on

    @property
    def facts(self) -> NodeFacts | None:
        """The facts of the last collection."""
        return self._last

    def why_restart(self) -> str:
        """Why the process should be started anew, "" if it need not: for the liveness probe."""
        session = self._nvml.session
        if session.hopeless and session.was_up:
            return session.problem
        if self._bad_since_s is not None and monotonic_s() - self._bad_since_s > self._give_up_s:
            return f"NVML is lost for {monotonic_s() - self._bad_since_s:.0f}s"
        return ""

    async def collect(self) -> NodeFacts:
        """The facts as of now; what is silent keeps what it said before, marked. Never raises for a source."""
        began, now_s = monotonic_s(), self._wall_s()
        pods, pods_problem = await self._read_pods(now_s)
        reading = await self._read_nvml(now_s)
        host = await self._read_sysfs(reading)
        self._last = self._merged(now_s, reading, host, pods, pods_problem)
        self.took_s = monotonic_s() - began
        return self._last

    async def close(self) -> None:
        """Waits for a look under way no longer than a moment: a hanging driver must not hold the exit."""
        self._nvml_thread.end(self._nvml.close)
        self._sysfs_thread.end()
        await self._pods.close()

    async def _read_pods(self, now_s: float) -> tuple[PodDevices | None, str]:
        try:
            self._pods_last = await self._pods.read(now_s)
            return self._pods_last, ""
        except KubeletSilent as silent:
            return self._pods_last, str(silent)

    async def _read_nvml(self, now_s: float) -> NvmlReading:
        """What NVML says; that it hangs, where it does."""
        reading = await self._nvml_thread.demand(lambda: self._nvml.read(now_s), self._limit_s)
        return reading or NvmlReading(state=NvmlState.LOST, problem=f"NVML does not answer for {self._limit_s:g}s")

    async def _read_sysfs(self, reading: NvmlReading) -> Host | None:
        """What sysfs says of the machine around the GPUs; None while it hangs."""
        if self._last is None or (reading.state is NvmlState.OK and not reading.skipped):
            gpus, pairs = reading.gpus, reading.pairs
        else:
            gpus, pairs = self._last.gpus, self._last.pairs  # where those known were
        for _ in range(2):  # a late answer is about the GPUs of another look: it is asked for again
            found = await self._sysfs_thread.demand(lambda: (gpus, self._sysfs.read(gpus, pairs)), self._limit_s)
            if found is not None and found[0] is gpus:
                return found[1]
        return None

    def _merged(
        self,
        now_s: float,
        reading: NvmlReading,
        host: Host | None,
        pods: PodDevices | None,
        pods_problem: str,
    ) -> NodeFacts:
        """What the sources say, and of a silent one what it said before, marked by the state and its times."""
        first = NodeState(collected_at_s=now_s, topology_generation=int(now_s), nvml=reading.state)
        last = self._last or NodeFacts(state=first)
        good = reading.state is NvmlState.OK and not reading.skipped
        self._remember(now_s, reading.state, good, host)
        around = host or _around_before(reading, last)
        if good:
            gpus, pairs, memory = around.gpus, around.pairs, reading.memory
            driver, cuda = reading.driver_version, reading.cuda_driver_version
        else:
            gpus, pairs, memory = last.gpus, last.pairs, last.memory
            driver, cuda = last.state.driver_version, last.state.cuda_driver_version
        unified = any(each.kind is MemoryKind.UNIFIED for each in memory)
        state = NodeState(
            collected_at_s=now_s,
            topology_generation=last.state.topology_generation,
            nvml=reading.state,
            nvml_problem=reading.problem,
            nvml_good_at_s=now_s if good else last.state.nvml_good_at_s,
            driver_version=driver,
            cuda_driver_version=cuda,
            nvidia_peermem=around.nvidia_peermem,
            dma_buf=around.dma_buf,
            system_memory_total_bytes=around.memory_total_bytes if unified else None,
            system_memory_available_bytes=around.memory_available_bytes if unified else None,
            network_good_at_s=None if host else self._network_good_at_s,
            pods_good_at_s=pods.collected_at_s if pods and pods_problem else None,
            rdma_probe_port=self.rdma_port(),
        )
        silent = ("" if host else f"sysfs does not answer for {self._limit_s:g}s", pods_problem)
        skipped = reading.skipped if self._last else ""
        found = *reading.problems, *silent, skipped, *alarms(state, gpus, around.nics, pods)
        problems = tuple(filter(None, found))[:MOST_PROBLEMS]
        facts = NodeFacts(
            state=replace(state, problems=problems), gpus=gpus, memory=memory, pairs=pairs, nics=around.nics, pods=pods
        )
        return facts if self._last is None else _with_generation(self._last, facts)

    def _remember(self, now_s: float, nvml: NvmlState, good: bool, host: Host | None) -> None:
        """When the sources were last good, and what was logged of them."""
        if good:
            self._bad_since_s = None
        elif nvml is NvmlState.LOST and self._bad_since_s is None:
            self._bad_since_s = monotonic_s()
        if host is not None:
            self._network_good_at_s = now_s
            if host.differs and host.differs != self._differs:
                log.warning("PCIe: %s", host.differs)
                self._differs = host.differs  # once for this process, unless it becomes another disagreement


def _around_before(reading: NvmlReading, last: NodeFacts) -> Host:
    """While sysfs is silent: the GPUs of now where they were before, and the rest as it was."""
    return Host(
        gpus=_placed(reading.gpus, last.gpus),
        pairs=reading.pairs,
        nics=last.nics,
        nvidia_peermem=last.state.nvidia_peermem,
        dma_buf=last.state.dma_buf,
        memory_total_bytes=None,
        memory_available_bytes=None,
    )


def _with_generation(last: NodeFacts, facts: NodeFacts) -> NodeFacts:
    """A generation later where the topology changed."""
    if _shape(last) == _shape(facts):
        return facts
    generation = last.state.topology_generation + 1
    log.info("the node's topology changed, generation %d", generation)
    return replace(facts, state=replace(facts.state, topology_generation=generation))


def _placed(gpus: tuple[Gpu, ...], before: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """GPUs with what sysfs said of them before."""
    known = {gpu.uuid: gpu for gpu in before}
    return tuple(
        replace(gpu, pci_path=known[gpu.uuid].pci_path, numa_node=known[gpu.uuid].numa_node)
        if gpu.uuid in known
        else gpu
        for gpu in gpus
    )


def _shape(facts: NodeFacts) -> object:
    """What a new generation of the topology is about: things and their places, not their state."""
    gpus = [(g.uuid, g.bus_id, g.pci_path, g.mig.enabled if g.mig else None, _layout(g.mig)) for g in facts.gpus]
    return gpus, facts.pairs, [(nic.name, nic.bus_id, nic.gpus) for nic in facts.nics]


def _layout(mig: object) -> object:
    instances = getattr(mig, "instances", ())
    return [(i.gpu_instance_id, i.uuid, i.profile, i.start_slice, i.size_slices) for i in instances]
