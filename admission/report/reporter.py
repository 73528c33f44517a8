"""EDGE: tells people: Events and annotations on pods and PodGroups, and one log line per decision.

It decides when something is said and to whom; the words are scheduler.explain.events's. "Placed" is said only after
the API server showed the binding. Nothing here may fail or delay a decision: Events go through a bounded queue,
annotations through a bounded set of pods, each written once with its newest text.

A planned pod carries its explanation from the release patch on, so a placement as planned costs no further write.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from admission.gangs.gang_view import GangView, view_of
from admission.gangs.template_revision import TemplateOf, no_template
from admission.release.pod_group import API_VERSION
from admission.release.pod_writer import PodWriter
from admission.report.binding_batches import Bindings
from admission.report.wait_messages import WaitMessage
from admission.report.worst_pair import worst_pair
from scheduler.explain.annotation import gang_block, placement_block, waiting_block
from scheduler.explain.events import decision_line, gang_event, held_event, log_fields, news_key, placed_event
from scheduler.explain.wording import path_of, silent_agents
from scheduler.extender.decision_cache import DecisionCache
from scheduler.model.decision import Decision, PairReach, Plan
from scheduler.model.reason import Reason
from topology.clock import monotonic_s
from topology.cluster.state import ClusterState, GangKey, gang_key
from topology.kube.events import DEGRADED_WINDOW_S, EventSink, Involved
from topology.labels import (
    CONFLICT,
    DECISION,
    DECODE,
    ENABLED,
    GATE,
    GROUP_NAME,
    MARKER_RESOURCE,
    PHASE,
    PLACEMENT,
    PREFILL,
    REQUIRED,
    SIGNAL,
)
from topology.objects import Pod, PodGroup
from topology.units import show_us

log = logging.getLogger(__name__)

V = TypeVar("V")

_REMEMBERED: Final = 5_000
_WAITING: Final = 5_000
NODES_SETTLE_S: Final = 2.0
"""Running pairs are looked at this long after nodes changed, so that a wave of changes costs one look."""

_REPORT_TOGETHER_S: Final = 0.05
"""Bindings that are due within this time are told together."""


class Facts(Protocol):
    """How old the facts are."""

    def facts_age_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Planned:
    plan: Plan
    decision: Decision


class GangReporter:
    """Implements batch.Voice, and is told of every pod change."""

    def __init__(
        self,
        state: ClusterState,
        events: EventSink,
        pod_writer: PodWriter,
        decisions: DecisionCache,
        pod_groups: Mapping[str, PodGroup],
        facts: Facts,
        template_of: TemplateOf = no_template,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._state, self._events, self.pod_writer = state, events, pod_writer
        self._decisions, self._pod_groups, self._facts = decisions, pod_groups, facts
        self._template_of = template_of
        self._planned: OrderedDict[str, _Planned] = OrderedDict()
        self._news: OrderedDict[str, str] = OrderedDict()  # uid to what its annotation says now
        self._to_annotate: OrderedDict[str, tuple[Pod, dict[str, str]]] = OrderedDict()
        self._bindings = Bindings(busy)
        self._reported_groups: OrderedDict[str, str] = OrderedDict()
        self._wakeup = asyncio.Event()
        self._nodes_changed_s: float | None = None

    # --- batch.Voice -----------------------------------------------------------------------------

    def is_news(self, view: GangView, plan: Plan) -> bool:
        """Whether `held` would tell anybody something that was not told before."""
        return any(
            self._news.get(pod.metadata.uid) != news_key(plan, plan.decisions.get(pod.metadata.uid))
            for pod in view.held
            if not plan.decisions or pod.metadata.uid in plan.decisions  # others are told nothing
        )

    def held(self, view: GangView, plan: Plan) -> None:
        """The whole gang waits: the same reason on each of its pods, and on its PodGroup once there is one."""
        log.info("gang held %s", json.dumps(log_fields(plan)))
        self._report_held(view, plan, plan.decisions)
        self._report_group(view, plan)

    def left_out(self, view: GangView, plan: Plan) -> None:
        """Some pods beyond the minimum wait; each has its own reason."""
        left = {uid: d for uid, d in plan.decisions.items() if uid not in plan.places}
        self._report_held(view, plan, left)

    def waiting(self, pod: Pod, reported: WaitMessage) -> None:
        """Something other than room keeps the pod; said once as long as it stays the same."""
        uid = pod.metadata.uid
        if self._news.get(uid) == reported.key:
            return
        _remember(self._news, uid, reported.key, _REMEMBERED)
        self._post(pod, reported.reason, reported.text, key=reported.key)
        if pod.has_gate(GATE) and pod.metadata.annotation(PLACEMENT):
            self._annotate(pod, {PLACEMENT: waiting_block(reported.text)})  # what it said is not true any more

    def removed(self, pod: Pod, reported: WaitMessage) -> None:
        """A pod is deleted for its owner to make another: told to the owner, since the pod's own Events go with it."""
        owner = pod.metadata.controller
        if owner is not None:
            meta = pod.metadata
            involved = Involved(owner.kind, owner.api_version, meta.namespace, owner.name, owner.uid)
            self._events.post(
                involved, reported.reason.type, reported.reason, f"Pod {meta.name}: {reported.text}", key=meta.uid
            )

    def planned(self, view: GangView, plan: Plan) -> None:
        """A plan is about to be written to the pods. What waits to be said about them is old."""
        log.info("gang planned %s", json.dumps(log_fields(plan)))
        for uid in plan.places:
            _remember(self._planned, uid, _Planned(plan, plan.decisions[uid]), _REMEMBERED)
            self._to_annotate.pop(uid, None)
            self._news.pop(uid, None)
            self._events.forget(uid, keep=Reason.PHASE_CONFLICT)

    def annotations(self, plan: Plan) -> dict[str, dict[str, str]]:
        """What each planned pod carries once released, by uid: the readable block and the decision's ids."""
        blocks: dict[object, dict[str, str]] = {}  # twins in one set read the same
        found = {}
        for uid in plan.places:
            decision, equivalent = plan.decisions[uid], (plan.equivalents.get(uid, uid), plan.set_of(uid))
            if equivalent not in blocks:
                blocks[equivalent] = _block(partial(placement_block, decision, plan))
            found[uid] = blocks[equivalent] | {DECISION: decision_line(decision)}
        return found

    def group_annotations(self, plan: Plan | None) -> dict[str, str]:
        """What the gang's PodGroup carries. Nothing after a restart, when the plan is not known any more."""
        return _block(lambda: gang_block(plan)) if plan is not None else {}

    # --- told of every pod change ----------------------------------------------------------------

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod came, changed or went; only changes of ours that people should hear about matter."""
        pod = new or old
        if old is None and new is not None and (note := new.metadata.annotation(CONFLICT)):
            self._post(new, Reason.PHASE_CONFLICT, note, key="conflict")
        if pod is None or gang_key(pod) is None:
            return
        uid = pod.metadata.uid
        if new is None or new.finished:
            for book in (self._planned, self._news, self._to_annotate):
                book.pop(uid, None)
            self._bindings.forget(uid)
            self._events.forget(uid)
            return
        self._report_arrival(old, new)

    def _report_arrival(self, old: Pod | None, new: Pod) -> None:
        """A pod of a gang was bound, or was created past the webhook."""
        if new.spec.node_name and (old is None or not old.spec.node_name):
            if self._bindings.add(new, monotonic_s()):
                self._wakeup.set()
        elif old is None and not new.spec.node_name and not (_tagged(new) or _opted_out(new)):
            text = (
                f"Created without passing the Isochrone webhook (no {MARKER_RESOURCE}): neither held nor scored; "
                f"placed by {new.spec.scheduler_name or 'its scheduler'} alone. Recreate it to have it placed in reach"
            )
            self._post(new, Reason.NOT_RECOGNISED, text, key="untagged")

    def nodes_changed(self) -> None:
        """Some node came, changed or went: running pairs may be farther apart than they were."""
        if self._nodes_changed_s is None:
            self._nodes_changed_s = monotonic_s()
            self._wakeup.set()

    async def run(self) -> None:
        """Tell bindings once they settled, and write waiting annotations, until cancelled."""
        while True:
            now = monotonic_s()
            if self._nodes_changed_s is not None and now - self._nodes_changed_s >= NODES_SETTLE_S:
                self._nodes_changed_s = None
                try:
                    await self._watch_pairs()
                except Exception:
                    log.exception("running pairs could not be looked at")
            if pods := self._bindings.due(now):
                self._report_all(pods)
                await asyncio.sleep(0)
                continue
            # In small lots, so that explanations never crowd out the writes that let pods go.
            batch = [self._to_annotate.popitem(last=False)[1] for _ in range(min(4, len(self._to_annotate)))]
            if batch:
                await asyncio.gather(*(self.pod_writer.annotate(pod, annotations) for pod, annotations in batch))
            if self._to_annotate:
                continue
            self._wakeup.clear()
            times = [at for at in (self._bindings.next_s(now),) if at is not None]
            if self._nodes_changed_s is not None:
                times.append(self._nodes_changed_s + NODES_SETTLE_S)
            wait = min(times) - now if times else None
            with contextlib.suppress(TimeoutError):
                # Not wait_for, which before Python 3.12 can lose a cancellation.
                async with asyncio.timeout(None if wait is None else max(wait, _REPORT_TOGETHER_S)):
                    await self._wakeup.wait()

    # --- inside ----------------------------------------------------------------------------------

    def _report_all(self, pods: Iterable[Pod]) -> None:
        """Tell these bindings."""
        views: dict[GangKey, GangView] = {}  # the pods of a gang are bound together, and nothing changes meanwhile
        plans: dict[GangKey, Plan] = {}
        for pod in pods:
            try:
                self._report_bound(pod, views, plans)
            except Exception:
                log.exception("the placement of pod %s could not be explained", pod.key)
        for key, plan in plans.items():
            self._report_group_placed(key, views[key], plan)

    def _report_held(self, view: GangView, plan: Plan, decisions: Mapping[str, Decision]) -> None:
        for pod in view.held:
            uid = pod.metadata.uid
            decision = decisions.get(uid)
            if plan.decisions and decision is None:
                continue
            key = news_key(plan, decision)
            if self._news.get(uid) == key:
                continue
            _remember(self._news, uid, key, _REMEMBERED)
            reason, text = held_event(plan, decision)
            # The reason alone is the key: counts change with every node that comes or goes, the news does not.
            self._post(pod, reason, text, key=str(reason))
            if decision is not None and decision.silent:
                self._post(pod, Reason.FACTS_STALE, silent_agents(decision.silent), key="held")
            if decision is not None:
                self._annotate(pod, {PLACEMENT: placement_block(decision, plan), DECISION: decision_line(decision)})
            elif pod.metadata.annotation(PLACEMENT):
                self._annotate(pod, {PLACEMENT: waiting_block(text)})  # what it said is not true any more

    def _report_group(self, view: GangView, plan: Plan) -> None:
        for group in self._groups_of((*view.held, *view.released, *view.bound)):
            key = news_key(plan)
            if self._reported_groups.get(group.metadata.uid) != key:
                _remember(self._reported_groups, group.metadata.uid, key, _REMEMBERED)
                reason, text = gang_event(plan)
                self._events.post(_involved_group(group), reason.type, reason, text, key=key)

    def _report_bound(self, pod: Pod, views: dict[GangKey, GangView], plans: dict[GangKey, Plan]) -> None:
        """`views` and `plans` are those of this moment, to which its gang's are added."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        key = gang_key(pod)
        if key is None:
            return
        known = self._planned.pop(uid, None)
        decision = known.decision if known is not None else self._decisions.get(uid)
        table = self._state.table()
        view = (
            views[key]
            if key in views
            else views.setdefault(key, view_of(key, self._state.gang_pods(*key), self._template_of))
        )
        pair = worst_pair(pod, view, table)
        bound_us, mode = view.settings.reach_us, view.settings.mode
        reported_us = known.plan.request.bound.us if known is not None else bound_us
        inside = self._inside_set(known.plan, uid, node) if known is not None else None
        text = placed_event(
            decision,
            node,
            pair,
            phase=pod.metadata.label(PHASE),
            bound_us=reported_us,
            inside_set=inside,
            explained_before=bool(pod.metadata.annotation(DECISION)),
        )
        self._post(pod, Reason.PLACED, text, key=node)
        if pair is not None and pair.reach.us > bound_us and mode == REQUIRED:
            self._report_breach(pod, pair, bound_us)
        fields: dict[str, object] = dict(log_fields(decision)) if decision is not None else {}
        log.info("pod placed %s", json.dumps(fields | {"pod": pod.key, "result": "placed", "node": node}))
        if decision is not None and decision.chosen != node:
            plan = known.plan if known is not None else None
            block = placement_block(decision, plan, bound_node=node, facts_age_s=self._facts.facts_age_s())
            self._annotate(pod, {PLACEMENT: block, DECISION: decision_line(decision)})
        if known is not None:
            plans[key] = known.plan

    def _inside_set(self, plan: Plan, uid: str, node: str) -> bool | None:
        """Whether the node is in the set that was planned for the pod; None where there is none."""
        node_set = plan.set_of(uid)
        if node_set is None:
            return None
        table = self._state.table()
        index = table.index.get(node)
        return index is not None and (table.nodes[index].metadata.label(node_set.key) in node_set.values)

    async def _watch_pairs(self) -> None:
        """Say of running pods whose worst pair is beyond its bound since a node changed. They are left running."""
        for key in list(self._state.gangs()):
            view = view_of(key, self._state.gang_pods(*key), self._template_of)
            if view.settings.mode == REQUIRED:
                for pod in view.bound:
                    pair = worst_pair(pod, view, self._state.table())
                    if pair is not None and pair.reach.us > view.settings.reach_us:
                        self._report_breach(pod, pair, view.settings.reach_us)
            await asyncio.sleep(0)

    def _report_breach(self, pod: Pod, pair: PairReach, bound_us: float) -> None:
        mine = pod.metadata.label(PHASE)
        other = f"{DECODE} {pair.decode}" if mine == PREFILL else f"{PREFILL} {pair.prefill}"
        text = (
            f"Reach to {other} is {show_us(pair.reach.us)} (bound {show_us(bound_us)}, {path_of(pair.reach)}), "
            f"{show_us(pair.reach.us - bound_us)} over. Pod left running on {pod.spec.node_name}"
        )
        self._post(pod, Reason.REACH_BREACHED, text, key=pod.spec.node_name, window_s=DEGRADED_WINDOW_S)

    def _report_group_placed(self, key: GangKey, view: GangView, plan: Plan) -> None:
        """Once the last planned pod is bound."""
        if any(uid in self._planned for uid in plan.places) or not plan.places.keys() <= {
            p.metadata.uid for p in view.bound
        }:
            return  # somebody is still to be told about
        for group in self._groups_of(view.bound):
            reason, text = gang_event(plan, bound=True)
            self._events.post(_involved_group(group), reason.type, reason, text, key=f"placed/{plan.snapshot_id}")
        log.info("gang placed %s", json.dumps({"gang": "/".join(key), "pods": len(plan.places)}))

    def _groups_of(self, pods: Iterable[Pod]) -> list[PodGroup]:
        names = sorted({f"{p.metadata.namespace}/{p.metadata.annotation(GROUP_NAME)}" for p in pods})
        return [group for name in names if (group := self._pod_groups.get(name)) is not None]

    def _post(self, pod: Pod, reason: Reason, text: str, *, key: str, window_s: float | None = None) -> None:
        involved = Involved("Pod", "v1", pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        extra = {} if window_s is None else {"window_s": window_s}
        self._events.post(involved, reason.type, reason, text, key=key, urgent=reason is not Reason.PLACED, **extra)

    def _annotate(self, pod: Pod, annotations: dict[str, str]) -> None:
        _remember(self._to_annotate, pod.metadata.uid, (pod, annotations), _WAITING)
        self._wakeup.set()


def _remember(book: OrderedDict[str, V], uid: str, value: V, limit: int) -> None:
    book[uid] = value
    book.move_to_end(uid)
    while len(book) > limit:
        book.popitem(last=False)


def _block(make: Callable[[], str]) -> dict[str, str]:
    """The readable block. A mistake in wording it costs the words, not the placement."""
    try:
        return {PLACEMENT: make()}
    except Exception:
        log.exception("a plan could not be explained")
        return {}


def _involved_group(group: PodGroup) -> Involved:
    meta = group.metadata
    return Involved("PodGroup", API_VERSION, meta.namespace, meta.name, meta.uid)


def _tagged(pod: Pod) -> bool:
    """It passed our webhook: the gate, the marker, or the signal that it wrote."""
    marked = any(MARKER_RESOURCE in (c.resources.requests or {}) for c in pod.spec.containers)
    return marked or pod.has_gate(GATE) or bool(pod.metadata.annotation(SIGNAL))


def _opted_out(pod: Pod) -> bool:
    """A person said that it is none of ours; our webhook leaves it alone."""
    return pod.metadata.label(ENABLED).lower() == "false"
