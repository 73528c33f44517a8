"""The annotation isochrone.dev/placement: a small table that `kubectl describe` shows as an indented block.

Rules of this file. (1) At most eight lines, each at most 130 characters (kubectl cuts at 138). (2) The first word of a
line says what the line is about; it is padded, so values stand under each other. (3) Same decision, same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from scheduler.explain.wording import (
    LINE_CHARS,
    NAMES_SHOWN,
    agents_of,
    amount,
    clip,
    counts,
    facts_of,
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
    ruled_out,
    set_of,
    split_roots,
    whole_points,
)
from scheduler.model.decision import Candidate, Decision, Outcome, PairReach, Plan
from scheduler.model.reason import Blocked, Obstacle, blocked_of, is_joiner, reason_of
from scheduler.model.verdict import VerdictCode
from topology.labels import PHASES, PREFILL
from topology.units import show_us

MAX_LINES: Final = 8
_RUNNERS_UP: Final = 2
_WITH_CAPACITY: Final = (VerdictCode.REACH_EXCEEDED, VerdictCode.GANG_TOO_LARGE)

_WORD_CHARS: Final = 9
"""The first word of a row and the space behind it."""

_ALL: Final = 10_000

Row = tuple[str, str]  # first word, and what stands behind it


def placement_block(
    decision: Decision,
    plan: Plan | None = None,
    *,
    bound_node: str | None = None,
    facts_age_s: float | None = None,
) -> str:
    """The block of one pod. `bound_node` once its binding was seen; before that the place is called planned."""
    age = decision.facts_age_s if facts_age_s is None else facts_age_s
    held = decision.chosen is None and bound_node is None
    rows = _held_rows(decision, plan) if held else _placed_rows(decision, plan, bound_node)
    facts = [facts_of(age).removeprefix("facts ")]
    if old := agents_of(decision.agents):
        facts.append(old)
    if not held and decision.predicted_gpus:
        picked = f"{decision.pick.show()}; " if decision.pick is not None else ""
        facts.append(f"GPUs predicted: {picked}the device plugin picks the cards")
    elif not held and decision.pick is not None:
        facts.append(f"GPUs pinned: {decision.pick.show()}")
    return _table([*rows, ("facts", "; ".join(facts))])


# complexity: the rows of one block in their order, each there or not
def _placed_rows(decision: Decision, plan: Plan | None, bound_node: str | None) -> list[Row]:
    node = bound_node or decision.chosen or ""
    mine = next((c for c in decision.ranked if c.node == node), None)
    rows = [("placed" if bound_node else "planned", f"{name_of(node)}  {_parts(mine, no_score(decision))}")]
    if bound_node and decision.chosen not in (None, bound_node):
        rows.append(("instead", f"of {name_of(decision.chosen or '')}, which was planned"))
    elif decision.partner is not None:
        rows.append(("pair", _pair(decision, decision.partner, plan)))
        rows += _hops(decision.partner)
    others = [c for c in decision.ranked if c.node != node][:_RUNNERS_UP]
    if others:
        rows.append(("next", "   ".join(_runner_up(c) for c in others)))
    elif decision.eligible == 1:
        rows.append(("next", f"none: the only feasible node of {decision.node_count}"))
    if mine is not None and (split_groups := split_roots(mine)):
        rows.append(("roots", split_groups))
    if out := ruled_out(decision):
        rows.append(("out", out))
    allowed = plan.set_of(decision.request.uid) if plan is not None else None
    if allowed is not None:
        rows.append(("set", set_of(allowed)))
    return rows


def _parts(candidate: Candidate | None, without: str) -> str:
    if candidate is None:
        return without
    score, parts = whole_points(candidate)
    return f"score {score} = " + "  ".join(f"{name} {points}/{of}" for name, points, of in parts)


def _pair(decision: Decision, pair: PairReach, plan: Plan | None) -> str:
    partner = pair.decode if decision.request.phase == PREFILL else pair.prefill
    there = _node_of(partner, plan)
    where = f" on {name_of(there)}" if there else ""
    which = "nearest" if plan is not None and plan.request.bound.nearest else "worst"
    reach = f"{show_us(pair.reach.us)} {pair.reach.basis}"
    return f"{which}: {name_of(partner)}{where}  {reach}  bound {show_us(decision.bound_us)}  {pair.reach.path}"


def _hops(pair: PairReach) -> list[Row]:
    return [("path", hops)] if (hops := hops_of(pair)) else []


def _node_of(pod: str, plan: Plan | None) -> str:
    """Where a pod of the plan is or will be; empty for a released partner, which may still take one of several."""
    if plan is None:
        return ""
    for member in plan.request.members:
        if member.name == pod and member.uid in plan.places:
            return plan.places[member.uid]
    for partner in plan.request.partners:
        if partner.name == pod and len(partner.nodes) == 1:
            return partner.nodes[0]
    return ""


def _runner_up(candidate: Candidate) -> str:
    reach = f" ({show_us(candidate.reach.us)}, {candidate.reach.path})" if candidate.reach else ""
    return f"{name_of(candidate.node)} {whole_points(candidate)[0]}{reach}"


def _held_rows(decision: Decision, plan: Plan | None) -> list[Row]:
    if plan is None:
        return [("none", counts(decision)), *_capacity(decision), *_nearest(decision)]
    blocked = blocked_of(plan, decision)
    if plan.outcome in (Outcome.WAITING_FOR_PARTNER, Outcome.WAITING_FOR_GANG) or blocked is None:
        return _waiting_rows(plan)
    rows = [("none", counts(decision, decided=plan.outcome != Outcome.UNDECIDED))]
    if is_joiner(plan):
        rows.append(("gang", f"has its minimum; this pod alone waits, for a place within {show_us(decision.bound_us)}"))
        rows += [*_capacity(decision), *_nearest(decision)]
        return rows + _helps(helps_one(decision))
    needed = phase_counts(*(plan.request.still_needed(phase) for phase in PHASES))
    rows.append(
        ("gang", f"{needed} together, every pair within {show_us(decision.bound_us)}: {blocked.obstacle.value}")
    )
    rows += _gang_rows(plan, blocked)
    if blocked.decision.too_large is not None or plan.shortfall is None or not plan.shortfall.beyond_cluster:
        rows += _capacity(blocked.decision)
    return rows + _helps(helps_gang(plan, blocked.decision))


def _helps(advice: str) -> list[Row]:
    return [("helps", advice)] if advice else []


def _waiting_rows(plan: Plan) -> list[Row]:
    gang = plan.request
    have, missing = here_and_missing(gang)
    return [
        ("none", "planned: pods are missing, nodes are looked at once they are there"),
        ("have", phase_counts(*have) or "no pod"),
        ("waits", f"for {phase_counts(*missing)}; the minimum is {phase_counts(gang.min_prefill, gang.min_decode)}"),
    ]


def _gang_rows(plan: Plan, blocked: Blocked) -> list[Row]:
    rows: list[Row] = []
    short, bound_us = plan.shortfall, plan.request.bound.us
    if blocked.decision.too_large is not None or short is None:
        return rows
    if short.beyond_cluster:
        return [("cluster", larger_than_cluster(short))]
    if blocked.obstacle is Obstacle.NO_CAPACITY:
        return rows
    if (pair := short.closest) is not None:
        gap = f", {over(pair.reach.us, bound_us)}" if pair.reach.us > bound_us else ""
        ends = f"{name_of(pair.prefill)} and {name_of(pair.decode)}"
        rows.append(("nearest", f"{ends}  {show_us(pair.reach.us)} ({path_of(pair.reach)}){gap}"))
    if short.needed_gpus and blocked.obstacle is Obstacle.DOES_NOT_FIT_TOGETHER:
        where = f" ({short.best_where})" if short.best_where else ""
        rows.append(("best", f"{short.best_gpus} free of {amount(short.needed_gpus, 'gpus')} needed{where}"))
    return rows


def _capacity(decision: Decision) -> list[Row]:
    """The node that came closest to having room; beside nodes that have it, only if it has some of what is asked."""
    if decision.too_large is not None:
        return [("room", larger_than_all(decision.too_large))]
    if (miss := nearest_capacity(decision)) is None:
        return []
    gap = f"{name_of(miss.node)}: {amount(miss.have, miss.unit, 'free')}, {gap_of(miss)}"
    have = decision.eligible + sum(decision.ruled_out.get(code, 0) for code in _WITH_CAPACITY)
    if not have:
        return [("room", f"best {gap}")]
    return (
        [("room", f"{plural(have, 'node')} {'has' if have == 1 else 'have'} it; of the others nearest {gap}")]
        if miss.have
        else []
    )


def _nearest(decision: Decision) -> list[Row]:
    far = decision.nearest.get(VerdictCode.REACH_EXCEEDED)
    if far is None:
        return []
    whom = f" from {name_of(far.partner)}" if far.partner else ""
    return [("nearest", f"{name_of(far.node)} has room  {show_us(far.have)}{whom}, {over(far.have, far.need)}")]


# complexity: the rows of one block in their order, each there or not
def gang_block(plan: Plan) -> str:
    """The block of a whole gang, for its PodGroup: who goes where, the worst pair, the sets, who is left out."""
    gang, bound_us = plan.request, plan.request.bound.us
    shown = next(iter(plan.decisions.values()), None)
    facts = [("facts", facts_of(shown.facts_age_s).removeprefix("facts "))] if shown else []
    if plan.outcome != Outcome.PLANNED:
        blocked = blocked_of(plan)
        head = ("held", f"{name_of(gang.name)}: {reason_of(plan)}")
        rows = _waiting_rows(plan) if blocked is None else _held_rows(blocked.decision, plan)
        return _table([head, *rows, *facts])
    planned = {p: [m for m in gang.members if m.phase == p and m.uid in plan.places] for p in PHASES}
    sizes = phase_counts(*(len(planned[p]) for p in PHASES))
    minimum = phase_counts(gang.min_prefill, gang.min_decode)
    # It stays on the PodGroup as it is; pods that join later carry their own.
    when = f"planned, beside {plural(len(gang.partners), 'pod')} placed before" if gang.partners else "planned first"
    rows = [("gang", f"{name_of(gang.name)}: {sizes} {when}; minimum {minimum}")]
    rows += [(p, _places(plan, [(m.name, plan.places[m.uid]) for m in planned[p]])) for p in PHASES if planned[p]]
    if plan.worst is not None:
        worst = plan.worst
        ends = f"{name_of(worst.prefill)} and {name_of(worst.decode)}"
        rows.append(("worst", f"{show_us(worst.reach.us)} ({path_of(worst.reach)})  bound {show_us(bound_us)}  {ends}"))
        rows += _hops(worst)
    sets = [(p, s) for p in PHASES if planned[p] and (s := plan.set_for(p)) is not None]
    if len(sets) == 2 and sets[0][1] == sets[1][1]:
        rows.append(("set", f"both {set_of(sets[0][1])}"))
    else:
        rows += [("set", f"{p} {set_of(s)}") for p, s in sets]
    several = [p for p in PHASES if len({plan.set_of(m.uid) for m in planned[p]}) > 1]
    if several:
        rows.append(("set", f"{' and '.join(several)}: one for each group of partners"))
    left = sorted(m.name for m in gang.members if m.uid not in plan.places)
    if left:
        rows.append(("left", f"out of this plan, {plural(len(left), 'pod')}: {names_of(left)}"))
    return _table([*rows, *facts])


def _places(plan: Plan, members: Sequence[tuple[str, str]]) -> str:
    return _listed([f"{name_of(pod)} on {name_of(node)}" for pod, node in sorted(members)])


def _listed(every: Sequence[str]) -> str:
    """As many of the first few as one line holds, then a count of the rest; one at least."""
    for shown in range(min(len(every), NAMES_SHOWN), 0, -1):
        more = len(every) - shown
        text = ", ".join(every[:shown]) + (f" and {more} more" if more else "")
        if len(text) <= LINE_CHARS - _WORD_CHARS:
            break
    return text


def _table(rows: Sequence[Row]) -> str:
    """First words padded to one width; the last row (the facts) survives where there are too many.

    A text too long for its line goes on below it, between words, as long as there are lines for it.
    """
    retained = [*rows[: MAX_LINES - 1], rows[-1]] if len(rows) > MAX_LINES else rows
    width = max(len(word) for word, _ in retained)
    spare = MAX_LINES - len(retained)
    lines: list[str] = []
    for word, text in retained:
        first, *rest = _wrapped(clip(text, _ALL), LINE_CHARS - width - 2)
        if len(rest) > spare:
            lines.append(clip(f"{word:<{width}}  {text}", LINE_CHARS))
            continue
        spare -= len(rest)
        lines += [f"{word:<{width}}  {first}", *(f"{'':<{width}}  {more}" for more in rest)]
    return "\n".join(lines)


def _wrapped(line: str, width: int) -> list[str]:
    """The line in pieces of at most `width` characters, cut between words. Nearly all are short, and `wrap` is slow."""
    return [line] if len(line) <= width else wrap(line, width, break_on_hyphens=False)


def waiting_block(text: str) -> str:
    """The block of a pod that waits for something other than room: what its Event says."""
    return _table([("none   ", text)])
