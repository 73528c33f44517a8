"""EDGE. Lets the facts of silent agents grow old in the state: marked when stale, left out when expired.

It decides when to look, and tells of running gangs whose nodes' facts expired. The cost of a look is one comparison for
each agent; the state hears only of nodes whose freshness changed. An agent that reports again counts at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scheduler.explain.wording import names_of, silent_agents
from scheduler.model.reason import Reason
from topology.clock import monotonic_s, wall_time_s
from topology.cluster.state import ClusterState
from topology.facts.age import Aged, AgedParts, AgentAge, FactPart, Freshness, PartAges, ages_of
from topology.hub.state import HubState
from topology.kube.events import EventSink, Involved
from topology.objects import Pod

log = logging.getLogger(__name__)

READ_EVERY_S: Final = 5.0
_MATTER: Final[tuple[FactPart, ...]] = (FactPart.GPUS, FactPart.NETWORK)
"""Parts that reach rests on: what the kubelet tells changes no bound, so nobody is told when it expires."""


class AgentAges:
    """`changed` is called when facts of some node came to count or no longer do."""

    def __init__(self, agents: HubState, state: ClusterState, events: EventSink, changed: Callable[[], None]) -> None:
        self._agents, self._state, self._events, self._changed = agents, state, events, changed
        self._reported: dict[str, dict[FactPart, Freshness]] = {}  # parts that are not fresh, as the state knows them
        self.every_s = min(READ_EVERY_S, agents.limits.stale_s / 3)

    def heard(self, node: str) -> None:
        """This agent has just reported: its facts are fresh, unless one of its sources does not answer it."""
        if (reported := self._agents.facts(node, monotonic_s())) is not None and _old(
            reported[1]
        ) != self._reported.get(node, {}):
            self._take({node: reported[1]}, wall_time_s())

    def read(self, now_s: float, wall_s: float) -> None:
        """One look at every agent; `now_s` is monotonic, `wall_s` what explanations count from."""
        found: dict[str, PartAges] = {
            node: ages for node, ages in self._agents.ages(now_s) if _old(ages) != self._reported.get(node, {})
        }
        for node in self._reported:
            # The hub forgot it after an hour: it stays expired as long as what it saw is kept.
            if self._agents.known(node) is None and not self._state.agent_known(node):
                found[node] = {}
        self._take(found, wall_s)

    def _take(self, found: Mapping[str, PartAges], wall_s: float) -> None:
        changes: dict[str, AgedParts] = {}
        expired: dict[str, tuple[AgentAge, ...]] = {}
        for node, ages in found.items():
            before, now = self._reported.get(node, {}), _old(ages)
            if now == before:
                continue
            changes[node] = {part: Aged(freshness, wall_s - ages[part].age_s) for part, freshness in now.items()}
            if now:
                self._reported[node] = now
            else:
                del self._reported[node]
            new: dict[FactPart, Aged] = {
                part: aged
                for part, aged in changes[node].items()
                if part in _MATTER and _expired(now, part) and not _expired(before, part)
            }
            if new:
                expired[node] = ages_of(node, new, wall_s)
        if expired:
            log.warning("facts of %d nodes expired and are left out: %s", len(expired), names_of(sorted(expired)))
            self._report_running(expired)
        if changes and self._state.apply_ages(changes):
            self._changed()

    def _report_running(self, expired: Mapping[str, Sequence[AgentAge]]) -> None:
        for pods in self._state.gangs().values():
            for pod in pods.values():
                if (ages := expired.get(pod.spec.node_name)) is not None:
                    self._report(pod, ages)

    def _report(self, pod: Pod, ages: Sequence[AgentAge]) -> None:
        meta, reason = pod.metadata, Reason.FACTS_STALE
        text = f"{silent_agents(ages)}. Pod left running"
        self._events.post(
            Involved("Pod", "v1", meta.namespace, meta.name, meta.uid), reason.type, reason, text, key=ages[0].node
        )

    async def run(self) -> None:
        """Looks every five seconds, or oftener where facts age faster, until cancelled."""
        while True:
            self.read(monotonic_s(), wall_time_s())
            await asyncio.sleep(self.every_s)


def _old(ages: PartAges) -> dict[FactPart, Freshness]:
    return {part: age.freshness for part, age in ages.items() if age.freshness is not Freshness.FRESH}


def _expired(reported: Mapping[FactPart, Freshness], part: FactPart) -> bool:
    return reported.get(part) is Freshness.EXPIRED
