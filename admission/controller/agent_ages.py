"""EDGE. Lets the facts of silent agents grow old in the state: marked when stale, left out when expired.

It decides when to look, and tells of running gangs whose nodes' facts expired. The cost of a look is one comparison for
each agent; the state hears only of nodes whose freshness changed. An agent that reports again counts at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from scheduler.explain_words import names_of, silent_agents
from scheduler.reasons import Reason
from topology.clock import monotonic_s, wall_time_s
from topology.cluster_state import ClusterState
from topology.facts.age import Aged, AgentAge, Freshness
from topology.facts.hub_state import HubState
from topology.kube.events import EventSink, Involved
from topology.objects import Pod

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 5.0


class AgentAges:
    """`changed` is called when facts of some node came to count or no longer do."""

    def __init__(self, agents: HubState, state: ClusterState, events: EventSink, changed: Callable[[], None]) -> None:
        self._agents, self._state, self._events, self._changed = agents, state, events, changed
        self._told: dict[str, Freshness] = {}  # nodes that are not fresh, as the state knows them
        self.every_s = min(LOOK_EVERY_S, agents.limits.stale_s / 3)

    def heard(self, node: str) -> None:
        """This agent has just reported: its facts are fresh, unless NVML does not answer it."""
        if node in self._told:
            self._take({node: self._agents.age(node, monotonic_s())}, wall_time_s())

    def look(self, now_s: float, wall_s: float) -> None:
        """One look at every agent; `now_s` is monotonic, `wall_s` what explanations count from."""
        found: dict[str, tuple[float, Freshness] | None] = {}
        for node, age_s, freshness in self._agents.ages(now_s):
            if freshness is not self._told.get(node, Freshness.FRESH):
                found[node] = age_s, freshness
        for node in self._told:
            # The hub forgot it after an hour: it stays expired as long as what it saw is kept.
            if self._agents.known(node) is None and not self._state.agent_known(node):
                found[node] = None
        self._take(found, wall_s)

    def _take(self, found: Mapping[str, tuple[float, Freshness] | None], wall_s: float) -> None:
        changes: dict[str, Aged | None] = {}
        expired: dict[str, AgentAge] = {}
        for node, each in found.items():
            age_s, freshness = each or (0.0, Freshness.FRESH)
            if freshness is self._told.get(node, Freshness.FRESH):
                continue
            if freshness is Freshness.FRESH:
                del self._told[node]
                changes[node] = None
                continue
            self._told[node] = freshness
            changes[node] = Aged(freshness, wall_s - age_s)
            if freshness is Freshness.EXPIRED:
                expired[node] = AgentAge(node, age_s, freshness)
        if expired:
            log.warning(
                "agents of %d nodes are silent, their facts are left out: %s", len(expired), names_of(sorted(expired))
            )
            self._tell_running(expired)
        if changes and self._state.apply_ages(changes):
            self._changed()

    def _tell_running(self, expired: Mapping[str, AgentAge]) -> None:
        for pods in self._state.gangs().values():
            for pod in pods.values():
                if (age := expired.get(pod.spec.node_name)) is not None:
                    self._tell(pod, age)

    def _tell(self, pod: Pod, age: AgentAge) -> None:
        meta, reason = pod.metadata, Reason.FACTS_STALE
        text = f"{silent_agents([age])}. Pod left running"
        self._events.post(
            Involved("Pod", "v1", meta.namespace, meta.name, meta.uid), reason.type, reason, text, key=age.node
        )

    async def run(self) -> None:
        """Looks every five seconds, or oftener where facts age faster, until cancelled."""
        while True:
            self.look(monotonic_s(), wall_time_s())
            await asyncio.sleep(self.every_s)
