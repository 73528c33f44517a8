"""Rounds over held gangs: nobody is left out however fast room appears, and rounds leave time for others."""

from __future__ import annotations

from admission.reconcile.retry_rounds import RetryRounds


def test_a_round_covers_whoever_was_asked_before_it() -> None:
    rounds = RetryRounds(0.25)
    assert not rounds.covers(0)
    rounds.begin(capacity_generation=7, now_s=100.0)
    assert rounds.covers(6)
    assert not rounds.covers(7)
    assert not rounds.covers(None)  # not held
    rounds.end(100.0)
    assert not rounds.covers(6)


def test_without_news_there_is_no_round() -> None:
    rounds = RetryRounds(0.25)
    rounds.begin(7, 100.0)
    rounds.end(100.0)
    assert rounds.next_s(7) is None
    rounds.begin(7, 200.0)
    assert not rounds.covers(6)
    assert rounds.next_s(8) == 100.25


def test_the_next_round_waits_for_the_pause() -> None:
    rounds = RetryRounds(0.25)
    rounds.begin(1, 100.0)
    rounds.end(100.0)
    rounds.begin(2, 100.2)
    assert not rounds.covers(1)
    rounds.begin(2, 100.25)
    assert rounds.covers(1)


def test_room_that_appears_during_a_round_is_for_the_next_one() -> None:
    """Else the first in rank would be asked for ever, and the last never."""
    rounds = RetryRounds(0.25)
    rounds.begin(5, 100.0)
    capacity_generation, asked, gangs = 5, list[str](), {"a": 1, "b": 2, "c": 3}
    for _ in range(10):
        due = [name for name, at in gangs.items() if rounds.covers(at)]
        if not due:
            break
        capacity_generation += 1  # something ends somewhere while the plan is made
        gangs[due[0]] = capacity_generation
        asked.append(due[0])
        rounds.begin(capacity_generation, 100.0)
    assert asked == ["a", "b", "c"]
    rounds.end(100.0)
    assert rounds.next_s(capacity_generation) == 100.25
    rounds.begin(capacity_generation, 100.25)
    assert [name for name, at in gangs.items() if rounds.covers(at)] == ["a", "b"]


def test_rounds_take_a_fifth_of_the_time_at_most() -> None:
    rounds = RetryRounds(0.25)
    rounds.spent(9.0)  # not in a round
    rounds.begin(1, 100.0)
    rounds.spent(0.3)
    rounds.spent(0.2)
    rounds.end(100.5)
    assert rounds.next_s(2) == 102.5
    rounds.begin(2, 102.4)
    assert not rounds.covers(1)
    rounds.begin(2, 102.5)
    assert rounds.covers(1)
    rounds.end(102.5)
    assert rounds.next_s(3) == 102.75  # a cheap round, a short pause
