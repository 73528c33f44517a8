"""EDGE: looks after pods that were let go and are not placed: takes stale nominations back, and has pods made anew.

It carries out what admission.upkeep.stuck_pod_policy decides, and says so. It looks at what was released only, every
few seconds, and never at pods of others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from admission.gangs.gang_view import GangView, view_of
from admission.release.pod_writer import PodWriter
from admission.report.wait_messages import WaitMessage, nomination_withdrawn, renewed, still_unplaced
from admission.upkeep.stuck_pod_policy import Step, StuckPodPolicy
from topology.clock import monotonic_s
from topology.cluster.snapshot import Snapshot
from topology.cluster.state import ClusterState, GangKey
from topology.labels import GATE
from topology.objects import Pod
from topology.selectors import accepts

log = logging.getLogger(__name__)

_PAUSES_PER_PATIENCE = 12
_LONGEST_PAUSE_S = 5.0


class RecoveryReporter(Protocol):
    """Who tells people."""

    def waiting(self, pod: Pod, reported: WaitMessage) -> None: ...
    def removed(self, pod: Pod, reported: WaitMessage) -> None: ...


class StuckPodRecovery:
    """One loop; `replan_after_s` 0 leaves pods alone but for stale nominations."""

    def __init__(
        self,
        state: ClusterState,
        pod_writer: PodWriter,
        reporter: RecoveryReporter,
        snapshot: Callable[[], Snapshot | None],
        replan_after_s: float,
    ) -> None:
        self._state, self._pod_writer, self._reporter, self._snapshot = state, pod_writer, reporter, snapshot
        self._unplaced = StuckPodPolicy(replan_after_s)
        self._pause_s = min(replan_after_s / _PAUSES_PER_PATIENCE or _LONGEST_PAUSE_S, _LONGEST_PAUSE_S)
        self.renewed = 0

    async def run(self) -> None:
        """Until cancelled. A look that fails (a bug) is logged, the next one comes all the same."""
        while True:
            await asyncio.sleep(self._pause_s)
            try:
                await self._read()
            except Exception:
                log.exception("released pods could not be looked at")

    async def _read(self) -> None:
        snapshot = self._snapshot()
        if snapshot is None:
            return
        views = list(self._waiting())
        self._unplaced.keep({pod.metadata.uid for view in views for pod in view.released})
        self._unplaced.calm(self._runs)
        for view in views:
            await self._check(view, snapshot)
            await asyncio.sleep(0)

    async def _check(self, view: GangView, snapshot: Snapshot) -> None:
        now, again = monotonic_s(), False
        for pod in view.released:
            step = self._unplaced.step(view.key, pod, now, fits_nomination=fits_nomination(pod, snapshot))
            waited_s = self._unplaced.waited_s(pod, now)
            if step in (Step.CLEAR, Step.REPORT) and pod.status.nominated_node_name:
                await self._pod_writer.withdraw(pod)
            if step is Step.CLEAR:
                self._reporter.waiting(pod, nomination_withdrawn(pod))
            elif step is Step.REPORT:
                self._reporter.waiting(pod, still_unplaced(pod, waited_s))
            elif step is Step.RENEW and await self._pod_writer.remove(pod):
                self._reporter.removed(pod, renewed(pod, waited_s))
                self.renewed += 1
                again = True
        if again:
            self._unplaced.renewed(view.key)

    def _waiting(self) -> Iterator[GangView]:
        for key, pods in self._state.gangs().items():
            if any(not pod.spec.node_name and not pod.has_gate(GATE) for pod in pods.values()):
                view = view_of(key, list(pods.values()))
                if view.released:
                    yield view

    def _runs(self, key: GangKey) -> bool:
        """The gang has pods on nodes and nobody on the way, or is gone: the last plan was good, or nobody's."""
        pods = self._state.gangs().get(key, {}).values()
        return not pods or (
            any(pod.spec.node_name for pod in pods) and all(pod.spec.node_name or pod.has_gate(GATE) for pod in pods)
        )


def fits_nomination(pod: Pod, snapshot: Snapshot) -> bool:
    """Whether the nominated node is known, up, accepts the pod and has not given its room to others.

    A nominated pod is counted on its node, so a node that promised too much has less than nothing left.
    """
    table = snapshot.table
    node = table.index.get(pod.status.nominated_node_name)
    if node is None or not accepts(pod.spec, table.nodes[node]):
        return False
    return bool(np.all(snapshot.free[node] >= 0))
