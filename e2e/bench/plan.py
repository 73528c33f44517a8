"""How long a plan takes: 2 prefill and 4 decode pods on clusters of 500, 5,000 and 20,000 nodes, 70 % full.

What is measured is what the controller calls for a gang: places, isochrone sets and the decision of every pod. Between
two plans a hundredth of the pods leaves and others come, so no plan sees the state of the one before; the node table
stays, as in life. Time is processor time of the planning thread: a plan waits for nothing, so on a free core that is
the time that passes, and neighbours on a shared machine do not count.

`NODES=500,5000` shortens the sizes, `PLANS=50` the number of plans for each.

Then gangs with `pairing: nearest`, of up to 120 pods, on 5,000 nodes 70 to 98 % full: how many end undecided. At last
one gang of 3,000 pods on 5,000 nodes: where all of them fit, and where only some do beside a minimum of one pair.
"""

import gc
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter, thread_time
from typing import Final

from e2e.bench.filled import Filled, gang
from e2e.bench.report import Figure, Goal, matrix
from e2e.bench.sizes import counted, numbers
from scheduler.model.decision import Outcome
from scheduler.model.request import ReachBound
from scheduler.planning.plan import plan
from topology.labels import NEAREST

WARM: Final = 5
"""Plans before the first that counts: they fill what is kept with the node table (acceptance, label groups)."""
WIDTHS: Final = (1, 2, 4, 8)
"""GPUs of every pod of a gang, in turn."""
FULL: Final = 0.7
GOALS: Final = {5_000: Goal("<=", 20.0)}
NEAREST_GANGS: Final = ((4, 8, 4), (8, 8, 8), (2, 12, 8), (20, 20, 2), (40, 40, 4), (60, 60, 8))
"""Prefill pods, decode pods, GPUs of each."""
NEAREST_FULL: Final = (0.7, 0.8, 0.9, 0.95, 0.98)
PODS: Final = 3_000
CROWDED: Final = {"fits": (0.2, PODS // 2), "in part": (0.7, 1)}
"""How full the cluster is, and pods of each phase without which the gang does not go."""
CROWDED_GOAL: Final = Goal("<=", 1_000.0)


def measure() -> Iterator[list[Figure]]:
    """One figure a size, and how the p99 grows from the smallest to the largest."""
    plans, found = counted("PLANS", 400), dict[int, float]()
    rows = []
    for size in numbers("NODES", (500, 5_000, 20_000)):
        cpu_ms, wall_ms, placed = _timed(size, plans)
        found[size] = _percentile(cpu_ms, 0.99)
        rows.append(
            (
                str(size),
                *(f"{_percentile(cpu_ms, q):.1f}" for q in (0.5, 0.9, 0.99, 1.0)),
                f"{_percentile(wall_ms, 0.99):.1f}",
                f"{placed} of {plans}",
            )
        )
        source = f"{plans} plans of 2P4D, 1, 2, 4 and 8 GPUs a pod in turn; processor time; {placed} found places"
        yield [Figure(f"{size} nodes p99 ms", found[size], "ms", GOALS.get(size), source=source)]
    matrix("plan, ms", ("nodes", "p50", "p90", "p99", "longest", "p99 by the clock", "found places"), rows)
    if len(found) > 1:
        (small, first), (large, last) = min(found.items()), max(found.items())
        grown = math.log(last / first) / math.log(large / small)
        source = f"p99 from {small} to {large} nodes: 1 would be in proportion"
        yield [Figure("growth exponent", grown, "", Goal("<=", 0.999), source=source)]
    yield [_nearest()]
    for value, (full, minimum) in CROWDED.items():
        yield [_crowd(value, full, minimum)]


def _nearest() -> Figure:
    """How many gangs are neither planned nor told that they have no place."""
    ends, took = Counter[str](), []
    for full in NEAREST_FULL:
        cluster = Filled(5_000, seed=3, full=full)
        for turn in range(4 * len(NEAREST_GANGS)):
            cluster.churn()
            asked = gang(*NEAREST_GANGS[turn % len(NEAREST_GANGS)])
            bound = ReachBound(us=(1_000.0, 25.0)[turn // len(NEAREST_GANGS) % 2])
            snapshot, began = cluster.snapshot(), thread_time()
            ends[plan(replace(asked, pairing=NEAREST, bound=bound), snapshot, advise=False).outcome] += 1
            took.append(1e3 * (thread_time() - began))
    counted = ", ".join(f"{n} {outcome}" for outcome, n in sorted(ends.items()))
    source = f"{counted}; mean {sum(took) / len(took):.0f} ms, longest {max(took):.0f} ms of processor time"
    return Figure("nearest undecided", ends[Outcome.UNDECIDED], "gangs", Goal("<=", 0), source=source)


def _crowd(value: str, full: float, minimum: int) -> Figure:
    """The median of a few plans of one gang of thousands."""
    cluster = Filled(5_000, seed=1, full=full)
    asked = replace(gang(PODS // 2, PODS // 2, 1), min_prefill=minimum, min_decode=minimum)
    took = []
    for _ in range(3):
        cluster.churn()
        snapshot, began = cluster.snapshot(), thread_time()
        made = plan(asked, snapshot, advise=False)
        took.append(1e3 * (thread_time() - began))
    source = f"5,000 nodes, {full:.0%} full, pods of one GPU; {len(made.places)} found places; processor time"
    return Figure(f"{PODS} pods gang {value} plan ms", sorted(took)[1], "ms", CROWDED_GOAL, source=source)


def _timed(size: int, plans: int) -> tuple[list[float], list[float], int]:
    """Processor and clock milliseconds of each plan, and how many gangs found places."""
    cluster = Filled(size, seed=size, full=FULL)
    cpu_ms, wall_ms, placed = [], [], 0
    gc.collect()
    gc.freeze()  # as the controller does with what it has read
    for turn in range(WARM + plans):
        cluster.churn()
        snapshot, asked = cluster.snapshot(), gang(2, 4, WIDTHS[turn % len(WIDTHS)])
        cpu, wall = thread_time(), perf_counter()
        made = plan(asked, snapshot, advise=False)
        cpu, wall = thread_time() - cpu, perf_counter() - wall
        if turn >= WARM:
            cpu_ms.append(cpu * 1e3)
            wall_ms.append(wall * 1e3)
            placed += made.outcome == Outcome.PLANNED
    return cpu_ms, wall_ms, placed


def _percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
