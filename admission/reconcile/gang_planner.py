"""EDGE: one gang's turn: what it asks, whether it may go, what it is told, and the departure that follows.

It looks at one snapshot and changes nothing but what is assumed of the gang's own pods. The loop
(admission.reconcile.reconciler) says when it is a gang's turn and runs the departure beside itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from admission.fairness.bypass_limit import WaitingGang
from admission.fairness.fairness import Fairness, Older, priority_of
from admission.fairness.queue_commitments import QUEUE_LAG_S
from admission.fairness.queue_quota import QueueQuota, QueueShort, least_of
from admission.gangs.expected_pods import (
    Expected,
    WorkloadOf,
    expected_of,
    is_expected,
    one_after_the_other,
    still_to_come,
)
from admission.gangs.gang_view import GangView, newest_of, request_of
from admission.gangs.template_revision import all_new
from admission.recognition.gang_identity import podgroup_name
from admission.recognition.replica_group import short_units, unit_of
from admission.reconcile.gang_state import GangState, WaitReason
from admission.reconcile.release_workflow import ReleaseWorkflow
from admission.reconcile.timing import ReconcileSettings
from admission.release.pod_group import moved
from admission.release.pod_writer import PodRelease
from admission.report.wait_messages import (
    WaitMessage,
    behind,
    for_not_held,
    for_partners_unit,
    for_preemption,
    for_queue,
    for_unit,
    left_to_its_owner,
    replaced_first,
)
from scheduler.model.decision import Outcome, Plan
from scheduler.model.policy import Policy
from scheduler.model.reason import reason_of
from scheduler.model.request import GangRequest, PodRequest
from scheduler.planning.plan import plan
from topology.cluster.snapshot import Snapshot
from topology.cluster.state import ClusterState, GangKey
from topology.labels import DECODE, GATE, GROUP_NAME, PHASE, PREFILL
from topology.objects import Pod
from topology.resources import sum_amounts

Work = Coroutine[Any, Any, bool]


class PlanReporter(Protocol):
    """Who tells people. None of it may fail or block."""

    def is_news(self, view: GangView, plan: Plan) -> bool: ...
    def held(self, view: GangView, plan: Plan) -> None: ...
    def left_out(self, view: GangView, plan: Plan) -> None: ...
    def waiting(self, pod: Pod, reported: WaitMessage) -> None: ...
    def annotations(self, plan: Plan) -> Mapping[str, dict[str, str]]: ...
    def planned(self, view: GangView, plan: Plan) -> None: ...


class GangPlanner:
    """One per controller; `plans` counts."""

    def __init__(
        self,
        state: ClusterState,
        workflow: ReleaseWorkflow,
        fairness: Fairness,
        reporter: PlanReporter,
        *,
        controller_of: WorkloadOf,
        top_of: WorkloadOf,
        snapshot: Callable[[], Snapshot],
        policy: Policy,
        settings: ReconcileSettings,
    ) -> None:
        self._state, self._workflow, self._fairness, self._reporter = state, workflow, fairness, reporter
        self._controller_of, self._top_of, self._snapshot = controller_of, top_of, snapshot
        self._policy, self.settings = policy, settings
        self.plans = 0

    # complexity: one sequence of answers about one attempt, each of which ends it; a split passes ten values on
    def plan(self, gang: GangState, view: GangView, now_s: float, older: Callable[[], Older]) -> Work | None:
        """Plan the gang and start what follows; None if it waits. `older` gives those that wait and rank before it."""
        gang.begin_planning()
        self._fairness.claims.drop(p.metadata.uid for p in view.held)
        snapshot = self._fairness.claims.laid_over(self._snapshot())
        if gang.reserved:
            snapshot = snapshot.without_assumed(gang.reserved)  # kept for this gang, so it may use it
        view, asked, expected, short = self._asked(view, snapshot, gang, now_s)
        if not any(not is_expected(m.uid) for m in asked.members):
            gang.plan_left_out_nobody()
            gang.wait_for(WaitReason.UNITS)
            return None
        capacity = self._fairness.queue_quota(view, now_s)
        # A gang that lacks pods waits for them first: it must not stand in a queue.
        if capacity is not None and asked.enough:
            members, queue_short = capacity.those_that_fit(asked)
        else:
            members, queue_short = asked.members, None
        need = least_of(asked) if capacity is not None else {}
        waiting_gang = WaitingGang(asked, self._fairness.queue_of(view), need)
        gang.limited_by_queue(queue_short is not None)
        if queue_short is not None:
            gang.requeue_at(now_s + QUEUE_LAG_S)
        if queue_short is not None and not members:
            # For one that is closed or missing nobody can wait in a row.
            in_a_row = replace(waiting_gang, for_quota=True) if queue_short.resource else None
            gang.plan_left_out(self._state.capacity_generation, in_a_row)
            gang.wait_for(WaitReason.QUEUE)
            self.report(view.held, for_queue(queue_short))
            return None
        request = replace(asked, members=members)
        result, stuck = self._search(view, request, snapshot)
        left_out = sum(not is_expected(uid) for uid in result.places) < len(view.members)
        below_minimum = None if request.satisfied else waiting_gang
        if left_out:
            gang.plan_left_out(self._state.capacity_generation, below_minimum)
        else:
            gang.plan_left_out_nobody()
        if result.outcome in (Outcome.WAITING_FOR_PARTNER, Outcome.WAITING_FOR_GANG):
            self._wait_for_pods(gang, view, result, short, now_s)
            return None
        if not result.places:
            self._await_preemption(gang, view, now_s)
            made = self._fairness.by_preemption(view.key, view, request, snapshot, now_s)
            if made is not None and not expected.pods:
                return self._preempt(gang, view, made, snapshot, capacity, older(), now_s, below_minimum)
            self._no_place(gang, view, result, stuck)
            self._beyond_queue(view, members, queue_short)
            return None
        # Pods for whom room was kept pass nobody: it was theirs before.
        before = {} if len(result.places) <= len(gang.reserved) else older()
        if (first := self._fairness.blocking_gang(before, result, snapshot, capacity)) is not None:
            self._wait_behind(gang, view, first, before, below_minimum)
            return None
        self.give_back(view.key, gang)
        self._reserve(view.key, gang, result, now_s)
        result = _without_expected(result)
        if left_out:
            gang.plan_left_out(
                self._state.capacity_generation, below_minimum
            )  # what was given back just now is room that it was asked with
            self._reporter.left_out(view, result)
            self._beyond_queue(view, members, queue_short)
        self._fairness.went(view.key, before, result, capacity)
        self.report(view.replaced, left_to_its_owner())
        return self._go(gang, view, result, nominate=True)

    def _search(self, view: GangView, request: GangRequest, snapshot: Snapshot) -> tuple[Plan, WaitMessage | None]:
        """The plan; and what keeps the gang from one, if that is pods of an older template."""
        result = plan(request, snapshot, self._policy, advise=False)
        self.plans += 1
        stuck = self._stuck(view, request, snapshot, result)
        if stuck is None and result.outcome == Outcome.HELD and self._reporter.is_news(view, result):
            # Advice costs several searches; said once, found once.
            result = plan(request, snapshot, self._policy)
        return result, stuck

    def _await_preemption(self, gang: GangState, view: GangView, now_s: float) -> None:
        if (again_s := self._fairness.asked_until_s(view.key)) > now_s:
            gang.requeue_at(again_s)

    def _no_place(self, gang: GangState, view: GangView, result: Plan, stuck: WaitMessage | None) -> None:
        gang.wait_for(WaitReason.CAPACITY)
        if stuck is not None:
            self.report(view.held, stuck)
        else:
            self._reporter.held(view, result)

    def _stuck(self, view: GangView, request: GangRequest, snapshot: Snapshot, result: Plan) -> WaitMessage | None:
        """What to say if pods of an older template keep the gang from a plan that it would have with new ones."""
        if not view.fill or result.places or result.outcome in (Outcome.WAITING_FOR_PARTNER, Outcome.WAITING_FOR_GANG):
            return None
        new = all_new(request, view.fill, newest_of(view))
        if new == request or not plan(new, snapshot, self._policy, advise=False).places:
            return None
        return replaced_first(view.fill, (*view.released, *view.bound), reason_of(result))

    def _preempt(
        self,
        gang: GangState,
        view: GangView,
        made: Plan,
        snapshot: Snapshot,
        capacity: QueueQuota | None,
        older: Older,
        now_s: float,
        below_minimum: WaitingGang | None,
    ) -> Work | None:
        """Let the gang go into room that Volcano is to make; unless an older one must go first."""
        if (first := self._fairness.blocking_gang(older, made, snapshot, capacity)) is not None:
            self._wait_behind(gang, view, first, older, below_minimum)
            return None
        self.give_back(view.key, gang)
        gang.plan_left_out_nobody()
        self._fairness.went(view.key, older, made, capacity)
        self._fairness.claims.book(view.key, made, now_s)
        work = self._go(gang, view, made, nominate=False)
        releasing = [p for p in view.members if p.metadata.uid in made.places]
        self.report(releasing, for_preemption(priority_of(view.members)))
        return work

    def _beyond_queue(self, view: GangView, members: Sequence[PodRequest], short: QueueShort | None) -> None:
        """Members that the queue cannot hold are told so, whatever becomes of the others."""
        if short is not None:
            asked = {m.uid for m in members}
            self.report([p for p in view.members if p.metadata.uid not in asked], for_queue(short))

    def _wait_behind(
        self, gang: GangState, view: GangView, first: GangKey, older: Older, below_minimum: WaitingGang | None
    ) -> None:
        gang.plan_left_out(self._state.capacity_generation, below_minimum)
        gang.wait_for(WaitReason.OLDER_GANG, older=first)
        self.report(view.held, behind(first, self._fairness.passed(first), older[first].for_quota))

    def report(self, pods: Iterable[Pod], reported: WaitMessage) -> None:
        """The same news for each pod."""
        for pod in pods:
            self._reporter.waiting(pod, reported)

    def give_back(self, key: GangKey, gang: GangState) -> None:
        """The room that was kept for pods to come is free again."""
        if uids := gang.end_reservation():
            self._fairness.commitments.keep(key, {})
        for uid in uids:
            self._state.unassume(uid)

    # --- after a restart -----------------------------------------------------------------------

    def may_keep(self, pods: Iterable[Pod]) -> bool:
        """Whether room may have been kept for others of these pods' owners."""
        return any(one_after_the_other(pod, self._controller_of, self._top_of) for pod in pods)

    def keep_again(self, gang: GangState, view: GangView, now_s: float) -> None:
        """Keep the room that a predecessor kept for pods to come, from now on. Where it was kept stood nowhere, but
        nothing was planned since, so there is a place for them."""
        snapshot = self._snapshot()
        asked = request_of(view, snapshot.table)
        expected = still_to_come(view, asked, self._controller_of, self._top_of)
        if expected.pods and self.settings.reserve_s > 0:
            result = plan(replace(asked, members=expected.pods), snapshot, self._policy, advise=False)
            self._reserve(view.key, gang, result, now_s)

    def claim_again(self, gang: GangState, view: GangView, now_s: float) -> None:
        """Book the room again that Volcano is to make for pods that a predecessor let go."""
        snapshot = self._fairness.claims.laid_over(self._snapshot())
        gang.claimed_again(self._fairness.claim_again(view, snapshot, now_s))

    # --- inside --------------------------------------------------------------------------------

    def _asked(
        self, view: GangView, snapshot: Snapshot, gang: GangState, now_s: float
    ) -> tuple[GangView, GangRequest, Expected, dict[str, int]]:
        """Whole units only, and with them the pods without which they could never be whole; and what others lack."""
        asked = request_of(view, snapshot.table)
        expected = expected_of(view, asked, self._controller_of, self._top_of)
        here = (*view.members, *view.released, *view.bound)
        short = short_units(here, dict(expected.per_unit))
        if short:
            split_groups = [p for p in view.members if unit_of(p) in short]
            reported_at = gang.last_arrival_s + self.settings.partner_s
            if now_s >= reported_at:
                for pod in split_groups:
                    self._reporter.waiting(pod, for_unit(unit_of(pod), short[unit_of(pod)]))
            else:
                gang.requeue_at(reported_at)
            out = {p.metadata.uid for p in split_groups}
            asked = replace(asked, members=tuple(m for m in asked.members if m.uid not in out))
            view = replace(view, members=tuple(p for p in view.members if p.metadata.uid not in out))
        return view, replace(asked, members=asked.members + expected.pods), expected, short

    def _wait_for_pods(
        self, gang: GangState, view: GangView, result: Plan, short: Mapping[str, int], now_s: float
    ) -> None:
        """Pods still to come decide, not room. The first moments of every roll-out look like this: be patient."""
        gang.plan_left_out_nobody()
        gang.wait_for(WaitReason.PARTNER)
        reported_at = gang.last_arrival_s + self.settings.partner_s
        if now_s >= reported_at and short:
            self.report(view.members, for_partners_unit(short, reason_of(result)))
        elif now_s >= reported_at and (loose := self._not_held(view, result)):
            self.report(view.members, for_not_held(loose, loose[0].metadata.label(PHASE)))
        elif now_s >= reported_at:
            self._reporter.held(view, _without_expected(result, lower_minimum=False))
        else:
            gang.requeue_at(reported_at)

    def _not_held(self, view: GangView, result: Plan) -> list[Pod]:
        """Pods of the phase of which nobody else is there, that nothing of ours holds and that are on no node yet."""
        if result.outcome != Outcome.WAITING_FOR_PARTNER:
            return []
        here = {p.metadata.label(PHASE) for p in (*view.held, *view.released, *view.bound)}
        return sorted(
            (
                p
                for p in self._state.gang_pods(*view.key)
                if p.metadata.label(PHASE) not in here
                and not (p.has_gate(GATE) or p.spec.node_name or p.finished or p.metadata.deletion_timestamp)
            ),
            key=lambda p: p.metadata.name,
        )

    def _reserve(self, key: GangKey, gang: GangState, result: Plan, now_s: float) -> None:
        """Keep the room of pods to come, for a time."""
        retained = [m for m in result.request.members if is_expected(m.uid) and m.uid in result.places]
        for member in retained:
            self._state.assume(member.uid, result.places[member.uid], member.amounts, member.hold)
        if retained:
            gang.reserve((m.uid for m in retained), now_s + self.settings.reserve_s)
            self._fairness.commitments.keep(key, sum_amounts(m.amounts for m in retained))

    def _go(self, gang: GangState, view: GangView, result: Plan, *, nominate: bool) -> Work:
        """The planned pods' departure; without nomination Volcano chooses among the nodes of their sets."""
        by_uid = {p.metadata.uid: p for p in view.members}
        annotations = self._reporter.annotations(result)
        releases = [
            PodRelease(
                by_uid[uid],
                node if nominate else "",
                result.set_of(uid),
                annotations[uid]
                | ({GROUP_NAME: podgroup_name(view.key[1])} if moved(by_uid[uid], view.key[1]) else {}),
            )
            for uid, node in result.places.items()
        ]
        self._reporter.planned(view, result)
        if nominate:
            for member in result.request.members:
                if member.uid in result.places:
                    self._state.assume(member.uid, result.places[member.uid], member.amounts, member.hold)
        gang.begin_release(result.places, preempts=not nominate)
        return self._workflow.release(view, result, releases, gang)


def _without_expected(result: Plan, *, lower_minimum: bool = True) -> Plan:
    """The plan as it is for the pods that exist. The minimum is what of it can go now, or stays as it was asked."""
    gang = result.request
    if not any(is_expected(m.uid) for m in gang.members):
        return result
    members = tuple(m for m in gang.members if not is_expected(m.uid))
    request = replace(gang, members=members)
    if lower_minimum:
        phases = [m.phase for m in members if m.uid in result.places] + [p.phase for p in gang.partners]
        request = replace(
            request,
            min_prefill=min(gang.min_prefill, phases.count(PREFILL)),
            min_decode=min(gang.min_decode, phases.count(DECODE)),
        )
    return replace(
        result,
        request=request,
        places={uid: node for uid, node in result.places.items() if not is_expected(uid)},
        decisions={uid: d for uid, d in result.decisions.items() if not is_expected(uid)},
    )
