"""The last decision about each pod, until it is explained or pushed out by newer ones.

A container and nothing more: it decides how many are kept, and must never know why somebody looks one up.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from scheduler.model.decision import Decision

LIMIT: Final = 2_000
"""Decisions kept: about 10 KB each with the pod's spec, and a pod is bound seconds after it was scored."""


class DecisionCache:
    """By pod uid; the one remembered or looked up longest ago goes first."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = max(limit, 1)
        self._cached: OrderedDict[str, Decision] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cached)

    def remember(self, decision: Decision) -> None:
        """Keep this one instead of what was known about its pod."""
        self._cached[decision.request.uid] = decision
        self._cached.move_to_end(decision.request.uid)
        while len(self._cached) > self._limit:
            self._cached.popitem(last=False)

    def get(self, uid: str) -> Decision | None:
        """The last decision about a pod, or None: never scored here, or too long ago."""
        decision = self._cached.get(uid)
        if decision is not None:
            self._cached.move_to_end(uid)
        return decision

    def forget(self, uid: str) -> None:
        """The pod is gone or explained. Unknown uids are no error."""
        self._cached.pop(uid, None)
