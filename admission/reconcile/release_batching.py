"""Gangs that come together go together: when the next lot of gangs may be planned. Pure: time comes as an argument.

While the writes of one lot are under way, and after it while pods keep coming, whoever becomes ready waits, and all of
them are the next lot. A gang that comes alone never waits. In a stampede the API server gets the nominations of many
gangs together, then their releases, then their PodGroups, and Volcano finds them in one session: that takes everybody
less than the same writes gang by gang (docs/decisions/0012).
"""

from __future__ import annotations


class ReleaseBatch:
    """The gangs that were planned together and are being let go. All times are monotonic seconds."""

    def __init__(self, limit_s: float, settle_s: float) -> None:
        self._limit_s, self._settle_s = limit_s, settle_s
        self._came_s = -settle_s
        self._releasing: set[object] = set()
        self._closed_s: float | None = None

    def came(self, now_s: float) -> None:
        """A pod of some gang came."""
        self._came_s = now_s

    def went(self, gang: object) -> None:
        """A gang's writes began."""
        self._releasing.add(gang)

    def done(self, gang: object) -> None:
        """A gang's writes ended, whichever lot it was of."""
        self._releasing.discard(gang)

    def close(self, now_s: float) -> None:
        """Nobody else is ready: whoever becomes it is of the next lot."""
        if self._releasing and self._closed_s is None:
            self._closed_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next lot may begin at the latest, and 0.0 once it may: then it has begun.

        Writes that hang are not waited for, nor pods that never stop coming: after the limit the next lot begins.
        """
        if self._closed_s is None:
            return 0.0
        left_s = self._closed_s + self._limit_s - now_s
        if not self._releasing:
            left_s = min(left_s, self._came_s + self._settle_s - now_s)
        if left_s > 0.0:
            return left_s
        self._releasing, self._closed_s = set(), None
        return 0.0
