"""When held gangs are asked again: in rounds, because on a busy cluster room appears all the time.

Decides when a round begins and which gangs it covers. Pure: time and `ClusterState.capacity_generation`
come as arguments.

1. A round covers the gangs that were last asked before it began. Room that appears meanwhile is for the next round, so
   that the first in rank are not asked again and again while the last are never asked.
2. Rounds may take a fifth of the loop, no more: the pause after one is at least four times what it cost.
"""

from __future__ import annotations


class RetryRounds:
    """One round after the other."""

    def __init__(self, pause_s: float) -> None:
        self._least_pause_s = self._pause_s = pause_s
        self._ended_s = 0.0
        self._done_growth = -1  # room that appeared up to here was offered to everybody
        self._round_growth: int | None = None  # of the round under way
        self._cost_s = 0.0

    def begin(self, capacity_generation: int, now_s: float) -> None:
        """Starts a round if there is something new and the pause is over; nothing while one is under way."""
        if (
            self._round_growth is None
            and capacity_generation != self._done_growth
            and now_s - self._ended_s >= self._pause_s
        ):
            self._round_growth = capacity_generation

    def covers(self, asked_growth: int | None) -> bool:
        """Whether the round under way is for a gang that was last asked at this growth (None: it is not held)."""
        return self._round_growth is not None and asked_growth is not None and asked_growth < self._round_growth

    def spent(self, seconds: float) -> None:
        """Time that a look took; it counts while a round is under way."""
        if self._round_growth is not None:
            self._cost_s += seconds

    def end(self, now_s: float) -> None:
        """Nobody is left to be asked in this round. Without one under way this does nothing."""
        if self._round_growth is not None:
            self._done_growth, self._round_growth, self._ended_s = self._round_growth, None, now_s
            self._pause_s = max(self._least_pause_s, 4 * self._cost_s)
            self._cost_s = 0.0

    def next_s(self, capacity_generation: int) -> float | None:
        """When the next round may begin; None while there is nothing new."""
        return None if capacity_generation == self._done_growth else self._ended_s + self._pause_s
