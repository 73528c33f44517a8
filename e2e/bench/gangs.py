"""`gangs`: what whole gangs cost with Isochrone and without, side by side in one run.

Each run is a fresh cluster; the sides take turns and change their order, so that a machine that grows slower or
busier does so for all of them. The clock runs from the first pod's creation to the last binding.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Final

from e2e.bench.bed import Run, Side, bed
from e2e.bench.cpu import BUSY
from e2e.bench.held import held
from e2e.bench.report import Figure, Goal, matrix
from e2e.bench.single import singles
from e2e.bench.sizes import Sizes, sizes
from e2e.stack.build import say

RATIO_GOALS: Final = {100: Goal(">=", 0.5), 1000: Goal(">=", 1.5)}
FOREIGN_GOAL: Final = Goal(">=", 0.95)
FOREIGN_FROM_NODES: Final = 1000
SINGLE_GOAL: Final = Goal("<=", 300)
RELEASE_GOALS: Final = {50: Goal("<=", 700), 99: Goal("<=", 1500)}
BULK_LIMIT_S: Final = 900.0
REQUESTS_SHOWN: Final = 14
BARE: Final = "a bare client that gates, nominates and releases reached"
ANCHORS: Final = {100: f"{BARE} 0.63 (63 against 100 pods/s)", 1000: f"{BARE} 2.0 (103 against 52 pods/s)"}

SAME_WRITES: Final = "the same writes in this run, by a client that knows every node beforehand"

Runs = dict[Side, list[Run]]


def measure() -> Iterator[list[Figure]]:
    """The figures, part by part."""
    chosen = sizes()
    if "bulk" in chosen.parts:
        for nodes in chosen.nodes:
            yield _on(nodes, chosen)
    if "held" in chosen.parts:
        yield held(min(chosen.nodes), chosen)


def _on(nodes: int, chosen: Sizes) -> list[Figure]:
    """Bulk loads on clusters of one size, and single gangs on the smallest."""
    sides = [Side.PLAIN, Side.OURS, Side.BARE, *([Side.FOREIGN] if nodes >= FOREIGN_FROM_NODES else [])]
    alone = math.ceil(chosen.singles / chosen.runs) if nodes == min(chosen.nodes) else 0
    runs: Runs = defaultdict(list)
    times: dict[Side, list[tuple[float, float | None]]] = defaultdict(list)
    gangs = chosen.gangs_on(nodes)
    for index in range(chosen.runs):
        for side in sides if index % 2 == 0 else sides[::-1]:
            say(f"run {index + 1} of {chosen.runs}: {side}, {nodes} nodes")
            with bed(side, nodes) as mine:
                if alone and side is not Side.BARE:
                    times[side] += singles(mine, alone, len(times[side]))
                runs[side].append(mine.bulk(gangs, BULK_LIMIT_S))
            say(f"  {_line(runs[side][-1])}")
    _show_cost(nodes, gangs, runs)
    busiest = max(run.usage.others_share for each in runs.values() for run in each)
    if busiest > BUSY:
        say(f"others took up to {busiest:.0%} of the machine: measure again when it is quiet")
    figures = _ratio(f"isochrone {nodes} nodes", nodes, runs, Side.OURS, RATIO_GOALS.get(nodes), ANCHORS.get(nodes, ""))
    figures += _ratio(f"bare {nodes} nodes", nodes, runs, Side.BARE, None, SAME_WRITES)
    if Side.FOREIGN in runs:
        figures += _ratio(
            f"foreign {nodes} nodes", nodes, runs, Side.FOREIGN, FOREIGN_GOAL, "1: nothing of ours is in the way"
        )
    for side in sides:
        figures += _absolute(side, nodes, runs[side])
    return figures + _single(times)


def _line(run: Run) -> str:
    at = run.timeline.bound_s
    return (
        f"{run.timeline.rate:.1f} pods/s: {len(at)} created in {run.timeline.created_s:.1f} s, "
        f"bound first {at[0]:.1f} s, half {at[len(at) // 2]:.1f} s, last {at[-1]:.1f} s; "
        f"{sum(run.usage.by_process.values()) / len(at) * 1e3:.1f} ms CPU and "
        f"{run.requests.total() / len(at):.1f} requests a pod; "
        f"others took {run.usage.others_share:.0%} of the machine"
    )


def _ratio(name: str, nodes: int, runs: Runs, side: Side, goal: Goal | None, anchor: str) -> list[Figure]:
    """Rates of one side by plain Volcano's, run by run."""
    pairs = zip(runs[side], runs[Side.PLAIN], strict=True)
    ratios = [mine.timeline.rate / plain.timeline.rate for mine, plain in pairs]
    busy = fmean(run.usage.others_share for each in (side, Side.PLAIN) for run in runs[each])
    source = f"mean of {_spread(ratios)}, fresh clusters in turn; others took {busy:.0%} of the machine"
    return [Figure(f"{name} ratio", fmean(ratios), "of plain Volcano's pods/s", goal, anchor, source)]


def _absolute(side: Side, nodes: int, runs: Sequence[Run]) -> list[Figure]:
    rates = [run.timeline.rate for run in runs]
    costs = [sum(run.usage.by_process.values()) / len(run.timeline.bound_s) * 1e3 for run in runs]
    pods = len(runs[0].timeline.bound_s)
    name = f"{side} {nodes} nodes"
    return [
        Figure(f"{name} rate", fmean(rates), "pods/s", source=f"mean of {_spread(rates)}; {pods} pods"),
        Figure(
            f"{name} CPU",
            fmean(costs),
            "ms per pod",
            source=f"mean of {_spread(costs)}; the whole stack and the client",
        ),
    ]


def _single(both: dict[Side, list[tuple[float, float | None]]]) -> list[Figure]:
    if not both:
        return []
    times = {side: [bound for bound, _ in each] for side, each in both.items()}
    released = sorted(ms for _, ms in both[Side.OURS] if ms is not None)
    plain, ours = median(times[Side.PLAIN]), median(times[Side.OURS])
    source = (
        f"medians of {len(times[Side.OURS])} gangs, {ours:.0f} against {plain:.0f} ms, at all phases of the sessions"
    )
    anchor = "Volcano looks once a second"
    return [
        Figure("single gang added ms", ours - plain, "ms", SINGLE_GOAL, anchor, source),
        *(
            Figure(f"single gang {side} ms", median(each), "ms", source=f"median of {_spread(each, 0)}")
            for side, each in times.items()
        ),
        *_releases(released),
    ]


def _releases(ms: Sequence[float]) -> list[Figure]:
    """How long a gang is held that has room: the worst of each gang's pods, the quiet time included."""
    if not ms:
        return []
    source = f"{len(ms)} gangs of 8 alone, from the answer to the last creation to the last release"
    worst = ms[min(len(ms) - 1, math.ceil(0.99 * len(ms)) - 1)]
    return [
        Figure("release p50 ms", median(ms), "ms", RELEASE_GOALS[50], source=source),
        Figure("release p99 ms", worst, "ms", RELEASE_GOALS[99], source=source),
    ]


def _spread(values: Sequence[float], digits: int = 2) -> str:
    return f"{len(values)} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _show_cost(nodes: int, gangs: int, runs: Runs) -> None:
    """Where the processors' time went, and what was asked of the API server."""
    pods = gangs * 8
    sides = list(runs)
    names = list(dict.fromkeys(name for side in sides for name in runs[side][0].usage.by_process if name != "guard"))
    cost = {
        side: {name: fmean(run.usage.by_process.get(name, 0.0) for run in runs[side]) / pods * 1e3 for name in names}
        for side in sides
    }
    names.sort(key=lambda name: -max(cost[side][name] for side in sides))
    rows = [[name, *(f"{cost[side][name]:.2f}" for side in sides)] for name in names]
    rows.append(["sum", *(f"{sum(cost[side].values()):.2f}" for side in sides)])
    matrix(f"CPU ms per pod by process, {nodes} nodes, {pods} pods", ["process", *sides], rows)
    asked = {side: sum((run.requests for run in runs[side]), Counter[str]()) for side in sides}
    most = sorted(
        {name for each in asked.values() for name in each}, key=lambda name: -max(each[name] for each in asked.values())
    )
    shown = [
        [name, *(f"{asked[side][name] / len(runs[side]) / pods:.2f}" for side in sides)]
        for name in most[:REQUESTS_SHOWN]
    ]
    matrix(f"API requests per pod, {nodes} nodes, {pods} pods", ["request", *sides], shown)
