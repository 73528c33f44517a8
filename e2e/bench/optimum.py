"""How good the planner's plans are: random small cases against the best plan there is, found by trying every one.

Up to 8 nodes and 4 prefill and 4 decode pods. Every second case is of an awkward kind: mixed links, domains nobody
told, partners that have places, pods with selectors, nodes that are down or overbooked; few of them have a plan. The
others are clusters as most are, partly taken, with many plans. One case in five asks for the nearest partner only. The
gap is that of the published cost (`scheduler/search/objective.py`); with `nearest` it leaves the sets out, since there
are as many as groups. `CASES=50` shortens it, `SEEDS=7` chooses other cases.
"""

from collections.abc import Iterator
from typing import Final

from e2e.bench.report import Figure, Goal
from e2e.bench.sizes import counted
from e2e.stack.build import say
from scheduler.model.decision import Outcome
from scheduler.planning.plan import plan
from tests.scheduler.best_plan import BestPlan, cost_without_sets
from tests.scheduler.small_cases import random_case, roomy_case
from topology.labels import ALL_PAIRS, NEAREST

EVERY: Final = 50
NEAREST_ONE_IN: Final = 5


def measure() -> Iterator[list[Figure]]:
    """Feasibility and gap over all cases."""
    cases, first = counted("CASES", 500), counted("SEEDS", 1) * 1_000_000
    mismatches, undecided, gaps = [], 0, []
    for number in range(cases):
        pairing = ALL_PAIRS if number % NEAREST_ONE_IN else NEAREST
        made_up = random_case if number % 2 else roomy_case
        gang, snapshot = made_up(first + number, pairing)
        made, best = plan(gang, snapshot, advise=False), BestPlan(gang, snapshot).cost
        undecided += made.outcome == Outcome.UNDECIDED
        if (made.outcome == Outcome.PLANNED and len(made.places) == len(gang.members)) != (best is not None):
            mismatches.append(first + number)
        elif best is not None and made.terms is not None:
            terms = {"worst_us": made.terms.worst_us, "mean_us": made.terms.mean_us, "lost_gpus": made.terms.lost_gpus}
            gpus = sum(m.gpus for m in gang.members)
            cost = made.cost if pairing == ALL_PAIRS else cost_without_sets(terms, gang.bound.us, gpus)
            gaps.append((100 * (cost / best - 1), first + number))
        if number % EVERY == EVERY - 1:
            say(f"optimum: {number + 1} of {cases} cases, {len(gaps)} with a plan")
    source = f"{cases} cases, {len(gaps)} with a plan, {undecided} undecided"
    worst = max(gaps, default=(0.0, 0))
    mean = sum(gap for gap, _ in gaps) / max(1, len(gaps))
    optimal = 100 * sum(gap < 1e-6 for gap, _ in gaps) / max(1, len(gaps))
    yield [
        Figure("feasibility mismatches", len(mismatches), "", Goal("<=", 0), source=f"{source} {mismatches[:5] or ''}"),
        Figure("objective gap mean percent", mean, "%", Goal("<=", 2), source=source),
        Figure("objective gap worst percent", worst[0], "%", Goal("<=", 10), source=f"case {worst[1]}"),
        Figure("best plan found percent", optimal, "%", source=source),
    ]
