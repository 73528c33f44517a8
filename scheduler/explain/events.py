"""From a decision or a plan to the text of an Event, to the decision line and to log fields.

Grammar of an Event: result, measure against the bound, with whom, nearest alternative, what helps. Rules of this file.
(1) Every statement is read off the decision or the plan; advice is given only where it was tried. (2) One line, at most
1,000 bytes, the top reasons first. (3) `Placed` is for whoever saw the binding; what a plan says is "planned".

The blocks of several lines that `kubectl describe` shows are in explain_block.py, the words in explain_words.py.
"""

from __future__ import annotations

from typing import Final

from scheduler.explain.wording import (
    EVENT_BYTES,
    amount,
    clip,
    counts,
    facts_of,
    gang_of,
    gap_of,
    helps_gang,
    helps_one,
    here_and_missing,
    hops_of,
    larger_than_all,
    larger_than_cluster,
    name_of,
    names_of,
    nearest_capacity,
    no_score,
    over,
    path_of,
    phase_counts,
    plural,
    whole_points,
)
from scheduler.model.decision import Candidate, Decision, Outcome, PairReach, Plan
from scheduler.model.reason import Blocked, Obstacle, Reason, blocked_of, is_joiner, reason_of
from scheduler.model.verdict import VerdictCode
from topology.labels import DECODE, MIN_DECODE, MIN_PREFILL, PHASES, PLACEMENT, PREFILL
from topology.units import show_us

OLD_FACTS_S: Final = 10.0
"""An Event mentions facts older than this; the block and the decision line always say their age."""


def placed_event(
    decision: Decision | None,
    bound_node: str,
    pair: PairReach | None = None,
    *,
    phase: str = "",
    bound_us: float | None = None,
    inside_set: bool | None = None,
    explained_before: bool = False,
) -> str:
    """A pod that was seen bound. `pair` is its worst pair as bound; without it the planned one counts, if it is there.

    `phase` is needed only without a decision; `bound_us` is the gang's, where it is known. `inside_set`: whether the
    node is in the isochrone set of the plan, where that is known; it is said only if the node is another than the
    planned one. `explained_before`: the pod carries a decision that this process did not make.
    """
    phase = decision.request.phase if decision else phase
    if bound_us is None and decision is not None:
        bound_us = decision.bound_us  # a pod that was only scored has its own; the gang's is the strictest of all
    as_planned = decision is not None and decision.chosen == bound_node
    if pair is None and decision is not None and as_planned:
        pair = decision.partner
    text = f"On {name_of(bound_node)}{_measured(pair, phase, bound_us)}"
    if decision is None and explained_before:
        return _finish(f"{text}; planned before this controller started, see {PLACEMENT}")
    if decision is None:
        return _finish(f"{text}; not scored: no decision was made for this pod")
    if decision.chosen is not None and not as_planned:
        inside = {True: " inside the isochrone set", False: " outside the isochrone set", None: ""}[inside_set]
        text += f"; planned {name_of(decision.chosen)}, Volcano chose {name_of(bound_node)}{inside}"
    return _finish(text + _score(decision, bound_node), decision)


def _measured(pair: PairReach | None, phase: str, bound_us: float | None) -> str:
    """`, 79.2 us from prefill chat-prefill-0 (bound 1.00 ms, same leaf, TCP, modelled)`."""
    if pair is None:
        return ""
    if phase == PREFILL:
        who = f"{DECODE} {name_of(pair.decode)}"
    elif phase == DECODE:
        who = f"{PREFILL} {name_of(pair.prefill)}"
    else:
        who = f"its partner ({name_of(pair.prefill)} to {name_of(pair.decode)})"
    reach = pair.reach
    if bound_us is None:
        return f", {show_us(reach.us)} from {who} ({path_of(reach)})"
    if reach.us > bound_us:
        return f", {show_us(reach.us)} from {who}, {over(reach.us, bound_us)} ({path_of(reach)})"
    return f", {show_us(reach.us)} from {who} (bound {show_us(bound_us)}, {path_of(reach)})"


def _score(decision: Decision, node: str) -> str:
    """`; score 83, next best gpu-007 at 64`, by what was kept of the scores."""
    mine = next((c for c in decision.ranked if c.node == node), None)
    others = [c for c in decision.ranked if c.node != node]
    best = max(others, key=lambda c: (c.score_nano, c.node), default=None)
    if mine is None:
        return f"; {no_score(decision)}"
    value = f"; score {_whole(mine)}"
    if best is None:
        only = decision.eligible == 1 and mine.within
        return f"{value}, the only feasible node of {decision.node_count}" if only else value
    if best.score_nano <= mine.score_nano:
        return f"{value}, next best {name_of(best.node)} at {_whole(best)}"
    if decision.chosen == node:
        # The plan takes the first placement in which everybody fits, not each pod's own best node.
        return f"{value}; {name_of(best.node)} alone scores {_whole(best)}, the gang was planned as a whole"
    return f"{value}, best {name_of(best.node)} at {_whole(best)}"


def _whole(candidate: Candidate) -> int:
    return whole_points(candidate)[0]


def held_event(plan: Plan, decision: Decision | None = None) -> tuple[Reason, str]:
    """Why a pod, or with no decision its gang, has no place: the reason and the text, the same for all of a held gang.

    For a pod that was left out of a gang that has its minimum, the text is about this pod alone.
    """
    reason = reason_of(plan, decision)
    if plan.outcome in (Outcome.WAITING_FOR_PARTNER, Outcome.WAITING_FOR_GANG):
        return reason, _finish(_waiting(plan))
    blocked = blocked_of(plan, decision)
    if blocked is None:
        return reason, _finish(
            f"No pod of the gang {name_of(plan.request.name)} waits: {_planned_counts(plan)} planned"
        )
    if is_joiner(plan):
        return reason, _finish(_left_out(plan, blocked), blocked.decision)
    if plan.outcome == Outcome.UNDECIDED:
        text = f"Undecided about {gang_of(plan.request)}: no placement found in {plan.expanded} tries, none ruled out"
        return reason, _finish(f"{text}; {counts(blocked.decision, decided=False)}", blocked.decision)
    text = f"No place for {gang_of(plan.request)}: {_why_gang(plan, blocked)}"
    return reason, _finish(text + _advice(helps_gang(plan, blocked.decision)), blocked.decision)


# complexity: one case an outcome
def _why_gang(plan: Plan, blocked: Blocked) -> str:
    short, decision = plan.shortfall, blocked.decision
    phase, bound_us = decision.request.phase, plan.request.bound.us
    if decision.too_large is not None:
        return f"{larger_than_all(decision.too_large)} for a {phase} pod; {counts(decision)}"
    if short is not None and short.beyond_cluster:
        return f"{larger_than_cluster(short)}; {counts(decision)}"
    if blocked.obstacle is Obstacle.NO_CAPACITY:
        return f"no node has room for a {phase} pod; {counts(decision)}{_nearest_capacity(decision)}"
    if blocked.obstacle is Obstacle.OUT_OF_REACH:
        text = counts(decision)
        if short is not None and short.closest is not None:
            pair = short.closest
            there = name_of(pair.prefill)
            ends = f"{there} twice" if pair.prefill == pair.decode else f"{there} and {name_of(pair.decode)}"
            has_partner = any(p.phase != phase for p in plan.request.partners)
            what = "nearest room and partner" if has_partner else "closest pair with room"
            text += f"; {what} {ends} at {show_us(pair.reach.us)}, {over(pair.reach.us, bound_us)}"
            text += f" ({path_of(pair.reach)})"
        return text
    text = counts(decision)
    if short is None or not short.needed_gpus:
        return f"{text}; there is room for one pod of each phase within {show_us(bound_us)}, not for all together"
    needs = f"{text}; needs {amount(short.needed_gpus, 'gpus')} within reach"
    gap = short.needed_gpus - short.best_gpus
    where = f" ({clip(short.best_where, 200)})" if short.best_where else ""
    around = f"within {show_us(bound_us)} of one node{where}"
    if plan.request.partners:
        around = f"where its partners allow within {show_us(bound_us)}"
    if gap > 0:
        return f"{needs}, at most {short.best_gpus} are free on nodes with room {around}, {gap} short"
    return f"{needs}; {short.best_gpus} are free on nodes with room {around}, but not so that all pods fit"


def _nearest_capacity(decision: Decision) -> str:
    """`; nearest gpu-004 with 6 free GPUs, 2 short`; where no node accepts the pod, that is what is said."""
    if decision.ruled_out.get(VerdictCode.NODE_NOT_ACCEPTED) == decision.node_count and decision.node_count:
        return "; each is down, cordoned, tainted, not selected by the pod or without a kubernetes.io/hostname label"
    if (miss := nearest_capacity(decision)) is None:
        return ""
    return f"; nearest {name_of(miss.node)} with {amount(miss.have, miss.unit, 'free')}, {gap_of(miss)}"


def _left_out(plan: Plan, blocked: Blocked) -> str:
    """One pod of a gang that has its minimum: what runs is said first, since it is not what the pod waits for."""
    decision, gang = blocked.decision, plan.request
    placed = sum(1 for p in gang.partners if p.bound)
    have = [f"{plural(placed, 'pod')} bound"] if placed else []
    if released := len(gang.partners) - placed:
        have.append(f"{released} released")
    if plan.places:
        have.append(f"{len(plan.places)} planned")
    text = f"The gang {name_of(gang.name)} has its minimum ({', '.join(have)}); no node within reach can take"
    text += f" this {decision.request.phase} pod; {counts(decision)}"
    text += f"; {larger_than_all(decision.too_large)}" if decision.too_large else _nearest_capacity(decision)
    if (far := decision.nearest.get(VerdictCode.REACH_EXCEEDED)) is not None:
        whom = f" from {name_of(far.partner)}" if far.partner else ""
        how = f" ({path_of(far.reach)})" if far.reach is not None else ""
        text += f"; nearest with room {name_of(far.node)} at {show_us(far.have)}{whom}, {over(far.have, far.need)}{how}"
    return text + _advice(helps_one(decision))


def _waiting(plan: Plan) -> str:
    gang = plan.request
    have, missing = here_and_missing(gang)
    name, waits = name_of(gang.name), phase_counts(*missing)
    starts = f"the minimum is {phase_counts(gang.min_prefill, gang.min_decode)}; nodes are looked at then"
    if plan.outcome == Outcome.WAITING_FOR_PARTNER:
        absent = next(phase for phase, n, lacks in zip(PHASES, have, missing, strict=True) if lacks and not n)
        return f"The gang {name} has no {absent} pod yet, only {phase_counts(*have)}; it waits for {waits}, {starts}"
    keys = [key for lacks, key in zip(missing, (MIN_PREFILL, MIN_DECODE), strict=True) if lacks]
    lower = f"Raise the replicas, or lower {' and '.join(keys)}"
    return f"The gang {name} has {phase_counts(*have)}; it waits for {waits} more, {starts}. {lower}"


def gang_event(plan: Plan, *, bound: bool = False) -> tuple[Reason, str]:
    """The Event of the whole gang, for its PodGroup. `bound`: the caller has seen all bindings and may say placed."""
    if plan.outcome != Outcome.PLANNED:
        return held_event(plan)
    text = f"{'Placed' if bound else 'Planned'} {_planned_counts(plan)} of the gang {name_of(plan.request.name)}"
    if plan.worst is not None:
        worst, bound_us = plan.worst, plan.request.bound.us
        text += f"; worst pair {name_of(worst.prefill)} and {name_of(worst.decode)} at {show_us(worst.reach.us)}"
        way = f"; {hops_of(worst)}" if worst.hops else ""
        text += f" (bound {show_us(bound_us)}, {path_of(worst.reach)}{way})"
    text += f"; on {names_of(sorted(set(plan.places.values())))}"
    left = [m.name for m in plan.request.members if m.uid not in plan.places]
    if left:
        text += f"; left out for now {names_of(sorted(left))}"
    return Reason.PLACED, _finish(text)


def _planned_counts(plan: Plan) -> str:
    placed = [m for m in plan.request.members if m.uid in plan.places]
    return phase_counts(*(sum(1 for m in placed if m.phase == phase) for phase in PHASES)) or "no pod"


def _advice(text: str) -> str:
    return f". {text[0].upper()}{text[1:]}" if text else ""


def _finish(text: str, decision: Decision | None = None) -> str:
    if decision is not None and decision.facts_age_s >= OLD_FACTS_S:
        text += f"; {facts_of(decision.facts_age_s)}"
    return clip(text, EVENT_BYTES, count_bytes=True)


def news_key(plan: Plan, decision: Decision | None = None) -> str:
    """What makes two explanations the same news: reason and obstacle. Counts, ages and gaps change by themselves: one
    node that joins would otherwise rewrite the annotations of every pod that waits.

    For the Event poster's `key`, and to leave an annotation alone while its meaning stays.
    """
    blocked = blocked_of(plan, decision)
    node = (decision.chosen or "") if decision else ""
    alone = "alone" if is_joiner(plan) else "together"
    silent = "silent" if decision is not None and not node and decision.silent else ""
    never = (
        "never"
        if blocked and (blocked.decision.too_large or (plan.shortfall and plan.shortfall.beyond_cluster))
        else ""
    )
    return f"{reason_of(plan, decision)}/{never}/{node}/{alone}/{blocked.obstacle.name if blocked else ''}/{silent}"


def decision_line(decision: Decision, facts_age_s: float | None = None) -> str:
    """The annotation isochrone.dev/decision: `7c41e09 (snapshot 8812, facts 0.4s old)`."""
    age = decision.facts_age_s if facts_age_s is None else facts_age_s
    return f"{decision.id} (snapshot {decision.snapshot_id}, {facts_of(age)})"


def log_fields(of: Decision | Plan) -> dict[str, str | int | float]:
    """Keys and values of one log line, units in the keys; the message is the caller's and constant."""
    if isinstance(of, Plan):
        fields: dict[str, str | int | float] = {
            "gang": f"{of.request.namespace}/{of.request.name}",
            "result": of.outcome,
            "reason": str(reason_of(of)),
            "snapshot": of.snapshot_id,
            "members": len(of.request.members),
            "planned": len(of.places),
            "tries": of.expanded,
        }
        pair = of.worst
    else:
        fields = {
            "decision": of.id,
            "pod": f"{of.request.namespace}/{of.request.name}",
            "result": "planned" if of.chosen else "pending",
            "snapshot": of.snapshot_id,
            "eligible": of.eligible,
            "nodes": of.node_count,
        }
        if of.chosen:
            fields["node"] = of.chosen
        if of.candidate is not None:
            fields["score"] = round(of.candidate.score, 3)
        pair = of.partner
    if pair is not None:
        fields["reach_ms"] = round(pair.reach.us / 1000, 6)
    return fields
