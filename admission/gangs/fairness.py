"""Who may go now, beyond what fits: the gang's queue, older gangs that wait, and room held by pods of lower priority.

It reads what the watches keep and holds how often a gang was passed; it writes nothing and knows no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from admission.gangs.gang_request import GangView, request_of, view_of
from admission.gangs.overtaking import Overtaking
from admission.gangs.preemption import without_inferiors
from admission.gangs.queue_room import DEFAULT_QUEUE, QueueRoom, upwards
from admission.gangs.units import plan_units
from scheduler.decision import Outcome, Plan
from scheduler.plan import plan
from scheduler.policy import Policy
from scheduler.request import GangRequest
from topology.cluster_state import ClusterState, GangKey
from topology.labels import GATE, GROUP_NAME, QUEUE_NAME
from topology.objects import Pod, PodGroup, Queue
from topology.resources import Amounts, readable_request, sum_amounts
from topology.snapshot import Snapshot

_ASK_AGAIN_S = 5.0
"""Whether pods of lower priority would have to leave is asked this often per gang: it walks all pods."""

QUEUE_LAG_S = 3.0
"""How far Volcano's count of what a queue holds may be behind: a session (1 s) and its writes on a busy machine."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the watches keep, by `namespace/name` (queues: by name). Live views, read only."""

    pods: Mapping[str, Pod]
    pod_groups: Mapping[str, PodGroup]
    queues: Mapping[str, Queue]


class Fairness:
    """One per controller."""

    def __init__(self, state: ClusterState, kept: Kept, policy: Policy, *, overtaking: int, preemption: bool) -> None:
        self._state, self._kept, self._policy = state, kept, policy
        self._overtaking, self._preemption = Overtaking(overtaking), preemption
        self._asked_s: dict[GangKey, float] = {}
        self._bound_s: dict[str, float] = {}  # pod uid to when it was first seen bound, where queues have limits
        self._fits_empty: dict[GangKey, tuple[object, GangRequest, bool]] = {}

    # --- queues --------------------------------------------------------------------------------

    def queue_room(self, view: GangView, now_s: float) -> QueueRoom | None:
        """The room in the gang's queue; None where no queues are known (their kind is not there).

        Just after pods were bound it may be too little, for at most QUEUE_LAG_S: ask again then.
        """
        if not self._kept.queues:
            return None
        name = self._queue_of((*view.held, *view.released, *view.bound))
        # Who takes what is asked of every gang's pods, so only where some queue has a limit.
        limited = any(queue is not None and queue.spec.capability for _, queue in upwards(name, self._kept.queues))
        return QueueRoom(name, self._kept.queues, self._promised(now_s) if limited else {})

    def _promised(self, now_s: float) -> dict[str, Amounts]:
        """By queue, what our pods will take that were let go, or bound so lately that Volcano's count may lack them.

        Volcano writes what a queue holds at the end of a session, after the bindings.
        """
        coming: dict[str, list[Amounts]] = {}
        bound: dict[str, float] = {}
        for pods in self._state.gangs().values():
            for uid, pod in pods.items():
                if pod.spec.node_name:
                    bound[uid] = self._bound_s.get(uid, now_s)
                    counts = now_s - bound[uid] < QUEUE_LAG_S
                else:
                    counts = not pod.has_gate(GATE) or self._state.is_assumed(uid)
                if counts:
                    coming.setdefault(self._queue_of((pod,)), []).append(readable_request(pod.spec)[0])
        self._bound_s = bound
        return {queue: sum_amounts(many) for queue, many in coming.items()}

    def _queue_of(self, pods: Sequence[Pod]) -> str:
        for pod in pods:
            meta = pod.metadata
            group = self._kept.pod_groups.get(f"{meta.namespace}/{meta.annotation(GROUP_NAME)}")
            if group is not None and group.spec.queue:
                return group.spec.queue
        return next((q for p in pods if (q := p.metadata.annotation(QUEUE_NAME))), DEFAULT_QUEUE)

    # --- older gangs ---------------------------------------------------------------------------

    def stands_before(self, older_waiting: Sequence[GangKey], result: Plan, snapshot: Snapshot) -> GangKey | None:
        """An older gang that may not be passed again, and that may need what this plan takes."""
        if not older_waiting:
            return None
        taken = snapshot.table.mask_of(result.places.values())

        def competes(older: GangKey) -> bool:
            view = view_of(older, self._state.gang_pods(*older))
            wanted = np.zeros(len(snapshot.table), dtype=bool)
            for spec in {id(p.spec): p.spec for p in view.members}.values():
                wanted |= snapshot.table.accept_mask(spec)
            return bool((wanted & taken).any()) and self._could_ever_fit(older, view, snapshot)

        return self._overtaking.stands_before(older_waiting, competes)

    def _could_ever_fit(self, key: GangKey, view: GangView, snapshot: Snapshot) -> bool:
        """Whether it would fit these nodes with nothing else on them. Asked once per node table and request."""
        request = request_of(view, snapshot.table)
        known = self._fits_empty.get(key)
        facts = self._state.table().reach  # a snapshot's own is a copy of it that tells ages
        if known is None or known[0] is not facts or known[1] != request:
            empty = replace(snapshot, used=np.zeros_like(snapshot.used), assumed={}, holds={})
            fits = bool(plan(request, empty, self._policy, advise=False).places)
            self._fits_empty[key] = known = (facts, request, fits)
        return known[2]

    def went(self, key: GangKey, older_waiting: Sequence[GangKey]) -> None:
        """A gang was let go while these older ones wait."""
        self._overtaking.went(key, older_waiting)
        self._asked_s.pop(key, None)
        self._fits_empty.pop(key, None)

    def forget(self, key: GangKey) -> None:
        """The gang is gone."""
        self._overtaking.forget(key)
        self._asked_s.pop(key, None)
        self._fits_empty.pop(key, None)

    def passed(self, key: GangKey) -> int:
        """How often others went past it while it waited."""
        return self._overtaking.passed(key)

    # --- lower priorities ----------------------------------------------------------------------

    def by_preemption(
        self,
        key: GangKey,
        view: GangView,
        request: GangRequest,
        units: Mapping[str, str],
        snapshot: Snapshot,
        now_s: float,
    ) -> Plan | None:
        """A plan among those who would have to leave for a gang of this priority; None if there is none."""
        priority = priority_of(view.members)
        if not self._preemption or priority <= 0 or now_s - self._asked_s.get(key, -_ASK_AGAIN_S) < _ASK_AGAIN_S:
            return None
        self._asked_s[key] = now_s
        queue = self._queue_of(view.held)
        roomier = without_inferiors(snapshot, self._kept.pods.values(), self._kept.pod_groups, queue, priority)
        if roomier is None:
            return None
        result = plan_units(request, units, roomier, self._policy)
        return result if result.outcome == Outcome.PLANNED and result.places else None


def priority_of(pods: Sequence[Pod]) -> int:
    """The gang's priority: the highest of its pods; 0 where none has one."""
    return max((p.spec.priority or 0 for p in pods), default=0)
