"""How much more a Volcano queue may hold, so that no gang is released which its queue would keep waiting. Pure.

Only what is hard and can be read counts: the queue exists, is open, and stays within `spec.capability`, its own and
that of every queue above it. What a queue deserves by weight changes with everybody's demand and stays Volcano's.

What a queue holds is `status.allocated`, which Volcano's scheduler writes at the end of a session (updateQueueStatus in
volcano-sh/volcano pkg/scheduler/framework/session.go), and what was let go into it since and is not yet bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduler.model.request import GangRequest, PodRequest
from scheduler.planning.gang_minimum import minimum_units
from topology.bad_input import BadInput
from topology.objects import Queue
from topology.resources import PODS, Amounts, parse_amounts, sum_amounts

DEFAULT_QUEUE = "default"
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class QueueShort:
    """Why a queue cannot hold a gang. Without a resource it is the queue itself: `why` says what is wrong with it."""

    queue: str
    resource: str = ""
    need: int = 0
    left: int = 0
    of: int = 0
    why: str = ""


def upwards(name: str, queues: Mapping[str, Queue]) -> Iterator[tuple[str, Queue | None]]:
    """A queue and those above it, each once; the last is None where a name leads to no queue."""
    seen: set[str] = set()
    while name and name not in seen and len(seen) < _MAX_DEPTH:
        seen.add(name)
        queue = queues.get(name)
        yield name, queue
        name = queue.spec.parent if queue is not None else ""


class QueueQuota:
    """What is left in one queue and in those above it. `commitments` is, by queue, what was let go and is not bound."""

    def __init__(self, name: str, queues: Mapping[str, Queue], commitments: Mapping[str, Amounts]) -> None:
        self.name = name or DEFAULT_QUEUE
        self.problem: QueueShort | None = None
        self._limits: list[tuple[str, Amounts, Amounts]] = []  # queue, capability, left
        below = _children(queues)
        for at, queue in upwards(self.name, queues):
            if queue is None:
                if at == self.name:
                    self.problem = QueueShort(at, why="does not exist")
                return
            if queue.status.state not in ("", "Open"):
                self.problem = self.problem or QueueShort(at, why=f"is {queue.status.state}, not Open")
            try:
                cap = parse_amounts(queue.spec.capability, f"queue {at} spec.capability")
                held = parse_amounts(queue.status.allocated, f"queue {at} status.allocated")
            except BadInput as bad:
                self.problem = self.problem or QueueShort(at, why=f"cannot be read: {bad}")
                return
            coming = sum_amounts(commitments.get(each, {}) for each in _tree(at, below))
            left = {name: amount - held.get(name, 0) - coming.get(name, 0) for name, amount in cap.items()}
            self._limits.append((at, cap, left))

    def short_of(self, wanted: Mapping[str, int]) -> QueueShort | None:
        """What is missing for these amounts; the widest gap first, then by name. None if they fit."""
        if self.problem is not None:
            return self.problem
        gaps = [
            QueueShort(queue, name, wanted[name], max(0, left[name]), cap[name])
            for queue, cap, left in self._limits
            for name in sorted(left)
            if name != PODS and wanted.get(name, 0) > max(0, left[name])
        ]
        return min(gaps, key=lambda g: (g.left / max(g.need, 1), g.queue, g.resource), default=None)

    def could_hold(self, wanted: Mapping[str, int]) -> bool:
        """Whether it could if nothing else were in any of these queues."""
        return self.problem is None and all(
            wanted.get(name, 0) <= amount for _, cap, _ in self._limits for name, amount in cap.items() if name != PODS
        )

    def keeps_out(self, taken: Mapping[str, int], others: QueueQuota, need: Mapping[str, int]) -> bool:
        """Whether, once this queue has taken so much, one that both are in lacks what those of the other need."""
        shared = {queue for queue, _, _ in others._limits}
        return any(
            taken.get(name, 0) > 0 and need.get(name, 0) > max(0, left[name] - taken[name])
            for queue, _, left in self._limits
            if queue in shared
            for name in left
            if name != PODS
        )

    def those_that_fit(self, gang: GangRequest) -> tuple[tuple[PodRequest, ...], QueueShort | None]:
        """Members that the queue can hold together: the minimum of each phase, then one of each phase in turn.

        The pods of one unit are in or out together. With nobody comes what the minimum lacks; with some but not all,
        what the first one left out lacks.
        """
        minimum, beyond = minimum_units(gang)
        total = sum_amounts(m.amounts for m in minimum)
        short = self.short_of(total)
        if short is not None:
            return (), short
        retained, first_short = list(minimum), None
        for unit in beyond:
            more = sum_amounts((total, *(m.amounts for m in unit)))
            short = self.short_of(more)
            if short is None:
                retained += unit
                total = more
            else:
                first_short = first_short or short
        names = {m.uid for m in retained}
        return tuple(m for m in gang.members if m.uid in names), first_short


def least_of(gang: GangRequest) -> Amounts:
    """What the gang's minimum takes, whole units only."""
    return sum_amounts(m.amounts for m in minimum_units(gang)[0])


def _children(queues: Mapping[str, Queue]) -> dict[str, list[str]]:
    below: dict[str, list[str]] = {}
    for name, queue in queues.items():
        if queue.spec.parent and queue.spec.parent != name:
            below.setdefault(queue.spec.parent, []).append(name)
    return below


def _tree(top: str, below: Mapping[str, Sequence[str]]) -> Iterable[str]:
    seen, todo = {top}, [top]
    while todo:
        at = todo.pop()
        yield at
        for child in below.get(at, ()):
            if child not in seen:
                seen.add(child)
                todo.append(child)
