"""A token bucket: over any time no more than a burst, and a steady rate for that long. Pure: time comes in."""

from __future__ import annotations


class TokenBucket:
    """Starts full. Tokens are whatever is counted: messages, bytes."""

    __slots__ = ("_at_s", "_burst", "_per_s", "_tokens")

    def __init__(self, per_s: float, burst: float, now_s: float) -> None:
        """`per_s` above 0: tokens a second; `burst`: the most that gather; `now_s`: of a monotonic clock."""
        self._per_s, self._burst = per_s, burst
        self._tokens, self._at_s = burst, now_s

    def take(self, now_s: float, tokens: float = 1.0) -> float:
        """Takes them in any case; gives the seconds to wait until they are there (0: they were)."""
        self._fill(now_s)
        self._tokens -= tokens
        return max(0.0, -self._tokens / self._per_s)

    def try_take(self, now_s: float) -> bool:
        """Takes one token if it is there; a refusal costs nothing."""
        self._fill(now_s)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _fill(self, now_s: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
