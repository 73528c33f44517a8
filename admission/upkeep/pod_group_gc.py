"""EDGE: PodGroups of ours without pods are deleted, so that none outlives its gang and holds a place in a queue.

The garbage collector takes a PodGroup along with its owners, but an owner lives on when its gang label is changed or it
is scaled to nothing. Only groups that carry our mark are touched, only after they stood empty for a while, and the
delete names UID and version: a group that came into use again meanwhile survives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from admission.release.pod_group import marked_ours
from admission.release.pod_writer import PodWriter
from topology.clock import monotonic_s
from topology.cluster.state import ClusterState
from topology.labels import GANG, GROUP_NAME
from topology.objects import Pod, PodGroup

log = logging.getLogger(__name__)

EMPTY_S = 30.0
"""A group stands empty this long before it goes: a rollout or a restart leaves a gang without pods for seconds."""


class PodGroupCollector:
    """One loop over our PodGroups; `pods` and `pod_groups` are what the watches keep."""

    def __init__(
        self,
        state: ClusterState,
        pod_writer: PodWriter,
        pods: Mapping[str, Pod],
        pod_groups: Mapping[str, PodGroup],
    ) -> None:
        self._state, self._pod_writer, self._pods, self._pod_groups = state, pod_writer, pods, pod_groups
        self._empty_since_s: dict[str, float] = {}  # PodGroup uid
        self.retired = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EMPTY_S / 6)
            try:
                await self._read(monotonic_s())
            except Exception:
                log.exception("PodGroups could not be looked at")

    async def _read(self, now_s: float) -> None:
        empty = {g.metadata.uid: g for g in self._pod_groups.values() if self._is_empty(g)}
        self._empty_since_s = {uid: self._empty_since_s.get(uid, now_s) for uid in empty}
        due = [g for uid, g in empty.items() if now_s - self._empty_since_s[uid] >= EMPTY_S]
        if not due:
            return
        named = {(p.metadata.namespace, p.metadata.annotation(GROUP_NAME)) for p in self._pods.values()}
        for group in due:
            if (group.metadata.namespace, group.metadata.name) not in named:
                self.retired += await self._pod_writer.remove_pod_group(group)

    def _is_empty(self, group: PodGroup) -> bool:
        gang = (group.metadata.namespace, group.metadata.label(GANG))
        return marked_ours(group) and not group.status.running and not self._state.gangs().get(gang)
