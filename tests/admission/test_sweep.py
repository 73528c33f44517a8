"""Rounds over held gangs: nobody is left out however fast room appears, and rounds leave time for others."""

from __future__ import annotations

from admission.reconcile.retry_rounds import Sweep


def test_a_round_covers_whoever_was_asked_before_it() -> None:
    sweep = Sweep(0.25)
    assert not sweep.covers(0)
    sweep.begin(growth=7, now_s=100.0)
    assert sweep.covers(6)
    assert not sweep.covers(7)
    assert not sweep.covers(None)  # not held
    sweep.end(100.0)
    assert not sweep.covers(6)


def test_without_news_there_is_no_round() -> None:
    sweep = Sweep(0.25)
    sweep.begin(7, 100.0)
    sweep.end(100.0)
    assert sweep.next_s(7) is None
    sweep.begin(7, 200.0)
    assert not sweep.covers(6)
    assert sweep.next_s(8) == 100.25


def test_the_next_round_waits_for_the_pause() -> None:
    sweep = Sweep(0.25)
    sweep.begin(1, 100.0)
    sweep.end(100.0)
    sweep.begin(2, 100.2)
    assert not sweep.covers(1)
    sweep.begin(2, 100.25)
    assert sweep.covers(1)


def test_room_that_appears_during_a_round_is_for_the_next_one() -> None:
    """Else the first in rank would be asked for ever, and the last never."""
    sweep = Sweep(0.25)
    sweep.begin(5, 100.0)
    growth, asked, gangs = 5, list[str](), {"a": 1, "b": 2, "c": 3}
    for _ in range(10):
        due = [name for name, at in gangs.items() if sweep.covers(at)]
        if not due:
            break
        growth += 1  # something ends somewhere while the plan is made
        gangs[due[0]] = growth
        asked.append(due[0])
        sweep.begin(growth, 100.0)
    assert asked == ["a", "b", "c"]
    sweep.end(100.0)
    assert sweep.next_s(growth) == 100.25
    sweep.begin(growth, 100.25)
    assert [name for name, at in gangs.items() if sweep.covers(at)] == ["a", "b"]


def test_rounds_take_a_fifth_of_the_time_at_most() -> None:
    sweep = Sweep(0.25)
    sweep.spent(9.0)  # not in a round
    sweep.begin(1, 100.0)
    sweep.spent(0.3)
    sweep.spent(0.2)
    sweep.end(100.5)
    assert sweep.next_s(2) == 102.5
    sweep.begin(2, 102.4)
    assert not sweep.covers(1)
    sweep.begin(2, 102.5)
    assert sweep.covers(1)
    sweep.end(102.5)
    assert sweep.next_s(3) == 102.75  # a cheap round, a short pause
