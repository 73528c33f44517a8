"""How fast a probe may send: never more than a thousandth of a link. Pure: time comes in.

By itself, since an agent needs it and nothing else of the plan of probes.
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.001


class Budget:
    """A bucket of bytes: over any time no more than `burst_bytes` plus SHARE of the link for that long."""

    def __init__(self, link_bytes_per_s: float, burst_bytes: int, now_s: float) -> None:
        self.bytes_per_s = link_bytes_per_s * SHARE
        self._burst = float(burst_bytes)
        self._left, self._then_s = float(burst_bytes), now_s

    def wait_s(self, size: int, now_s: float) -> float:
        """Seconds until so many bytes may go; they count as sent then. More than a burst counts as a burst first."""
        self._left = min(self._burst, self._left + (now_s - self._then_s) * self.bytes_per_s)
        self._then_s = now_s
        self._left -= size
        return max(0.0, -self._left / self.bytes_per_s)
