"""EDGE: what a gang's minimum needs is written on its PodGroup once the gang runs, and not before.

Volcano's enqueue action lets a group in only if its `minResources` fit beside what is allocated and what groups in
phase Inqueue were promised. A group keeps that phase for up to two sessions after its pods were bound, and counts
twice meanwhile (plugins proportion and overcommit, v1.14.1; `ScheduledStatus` in pkg/scheduler/api/helpers.go leaves
out Binding). Gangs that fill a cluster or a queue would wait for each other and be told that there is no room. A
planned gang has its room, so its group comes without. Once it runs, the number belongs there: what is allocated
beyond `minResources` counts as elastic, and others of its queue would be let in too early.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from admission.release.pod_group import is_ours, marked_ours
from admission.release.pod_writer import PodWriter
from topology.cluster.state import ClusterState, GangKey
from topology.labels import GANG
from topology.objects import PodGroup

log = logging.getLogger(__name__)

CHECK_S: Final = 15.0
"""A group is completed at the second look that finds its gang running. Nobody waits for it."""


class MinResourcesWriter:
    """One loop over our PodGroups; `needs` says what the minimum of a gang that runs needs, as quantities by name."""

    def __init__(
        self,
        state: ClusterState,
        pod_writer: PodWriter,
        pod_groups: Mapping[str, PodGroup],
        needs: Callable[[GangKey], Mapping[str, str]],
        busy: Callable[[], bool],
    ) -> None:
        self._state, self._pod_writer, self._pod_groups = state, pod_writer, pod_groups
        self._needs, self._busy = needs, busy
        self._seen: set[str] = set()  # uids of PodGroups
        self.completed = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.read()
            except Exception:
                log.exception("PodGroups could not be completed")

    async def read(self) -> None:
        """One look; what is due while gangs are let go waits for the next."""
        running = {g.metadata.uid: g for g in self._pod_groups.values() if self._runs(g)}
        due = [group for uid, group in running.items() if uid in self._seen]
        self._seen = set(running)
        for group in due:
            if self._busy():
                return
            needs = self._needs((group.metadata.namespace, group.metadata.label(GANG)))
            self.completed += await self._pod_writer.complete_pod_group(group, needs)

    def _runs(self, group: PodGroup) -> bool:
        """Ours, without the number, and every pod of the gang has a node."""
        meta = group.metadata
        gang = meta.label(GANG)
        if not (marked_ours(group) and is_ours(meta.name, gang)) or group.spec.min_resources is not None:
            return False
        pods = self._state.gangs().get((meta.namespace, gang), {})
        return bool(pods) and all(pod.spec.node_name for pod in pods.values())
