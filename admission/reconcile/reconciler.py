"""EDGE: batch admission. Watches gangs, asks the planner for whole ones, lets them go, or says why not.

One loop on the event loop looks at one gang at a time, so plans never race each other; the writes of a planned gang
run beside it. A gang is looked at when all who are to come are here or nobody came for the quiet time, and again when
its pods change or when capacity may have appeared (`ClusterState.capacity_generation`); one that runs, when a pod is
new to it or its PodGroup is gone. There is no state that a restart could lose: what was planned stands on the pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Set
from typing import Any, Final

from admission.fairness.fairness import Fairness, Older, priority_of
from admission.gangs.gang_view import GangView, complete, lost_partners, view_of
from admission.gangs.template_revision import TemplateOf
from admission.recognition.gang_identity import podgroup_name
from admission.reconcile.gang_planner import Turn
from admission.reconcile.gang_state import ReconcileSettings, Track
from admission.reconcile.release_batching import ReleaseBatch
from admission.reconcile.release_workflow import ReleaseWorkflow
from admission.reconcile.retry_rounds import RetryRounds
from admission.release.pod_group import group_names, is_ours
from admission.report.wait_messages import for_group, for_lost
from topology.clock import monotonic_s
from topology.cluster.state import ClusterState, GangKey
from topology.labels import GANG, GATE
from topology.objects import Pod, PodGroup

log = logging.getLogger(__name__)

_CROWDED_S: Final = 1.0
"""So long after the last gang was let go others may follow: one of Volcano's sessions."""

_STEP_S: Final = 0.002
"""A look at a gang that runs takes 0.1 ms, and at a start thousands are due: many share one turn of the loop."""


class GangReconciler:
    """The controller's loop over gangs."""

    def __init__(
        self,
        state: ClusterState,
        turn: Turn,
        workflow: ReleaseWorkflow,
        fairness: Fairness,
        *,
        pod_groups: Mapping[str, PodGroup],
        replicas: Callable[[], Mapping[str, int]],
        template_of: TemplateOf,
        settings: ReconcileSettings | None = None,
    ) -> None:
        self._state, self._turn, self._workflow, self._fairness = state, turn, workflow, fairness
        self._pod_groups, self._replicas, self._template_of = pod_groups, replicas, template_of
        self._settings = settings or ReconcileSettings()
        self._tracks: dict[GangKey, Track] = {}
        self._queue: set[GangKey] = set()  # those that may be due some time; a gang that runs is not
        self._wakeup = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rounds = RetryRounds(self._settings.round_s)
        self._batch = ReleaseBatch(self._settings.batch_s, self._settings.settle_s)
        self._ended_s = -_CROWDED_S  # when the last writes of a gang ended

    # --- told by the watches -------------------------------------------------------------------

    def enqueue(self, keys: Iterable[GangKey]) -> None:
        """These gangs' pods changed."""
        now = monotonic_s()
        for key in keys:
            pods = self._state.gangs().get(key)
            track = self._tracks.get(key)
            if not pods:
                if (gone := self._tracks.pop(key, None)) is not None:
                    self._turn.give_back(key, gone)
                    self._fairness.forget(key)
                    self._free_those_behind(key)
                    self._wakeup.set()
                continue
            if track is None:
                track = self._tracks[key] = Track(last_arrival_s=now)
            arrived = not pods.keys() <= track.known
            if arrived:
                track.last_arrival_s = now
                self._batch.came(now)
            if track.waiting and pods.keys() != track.known:
                self._free_those_behind(key)  # it may rank behind them now
            track.known, track.rank = set(pods), None
            track.changed.set()
            if track.runs and not arrived:
                continue
            track.dirty, track.runs = True, False
            self._queue.add(key)
            if not track.working:
                self._wakeup.set()

    def capacity_appeared(self) -> None:
        """Something in the cluster changed; held gangs are asked again if room may have appeared."""
        if (
            self._rounds.next_s(self._state.capacity_generation) is not None
            or self._fairness.claims.next_s() is not None
        ):
            self._wakeup.set()

    def owners_changed(self, uids: Set[str]) -> None:
        """These owners want another number of pods or another template; gangs that wait for theirs look again."""
        for key in self._queue & self._tracks.keys():
            owners = (pod.metadata.controller for pod in self._state.gangs().get(key, {}).values())
            if any(owner is not None and owner.uid in uids for owner in owners):
                self._tracks[key].dirty = True
        self._wakeup.set()

    def queues_changed(self) -> None:
        """A queue came, changed or went: gangs that wait for one look again."""
        for track in self._tracks.values():
            track.dirty |= track.awaits_queue
        self._wakeup.set()

    def pod_group_changed(self, group: PodGroup, *, came: bool = False, gone: bool = False) -> None:
        """A PodGroup came, changed or went: ours may have to be made again, somebody else's may be awaited."""
        meta = group.metadata
        self._fairness.commitments.group_changed(f"{meta.namespace}/{meta.name}")
        mine = (meta.namespace, meta.label(GANG))
        if (track := self._tracks.get(mine)) is not None and gone:
            track.group_made = track.runs = False
        reported = [mine] if track is not None and not track.runs else []
        if came or gone:
            reported += [k for k, t in self._tracks.items() if t.awaits_group == meta.name and k[0] == meta.namespace]
        for key in reported:
            self._tracks[key].dirty = True
            self._queue.add(key)
            self._wakeup.set()

    @property
    def plans(self) -> int:
        """Gangs planned so far."""
        return self._turn.plans

    @property
    def busy(self) -> bool:
        """Gangs are being let go right now."""
        return bool(self._tasks)

    @property
    def crowded(self) -> bool:
        """Gangs are being let go, or were a moment ago and more may follow: what can wait should."""
        return self.busy or monotonic_s() - self._ended_s < _CROWDED_S

    def held_gangs(self) -> int:
        """Gangs that have been asked for and have somebody without a place."""
        tracks = (self._tracks.get(key) for key in self._queue)
        return sum(1 for track in tracks if track is not None and track.waiting_growth is not None)

    # --- the loop ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. A gang that cannot be looked at (a bug) is logged and costs only itself."""
        self._take_over()
        try:
            while True:
                timeout = self._step()
                self._wakeup.clear()
                # Let watches and the extender run between two looks; planning holds the loop for milliseconds.
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
        """Before anything is planned: what a predecessor kept or booked for gangs that went stands nowhere."""
        now, gangs = monotonic_s(), self._state.gangs()
        ranked = [key for key in sorted(self._tracks, key=self._rank) if key in gangs]
        keep = [key for key in ranked if self._turn.may_keep(gangs[key].values())]
        claim = [key for key in ranked if any(_awaits_capacity(pod) for pod in gangs[key].values())]
        for key, take in (*((k, self._turn.keep_again) for k in keep), *((k, self._turn.claim_again) for k in claim)):
            try:
                view = view_of(key, self._state.gang_pods(*key), self._template_of)
                if view.started:
                    take(self._tracks[key], view, now)
            except Exception:
                log.exception("gang %s/%s could not be taken over", *key)

    def _step(self) -> float | None:
        """Look at the first gangs that are due, one plan long. 0.0 if others may be due too, else seconds to the next
        one is."""
        now = monotonic_s()
        if (wait_s := self._batch.wait_s(now)) > 0.0:
            return wait_s
        if self._fairness.claims.settle(self._state.gangs(), now):
            self._state.capacity_freed()
        self._rounds.begin(self._state.capacity_generation, now)
        due = [key for key in self._queue if (track := self._tracks.get(key)) is not None and self._is_due(track, now)]
        if not due:
            self._batch.close(now)
            self._rounds.end(now)
            self._queue = {key for key in self._queue if (t := self._tracks.get(key)) is not None and not t.at_rest}
            queued = [self._tracks[key] for key in self._queue]
            times = [at for t in queued if not t.working and (at := t.next_s) is not None]
            if (round_s := self._rounds.next_s(self._state.capacity_generation)) is not None and self.held_gangs():
                times.append(round_s)
            if (claim_s := self._fairness.claims.next_s()) is not None:
                times.append(claim_s)
            return max(0.001, min(times) - now) if times else None
        for key in sorted(due, key=self._rank):
            track = self._tracks.get(key)
            # One moment for all who are due: else the last in rank, looked at later, could be due before the first.
            if track is None or not self._is_due(track, now):
                continue  # a look before it changed that
            waited = track.waiting
            try:
                self._read(key, now)
            except Exception:
                log.exception("gang %s/%s could not be looked at", *key)
                track.dirty = False
                self._later(track, now)
            if waited and not track.waiting:
                self._free_those_behind(key)
            if monotonic_s() - now >= _STEP_S:
                break
        self._rounds.spent(monotonic_s() - now)
        return 0.0

    def _is_due(self, track: Track, now: float) -> bool:
        if track.working:
            return False
        if track.dirty or ((at := track.next_s) is not None and at <= now):
            return True
        return self._rounds.covers(track.waiting_growth)

    def _rank(self, key: GangKey) -> tuple[int, str, GangKey]:
        """Higher priority first, then the gang whose first pod is oldest, then by name."""
        track = self._tracks[key]
        if track.rank is None:
            pods = self._state.gangs()[key].values()
            oldest = min((p.metadata.creation_timestamp or "" for p in pods), default="")
            track.rank = -priority_of(tuple(pods)), oldest
        return *track.rank, key

    def _later(self, track: Track, now: float) -> None:
        track.tries += 1
        track.due_s = now + min(self._settings.retry_s * 2 ** (track.tries - 1), self._settings.retry_cap_s)

    def _read(self, key: GangKey, now: float) -> None:
        track = self._tracks[key]
        retry_s = track.due_s
        if track.reserved_until_s is not None and now >= track.reserved_until_s:
            log.info("gang %s/%s: the room kept for pods to come is given back", *key)
            self._turn.give_back(key, track)
        track.dirty, track.due_s, track.behind = False, None, None
        self._check_group(key, track, now)
        pods = self._state.gang_pods(*key)
        none_held = not any(pod.has_gate(GATE) for pod in pods)
        if track.reserved and none_held and not self._workflow.more_later(pods):
            log.info("gang %s/%s: nobody is to come any more for whom room was kept", *key)
            self._turn.give_back(key, track)
        if none_held:
            track.releasing, track.unconfirmed = set(), []
        if track.group_made and none_held:
            track.waiting_growth = None  # all of it was let go
            track.runs = track.at_rest
            return
        view = view_of(key, pods, self._template_of)
        track.releasing &= {p.metadata.uid for p in view.held}
        if track.releasing:
            track.unconfirmed = [
                release for release in track.unconfirmed if release.pod.metadata.uid in track.releasing
            ]
            if track.unconfirmed and retry_s is not None and retry_s > now:
                track.due_s = retry_s
            elif track.unconfirmed:
                self._start(key, track, self._workflow.settle(track))
            return  # our own writes are on their way back to us; the watch will wake us
        if not view.members:
            track.waiting_growth = None
            self._repair(key, track, view)
            track.runs = none_held and track.at_rest
            return
        if not complete(view, self._replicas()):
            quiet_at = track.last_arrival_s + self._settings.quiet_s
            if now < quiet_at:
                track.due_s = quiet_at
                return
        missing = self._missing_group(view)
        track.awaits_group = missing or ""
        if missing:
            track.waiting_growth = None
            self._turn.report(view.held, for_group(missing))
            self._repair(key, track, view)
            return
        if lost := lost_partners(view, self._state.table()):
            track.waiting_gang = None
            self._turn.wait(track, view.held, for_lost(lost))  # a node that comes back, or a pod that goes, is growth
            self._repair(key, track, view)
            return
        work = self._turn.take(track, view, now, lambda: self._older(key))
        if work is not None:
            self._free_those_behind(key)
            self._start(key, track, work)
        else:
            self._repair(key, track, view)

    def _repair(self, key: GangKey, track: Track, view: GangView) -> None:
        """Make a PodGroup that released pods lack. Whoever can join them goes first, and makes it: while a gang's
        writes are under way others are planned, and what it waits for must not go to them."""
        if view.started and self._needs_group(view, track):
            self._start(key, track, self._workflow.make_group(view, track, None))

    def _older(self, key: GangKey) -> Older:
        """Gangs below their minimum that wait and rank before this one, first in rank first."""
        mine = self._rank(key)
        waiting = {
            other: t.waiting_gang
            for other in self._queue
            if other != key and (t := self._tracks.get(other)) is not None and t.waiting and t.waiting_gang is not None
        }
        return {other: waiting[other] for other in sorted(waiting, key=self._rank) if self._rank(other) < mine}

    def _free_those_behind(self, key: GangKey) -> None:
        """Whoever waited behind this gang is asked again."""
        for track in self._tracks.values():
            if track.behind == key:
                track.behind, track.dirty = None, True

    # --- beside the loop -----------------------------------------------------------------------

    def _start(self, key: GangKey, track: Track, work: Coroutine[Any, Any, bool]) -> None:
        track.working = True

        async def guarded() -> None:
            done = False
            try:
                done = await work
            except Exception:
                log.exception("gang %s/%s could not be let go", *key)
                for uid in track.releasing:
                    self._state.unassume(uid)
                track.releasing, track.unconfirmed = set(), []
            finally:
                track.working, self._ended_s = False, monotonic_s()
                self._batch.done(task)
                self._queue.add(key)
                if done:
                    track.tries, track.dirty = 0, True
                else:
                    self._later(track, monotonic_s())
                self._wakeup.set()

        task = asyncio.create_task(guarded(), name=f"gang {key[0]}/{key[1]}")
        self._tasks.add(task)
        self._batch.went(task)
        task.add_done_callback(self._tasks.discard)

    def _check_group(self, key: GangKey, track: Track, now: float) -> None:
        """A PodGroup that we made and that went while its watch was away was never seen, so nobody says it is gone."""
        if track.group_check_s is None:
            return
        shown = f"{key[0]}/{podgroup_name(key[1])}" in self._pod_groups
        if shown or now >= track.group_check_s:
            track.group_made, track.group_check_s = shown, None

    def _needs_group(self, view: GangView, track: Track) -> bool:
        """Released pods stand without a PodGroup of ours (a predecessor died, or somebody deleted it)."""
        names = [name for name in group_names(view) if is_ours(name, view.key[1])]
        return not track.group_made and any(f"{view.key[0]}/{name}" not in self._pod_groups for name in names)

    def _missing_group(self, view: GangView) -> str | None:
        """A PodGroup of somebody else that the gang's pods name and that does not exist yet."""
        for name in sorted(group_names(view)):
            if not is_ours(name, view.key[1]) and f"{view.key[0]}/{name}" not in self._pod_groups:
                return name
        return None


def _awaits_capacity(pod: Pod) -> bool:
    """Let go, and nobody says where to."""
    return not (pod.spec.node_name or pod.status.nominated_node_name or pod.has_gate(GATE))
