"""Bounded overtaking: a gang that waits for room or quota is passed by younger ones only so often. Pure.

Small gangs find room that a large older one cannot use, and letting them go keeps GPUs busy; for ever, it would starve
the large one. So passes are counted, and once a gang was passed `limit` times, those behind it wait, where they would
take room or quota that it may need, until it has gone. A gang that would not fit an empty cluster, or the empty queue,
holds up nobody.

Counts are forgotten with the process; the bound then starts anew, and no promise is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scheduler.model.request import GangRequest
from topology.cluster.state import GangKey


@dataclass(frozen=True, slots=True)
class WaitingGang:
    """What a gang asked for that waits with too few of its pods placed: whoever passes it may be in its way."""

    request: GangRequest
    queue: str
    need: Mapping[str, int]  # what its minimum takes of the queue; nothing where queues are not known
    for_quota: bool = False  # its queue lacks room, not the nodes


class Overtaking:
    """Who was passed how often. `limit` 0 means strictly in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._passed: dict[GangKey, int] = {}

    def went(self, key: GangKey, older_waiting: Iterable[GangKey]) -> None:
        """A gang was let go past these, which rank before it and wait for room."""
        self._passed.pop(key, None)
        for older in older_waiting:
            self._passed[older] = self._passed.get(older, 0) + 1

    def forget(self, key: GangKey) -> None:
        """The gang does not wait any more."""
        self._passed.pop(key, None)

    def passed(self, key: GangKey) -> int:
        """How often others went past it while it waited."""
        return self._passed.get(key, 0)

    def blocking_gang(self, older_waiting: Iterable[GangKey], competes: Callable[[GangKey], bool]) -> GangKey | None:
        """The first in rank that may not be passed again by somebody with whom it `competes`."""
        for older in older_waiting:
            if self.passed(older) >= self._limit and competes(older):
                return older
        return None
