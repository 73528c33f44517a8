"""EDGE: the controller's metrics, read from plain counters at scrape time.

It names and units what others count. It must never decide anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from admission.controller.controller import Controller
from topology.clock import monotonic_s
from topology.facts.age import FactPart
from topology.hub.state import HubState


class HubCounters(Protocol):
    """The counters of the hub's server; a protocol, since importing gRPC costs 12 MB where no hub is served."""

    refused: int
    throttled: int

    @property
    def open(self) -> int: ...


class EnrolmentCounters(Protocol):
    """The counters of the enrolment server; a protocol for the same reason."""

    @property
    def answers(self) -> Mapping[str, int]: ...


class ControllerMetrics(Collector):
    """A registry of its own, and a collector that reads the controller's counters when asked."""

    def __init__(self, version: str, controller: Controller) -> None:
        self.registry = CollectorRegistry()
        build = Gauge("isochrone_build_info", "Always 1; the labels tell.", ("version",), registry=self.registry)
        build.labels(version).set(1)
        self._controller = controller
        self._hub: tuple[HubState, HubCounters] | None = None
        self._enrolment: EnrolmentCounters | None = None
        self.registry.register(self)

    def follow_hub(self, agents: HubState, served: HubCounters) -> None:
        """Tell of node agents too."""
        self._hub = agents, served

    def follow_enrolment(self, enrolment: EnrolmentCounters) -> None:
        """Tell of certificates too."""
        self._enrolment = enrolment

    def describe(self) -> list[Metric]:
        """Nothing to announce before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        controller = self._controller
        yield GaugeMetricFamily(
            "isochrone_gangs_held", "Gangs with a pod that has no place.", value=controller.batch.held_gangs()
        )
        yield GaugeMetricFamily(
            "isochrone_facts_age_seconds", "Since the API server was last heard.", value=controller.facts_age_s()
        )
        yield GaugeMetricFamily(
            "isochrone_topology_conflicts",
            "Pairs of sources that put nodes into different groups.",
            value=len(controller.published.conflicts),
        )
        yield CounterMetricFamily("isochrone_plans", "Gangs planned.", value=controller.batch.plans)
        writes = CounterMetricFamily("isochrone_pod_writes", "Writes to pods by kind.", labels=["kind"])
        pod_writer = controller.reporter.pod_writer
        for kind, count in (
            ("nominate", pod_writer.nominated),
            ("release", pod_writer.released),
            ("failed", pod_writer.failed),
        ):
            writes.add_metric([kind], count)
        yield writes
        yield CounterMetricFamily("isochrone_events", "Events written.", value=controller.events.posted)
        dropped = CounterMetricFamily("isochrone_events_dropped", "Events not written, by reason.", labels=["why"])
        for why, count in sorted(controller.events.dropped.items()):
            dropped.add_metric([why], count)
        yield dropped
        watches = CounterMetricFamily(
            "isochrone_watch_restarts", "Watches started again, by kind of object.", labels=["kind", "how"]
        )
        for name, informer in controller.informers.items():
            watches.add_metric([name, "relist"], max(0, informer.relists - 1))
            watches.add_metric([name, "reconnect"], informer.reconnects)
        yield watches
        if self._hub is not None:
            yield from _of_hub(*self._hub)
        if self._enrolment is not None:
            asked = CounterMetricFamily("isochrone_enrolments", "Asks for certificates by result.", labels=["result"])
            for result, count in sorted(self._enrolment.answers.items()):
                asked.add_metric([result], count)
            yield asked


def _of_hub(agents: HubState, served: HubCounters) -> Iterator[Metric]:
    now_s = monotonic_s()
    by_age = GaugeMetricFamily("isochrone_hub_nodes", "Nodes with an agent by age of its GPUs.", labels=["freshness"])
    by_part = GaugeMetricFamily(
        "isochrone_hub_facts", "Nodes with an agent by age of a part of its facts.", labels=["part", "freshness"]
    )
    for part, counts in agents.count(now_s).items():
        for freshness, count in counts.items():
            by_part.add_metric([part.value, freshness.value], count)
            if part is FactPart.GPUS:
                by_age.add_metric([freshness.value], count)
    yield by_age
    yield by_part
    oldest = GaugeMetricFamily("isochrone_hub_oldest_facts_seconds", "Age of the oldest, by part.", labels=["part"])
    for part, age_s in agents.oldest(now_s).items():
        oldest.add_metric([part.value], age_s)
    yield oldest
    yield GaugeMetricFamily("isochrone_hub_streams", "Agents connected now.", value=served.open)
    reports = CounterMetricFamily("isochrone_hub_reports", "Reports of agents by kind.", labels=["kind"])
    for kind, count in (*agents.reports.items(), ("full-wanted", agents.full_wanted)):
        reports.add_metric([kind], count)
    yield reports
    yield CounterMetricFamily("isochrone_hub_refused", "Streams refused.", value=served.refused)
    yield CounterMetricFamily("isochrone_hub_throttled", "Reports read late: too fast.", value=served.throttled)
