"""One function per verb of Volcano's extender plugin: request bytes in, answer bytes out.

Rules of this file. (1) Every answer is one that Volcano can use: all nodes asked are scored, scores are distinct,
finite and in 0 to 100 points x `policy.volcano_weight`. (2) A pod that is none of ours, and any pod before the first
lists are complete, gets a neutral answer. (3) A wrong setting on a pod counts as its default here: the webhook is
where a person is told. (4) Nothing assumes that prioritize ran: Volcano skips it for nominated pods and for a single
candidate. (5) Only allocateFunc may say no, only to a pod that is `required`, and only for a partner that has a place.

It must never know HTTP, time, or who reads the decision it hands back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Protocol

from scheduler.extender import wire
from scheduler.extender.decide import decide
from scheduler.extender.session import SessionLedger, SessionPod
from scheduler.model.decision import Decision
from scheduler.model.policy import Policy
from scheduler.model.request import Partner, ReachBound, pod_request_of
from topology import labels, units
from topology.bad_input import BadInput
from topology.cluster.snapshot import NodeTable, Snapshot
from topology.objects import Pod

_NO_OBJECTION: Final = wire.event()
_RETAINED_CHARS: Final = 64  # longer texts of a bound are read each time: they are nobody's setting


class SnapshotSource(Protocol):
    """What an answer may look at. All are cheap: they are asked in every call."""

    def snapshot(self) -> Snapshot | None:
        """The facts now; None until the first lists are complete."""

    def table(self) -> NodeTable | None:
        """The part of the facts that says where nodes stand."""

    def gang_pods(self, namespace: str, gang: str) -> Sequence[Pod]:
        """The live pods with this gang label, placed or not."""


class Result(StrEnum):
    """What an answer said: closed set, the label of a metric."""

    SCORED = "scored"
    FOREIGN = "foreign"  # none of our pods: no opinion
    COLD = "cold"  # asked before the first lists were complete: no opinion
    ACCEPTED = "accepted"
    REFUSED = "refused"
    TAKEN_BACK = "taken-back"
    NEUTRAL = "neutral"  # a verb on which we never have an opinion


@dataclass(frozen=True, slots=True)
class Answer:
    """The body to send, what it says, the decision behind it if there is one, and a sentence for a log on refusal."""

    body: bytes
    result: Result
    decision: Decision | None = None
    refusal: str = ""


def prioritize(body: wire.Body, view: SnapshotSource, ledger: SessionLedger, policy: Policy) -> Answer:
    """Scores for all nodes asked, those beyond the bound too: they rank below every node within."""
    return score(wire.decode_prioritize(body), view, ledger, policy)


def score(call: wire.Prioritize, view: SnapshotSource, ledger: SessionLedger, policy: Policy) -> Answer:
    """`prioritize` once its body is read."""
    asked = _tried(call.task)
    if asked is None:
        return Answer(wire.scores({}), Result.FOREIGN)  # to Volcano a node without a score has 0
    snapshot = view.snapshot()
    if snapshot is None:
        return Answer(wire.scores(dict.fromkeys(call.nodes, 0.0)), Result.COLD)
    request = pod_request_of(asked.pod, asked.uid, asked.namespace, asked.name)
    ranking = decide(
        request,
        _overlaid(snapshot, request.uid, view, ledger),
        call.nodes,
        partners=_partners(asked, view, ledger),
        bound=_bound_of(asked.pod),
        policy=policy,
    )
    return Answer(wire.scores(ranking.scores), Result.SCORED, decision=ranking.decision)


def allocate(body: wire.Body, view: SnapshotSource, ledger: SessionLedger, policy: Policy) -> Answer:
    """Remembers the place for the rest of the session, or refuses it when a partner's place is out of reach."""
    tried = _tried(wire.decode_event(body))
    if tried is None:
        return Answer(_NO_OBJECTION, Result.FOREIGN)
    table = view.table()
    too_far = _too_far(table, tried, view, ledger) if table is not None else ""
    if too_far:
        # Volcano takes the place back itself, and no sibling may be measured against it meanwhile.
        ledger.forget(tried.uid)
        return Answer(wire.event(too_far), Result.REFUSED, refusal=too_far)
    ledger.allocated(tried)
    return Answer(_NO_OBJECTION, Result.ACCEPTED if table is not None else Result.COLD)


def deallocate(body: wire.Body, view: SnapshotSource, ledger: SessionLedger, policy: Policy) -> Answer:
    """Forgets the place, or remembers that the pod is being evicted from it."""
    tried = _tried(wire.decode_event(body))
    if tried is None:
        return Answer(_NO_OBJECTION, Result.FOREIGN)
    ledger.deallocated(tried)
    return Answer(_NO_OBJECTION, Result.TAKEN_BACK)


def close_session(body: wire.Body, view: SnapshotSource, ledger: SessionLedger, policy: Policy) -> Answer:
    """The session is over, and with it everything that was only tried."""
    wire.check_object(body)
    ledger.close()
    return Answer(wire.NOTHING, Result.NEUTRAL)


def open_session(body: wire.Body, view: SnapshotSource, ledger: SessionLedger, policy: Policy) -> Answer:
    """The whole cluster, every second: taken without a look, so that a configuration with this verb still works."""
    return Answer(wire.NOTHING, Result.NEUTRAL)


Verb = Callable[[wire.Body, SnapshotSource, SessionLedger, Policy], Answer]


def _without_opinion(neutral: bytes) -> Verb:
    def answer(body: wire.Body, view: SnapshotSource, ledger: SessionLedger, policy: Policy) -> Answer:
        wire.check_object(body)
        return Answer(neutral, Result.NEUTRAL)

    return answer


NEUTRAL: Final[Mapping[str, bytes]] = {
    "prioritize": wire.scores({}),
    "allocateFunc": wire.event(),
    "deallocateFunc": wire.event(),
    "onSessionClose": wire.NOTHING,
    "onSessionOpen": wire.NOTHING,
    "predicate": wire.FITS,
    "jobEnqueueable": wire.ABSTAIN,
    "jobReady": wire.READY,
    "preemptable": wire.NO_VICTIMS,
    "reclaimable": wire.NO_VICTIMS,
    "queueOverused": wire.NOT_OVERUSED,
}
"""Per verb what to say when there is nothing to say; also when we fail, so that a bug of ours stops no scheduling."""

VERBS: Final[Mapping[str, Verb]] = {verb: _without_opinion(neutral) for verb, neutral in NEUTRAL.items()} | {
    "prioritize": prioritize,
    "allocateFunc": allocate,
    "deallocateFunc": deallocate,
    "onSessionClose": close_session,
    "onSessionOpen": open_session,
}

UNREAD: Final = frozenset({"onSessionOpen"})
"""Verbs whose body is not even kept: it can be a gigabyte."""


# --- what a task says --------------------------------------------------------------------------


def _tried(task: wire.Task) -> SessionPod | None:
    """None for a pod without a phase of ours: nothing can be said about its pair."""
    meta = task.pod.metadata
    phase = meta.label(labels.PHASE)
    if phase not in labels.PHASES:
        return None
    return SessionPod(
        uid=task.uid or meta.uid or task.pod.key,
        name=task.name or meta.name,
        namespace=task.namespace or meta.namespace,
        gang=meta.label(labels.GANG),
        phase=phase,
        node=task.node_name,
        status=task.status,
        pod=task.pod,
    )


def _bound_of(pod: Pod) -> ReachBound:
    value = pod.metadata.annotation
    reach, size = value(labels.REACH), value(labels.REACH_SIZE)
    read = _bound if len(reach) + len(size) <= _RETAINED_CHARS else _bound.__wrapped__
    return read(reach, size, value(labels.PAIRING) == labels.NEAREST)


@lru_cache(maxsize=256)
def _bound(reach: str, size: str, nearest: bool) -> ReachBound:
    us, size_bytes = labels.DEFAULT_REACH_US, labels.DEFAULT_REACH_SIZE_BYTES
    if reach:
        with suppress(BadInput):
            us = units.parse_duration_us(reach, labels.REACH)
    if size:
        with suppress(BadInput):
            size_bytes = units.parse_size_bytes(size, labels.REACH_SIZE)
    return ReachBound(us, size_bytes, nearest)


# --- where the others are ----------------------------------------------------------------------


def _partners(tried: SessionPod, view: SnapshotSource, ledger: SessionLedger) -> tuple[Partner, ...]:
    """Pods of the other phase that have a place: bound, or put there in this session. By uid, what is bound wins."""
    if not tried.gang:
        return ()
    other = labels.DECODE if tried.phase == labels.PREFILL else labels.PREFILL
    found = {p.uid: p for p in ledger.partners(tried.namespace, tried.gang, other)}
    for pod in view.gang_pods(tried.namespace, tried.gang):
        meta = pod.metadata
        if _stays(pod) and meta.label(labels.PHASE) == other and not ledger.leaving(meta.uid):
            found[meta.uid] = Partner(meta.uid, meta.name, other, (pod.spec.node_name,))
    return tuple(found.values())


def _stays(pod: Pod) -> bool:
    """Bound and not on its way out: whoever replaces a leaving pod is placed anew."""
    return bool(pod.spec.node_name) and not pod.finished and pod.metadata.deletion_timestamp is None


def _overlaid(snapshot: Snapshot, uid: str, view: SnapshotSource, ledger: SessionLedger) -> Snapshot:
    """The snapshot as this session left it, without the pod itself: it must not compete with its own reservation."""
    bound = {
        pod.metadata.uid
        for namespace, gang in ledger.gangs()
        for pod in view.gang_pods(namespace, gang)
        if pod.spec.node_name
    }
    tried = ledger.assumed(without=bound | {uid})
    if tried:
        snapshot = snapshot.with_assumed(tried)
    return snapshot.without_assumed([uid]) if uid in snapshot.assumed else snapshot


def _too_far(table: NodeTable, tried: SessionPod, view: SnapshotSource, ledger: SessionLedger) -> str:
    """Why this node cannot be taken, or nothing. Nodes that we do not know are not judged."""
    if tried.pod.metadata.annotation(labels.REACH_MODE) != labels.REQUIRED or tried.status == wire.TaskStatus.RUNNING:
        return ""
    node, partners = table.index.get(tried.node), _partners(tried, view, ledger)
    if node is None or not partners:
        return ""
    bound = _bound_of(tried.pod)
    row_us = table.reach.row_us(node, bound.size_bytes)
    away = [
        (float(row_us[table.index[name]]), partner.name, name)
        for partner in partners
        for name in partner.nodes
        if name in table.index
    ]
    if not away:
        return ""
    # With `pairing: nearest` one partner in reach is enough; else all of them must be.
    us, name, where = (min if bound.nearest else max)(away, key=lambda found: found[:2])
    if us <= bound.us:
        return ""
    reach = table.reach.between(node, table.index[where], bound.size_bytes)
    return (
        f"isochrone: {tried.phase} pod {tried.name} on {tried.node} would be {units.show_us(reach.us)} "
        f"({reach.basis}) from {name} on {where}, and its bound is {units.show_us(bound.us)}"
    )
