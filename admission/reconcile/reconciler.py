"""EDGE: batch admission. Reconciles gangs: has whole ones planned and released, or says why not.

One loop on the event loop reconciles one gang at a time, so plans never race each other; the writes of a planned gang
run beside it. A gang is reconciled when all who are to come are here or nobody came for the quiet time, and again when
its pods change or when capacity may have appeared (`ClusterState.capacity_generation`); one that runs, when a pod is
new to it or its PodGroup is gone. There is no state that a restart could lose: what was planned stands on the pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from typing import Any, Final

from admission.fairness.fairness import Fairness, Older, priority_of
from admission.gangs.gang_view import GangView, complete, lost_partners, view_of
from admission.gangs.template_revision import TemplateOf
from admission.recognition.gang_identity import podgroup_name
from admission.reconcile.gang_planner import GangPlanner
from admission.reconcile.gang_state import GangState, GangStatus, WaitReason
from admission.reconcile.release_batching import ReleaseBatch
from admission.reconcile.release_workflow import ReleaseWorkflow
from admission.reconcile.retry_rounds import RetryRounds
from admission.reconcile.timing import ReconcileSettings
from admission.report.wait_messages import for_group, for_lost
from topology.clock import monotonic_s
from topology.cluster.state import ClusterState, GangKey
from topology.labels import GANG, GATE
from topology.objects import Pod, PodGroup

log = logging.getLogger(__name__)

_CROWDED_S: Final = 1.0
"""So long after the last gang was released others may follow: one of Volcano's sessions."""

_STEP_S: Final = 0.002
"""To reconcile a gang that runs takes 0.1 ms, and at a start thousands are due: many share one turn of the loop."""


class GangReconciler:
    """The controller's loop over gangs."""

    def __init__(
        self,
        state: ClusterState,
        planner: GangPlanner,
        workflow: ReleaseWorkflow,
        fairness: Fairness,
        *,
        pod_groups: Mapping[str, PodGroup],
        replicas: Callable[[], Mapping[str, int]],
        template_of: TemplateOf,
        settings: ReconcileSettings | None = None,
    ) -> None:
        self._state, self._planner, self._workflow, self._fairness = state, planner, workflow, fairness
        self._pod_groups, self._replicas, self._template_of = pod_groups, replicas, template_of
        self._settings = settings or ReconcileSettings()
        self._gangs: dict[GangKey, GangState] = {}
        self._queue: set[GangKey] = set()  # those that may be due some time; a gang that runs is not
        self._wakeup = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rounds = RetryRounds(self._settings.round_s)
        self._batch = ReleaseBatch(self._settings.batch_s, self._settings.settle_s)
        self._ended_s = -_CROWDED_S  # when the last writes of a gang ended

    # --- what the watches see -------------------------------------------------------------------

    def enqueue(self, keys: Iterable[GangKey]) -> None:
        """These gangs' pods changed."""
        now = monotonic_s()
        for key in keys:
            pods = self._state.gangs().get(key)
            gang = self._gangs.get(key)
            if not pods:
                self._forget(key)
                continue
            if gang is None:
                gang = self._gangs[key] = GangState(now)
            if gang.waiting_gang is not None and pods.keys() != gang.pods:
                self._enqueue_behind(key)  # it may rank behind them now
            arrived = gang.observe(pods, now)
            if arrived:
                self._batch.came(now)
            if gang.status is GangStatus.RUNNING and not arrived:
                continue
            gang.enqueue()
            self._queue.add(key)
            if not gang.writing:
                self._wakeup.set()

    def _forget(self, key: GangKey) -> None:
        """The gang has no pods any more."""
        if (gang := self._gangs.pop(key, None)) is not None:
            gang.gone()
            self._planner.give_back(key, gang)
            self._fairness.forget(key)
            self._enqueue_behind(key)
            self._wakeup.set()

    def capacity_appeared(self) -> None:
        """Something in the cluster changed; held gangs are planned again if capacity may have appeared."""
        if self._next_round_s() is not None or self._fairness.claims.next_s() is not None:
            self._wakeup.set()

    def _next_round_s(self) -> float | None:
        return self._rounds.next_s(self._state.capacity_generation)

    def owners_changed(self, uids: Set[str]) -> None:
        """These owners want another number of pods or another template; gangs that wait for theirs are reconciled."""
        for key in self._queue & self._gangs.keys():
            owners = (pod.metadata.controller for pod in self._state.gangs().get(key, {}).values())
            if any(owner is not None and owner.uid in uids for owner in owners):
                self._gangs[key].enqueue()
        self._wakeup.set()

    def queues_changed(self) -> None:
        """A queue came, changed or went: gangs that wait for one are reconciled."""
        for gang in self._gangs.values():
            if gang.awaits_queue:
                gang.enqueue()
        self._wakeup.set()

    def pod_group_changed(self, group: PodGroup, *, came: bool = False, gone: bool = False) -> None:
        """A PodGroup came, changed or went: ours may have to be made again, somebody else's may be awaited."""
        meta = group.metadata
        self._fairness.commitments.group_changed(f"{meta.namespace}/{meta.name}")
        mine = (meta.namespace, meta.label(GANG))
        if (gang := self._gangs.get(mine)) is not None and gone:
            gang.group_lost()
        due = [mine] if gang is not None and (gone or gang.status is not GangStatus.RUNNING) else []
        if came or gone:
            due += [k for k, g in self._gangs.items() if k[0] == meta.namespace and _awaits(g, meta.name)]
        for key in due:
            self._gangs[key].enqueue()
            self._queue.add(key)
            self._wakeup.set()

    @property
    def plans(self) -> int:
        """Gangs planned so far."""
        return self._planner.plans

    @property
    def busy(self) -> bool:
        """Gangs are being released right now."""
        return bool(self._tasks)

    @property
    def crowded(self) -> bool:
        """Gangs are being released, or were a moment ago and more may follow: what can wait should."""
        return self.busy or monotonic_s() - self._ended_s < _CROWDED_S

    def held_gangs(self) -> int:
        """Gangs that have been planned and have somebody without a place."""
        gangs = (self._gangs.get(key) for key in self._queue)
        return sum(1 for gang in gangs if gang is not None and gang.generation is not None)

    # --- the loop ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. A gang that cannot be reconciled (a bug) is logged and costs only itself."""
        self._take_over()
        try:
            while True:
                timeout = self._step()
                self._wakeup.clear()
                # Let watches and the extender run between two steps; planning holds the loop for milliseconds.
                await asyncio.sleep(0)
                if timeout == 0.0:
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):  # not wait_for, which before 3.12 can lose a cancellation
                        await self._wakeup.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take_over(self) -> None:
        """Before anything is planned: what a predecessor reserved for gangs that it released is written nowhere."""
        now, gangs = monotonic_s(), self._state.gangs()
        ranked = [key for key in sorted(self._gangs, key=self._ranked) if key in gangs]
        keep = [key for key in ranked if self._planner.may_keep(gangs[key].values())]
        claim = [key for key in ranked if any(_awaits_capacity(pod) for pod in gangs[key].values())]
        steps = [(key, self._planner.keep_again) for key in keep] + [(key, self._planner.claim_again) for key in claim]
        for key, take in steps:
            try:
                view = view_of(key, self._state.gang_pods(*key), self._template_of)
                if view.started:
                    take(self._gangs[key], view, now)
            except Exception:
                log.exception("gang %s/%s could not be taken over", *key)

    def _step(self) -> float | None:
        """Reconcile the first gangs that are due, one plan long. 0.0 if others may be due too, else seconds to the next
        one is."""
        now = monotonic_s()
        if (wait_s := self._batch.wait_s(now)) > 0.0:
            return wait_s
        if self._fairness.claims.settle(self._state.gangs(), now):
            self._state.capacity_freed()
        self._rounds.begin(self._state.capacity_generation, now)
        due = [key for key in self._queue if (gang := self._gangs.get(key)) is not None and self._is_due(gang, now)]
        if not due:
            return self._rest(now)
        for key in sorted(due, key=self._ranked):
            self._reconcile_due(key, now)
            if monotonic_s() - now >= _STEP_S:
                break
        self._rounds.spent(monotonic_s() - now)
        return 0.0

    def _rest(self, now: float) -> float | None:
        """Nobody is due. Seconds until somebody is, None if only a change can bring that about."""
        self._batch.close(now)
        self._rounds.end(now)
        self._queue = {key for key in self._queue if (g := self._gangs.get(key)) is not None and not g.at_rest}
        queued = [self._gangs[key] for key in self._queue]
        times = [at for gang in queued if not gang.writing and (at := gang.next_s) is not None]
        if (round_s := self._next_round_s()) is not None and self.held_gangs():
            times.append(round_s)
        if (claim_s := self._fairness.claims.next_s()) is not None:
            times.append(claim_s)
        return max(0.001, min(times) - now) if times else None

    def _is_due(self, gang: GangState, now: float) -> bool:
        if gang.writing:
            return False
        if gang.enqueued or ((at := gang.next_s) is not None and at <= now):
            return True
        return self._rounds.covers(gang.generation)

    def _ranked(self, key: GangKey) -> tuple[int, str, GangKey]:
        """Higher priority first, then the gang whose first pod is oldest, then by name."""
        gang = self._gangs[key]
        if (rank := gang.rank) is None:
            pods = self._state.gangs()[key].values()
            rank = -priority_of(tuple(pods)), min((p.metadata.creation_timestamp or "" for p in pods), default="")
            gang.ranked(rank)
        return *rank, key

    def _reconcile_due(self, key: GangKey, now: float) -> None:
        """One gang that was due at `now`, which is one moment for all who are: else the last in rank, reconciled later,
        could be due before the first. A bug costs this gang only."""
        gang = self._gangs.get(key)
        if gang is None or not self._is_due(gang, now):
            return  # a reconcile before it changed that
        waited = gang.waiting_gang is not None
        try:
            self.reconcile(key, now)
        except Exception:
            log.exception("gang %s/%s could not be reconciled", *key)
            for uid in gang.abandon():
                self._state.unassume(uid)
            gang.dequeue()
            gang.back_off(now, self._settings.retry_s, self._settings.retry_cap_s)
        if waited and gang.waiting_gang is None:
            self._enqueue_behind(key)

    def reconcile(self, key: GangKey, now: float) -> None:
        """Bring one gang as far as it can come now."""
        gang = self._gangs[key]
        if gang.reservation_over(now):
            log.info("gang %s/%s: the capacity reserved for pods to come is given back", *key)
            self._planner.give_back(key, gang)
        due_s = gang.dequeue()
        gang.check_group(f"{key[0]}/{podgroup_name(key[1])}" in self._pod_groups, now)
        pods = self._state.gang_pods(*key)
        none_gated = not any(pod.has_gate(GATE) for pod in pods)
        if none_gated:
            self._end_reservation(key, gang, pods)
            gang.confirm(frozenset())
            if gang.group_made:
                gang.all_released()
                return
        view = view_of(key, pods, self._template_of)
        if not gang.confirm({p.metadata.uid for p in view.held}):
            self._retry_unconfirmed(key, gang, due_s, now)
        elif not view.members:
            self._nobody_to_plan(gang, view, none_gated)
        elif not (self._arriving(gang, view, now) or self._lacks_others(gang, view)):
            work = self._planner.plan(gang, view, now, lambda: self._ahead(key))
            if work is None:
                self._repair(key, gang, view)
            else:
                self._enqueue_behind(key)
                self._start(key, gang, work)

    def _end_reservation(self, key: GangKey, gang: GangState, pods: Sequence[Pod]) -> None:
        """Capacity is reserved for nobody once no more pods are to come."""
        if gang.reserved and not self._workflow.more_later(pods):
            log.info("gang %s/%s: nobody is to come any more for whom capacity was reserved", *key)
            self._planner.give_back(key, gang)

    def _retry_unconfirmed(self, key: GangKey, gang: GangState, due_s: float | None, now: float) -> None:
        """Our own writes are on their way back to us, and the watch enqueues the gang then; writes of which nobody
        can say how they ended are done again."""
        if gang.unconfirmed and due_s is not None and due_s > now:
            gang.requeue_at(due_s)
        elif gang.unconfirmed:
            gang.retry_release()
            self._start(key, gang, self._workflow.settle(gang))

    def _nobody_to_plan(self, gang: GangState, view: GangView, none_gated: bool) -> None:
        gang.plan_left_out_nobody()
        gang.wait_for(WaitReason.NOBODY_TO_PLAN)
        self._repair(view.key, gang, view)
        if none_gated and not gang.writing:
            gang.all_released()

    def _arriving(self, gang: GangState, view: GangView, now: float) -> bool:
        """Others of it are to come, and came a moment ago."""
        if complete(view, self._replicas()):
            return False
        quiet_at = gang.last_arrival_s + self._settings.quiet_s
        if now >= quiet_at:
            return False
        gang.wait_for(WaitReason.ARRIVALS)
        gang.requeue_at(quiet_at)
        return True

    def _lacks_others(self, gang: GangState, view: GangView) -> bool:
        """What it needs of others is not there: the PodGroup that it names, or the nodes of its partners."""
        if missing := self._workflow.missing_group(view):
            gang.plan_left_out_nobody()
            gang.wait_for(WaitReason.POD_GROUP, pod_group=missing)
            self._planner.report(view.held, for_group(missing))
        elif lost := lost_partners(view, self._state.table()):
            gang.plan_left_out(self._state.capacity_generation, None)  # a node may come back, or a pod go
            gang.wait_for(WaitReason.LOST_PARTNERS)
            self._planner.report(view.held, for_lost(lost))
        else:
            return False
        self._repair(view.key, gang, view)
        return True

    def _repair(self, key: GangKey, gang: GangState, view: GangView) -> None:
        """Make a PodGroup that released pods lack. Whoever can join them goes first, and makes it: while a gang's
        writes are under way others are planned, and what it waits for must not go to them."""
        if view.started and self._workflow.needs_group(view, gang):
            gang.begin_grouping()
            self._start(key, gang, self._workflow.make_group(view, gang, None))

    def _ahead(self, key: GangKey) -> Older:
        """Gangs below their minimum that wait and rank before this one, first in rank first."""
        mine = self._ranked(key)
        waiting = {
            other: waiting_gang
            for other in self._queue
            if other != key
            and (g := self._gangs.get(other)) is not None
            and (waiting_gang := g.waiting_gang) is not None
        }
        return {other: waiting[other] for other in sorted(waiting, key=self._ranked) if self._ranked(other) < mine}

    def _enqueue_behind(self, key: GangKey) -> None:
        """Whoever waited behind this gang is planned again."""
        for gang in self._gangs.values():
            if gang.behind == key:
                gang.enqueue()

    # --- beside the loop -----------------------------------------------------------------------

    def _start(self, key: GangKey, gang: GangState, work: Coroutine[Any, Any, bool]) -> None:
        async def guarded() -> None:
            done = False
            try:
                done = await work
            except Exception:
                log.exception("gang %s/%s could not be released", *key)
                for uid in gang.releasing:
                    self._state.unassume(uid)
                gang.not_released(gang.releasing)
            finally:
                self._ended_s = monotonic_s()
                self._batch.done(task)
                self._queue.add(key)
                if gang.status is not GangStatus.GONE:
                    gang.writes_ended(done=done)
                    if not done:
                        gang.back_off(self._ended_s, self._settings.retry_s, self._settings.retry_cap_s)
                self._wakeup.set()

        task = asyncio.create_task(guarded(), name=f"gang {key[0]}/{key[1]}")
        self._tasks.add(task)
        self._batch.went(task)
        task.add_done_callback(self._tasks.discard)


def _awaits(gang: GangState, pod_group: str) -> bool:
    """It waits for this PodGroup of somebody else."""
    return gang.wait is not None and gang.wait.pod_group == pod_group


def _awaits_capacity(pod: Pod) -> bool:
    """Released without a nomination."""
    return not (pod.spec.node_name or pod.status.nominated_node_name or pod.has_gate(GATE))
