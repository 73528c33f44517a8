"""EDGE: `isochrone agent`: collector, hub client and probes' answers, wired together and run on each node.

It wires and starts; every decision is made elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.metadata
import logging
import signal
import sys
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricsCollector

from topology.agent.collector import Collector
from topology.agent.http import health_app, listening
from topology.agent.hub_client import HubClient
from topology.agent.nvml_reader import NvmlReader
from topology.agent.pod_resources import PodResources
from topology.agent.prober import Prober
from topology.agent.settings import AgentSettings
from topology.agent.sysfs_reader import SysfsReader
from topology.bad_input import BadInput
from topology.clock import monotonic_s, wall_time_s
from topology.environment import load
from topology.facts.report import NodeFacts, NvmlState

log = logging.getLogger(__name__)


class AgentMetrics(MetricsCollector):
    """Read from plain counters at scrape time."""

    def __init__(self, version: str, collector: Collector, hub: HubClient | None) -> None:
        self.registry = CollectorRegistry()
        build = Gauge("isochrone_build_info", "Always 1; the labels tell.", ("version",), registry=self.registry)
        build.labels(version).set(1)
        self._collector, self._hub = collector, hub
        self.registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing to announce before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        facts = self._collector.facts
        if facts is not None:
            gpus = GaugeMetricFamily("isochrone_agent_gpus", "GPUs by health.", labels=["health"])
            for health in ("healthy", "unhealthy", "lost"):
                gpus.add_metric([health], sum(gpu.health == health for gpu in facts.gpus))
            yield gpus
            state = GaugeMetricFamily("isochrone_agent_nvml", "How NVML answers: 1 for the state.", labels=["state"])
            for name in ("ok", "absent", "lost"):
                state.add_metric([name], float(facts.state.nvml == name))
            yield state
            age_s = wall_time_s() - facts.state.collected_at_s
            yield GaugeMetricFamily("isochrone_agent_facts_age_seconds", "Since the last collection.", value=age_s)
            sources = GaugeMetricFamily(
                "isochrone_agent_source_age_seconds", "Since a source was last good.", labels=["source"]
            )
            for source, good_at_s in _good_at_s(facts).items():
                sources.add_metric([source], wall_time_s() - good_at_s)
            yield sources
            alarms = len(facts.state.problems)
            yield GaugeMetricFamily("isochrone_agent_problems", "What does not fit together.", value=alarms)
        took_s = self._collector.took_s
        yield GaugeMetricFamily("isochrone_agent_collection_seconds", "Duration of the last collection.", value=took_s)
        if self._hub is not None:
            up = float(self._hub.connected)
            yield GaugeMetricFamily("isochrone_agent_hub_connected", "1 while the hub takes reports.", value=up)
            reports = CounterMetricFamily("isochrone_agent_reports", "Reports taken by the hub.", labels=["kind"])
            for kind, count in self._hub.sent.items():
                reports.add_metric([kind], count)
            yield reports


def _good_at_s(facts: NodeFacts) -> dict[str, float]:
    """When each source of facts answered last; one that never did is left out."""
    state, at_s = facts.state, facts.state.collected_at_s
    found = {
        "nvml": at_s if state.nvml is NvmlState.OK else state.nvml_good_at_s,
        "sysfs": state.network_good_at_s or at_s,
        "kubelet": None if facts.pods is None else state.pods_good_at_s or at_s,
    }
    return {source: good_at_s for source, good_at_s in found.items() if good_at_s is not None}


class Agent:
    """Everything the process holds."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        version = importlib.metadata.version("isochrone")
        sysfs = SysfsReader(settings.sys_root, settings.proc_root)
        self.collector = Collector(NvmlReader(), sysfs, PodResources(settings.pod_resources))
        self.hub: HubClient | None = None
        self.prober: Prober | None = None
        if settings.hub:
            if settings.probe_listen:
                self.prober = Prober(settings, lambda: self.collector.facts, self._report)
                if self.prober.rdma is not None:
                    self.collector.rdma_port = self.prober.rdma.port
            self.hub = HubClient(
                settings,
                boot_id=sysfs.boot_id(),
                version=version,
                on_orders=self.prober.take if self.prober else None,
                probe_address=self.prober.address if self.prober else None,
            )
        self.metrics = AgentMetrics(version, self.collector, self.hub)
        self._heard_s = monotonic_s()

    def _report(self, facts: NodeFacts) -> None:
        if self.hub is not None:
            self.hub.report(facts)

    def why_dead(self) -> str:
        """For the liveness probe: a driver that only a new process can use, or a loop that stands still."""
        silent_s = monotonic_s() - self._heard_s
        if silent_s > 120 + 4 * self.settings.collect_every_s:
            return f"no collection for {silent_s:.0f}s"
        return self.collector.why_restart()

    def why_not_ready(self) -> str:
        """For the readiness probe: no collection yet. A silent hub does not make an agent unready."""
        return "" if self.collector.facts is not None else "no collection yet"

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Collects and tells until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self.hub is not None:
                tasks.create_task(self.hub.run())
            if self.prober is not None:
                tasks.create_task(self.prober.run())
            while True:
                began = monotonic_s()
                facts = await self.collector.collect()
                self._heard_s = monotonic_s()
                if self.hub is not None:
                    self.hub.report(facts)
                if ready is not None:
                    gc.collect()
                    gc.freeze()  # what is here now stays: later collections need not walk it
                    ready()
                    ready = None
                await asyncio.sleep(max(0.1, self.settings.collect_every_s - (monotonic_s() - began)))


async def serve(settings: AgentSettings, *, stop: asyncio.Event | None = None) -> None:
    """Runs until SIGTERM, SIGINT or `stop`. Raises BadInput for settings that cannot work."""
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    agent = Agent(settings)
    app = health_app(agent.metrics.registry, agent.why_dead, agent.why_not_ready)
    with listening(app, settings.health_listen) as (host, port):
        log.info("node %s, health on %s:%d", settings.node_name, host, port)
        running = asyncio.ensure_future(agent.run(lambda: log.info("first collection done")))
        running.add_done_callback(lambda _: stop.set())
        try:
            await stop.wait()
            if running.done():
                running.result()
        finally:
            running.cancel()
            await asyncio.wait([running], timeout=5.0)
            await agent.collector.close()
            if agent.prober is not None:
                agent.prober.close()


def main() -> None:
    """The process that `isochrone agent` becomes. Bad input is one line and code 2, as everywhere."""
    try:
        asyncio.run(serve(load(AgentSettings)))
    except BadInput as bad:
        sys.stderr.write(f"isochrone: {bad}\n")
        raise SystemExit(2) from None
