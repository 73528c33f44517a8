"""What the rounds of a probe say: one-way p50, p99 and p99.9 of one page, set-up and first rounds left out.

Clocks of two nodes are not compared. A round times a small message there and back (ping), a page there with a small
answer (push), and a small question with a page back (pull). One way of a page is the time of push, or of pull, less
half a ping: the small half of the way is taken to be alike in both directions, which is all that is assumed.
Why set-up is left out: the first message of a connection took 700 ms where later ones take 3 us (NVIDIA/nccl#1487).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from topology.reach.measurement import TAIL

LINK_SHARE: Final = 0.001
"""The most of a link's bytes a second that probes of a node may take."""
WARM_ROUNDS: Final = 8
"""Rounds before any is counted: TCP opens its window over the first ones."""
ENOUGH_FOR_P99: Final = 100
"""With fewer values p99 is the slowest one, that is chance: then a median widened by TAIL stands for it."""


@dataclass(frozen=True, slots=True)
class Round:
    """Times of one round in microseconds, as the asking side saw them."""

    ping_us: float
    push_us: float
    pull_us: float


@dataclass(frozen=True, slots=True)
class ProbeSummary:
    """One way of one page. `percentile` is what `p99_us` rests on: `p99`, or `p50` where there were too few rounds."""

    p50_us: float
    p99_us: float
    p999_us: float
    count: int
    percentile: str = "p99"


def rank(ascending: Sequence[float], share: float) -> float:
    """Nearest-rank percentile: the smallest value with at least this share of the values at or below it."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def summarise(one_way_us: Sequence[float], warm: int = WARM_ROUNDS) -> ProbeSummary | None:
    """Of the values in the order they were measured; the first `warm` are left out. None if no value is left."""
    counted = sorted(one_way_us[warm:])
    if not counted:
        return None
    p50 = rank(counted, 0.5)
    if len(counted) < ENOUGH_FOR_P99:
        return ProbeSummary(p50, p50 * TAIL, max(counted[-1], p50 * TAIL), len(counted), "p50")
    return ProbeSummary(p50, rank(counted, 0.99), rank(counted, 0.999), len(counted))


def of_rounds(rounds: Sequence[Round], warm: int = WARM_ROUNDS) -> ProbeSummary | None:
    """Both directions by themselves, and of each statistic the slower: reach is symmetric, and the worse way counts."""
    counted = rounds[warm:]
    if not counted:
        return None
    half_us = rank(sorted(each.ping_us for each in counted), 0.5) / 2
    # A page and its answer take no less than a ping: half of the whole is the least that one way can be.
    there = summarise([max(each.push_us - half_us, each.push_us / 2) for each in counted], 0)
    back = summarise([max(each.pull_us - half_us, each.pull_us / 2) for each in counted], 0)
    if there is None or back is None:
        return None
    return ProbeSummary(
        max(there.p50_us, back.p50_us),
        max(there.p99_us, back.p99_us),
        max(there.p999_us, back.p999_us),
        there.count,
        there.percentile,
    )
