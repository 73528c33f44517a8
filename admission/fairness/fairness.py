"""Who may go now, beyond what fits: the gang's queue, older gangs that wait, and room held by pods of lower priority.

It reads what the watches keep and holds how often a gang was passed; it writes nothing and knows no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from admission.fairness.bypass_limit import Overtaking, WaitingGang
from admission.fairness.preemption import without_inferiors
from admission.fairness.preemption_claims import Claims
from admission.fairness.queue_commitments import QueueCommitments, queue_of
from admission.fairness.queue_quota import QueueQuota, upwards
from admission.gangs.gang_view import GangView, request_of
from scheduler.model.decision import Outcome, Plan
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest
from scheduler.planning.plan import plan
from topology.cluster.snapshot import Snapshot
from topology.cluster.state import ClusterState, GangKey
from topology.objects import Pod, PodGroup, Queue
from topology.resources import Amounts, sum_amounts

_ASK_AGAIN_S = 5.0
"""Whether pods of lower priority would have to leave is asked this often per gang: it walks all pods."""

CLAIMS_S: Final = 60.0
"""Room that Volcano is to make is booked this long, where nothing else says how long a pod may stay unplaced."""

Older = Mapping[GangKey, WaitingGang]
"""Gangs that wait and rank before another, first in rank first."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What the watches keep, by `namespace/name` (queues: by name). Live views, read only."""

    pods: Mapping[str, Pod]
    pod_groups: Mapping[str, PodGroup]
    queues: Mapping[str, Queue]


class Fairness:
    """One per controller."""

    def __init__(
        self,
        state: ClusterState,
        watched: Watched,
        policy: Policy,
        *,
        overtaking: int,
        preemption: bool,
        claims_s: float = CLAIMS_S,
    ) -> None:
        self._state, self._watched, self._policy = state, watched, policy
        self._overtaking, self._preemption = Overtaking(overtaking), preemption
        self.commitments = QueueCommitments(state, watched.pod_groups)
        self.claims = Claims(claims_s)
        self._asked_s: dict[GangKey, float] = {}
        self._fits_empty: dict[GangKey, tuple[object, GangRequest, bool]] = {}

    # --- queues --------------------------------------------------------------------------------

    def queue_of(self, view: GangView) -> str:
        """The name of the gang's queue, whether it exists or not."""
        return queue_of((*view.held, *view.released, *view.bound), self._watched.pod_groups)

    def queue_quota(self, view: GangView, now_s: float) -> QueueQuota | None:
        """The room in the gang's queue; None where no queues are known (their kind is not there).

        Just after pods were bound it may be too little, for at most QUEUE_LAG_S: ask again then.
        """
        self.commitments.hear()
        if not self._watched.queues:
            return None
        name = self.queue_of(view)
        # Who takes what is asked of every gang's pods, so only where some queue has a limit.
        limited = any(queue is not None and queue.spec.capability for _, queue in upwards(name, self._watched.queues))
        return QueueQuota(name, self._watched.queues, self.commitments.amounts(now_s, but=view.key) if limited else {})

    # --- older gangs ---------------------------------------------------------------------------

    def blocking_gang(
        self, older: Older, result: Plan, snapshot: Snapshot, capacity: QueueQuota | None
    ) -> GangKey | None:
        """An older gang that may not be passed again, and that may need what this plan takes of nodes or of quota."""
        if not older:
            return None
        nodes = snapshot.table.mask_of(result.places.values())
        taken, quotas = _taken(result), dict[str, QueueQuota]()

        def competes(key: GangKey) -> bool:
            waiting_gang = older[key]
            return (
                self._wants_quota(waiting_gang, taken, capacity, quotas)
                or (not waiting_gang.for_quota and _accepts(waiting_gang, nodes, snapshot))
            ) and self._could_ever_fit(key, waiting_gang, snapshot)

        return self._overtaking.blocking_gang(older, competes)

    def _wants_quota(
        self, waiting_gang: WaitingGang, taken: Amounts, capacity: QueueQuota | None, quotas: dict[str, QueueQuota]
    ) -> bool:
        """Whether the older gang would lack quota that the taker takes, and could have it one day. `quotas` is of the
        queues seen so far."""
        if capacity is None:
            return False
        theirs = quotas.get(waiting_gang.queue) or QueueQuota(waiting_gang.queue, self._watched.queues, {})
        quotas[waiting_gang.queue] = theirs
        return capacity.keeps_out(taken, theirs, waiting_gang.need) and theirs.could_hold(waiting_gang.need)

    def _could_ever_fit(self, key: GangKey, waiting_gang: WaitingGang, snapshot: Snapshot) -> bool:
        """Whether it would fit these nodes with nothing else on them. Asked once per node table and request."""
        known = self._fits_empty.get(key)
        facts = self._state.reach()  # a snapshot's own is a copy of it that tells ages
        if known is None or known[0] is not facts or known[1] != waiting_gang.request:
            empty = replace(snapshot, used=np.zeros_like(snapshot.used), assumed={}, holds={})
            fits = bool(plan(waiting_gang.request, empty, self._policy, advise=False).places)
            self._fits_empty[key] = known = (facts, waiting_gang.request, fits)
        return known[2]

    def went(self, key: GangKey, older: Older, result: Plan, capacity: QueueQuota | None) -> None:
        """A gang was let go while these wait; those that wait for quota were passed if it took some of it."""
        taken, quotas = _taken(result), dict[str, QueueQuota]()
        passed = [o for o, s in older.items() if not s.for_quota or self._wants_quota(s, taken, capacity, quotas)]
        self._overtaking.went(key, passed)
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

    def asked_until_s(self, key: GangKey) -> float:
        """When `by_preemption` may be asked again."""
        return self._asked_s[key] + _ASK_AGAIN_S if key in self._asked_s else 0.0

    def by_preemption(
        self,
        key: GangKey,
        view: GangView,
        request: GangRequest,
        snapshot: Snapshot,
        now_s: float,
    ) -> Plan | None:
        """A plan among those who would have to leave for a gang of this priority; None if there is none."""
        priority = priority_of(view.members)
        if not self._preemption or priority <= 0 or self.asked_until_s(key) > now_s:
            return None
        self._asked_s[key] = now_s
        queue = self.queue_of(view)
        roomier = without_inferiors(snapshot, self._watched.pods.values(), self._watched.pod_groups, queue, priority)
        if roomier is None:
            return None
        result = plan(request, roomier, self._policy, advise=False)
        return result if result.outcome == Outcome.PLANNED and result.places else None

    def claim_again(self, view: GangView, snapshot: Snapshot, now_s: float) -> bool:
        """After a restart: whether pods of this gang wait for Volcano to make room, which is booked for them again.

        They are those that a plan released and that have no nomination. Room of pods that are leaving counts.
        """
        waiting = tuple(p for p in view.released if not p.status.nominated_node_name)
        priority = priority_of(waiting)
        if not self._preemption or priority <= 0:
            return False
        pods, groups = self._watched.pods.values(), self._watched.pod_groups
        roomier = without_inferiors(snapshot, pods, groups, self.queue_of(view), priority, leaving=True) or snapshot
        rest = tuple(p for p in view.released if p.status.nominated_node_name)
        asked = request_of(replace(view, members=waiting, blocked=(), released=rest), snapshot.table)
        asked = replace(asked, min_prefill=0, min_decode=0)  # whoever of them fits: they are out already
        result = plan(asked, roomier, self._policy, advise=False)
        self.claims.book(view.key, result, now_s)
        return True


def priority_of(pods: Sequence[Pod]) -> int:
    """The gang's priority: the highest of its pods; 0 where none has one."""
    return max((p.spec.priority or 0 for p in pods), default=0)


def _taken(result: Plan) -> Amounts:
    return sum_amounts(m.amounts for m in result.request.members if m.uid in result.places)


def _accepts(waiting_gang: WaitingGang, nodes: NDArray[np.bool_], snapshot: Snapshot) -> bool:
    """Whether some of its pods could go to one of these nodes."""
    specs = {id(m.spec): m.spec for m in waiting_gang.request.members}
    return any(bool((snapshot.table.accept_mask(spec) & nodes).any()) for spec in specs.values())
