"""What gangs that wait cost Volcano: the length of its sessions with 200 held gangs and with none."""

import re
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from e2e.bench.bed import Bed, Side, bed
from e2e.bench.bodies import PODS, SIZE, Post, many, our_gang, plain_gang
from e2e.bench.cpu import Meter
from e2e.bench.report import Figure, Goal
from e2e.bench.sizes import Sizes
from e2e.stack.build import say

GOAL: Final = Goal("<=", 1.05)
PERIOD: Final = "100ms"
"""Volcano's own period is a second; a session costs the same, and ten times as many are counted."""
SETTLE_LIMIT_S: Final = 300.0
LOAD_LIMIT_S: Final = 300.0
METRIC: Final = re.compile(r"^volcano_e2e_scheduling_latency_milliseconds_(sum|count)\S* (\S+)$", re.M)


@dataclass(frozen=True, slots=True)
class Window:
    """Sessions of some seconds."""

    sessions: int
    mean_ms: float
    cpu_ms: float
    """What vc-scheduler used per session: less shaken by a busy machine than the length is."""
    others_share: float
    controller_share: float
    """Our controller's part of one processor."""


def held(nodes: int, chosen: Sizes) -> list[Figure]:
    """Windows with and without held gangs, in turn, on one cluster that is half full of running gangs."""
    without: list[Window] = []
    with_held: list[Window] = []
    say(f"held: {nodes} nodes, sessions every {PERIOD}")
    with bed(Side.OURS, nodes, [f"--schedule-period={PERIOD}"]) as mine:
        running = mine.namespace()
        gangs = [plain_gang(running, f"running-{index:03d}") for index in range(nodes // 2)]
        mine.load(running, many(gangs), LOAD_LIMIT_S)
        for pair in range(chosen.pairs):
            mine.settle(SETTLE_LIMIT_S)
            without.append(_window(mine, chosen.window))
            namespace, posts = _hold(mine, chosen.held)
            with_held.append(_window(mine, chosen.window))
            _assert_held(mine, namespace, chosen.held * SIZE)
            mine.clear(namespace, posts)
            done = f"{without[-1].mean_ms:.2f} ms alone, {with_held[-1].mean_ms:.2f} ms"
            say(f"  pair {pair + 1} of {chosen.pairs}: {done}")
    base, loaded = _mean(without), _mean(with_held)
    ratios = [b.mean_ms / a.mean_ms for a, b in zip(without, with_held, strict=True)]
    sessions = sum(window.sessions for window in with_held)
    busy = fmean(window.others_share for window in without + with_held)
    source = (
        f"mean of {loaded:.2f} ms by {base:.2f} ms over {sessions} sessions, {len(ratios)} pairs of windows from "
        f"{min(ratios):.2f} to {max(ratios):.2f}; {nodes} nodes half full; others took {busy:.0%} of the machine"
    )
    cpu = _mean(with_held, cpu=True) / _mean(without, cpu=True)
    own = fmean(window.controller_share for window in with_held)
    name = f"held {chosen.held} gangs"
    return [
        Figure(
            f"{name} session ratio",
            loaded / base,
            "of the length with none",
            GOAL,
            "1: a gated pod is not looked at",
            source,
        ),
        Figure(f"{name} session CPU ratio", cpu, "of the CPU with none", source="vc-scheduler's CPU time per session"),
        Figure("held 0 gangs session", base, "ms", source="Volcano's own metric"),
        Figure(f"{name} session", loaded, "ms", source="Volcano's own metric"),
        Figure(f"{name} controller", own, "of one CPU", source="isochrone-controller while nothing changes"),
    ]


def _hold(mine: Bed, count: int) -> tuple[str, list[Post]]:
    """Gangs that can never be placed: every other one has an impossible bound, the rest want GPUs no node has."""
    namespace = mine.namespace()
    gangs = [
        our_gang(namespace, f"held-{index:03d}", reach="1us")
        if index % 2
        else our_gang(namespace, f"held-{index:03d}", gpus=16)
        for index in range(count)
    ]
    posts = many(gangs)
    mine.create(posts, LOAD_LIMIT_S)
    mine.settle(SETTLE_LIMIT_S)
    return namespace, posts


def _assert_held(mine: Bed, namespace: str, pods: int) -> None:
    items = mine.cluster.api("GET", PODS.format(namespace=namespace))["items"]
    gated = sum(bool(item["spec"].get("schedulingGates")) for item in items)
    if gated != pods or len(items) != pods:
        raise RuntimeError(f"{gated} of {len(items)} pods are held, not {pods}: the figure would mean nothing")


def _window(mine: Bed, seconds: int) -> Window:
    meter = Meter(mine.cluster.pids())
    before = _sessions(mine)
    time.sleep(seconds)
    after = _sessions(mine)
    usage = meter.read()
    mine.cluster.check()
    count = after[1] - before[1]
    if count < 1:
        raise RuntimeError(f"no session of Volcano ended within {seconds} s")
    return Window(
        sessions=int(count),
        mean_ms=(after[0] - before[0]) / count,
        cpu_ms=usage.by_process["vc-scheduler"] * 1e3 / count,
        others_share=usage.others_share,
        controller_share=usage.by_process["isochrone-controller"] / usage.wall_s,
    )


def _sessions(mine: Bed) -> tuple[float, float]:
    """Sum of milliseconds and number of sessions so far."""
    with urllib.request.urlopen(mine.cluster.scheduler_metrics_url, timeout=10) as answer:
        found = {kind: float(value) for kind, value in METRIC.findall(answer.read().decode())}
    return found["sum"], found["count"]


def _mean(windows: Sequence[Window], cpu: bool = False) -> float:
    total = sum((each.cpu_ms if cpu else each.mean_ms) * each.sessions for each in windows)
    return total / sum(each.sessions for each in windows)
