"""EDGE: what the loop knows of one gang between two reconciles: an explicit state machine.

    WAITING -> PLANNING -> RELEASING -> CONFIRMING -> WAITING -> RUNNING

`TRANSITIONS` is the whole table. Whatever it does not list raises `IllegalTransitionError` and changes nothing.
All times are monotonic seconds. Nothing here outlives the process: what was planned stands on the pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from admission.fairness.bypass_limit import WaitingGang
from admission.release.pod_writer import PodRelease
from topology.cluster.state import GangKey


class GangStatus(Enum):
    """Where a gang is on its way."""

    WAITING = "waiting"  # for something that has a `WaitReason`
    PLANNING = "planning"  # places are looked for now; nothing else happens to it meanwhile
    RELEASING = "releasing"  # the writes that release its pods are under way
    CONFIRMING = "confirming"  # these writes ended, and the watch does not show all of its pods released yet
    GROUPING = "grouping"  # its PodGroup is being made again; after that it waits for what it waited for
    RUNNING = "running"  # nobody of it is gated and nothing lacks: what its pods do is no news, but another pod is
    GONE = "gone"  # it has no pods


class WaitReason(Enum):
    """What a gang waits for."""

    RECONCILE = "its next reconcile: something changed"
    ARRIVALS = "pods that its owners still make, or a quiet time"
    NOBODY_TO_PLAN = "its gated pods have gates of others, are replaced by newer ones or leave"
    UNITS = "pods without which its units are not whole"
    PARTNER = "pods of the other phase, or its minimum"
    LOST_PARTNERS = "partners on nodes that are not known"
    POD_GROUP = "a PodGroup of somebody else"
    OWN_POD_GROUP = "the watch to show the PodGroup that was made for it"
    EXPECTED_PODS = "pods for which capacity is reserved"
    QUEUE = "quota of its queue"
    CAPACITY = "capacity of nodes"
    OLDER_GANG = "an older gang that goes first"
    BACKOFF = "another try after a failure"


_S = GangStatus
TRANSITIONS: Final[Mapping[GangStatus, frozenset[GangStatus]]] = {
    _S.WAITING: frozenset({_S.WAITING, _S.PLANNING, _S.GROUPING, _S.RUNNING, _S.GONE}),
    _S.PLANNING: frozenset({_S.WAITING, _S.RELEASING}),
    _S.RELEASING: frozenset({_S.CONFIRMING, _S.WAITING, _S.GONE}),
    _S.CONFIRMING: frozenset({_S.RELEASING, _S.WAITING, _S.GONE}),
    _S.GROUPING: frozenset({_S.WAITING, _S.GONE}),
    _S.RUNNING: frozenset({_S.WAITING, _S.GONE}),
    _S.GONE: frozenset(),
}


class IllegalTransitionError(RuntimeError):
    """A bug: the loop wanted a step that the table does not have. It costs this gang a try, and nobody else."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Of a gang that waits, or that has its PodGroup made meanwhile."""

    reason: WaitReason
    pod_group: str = ""  # with POD_GROUP
    older: GangKey | None = None  # with OLDER_GANG


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """Of a gang that is being released: pods not yet seen released, and those whose write may or may not be done."""

    uids: frozenset[str] = frozenset()
    unconfirmed: tuple[PodRelease, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Of a gang whose last plan left somebody out: `ClusterState.capacity_generation` at that plan; and what
    its minimum asked for, if that was not reached."""

    generation: int
    waiting_gang: WaitingGang | None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Capacity reserved for pods that do not exist yet."""

    uids: frozenset[str]
    until_s: float


class GangState:
    """One gang. Assigned from nowhere else: whoever changes it calls a method."""

    def __init__(self, now_s: float) -> None:
        self.changed = asyncio.Event()  # its pods, since it was cleared
        self._status, self._wait, self._release = _S.WAITING, Wait(WaitReason.ARRIVALS), PendingRelease()
        self._last_arrival_s, self._pods = now_s, frozenset[str]()
        self._rank: tuple[int, str] | None = None
        self._enqueued, self._due_s, self._tries = True, float("inf"), 0
        self._left_out: LeftOut | None = None
        self._reservation: Reservation | None = None
        self._group_made, self._group_check_s = False, float("inf")
        self._awaits_queue = self._preempts = False

    def _to(self, status: GangStatus) -> None:
        if status not in TRANSITIONS[self._status]:
            raise IllegalTransitionError(f"{self._status.value} -> {status.value}")
        self._status = status

    # --- what it is ----------------------------------------------------------------------------

    @property
    def status(self) -> GangStatus:
        """Where it is."""
        return self._status

    @property
    def wait(self) -> Wait | None:
        """What it waits for, if it does."""
        return self._wait if self._status in (_S.WAITING, _S.GROUPING) else None

    @property
    def behind(self) -> GangKey | None:
        """The older gang that must go first, if it waits for one."""
        return self.wait.older if self.wait is not None else None

    @property
    def writing(self) -> bool:
        """Writes for it are under way, so it is not reconciled."""
        return self._status in (_S.RELEASING, _S.GROUPING)

    @property
    def releasing(self) -> frozenset[str]:
        """Pods released by us and not yet seen so."""
        return self._release.uids

    @property
    def unconfirmed(self) -> tuple[PodRelease, ...]:
        """Those of them of which nobody can say whether the write was done."""
        return self._release.unconfirmed

    @property
    def pods(self) -> frozenset[str]:
        """Uids as last observed."""
        return self._pods

    @property
    def rank(self) -> tuple[int, str] | None:
        """How it stands among those that are due; None: its pods changed."""
        return self._rank

    @property
    def last_arrival_s(self) -> float:
        """When a pod of it last came."""
        return self._last_arrival_s

    @property
    def enqueued(self) -> bool:
        """It is to be reconciled whatever the time."""
        return self._enqueued

    @property
    def generation(self) -> int | None:
        """Capacity generation at the last plan that left somebody out; None: capacity is not what it waits for."""
        return self._left_out.generation if self._left_out is not None else None

    @property
    def waiting_gang(self) -> WaitingGang | None:
        """What its minimum waits for, capacity or quota, so that younger gangs may have to stay behind it."""
        return self._left_out.waiting_gang if self._left_out is not None else None

    @property
    def reserved(self) -> frozenset[str]:
        """Pods to come for which capacity is reserved."""
        return self._reservation.uids if self._reservation is not None else frozenset()

    @property
    def preempts(self) -> bool:
        """Released for Volcano to make room."""
        return self._preempts

    @property
    def group_made(self) -> bool:
        """Its PodGroup is there, as far as we know."""
        return self._group_made

    @property
    def awaits_queue(self) -> bool:
        """At the last plan its queue could not hold all of it."""
        return self._awaits_queue

    @property
    def next_s(self) -> float | None:
        """When there is something to do even if nobody enqueues it."""
        until_s = self._reservation.until_s if self._reservation is not None else float("inf")
        at_s = min(self._due_s, self._group_check_s, until_s)
        return at_s if at_s < float("inf") else None

    @property
    def at_rest(self) -> bool:
        """Nothing to do until somebody enqueues it."""
        return not (self._enqueued or self.writing or self.next_s is not None or self._left_out is not None)

    # --- what comes from outside ---------------------------------------------------------------

    def observe(self, uids: Iterable[str], now_s: float) -> bool:
        """These are its pods now. Returns whether one of them is new."""
        pods = frozenset(uids)
        arrived = not pods <= self._pods
        if arrived:
            self._last_arrival_s = now_s
        self._pods, self._rank = pods, None
        self.changed.set()
        return arrived

    def ranked(self, rank: tuple[int, str]) -> None:
        """How it stands until its pods change."""
        self._rank = rank

    def enqueue(self) -> None:
        """Something of it changed: it is due. One that runs waits again until it is found to run."""
        if self._status in (_S.RUNNING, _S.GONE):
            self.wait_for(WaitReason.RECONCILE)
        self._enqueued = True

    def gone(self) -> None:
        """It has no pods any more. Writes that are under way end by themselves."""
        self._to(_S.GONE)

    # --- the work queue ------------------------------------------------------------------------

    def dequeue(self) -> float | None:
        """It is reconciled now. Returns when it was to be requeued, if at all."""
        due_s, self._due_s, self._enqueued = self._due_s, float("inf"), False
        return due_s if due_s < float("inf") else None

    def requeue_at(self, at_s: float) -> None:
        """It is due then, unless it is enqueued before."""
        self._due_s = at_s

    def back_off(self, now_s: float, first_s: float, cap_s: float) -> None:
        """It is due after a pause that doubles with each failure in a row."""
        self._tries += 1
        self._due_s = now_s + min(first_s * 2 ** (self._tries - 1), cap_s)

    # --- transitions ---------------------------------------------------------------------------

    def wait_for(self, reason: WaitReason, *, pod_group: str = "", older: GangKey | None = None) -> None:
        """It waits; also after a plan that gave it no place."""
        self._to(_S.WAITING)
        self._wait, self._release = Wait(reason, pod_group, older), PendingRelease()

    def begin_planning(self) -> None:
        """Places are looked for."""
        self._to(_S.PLANNING)

    def begin_release(self, uids: Iterable[str], *, preempts: bool) -> None:
        """It has a plan for these pods, and writes begin."""
        if self._status is not _S.PLANNING:
            raise IllegalTransitionError(f"{self._status.value} has no plan to release")
        self._to(_S.RELEASING)
        self._release, self._preempts = PendingRelease(frozenset(uids)), preempts

    def retry_release(self) -> None:
        """Once more for the writes of which nobody can say how they ended."""
        if self._status is not _S.CONFIRMING:
            raise IllegalTransitionError(f"{self._status.value} has no release to retry")
        self._to(_S.RELEASING)

    def begin_grouping(self) -> None:
        """Its PodGroup is made again."""
        self._to(_S.GROUPING)

    def confirm(self, gated: Set[str]) -> bool:
        """These of its pods are gated, as the watch shows them. Returns whether all that were released are seen so."""
        uids = self._release.uids & gated
        left = tuple(x for x in self._release.unconfirmed if x.pod.metadata.uid in uids)
        if uids and self._status is _S.CONFIRMING:
            self._release = PendingRelease(uids, left)
        elif self._status is _S.CONFIRMING:
            self.wait_for(WaitReason.RECONCILE)
        return self._status is not _S.CONFIRMING

    def writes_ended(self, *, done: bool) -> None:
        """The writes under way are over. `done`: it is due at once; else the caller backs off."""
        if self._status is _S.GROUPING:
            self._to(_S.WAITING)
        elif self._status is _S.RELEASING and self._release.uids:
            self._to(_S.CONFIRMING)
        elif self._status is _S.RELEASING:
            self.wait_for(WaitReason.RECONCILE if done else WaitReason.BACKOFF)
        else:
            raise IllegalTransitionError(f"{self._status.value} has no writes under way")
        if done:
            self._tries, self._enqueued = 0, True

    def abandon(self) -> frozenset[str]:
        """A bug ended what was done for it. Returns the pods whose capacity is to be given back."""
        uids = self._release.uids if self.writing or self._status is _S.PLANNING else frozenset[str]()
        if self._status is not _S.CONFIRMING:
            self.wait_for(WaitReason.BACKOFF)
        return uids

    def all_released(self) -> None:
        """Nobody of it is gated. It runs, unless something is still to be seen or to come."""
        if self._status is not _S.WAITING:
            raise IllegalTransitionError(f"{self._status.value} has pods on their way")
        self._left_out = None
        if self._reservation is not None:
            self.wait_for(WaitReason.EXPECTED_PODS)
        elif not self.at_rest:
            self.wait_for(WaitReason.OWN_POD_GROUP)
        else:
            self._to(_S.RUNNING)
            self._awaits_queue = False

    # --- what a plan or a write found ----------------------------------------------------------

    def plan_left_out(self, generation: int, waiting_gang: WaitingGang | None) -> None:
        """It is planned again when capacity appears that was not there at this generation."""
        self._left_out = LeftOut(generation, waiting_gang)

    def plan_left_out_nobody(self) -> None:
        """More capacity would change nothing."""
        self._left_out = None

    def claimed_again(self, preempts: bool) -> None:
        """After a restart: whether a predecessor released it for Volcano to make room."""
        self._preempts = preempts

    def limited_by_queue(self, limited: bool) -> None:
        """Whether quota kept some of it out of the plan."""
        self._awaits_queue = limited

    def reserve(self, uids: Iterable[str], until_s: float) -> None:
        """Capacity is reserved for these pods to come."""
        self._reservation = Reservation(frozenset(uids), until_s)

    def end_reservation(self) -> frozenset[str]:
        """Nothing is reserved any more. Returns for whom it was."""
        uids, self._reservation = self.reserved, None
        return uids

    def reservation_over(self, now_s: float) -> bool:
        """Its time is up."""
        return self._reservation is not None and now_s >= self._reservation.until_s

    def not_released(self, uids: Set[str]) -> None:
        """These pods stay gated after all, and their capacity is free again."""
        self._release = replace(self._release, uids=self._release.uids - uids)

    def release_unconfirmed(self, releases: Sequence[PodRelease]) -> None:
        """Nobody can say whether the writes of these were done."""
        self._release = replace(self._release, unconfirmed=tuple(releases))

    def group_found(self) -> None:
        """Its PodGroup is there, as it should be."""
        self._group_made = True

    def group_written(self, check_s: float) -> None:
        """Its PodGroup was made; by then the watch should show it."""
        self._group_made, self._group_check_s = True, check_s

    def group_lost(self) -> None:
        """Its PodGroup is gone."""
        self._group_made = False

    def check_group(self, shown: bool, now_s: float) -> None:
        """A PodGroup that we made and that went while its watch was away was never seen, so nobody says it is gone."""
        if self._group_check_s < float("inf") and (shown or now_s >= self._group_check_s):
            self._group_made, self._group_check_s = shown, float("inf")
