"""EDGE: one collection: NVML and sysfs in a thread, the kubelet on the loop, made into the facts of the node.

Decides what stays when a source is silent, when the topology counts as changed, and when only a restart of the process
can help. It must never know who gets the facts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from topology.agent.nvml_reader import NvmlReader, NvmlReading
from topology.agent.pod_resources import KubeletSilent, PodResources
from topology.agent.sysfs_reader import Host, SysfsReader
from topology.clock import monotonic_s, wall_time_s
from topology.facts.alarms import alarms
from topology.facts.report import MemoryKind, NodeFacts, NodeState, NvmlState, PodDevices
from topology.facts.wire import MOST

log = logging.getLogger(__name__)

LIMIT_S: Final = 30.0  # a driver that takes longer hangs
GIVE_UP_S: Final = 300.0  # so long NVML may be lost before the kubelet is to restart the agent


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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        self._running: asyncio.Future[tuple[NvmlReading, Host]] | None = None
        self._last: NodeFacts | None = None
        self._pods_last: PodDevices | None = None
        self._bad_since_s: float | None = None
        self.took_s = 0.0

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
        pods, pods_problem = await self._who_holds(now_s)
        looked = await self._look(now_s)
        self._last = self._merged(now_s, looked, pods, pods_problem)
        self.took_s = monotonic_s() - began
        return self._last

    async def close(self) -> None:
        """Waits for a look under way no longer than a moment: a hanging driver must not hold the exit."""
        if self._running is None or self._running.done():
            self._thread.submit(self._nvml.close)
        self._thread.shutdown(wait=False, cancel_futures=False)
        await self._pods.close()

    async def _who_holds(self, now_s: float) -> tuple[PodDevices | None, str]:
        try:
            self._pods_last = await self._pods.read(now_s)
            return self._pods_last, ""
        except KubeletSilent as silent:
            return self._pods_last, str(silent)

    async def _look(self, now_s: float) -> tuple[NvmlReading, Host] | None:
        """None while the driver hangs. The next look starts only after the last one ended."""
        if self._running is None:
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._thread, self._both, now_s)
        done, _ = await asyncio.wait([self._running], timeout=self._limit_s)
        if not done:
            return None
        found, self._running = self._running.result(), None
        return found

    def _both(self, now_s: float) -> tuple[NvmlReading, Host]:
        reading = self._nvml.read(now_s)
        if self._last is None or (reading.state is NvmlState.OK and not reading.skipped):
            return reading, self._sysfs.read(reading.gpus, reading.pairs)
        return reading, self._sysfs.read(self._last.gpus, self._last.pairs)  # where those known were

    def _merged(
        self, now_s: float, looked: tuple[NvmlReading, Host] | None, pods: PodDevices | None, pods_problem: str
    ) -> NodeFacts:
        last = self._last
        if looked is None:
            reading = NvmlReading(state=NvmlState.LOST, problem=f"NVML does not answer for {self._limit_s:g}s")
            host = None
        else:
            reading, host = looked
        problems = list(reading.problems) + ([pods_problem] if pods_problem else [])
        good = reading.state is NvmlState.OK and not reading.skipped
        if good:
            self._bad_since_s = None
        elif reading.state is NvmlState.LOST and self._bad_since_s is None:
            self._bad_since_s = monotonic_s()
        if good or last is None:
            gpus, pairs, memory = (host.gpus if host else ()), (host.pairs if host else ()), reading.memory
            driver, cuda = reading.driver_version, reading.cuda_driver_version
        else:  # what was seen last stays, marked by the state and its time
            gpus, pairs, memory = last.gpus, last.pairs, last.memory
            driver, cuda = last.state.driver_version, last.state.cuda_driver_version
            problems += [reading.skipped] if reading.skipped else []
        unified = any(reading.kind is MemoryKind.UNIFIED for reading in memory)
        nics = host.nics if host else (last.nics if last else ())
        state = NodeState(
            collected_at_s=now_s,
            topology_generation=last.state.topology_generation if last else int(now_s),
            nvml=reading.state,
            nvml_problem=reading.problem,
            nvml_good_at_s=now_s if good else (last.state.nvml_good_at_s if last else None),
            driver_version=driver,
            cuda_driver_version=cuda,
            nvidia_peermem=host.nvidia_peermem if host else None,
            dma_buf=host.dma_buf if host else None,
            system_memory_total_bytes=host.memory_total_bytes if host and unified else None,
            system_memory_available_bytes=host.memory_available_bytes if host and unified else None,
        )
        problems += alarms(state, gpus, nics, pods)
        facts = NodeFacts(
            state=replace(state, problems=tuple(problems[: MOST["problems"]])),
            gpus=gpus,
            memory=memory,
            pairs=pairs,
            nics=nics,
            pods=pods,
        )
        if last is not None and _shape(last) != _shape(facts):
            grown = replace(facts.state, topology_generation=last.state.topology_generation + 1)
            facts = replace(facts, state=grown)
            log.info("the node's topology changed, generation %d", grown.topology_generation)
        return facts


def _shape(facts: NodeFacts) -> object:
    """What a new generation of the topology is about: things and their places, not their state."""
    gpus = [(g.uuid, g.bus_id, g.pci_path, g.mig.enabled if g.mig else None, _layout(g.mig)) for g in facts.gpus]
    return gpus, facts.pairs, [(nic.name, nic.bus_id, nic.gpus) for nic in facts.nics]


def _layout(mig: object) -> object:
    instances = getattr(mig, "instances", ())
    return [(i.gpu_instance_id, i.uuid, i.profile, i.start_slice, i.size_slices) for i in instances]
