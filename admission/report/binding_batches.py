"""When a pod that was seen bound is told about: once its partners' bindings are known and nobody is in the way. Pure.

1. A binding settles first: the others of its session come within moments, and the worst pair needs them.
2. While gangs are being let go, words wait, for a time: explanations must not crowd out placements.
3. They are told in lots, the oldest first, so that others have their turn on the event loop in between.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from topology.objects import Pod

SETTLE_S: Final = 0.3
BUSY_WAIT_S: Final = 30.0
_BUSY_POLL_S: Final = 0.5
_BATCH: Final = 16
_LIMIT: Final = 5_000


class Bindings:
    """Pods not told yet. `busy`: gangs are being let go right now. Times are monotonic seconds."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._waiting: OrderedDict[str, tuple[float, Pod]] = OrderedDict()  # the oldest first

    def add(self, pod: Pod, now_s: float) -> bool:
        """A pod was seen bound; whether nobody waited before, so that `next_s` is news."""
        first = not self._waiting
        self._waiting[pod.metadata.uid] = (now_s, pod)
        self._waiting.move_to_end(pod.metadata.uid)
        if len(self._waiting) > _LIMIT:
            self._waiting.popitem(last=False)
        return first

    def forget(self, uid: str) -> None:
        """The pod is gone. Unknown uids are no error."""
        self._waiting.pop(uid, None)

    def due(self, now_s: float) -> list[Pod]:
        """Those to tell now, at most a lot of them; they wait no more."""
        before_s = now_s - (BUSY_WAIT_S if self._busy() else SETTLE_S)
        batch: list[Pod] = []
        while self._waiting and len(batch) < _BATCH:
            seen_s, pod = next(iter(self._waiting.values()))
            if seen_s > before_s:
                break
            self._waiting.popitem(last=False)
            batch.append(pod)
        return batch

    def next_s(self, now_s: float) -> float | None:
        """When to ask again; None while nobody waits."""
        if not self._waiting:
            return None
        return now_s + _BUSY_POLL_S if self._busy() else next(iter(self._waiting.values()))[0] + SETTLE_S
