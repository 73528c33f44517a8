"""EDGE: batch admission. Watches gangs, asks the planner for whole ones, lets them go, or says why not.

One loop on the event loop looks at one gang at a time, so plans never race each other; the writes of a planned gang
run beside it. A gang is looked at when all who are to come are here or nobody came for the quiet time, and again when
its pods change or when room may have appeared (`ClusterState.growth`). There is no state that a restart could lose:
what was planned stands on the pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol

from admission.gang import podgroup_name
from admission.gang_request import GangView, complete, lost_partners, request_of, view_of
from admission.gang_track import BatchSettings, Track
from admission.let_go import Gatekeeper, Letting
from admission.pod_group import TopOwner, differs, group_names, is_ours, wanted_pod_group
from admission.sweep import Sweep
from scheduler.decision import Outcome, Plan
from scheduler.plan import plan
from scheduler.policy import Policy
from topology.clock import monotonic_s
from topology.cluster_state import ClusterState, GangKey
from topology.labels import GANG, GATE, PHASE, PHASES
from topology.objects import Pod, PodGroup

log = logging.getLogger(__name__)


class Voice(Protocol):
    """Who tells people. None of it may fail or block."""

    def is_news(self, view: GangView, plan: Plan) -> bool: ...
    def held(self, view: GangView, plan: Plan) -> None: ...
    def left_out(self, view: GangView, plan: Plan) -> None: ...
    def waiting_for_group(self, view: GangView, group: str) -> None: ...
    def waiting_for_lost(self, view: GangView, lost: Sequence[Pod]) -> None: ...
    def annotations(self, plan: Plan, uid: str) -> dict[str, str]: ...
    def group_annotations(self, plan: Plan | None) -> dict[str, str]: ...
    def planned(self, view: GangView, plan: Plan) -> None: ...


class BatchAdmission:
    """The controller's loop over gangs."""

    def __init__(
        self,
        state: ClusterState,
        gatekeeper: Gatekeeper,
        voice: Voice,
        *,
        pod_groups: Mapping[str, PodGroup],
        replicas: Callable[[], Mapping[str, int]],
        top_owner: TopOwner,
        superseded: Callable[[Pod], bool],
        facts_age_s: Callable[[], float],
        wall_time_s: Callable[[], float],
        policy: Policy | None = None,
        settings: BatchSettings | None = None,
    ) -> None:
        self._state, self._gatekeeper, self._voice = state, gatekeeper, voice
        self._pod_groups, self._replicas, self._top_owner = pod_groups, replicas, top_owner
        self._superseded = superseded
        self._facts_age_s, self._wall_time_s = facts_age_s, wall_time_s
        self._policy, self._settings = policy or Policy(), settings or BatchSettings()
        self._tracks: dict[GangKey, Track] = {}
        self._lively: set[GangKey] = set()  # those that may be due some time; a gang that runs is not
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep = Sweep(self._settings.sweep_s)
        self.plans = 0

    # --- told by the watches -------------------------------------------------------------------

    def touched(self, keys: Iterable[GangKey]) -> None:
        """These gangs' pods changed."""
        now = monotonic_s()
        for key in keys:
            pods = self._state.gangs().get(key)
            track = self._tracks.get(key)
            if not pods:
                self._tracks.pop(key, None)
                continue
            if track is None:
                track = self._tracks[key] = Track(last_arrival_s=now)
            if not pods.keys() <= track.known:
                track.last_arrival_s = now
            track.known = set(pods)
            track.dirty = True
            track.changed.set()
            self._lively.add(key)
        self._wake.set()

    def room_appeared(self) -> None:
        """Something in the cluster changed; held gangs are asked again if room may have appeared."""
        self._wake.set()

    def owners_changed(self, uids: Set[str]) -> None:
        """These owners want another number of pods or another template; gangs that wait for theirs look again."""
        for key in self._lively & self._tracks.keys():
            owners = (pod.metadata.controller for pod in self._state.gangs().get(key, {}).values())
            if any(owner is not None and owner.uid in uids for owner in owners):
                self._tracks[key].dirty = True
        self._wake.set()

    def pod_group_changed(self, group: PodGroup, gone: bool) -> None:
        """A PodGroup came, changed or went: ours may have to be made again, somebody else's may be awaited."""
        meta = group.metadata
        mine = (meta.namespace, meta.label(GANG))
        if (track := self._tracks.get(mine)) is not None and gone:
            track.group_made = False
        awaiting = [key for key, t in self._tracks.items() if t.awaits_group == meta.name and key[0] == meta.namespace]
        for key in {mine, *awaiting} & self._tracks.keys():
            self._tracks[key].dirty = True
            self._lively.add(key)
        self._wake.set()

    @property
    def busy(self) -> bool:
        """Gangs are being let go right now: what can wait should."""
        return bool(self._tasks)

    def held_gangs(self) -> int:
        """Gangs that have been asked for and have somebody without a place."""
        tracks = (self._tracks.get(key) for key in self._lively)
        return sum(1 for track in tracks if track is not None and track.waiting_growth is not None)

    # --- the loop ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. A gang that cannot be looked at (a bug) is logged and costs only itself."""
        try:
            while True:
                timeout = self._step()
                self._wake.clear()
                # Let watches and the extender run between two looks; planning holds the loop for milliseconds.
                await asyncio.sleep(0)
                if timeout == 0.0:
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):  # not wait_for, which before 3.12 can lose a cancellation
                        await self._wake.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _step(self) -> float | None:
        """Look at the first gang that is due. 0.0 if others may be due too, else seconds until the next one is."""
        now = monotonic_s()
        self._sweep.begin(self._state.growth, now)
        due = [key for key in self._lively if (track := self._tracks.get(key)) is not None and self._is_due(track, now)]
        if not due:
            self._sweep.end(now)
            self._lively = {key for key in self._lively if (t := self._tracks.get(key)) is not None and not t.at_rest}
            lively = [self._tracks[key] for key in self._lively]
            times = [at for t in lively if not t.working and (at := t.next_s) is not None]
            if (sweep_s := self._sweep.next_s(self._state.growth)) is not None and self.held_gangs():
                times.append(sweep_s)
            return max(0.001, min(times) - now) if times else None
        key = min(due, key=self._rank)
        try:
            self._look(key, now)
        except Exception:
            log.exception("gang %s/%s could not be looked at", *key)
            self._tracks[key].dirty = False
            self._later(self._tracks[key], now)
        self._sweep.spent(monotonic_s() - now)
        return 0.0

    def _is_due(self, track: Track, now: float) -> bool:
        if track.working:
            return False
        if track.dirty or ((at := track.next_s) is not None and at <= now):
            return True
        return self._sweep.covers(track.waiting_growth)

    def _rank(self, key: GangKey) -> tuple[int, str, GangKey]:
        """Higher priority first, then the gang whose first pod is oldest, then by name."""
        pods = self._state.gangs()[key].values()
        priority = max((p.spec.priority or 0 for p in pods), default=0)
        oldest = min((p.metadata.creation_timestamp or "" for p in pods), default="")
        return -priority, oldest, key

    def _later(self, track: Track, now: float) -> None:
        track.tries += 1
        track.due_s = now + min(self._settings.retry_s * 2 ** (track.tries - 1), self._settings.retry_cap_s)

    def _look(self, key: GangKey, now: float) -> None:
        track = self._tracks[key]
        retry_s = track.due_s
        track.dirty, track.due_s = False, None
        self._check_group(key, track, now)
        pods = self._state.gang_pods(*key)
        if track.group_made and not track.going and not any(pod.has_gate(GATE) for pod in pods):
            track.waiting_growth = None  # all of it was let go: by far the most common look
            return
        view = view_of(key, pods, self._superseded)
        track.going &= {p.metadata.uid for p in view.held}
        if track.going:
            track.doubtful = [letting for letting in track.doubtful if letting.pod.metadata.uid in track.going]
            if track.doubtful and retry_s is not None and retry_s > now:
                track.due_s = retry_s
            elif track.doubtful:
                self._start(key, track, self._settle(track))
            return  # our own writes are on their way back to us; the watch will wake us
        if view.started and self._needs_group(view, track):
            self._start(key, track, self._make_group(view, track, None))
            return
        if not view.members:
            track.waiting_growth = None
            return
        if not complete(view, self._replicas()):
            quiet_at = track.last_arrival_s + self._settings.quiet_s
            if now < quiet_at:
                track.due_s = quiet_at
                return
        missing = self._missing_group(view)
        track.awaits_group = missing or ""
        if missing:
            self._voice.waiting_for_group(view, missing)
            return
        if lost := lost_partners(view, self._state.table()):
            track.waiting_growth = self._state.growth  # a node that comes back, or a pod that goes, is growth
            self._voice.waiting_for_lost(view, lost)
            return
        self._plan(key, track, view, now)

    def _plan(self, key: GangKey, track: Track, view: GangView, now: float) -> None:
        snapshot = self._state.snapshot(self._wall_time_s(), self._facts_age_s())
        request = request_of(view, snapshot.table)
        result = plan(request, snapshot, self._policy, advise=False)
        self.plans += 1
        if result.outcome == Outcome.HELD and self._voice.is_news(view, result):
            result = plan(request, snapshot, self._policy)  # advice costs several searches; said once, found once
        left_out = len(result.places) < len(view.members)
        track.waiting_growth = self._state.growth if left_out else None
        if result.outcome in (Outcome.WAITING_FOR_PARTNER, Outcome.WAITING_FOR_GANG):
            # Pods still to come decide, not room. The first moments of every roll-out look like this: be patient.
            track.waiting_growth = None
            told_at = track.last_arrival_s + self._settings.partner_s
            if now >= told_at:
                self._voice.held(view, result)
            else:
                track.due_s = told_at
            return
        if not result.places:
            self._voice.held(view, result)
            return
        if left_out:
            self._voice.left_out(view, result)
        by_uid = {p.metadata.uid: p for p in view.members}
        lettings = [
            Letting(by_uid[uid], node, result.set_for(_phase(by_uid[uid])), self._voice.annotations(result, uid))
            for uid, node in result.places.items()
        ]
        self._voice.planned(view, result)
        for member in result.request.members:
            if member.uid in result.places:
                self._state.assume(member.uid, result.places[member.uid], member.amounts)
        track.going = set(result.places)
        self._start(key, track, self._let_go(view, result, lettings, track))

    # --- beside the loop -----------------------------------------------------------------------

    def _start(self, key: GangKey, track: Track, work: Coroutine[Any, Any, bool]) -> None:
        track.working = True

        async def guarded() -> None:
            done = False
            try:
                done = await work
            except Exception:
                log.exception("gang %s/%s could not be let go", *key)
                for uid in track.going:
                    self._state.unassume(uid)
                track.going, track.doubtful = set(), []
            finally:
                track.working = False
                self._lively.add(key)
                if done:
                    track.tries, track.dirty = 0, True
                else:
                    self._later(track, monotonic_s())
                self._wake.set()

        task = asyncio.create_task(guarded(), name=f"gang {key[0]}/{key[1]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_go(self, view: GangView, result: Plan, lettings: Sequence[Letting], track: Track) -> bool:
        nominated = await self._gatekeeper.nominate(lettings)
        ready = nominated & self._state.gangs().get(view.key, {}).keys()  # some may have gone meanwhile
        if not self._still_enough(result, ready):
            ready = set()
        self._give_back([letting for letting in lettings if letting.pod.metadata.uid not in ready], track)
        if not ready:
            return False
        lettings, planned = [x for x in lettings if x.pod.metadata.uid in ready], len(lettings)
        released = await self._release(lettings, track)
        await self._shown(view.key, track, released)
        # No PodGroup for nobody: Volcano would look at it before the pods have their nominations.
        grouped = bool(released) and await self._make_group(view, track, result)
        return grouped and len(released) == planned

    async def _release(self, lettings: Sequence[Letting], track: Track) -> set[str]:
        """The uids that are known to be let go. Where nobody can say, the pod keeps its room until somebody can."""
        released, doubtful = await self._gatekeeper.release(lettings)
        track.doubtful = [letting for letting in lettings if letting.pod.metadata.uid in doubtful]
        self._give_back([x for x in lettings if x.pod.metadata.uid not in released | doubtful], track)
        return released

    async def _shown(self, key: GangKey, track: Track, uids: Set[str]) -> None:
        """Until our own watch shows the gates open, with a limit.

        Volcano watches pods and PodGroups apart. A PodGroup that it sees first makes it try the gang with gated pods:
        a session lost, and a condition, an Event and a status for each pod, which cost more than all of our writes.
        """
        until = monotonic_s() + self._settings.shown_s
        while (left := until - monotonic_s()) > 0:
            pods = self._state.gangs().get(key, {})
            if not any(pods[uid].has_gate(GATE) for uid in uids if uid in pods):
                break
            track.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await track.changed.wait()
        await asyncio.sleep(self._settings.other_watch_s)

    async def _settle(self, track: Track) -> bool:
        """Once more for the pods in doubt: whatever the answer, it says how the first write ended."""
        await self._release(track.doubtful, track)
        return not track.doubtful

    def _give_back(self, lettings: Iterable[Letting], track: Track) -> None:
        for letting in lettings:
            self._state.unassume(letting.pod.metadata.uid)
            track.going.discard(letting.pod.metadata.uid)

    @staticmethod
    def _still_enough(result: Plan, uids: set[str]) -> bool:
        """Whether the pods that are left still reach the gang's minimum; nothing was released so far."""
        members = {m.uid: m for m in result.request.members}
        return all(
            sum(1 for uid in uids if members[uid].phase == phase) >= result.request.still_needed(phase)
            for phase in PHASES
        )

    async def _make_group(self, view: GangView, track: Track, result: Plan | None) -> bool:
        """Apply the gang's own PodGroup if it is missing or was changed. Groups of others are left alone."""
        for name, pods in sorted(group_names(view).items()):
            if not is_ours(name, view.key[1]):
                continue
            wanted = wanted_pod_group(view, pods, self._top_owner, self._voice.group_annotations(result))
            existing = self._pod_groups.get(f"{view.key[0]}/{name}")
            if existing is not None and not differs(existing, wanted):
                track.group_made = True
                continue
            if not await self._gatekeeper.apply_pod_group(wanted):
                return False
            track.group_made, track.group_check_s = True, monotonic_s() + self._settings.group_shown_s
        return True

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


def _phase(pod: Pod) -> str:
    return pod.metadata.label(PHASE)
