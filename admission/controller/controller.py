"""EDGE: everything the controller process holds: watches, state, batch admission, upkeep, wired together and run.

It wires and starts; every decision is made elsewhere.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Sequence
from typing import TypeVar

from admission.controller.agent_ages import AgentAges
from admission.controller.measured_watch import MeasuredWatch
from admission.controller.probe_orders import ProbeOrders
from admission.controller.publishing import publication
from admission.controller.topology_watch import TopologyWatch
from admission.fairness.fairness import CLAIMS_S, Fairness, Watched
from admission.gangs.expected_pods import come_later
from admission.gangs.owners import Owners, wants
from admission.reconcile.gang_planner import GangPlanner
from admission.reconcile.reconciler import GangReconciler
from admission.reconcile.release_workflow import ReleaseWorkflow
from admission.reconcile.timing import ReconcileSettings
from admission.release.pod_group_schema import OPENAPI_PATH, OPTIONAL, optional_fields
from admission.release.pod_writer import PodWriter
from admission.report.reporter import GangReporter
from admission.settings import ControllerSettings
from admission.upkeep.min_resources import MinResourcesWriter
from admission.upkeep.pod_group_gc import PodGroupCollector
from admission.upkeep.stuck_pods import StuckPodRecovery
from scheduler.extender.decision_cache import DecisionCache
from scheduler.model.policy import Policy
from topology.clock import monotonic_s, wall_time_s
from topology.cluster.snapshot import NodeTable, Snapshot
from topology.cluster.state import ClusterState
from topology.facts.age import AgeLimits
from topology.facts.report import NodeFacts
from topology.hub.state import HubState
from topology.kube.api import KubeApi
from topology.kube.errors import ApiFailure
from topology.kube.events import EventSettings, EventSink
from topology.kube.informer import Change, HasMetadata, Informer, InformerSettings
from topology.kube.interned_pods import InternedPods
from topology.objects import HyperNode, Node, Pod, PodGroup, Queue, Workload

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMetadata)

_FORM_S = 300.0
_GC = 20_000, 20, 20
"""Python's own 700 new objects are reached several times a gang, and hardly anything here is part of a cycle."""

_UNHURRIED = InformerSettings(gather_s=0.05, gather_busy_s=0.2)
"""For kinds whose status Volcano writes several times a gang: nobody waits for more than the first of a few."""

_WORKLOADS = {
    "replicasets": "/apis/apps/v1/replicasets",
    "statefulsets": "/apis/apps/v1/statefulsets",
    "leaderworkersets": "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
}


class Controller:
    """Everything the process holds, built from one API connection."""

    def __init__(self, api: KubeApi, settings: ControllerSettings) -> None:
        self.state, self.owners = ClusterState(), Owners()
        self.decisions = DecisionCache()
        self.policy = Policy(memory_reserve=settings.memory_reserve, peak_limit=settings.peak_limit)
        limits = AgeLimits(settings.facts_stale, settings.facts_expired)
        self.agents = HubState(limits, on_change=self._on_facts)
        self.probes: ProbeOrders | None = None
        self.ending = False  # what waits to be said waits no longer
        self.nodes = Informer(api, "/api/v1/nodes", Node, on_change=self._on_nodes)
        self.pods = Informer(api, "/api/v1/pods", Pod, on_change=self._on_pods, keep=InternedPods())
        self.pod_groups = Informer(
            api,
            "/apis/scheduling.volcano.sh/v1beta1/podgroups",
            PodGroup,
            on_change=self._on_pod_groups,
            absent_ok=True,
            settings=_UNHURRIED,
        )
        self.hypernodes = Informer(
            api,
            "/apis/topology.volcano.sh/v1alpha1/hypernodes",
            HyperNode,
            on_change=self._on_hypernodes,
            absent_ok=True,
        )
        self.queues = Informer(
            api,
            "/apis/scheduling.volcano.sh/v1beta1/queues",
            Queue,
            on_change=self._on_queues,
            absent_ok=True,
            settings=_UNHURRIED,
        )
        self.workloads = [
            Informer(api, path, Workload, on_change=self._on_workloads, absent_ok=name == "leaderworkersets")
            for name, path in _WORKLOADS.items()
        ]
        pod_writer = PodWriter(api)
        self.events = EventSink(
            api, "isochrone-controller", settings=EventSettings(busy_wait_s=30.0), busy=self._crowded
        )
        self.reporter = GangReporter(
            self.state,
            self.events,
            pod_writer,
            self.decisions,
            self.pod_groups.objects,
            self,
            self.owners.template_of,
            self._crowded,
        )
        timing = ReconcileSettings(
            quiet_s=settings.settle / 1e6, partner_s=settings.partner_after / 1e6, reserve_s=settings.reserve_for
        )
        groups = self.pod_groups.objects
        workflow = ReleaseWorkflow(
            self.state,
            pod_writer,
            self.reporter,
            groups,
            self.owners.top_owner,
            lambda pods: come_later(pods, self.owners.controller_of, self.owners.top_workload),
            timing,
            self.owners.template_of,
        )
        fairness = Fairness(
            self.state,
            Watched(self.pods.objects, groups, self.queues.objects),
            self.policy,
            overtaking=settings.bypass_limit,
            preemption=settings.preemption,
            claims_s=settings.replan_after or CLAIMS_S,
        )
        planner = GangPlanner(
            self.state,
            workflow,
            fairness,
            self.reporter,
            controller_of=self.owners.controller_of,
            top_of=self.owners.top_workload,
            snapshot=lambda: self.state.snapshot(wall_time_s(), self.facts_age_s()),
            policy=self.policy,
            settings=timing,
        )
        self.batch = GangReconciler(
            self.state,
            planner,
            workflow,
            fairness,
            pod_groups=groups,
            replicas=self.owners.replicas,
            template_of=self.owners.template_of,
            settings=timing,
        )
        self.renewal = StuckPodRecovery(self.state, pod_writer, self.reporter, self.snapshot, settings.replan_after)
        self.retirement = PodGroupCollector(self.state, pod_writer, self.pods.objects, groups)
        self.completion = MinResourcesWriter(self.state, pod_writer, groups, workflow.needs_of, lambda: self.batch.busy)
        self._workflow, self._api = workflow, api
        self.published = publication(
            api,
            settings,
            self.state,
            self.nodes.objects.values,
            self.hypernodes.objects.values,
            lambda node: self.agents.facts(node, monotonic_s()) is not None,
        )
        self.measured = MeasuredWatch(settings.measured_reach, self.state, self._measured)
        self.topology_file = TopologyWatch(settings.topology_file, self.state, self._places_changed)
        self.ages = AgentAges(self.agents, self.state, self.events, self._places_changed)

    # --- what the extender and the probes ask ----------------------------------------------------

    @property
    def informers(
        self,
    ) -> dict[str, Informer[Node] | Informer[Pod] | Informer[PodGroup] | Informer[HyperNode] | Informer[Queue]]:
        """The lists that must be complete before anything is decided."""
        return {
            "nodes": self.nodes,
            "pods": self.pods,
            "podgroups": self.pod_groups,
            "hypernodes": self.hypernodes,
            "queues": self.queues,
        }

    def synced(self) -> bool:
        """Every list was complete once, the owners' too."""
        return all(i.synced.is_set() for i in self.informers.values()) and all(
            i.synced.is_set() for i in self.workloads
        )

    def _crowded(self) -> bool:
        """Whether what people are told should wait."""
        return self.batch.crowded and not self.ending

    def facts_age_s(self) -> float:
        """Age of what is known of nodes and pods, the older of the two.

        While a watch stands, no word from it means no change, so its facts are as old as the newest word from the
        API server on any watch (a dead connection is noticed and ends the watch); else as old as its own last word.
        """
        now = monotonic_s()
        newest = max(i.last_heard_s for i in self.informers.values())
        return max(now - (newest if i.watching else i.last_heard_s) for i in (self.nodes, self.pods))

    def snapshot(self) -> Snapshot | None:
        """The snapshot to decide on, None until the first lists are complete."""
        return self.state.snapshot(wall_time_s(), self.facts_age_s()) if self.synced() else None

    def table(self) -> NodeTable | None:
        """Where nodes stand, None until the first lists are complete."""
        return self.state.table_at(wall_time_s()) if self.synced() else None

    def gang_pods(self, namespace: str, gang: str) -> Sequence[Pod]:
        """The live pods of a gang."""
        return self.state.gang_pods(namespace, gang)

    def checks(self) -> dict[str, str]:
        """Readiness: complete lists. Old facts never take the service away (Volcano would lose it for nothing)."""
        lists = {name: "" if i.synced.is_set() else "first list not complete" for name, i in self.informers.items()}
        owners = all(i.synced.is_set() for i in self.workloads)
        return {**lists, "owners": "" if owners else "first list not complete"}

    # --- what the watches say --------------------------------------------------------------------

    def _on_nodes(self, changes: Sequence[Change[Node]]) -> None:
        if self.state.apply_nodes(_pairs(changes)):
            self.published.changed()
        self.batch.capacity_appeared()
        self.reporter.nodes_changed()

    def _on_facts(self, node: str, before: NodeFacts | None, now: NodeFacts) -> None:
        if self.state.apply_facts(node, before, now):
            self.published.changed()
        self.ages.heard(node)
        if self.probes is not None:
            self.probes.heard(node, before, now)
        self.batch.capacity_appeared()

    def _places_changed(self) -> None:
        """Other domains count."""
        self.published.changed()
        self._measured()

    def _measured(self) -> None:
        """Reach is another: what waits may be near enough, what runs may have come too far apart."""
        self.batch.capacity_appeared()
        self.reporter.nodes_changed()

    def _on_hypernodes(self, changes: Sequence[Change[HyperNode]]) -> None:
        self.state.apply_hypernodes(_pairs(changes))
        self.published.changed()
        self.batch.capacity_appeared()

    def _on_queues(self, changes: Sequence[Change[Queue]]) -> None:
        self.batch.queues_changed()

    def _on_workloads(self, changes: Sequence[Change[Workload]]) -> None:
        self.owners.apply(_pairs(changes))
        # Their status changes with every pod; only what they want matters here.
        reported = {
            c.new.metadata.uid for c in changes if c.new is not None and (c.old is None or wants(c.old) != wants(c.new))
        }
        if reported:
            self.batch.owners_changed(reported)

    def _on_pods(self, changes: Sequence[Change[Pod]]) -> None:
        enqueue = self.state.apply_pods(_pairs(changes))
        if enqueue:
            self.batch.enqueue(enqueue)
        self.batch.capacity_appeared()
        if self.pods.synced.is_set():
            for change in changes:
                self.reporter.changed(change.old, change.new)

    def _on_pod_groups(self, changes: Sequence[Change[PodGroup]]) -> None:
        for change in changes:
            group = change.new or change.old
            if group is not None:
                self.batch.pod_group_changed(group, came=change.old is None, gone=change.new is None)

    async def _watch_form(self) -> None:
        """Which fields a PodGroup has here; read again now and then, since Volcano may be upgraded under us."""
        while True:
            try:
                known = optional_fields(await self._api.get(OPENAPI_PATH))
            except (ApiFailure, ValueError) as error:
                log.info("the form of PodGroups is not known, the newest is taken: %s", error)
            else:
                if known != self._workflow.known_fields:
                    log.warning("PodGroups of this cluster have only %s of %s", sorted(known), sorted(OPTIONAL))
                self._workflow.known_fields = known
            await asyncio.sleep(_FORM_S)

    async def run(self) -> None:
        """Watch, then hold and release, until cancelled. An informer that dies of a bug takes the process with it."""
        async with asyncio.TaskGroup() as tasks:
            for informer in (*self.informers.values(), *self.workloads):
                tasks.create_task(informer.run())
            tasks.create_task(self.measured.run())
            tasks.create_task(self.topology_file.run())
            tasks.create_task(self.events.run())
            tasks.create_task(self.reporter.run())
            # Planning on half a list would book what the other half holds.
            for informer in (*self.informers.values(), *self.workloads):
                await informer.synced.wait()
            log.info("lists complete: %d nodes, %d pods", len(self.nodes.objects), len(self.pods.objects))
            gc.freeze()  # imports and first lists stay for good: no collection need look at them again
            gc.set_threshold(*_GC)
            tasks.create_task(self._watch_form())
            tasks.create_task(self.batch.run())
            tasks.create_task(self.published.run())
            tasks.create_task(self.renewal.run())
            tasks.create_task(self.retirement.run())
            tasks.create_task(self.completion.run())


def _pairs(changes: Sequence[Change[T]]) -> list[tuple[T | None, T | None]]:
    return [(change.old, change.new) for change in changes]
