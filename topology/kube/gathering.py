"""How long a watch is left alone after a list of lines, so that what comes meanwhile is one list. Pure.

Waking up costs ten times what a line does. A stream that has not paused for a while is left alone for longer: nobody
waits for one line of it. A few lines after a silence, such as a gang that comes and is let go, are taken as they come.
"""

from __future__ import annotations

from typing import Final

_FEW: Final = 12
"""Lists without a silence between them after which a watch is busy; a gang that goes alone causes fewer."""

_SILENCE_S: Final = 0.1


class Gathering:
    """One per watch. `first_s` and `busy_s` are pauses in seconds."""

    def __init__(self, first_s: float, busy_s: float) -> None:
        self._first_s, self._busy_s = first_s, max(first_s, busy_s)
        self._lists = 0

    def pause_s(self, waited_s: float) -> float:
        """The pause after a list that came `waited_s` after the last pause ended."""
        self._lists = 1 if waited_s > _SILENCE_S else self._lists + 1
        return self._busy_s if self._lists > _FEW else self._first_s
