"""Tokens by hand-computed values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.token_bucket import TokenBucket


def test_a_burst_at_once_then_the_rate() -> None:
    bucket = TokenBucket(per_s=2.0, burst=3.0, now_s=0.0)
    assert [bucket.take(0.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take(0.0) == 0.5
    assert bucket.take(1.0) == 0.0  # one second gave two: one owed, one taken
    assert bucket.take(1.0) == 0.5


def test_no_more_than_a_burst_gathers() -> None:
    bucket = TokenBucket(per_s=2.0, burst=3.0, now_s=0.0)
    assert [bucket.take(1000.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_more_than_a_burst_is_waited_for() -> None:
    bucket = TokenBucket(per_s=1.25e6, burst=500_000, now_s=0.0)
    assert bucket.take(0.0, 1_000_000) == pytest.approx(0.4)  # 500,000 owed at 1.25e6 a second
    assert bucket.take(0.4, 250_000) == pytest.approx(0.2)


def test_a_refusal_costs_nothing() -> None:
    bucket = TokenBucket(per_s=1.0, burst=2.0, now_s=0.0)
    assert [bucket.try_take(0.0) for _ in range(3)] == [True, True, False]
    assert [bucket.try_take(now_s) for now_s in (0.5, 1.0, 1.5, 2.5)] == [False, True, False, True]


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    bucket = TokenBucket(per_s=1.0, burst=2.0, now_s=10.0)
    assert [bucket.try_take(now_s) for now_s in (10.0, 5.0, 5.0, 6.0)] == [True, True, False, True]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 400_000)), min_size=1, max_size=40))
def test_over_any_time_a_burst_and_the_rate(steps: list[tuple[float, int]]) -> None:
    now_s, sent, bucket = 0.0, 0, TokenBucket(1e5, 400_000, 0.0)
    for pause_s, size in steps:
        now_s += pause_s
        now_s += bucket.take(now_s, size)
        sent += size
        assert sent <= 400_000 + 1e5 * now_s + 1e-3
