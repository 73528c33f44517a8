"""What gangs of ours will take of Volcano's queues, and is not yet in what Volcano says that they hold. No clock.

That is what was let go, or is about to be, and not bound; what was bound so lately that Volcano's count may lack it
(it writes `status.allocated` at the end of a session, after the bindings); and the room kept for pods to come.

Every gang's plan asks, and a cluster has thousands of pods, so each gang's share is kept until its pods, what is
assumed of them, or a PodGroup that they name changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from admission.fairness.queue_quota import DEFAULT_QUEUE
from topology.cluster.state import ClusterState, GangKey
from topology.labels import GATE, GROUP_NAME, QUEUE_NAME
from topology.objects import Pod, PodGroup
from topology.resources import Amounts, readable_request, sum_amounts

QUEUE_LAG_S: Final = 3.0
"""How far Volcano's count of what a queue holds may be behind: a session (1 s) and its writes on a busy machine."""


def queue_of(pods: tuple[Pod, ...], pod_groups: Mapping[str, PodGroup]) -> str:
    """The queue of a gang: its PodGroup's, else the one its pods name."""
    for pod in pods:
        group = pod_groups.get(_group_of(pod))
        if group is not None and group.spec.queue:
            return group.spec.queue
    return next((q for p in pods if (q := p.metadata.annotation(QUEUE_NAME))), DEFAULT_QUEUE)


@dataclass(slots=True)
class _Share:
    """One gang's part, by queue, and the PodGroups whose queues decided that."""

    amounts: dict[str, Amounts] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()


class QueueCommitments:
    """By queue, what is promised. Times are monotonic seconds."""

    def __init__(self, state: ClusterState, pod_groups: Mapping[str, PodGroup]) -> None:
        self._state, self._pod_groups = state, pod_groups
        self._shares: dict[GangKey, _Share] = {}
        self._total: dict[str, Amounts] = {}
        self._reserved: dict[GangKey, Amounts] = {}  # room for pods to come
        self._naming: dict[str, set[GangKey]] = {}  # PodGroup to gangs with pods that name it
        self._bound_s: dict[GangKey, dict[str, float]] = {}  # pod uid to when it was first seen bound
        self._settling: list[tuple[float, GangKey]] = []  # when Volcano's count has what was bound of whom
        self._stale: set[GangKey] = set()

    def keep(self, key: GangKey, amounts: Amounts) -> None:
        """So much is kept for pods of this gang that are to come; nothing, if that is over."""
        if amounts:
            self._reserved[key] = amounts
        else:
            self._reserved.pop(key, None)
        self._stale.add(key)

    def group_changed(self, group: str) -> None:
        """A PodGroup (`namespace/name`) came, went, or is in another queue."""
        self._stale |= self._naming.get(group, set())

    def hear(self) -> None:
        """Takes note of the gangs that changed; without limits on queues nobody asks for amounts."""
        for key in self._state.take_changed():
            if key in self._shares or key in self._state.gangs():
                self._stale.add(key)
            else:
                self._stale.discard(key)

    def amounts(self, now_s: float, but: GangKey | None = None) -> dict[str, Amounts]:
        """What is promised by queue, without what is kept for pods to come of the gang `but`: that is its to use."""
        self.hear()
        while self._settling and self._settling[0][0] <= now_s:
            self._stale.add(heapq.heappop(self._settling)[1])
        for key in self._stale:
            self._renew(key, now_s)
        self._stale.clear()
        if but is None or but not in self._reserved:
            return self._total
        queue = self._queue_of(tuple(self._state.gangs().get(but, {}).values()))
        own = {name: -amount for name, amount in self._reserved[but].items()}
        return self._total | {queue: sum_amounts((self._total.get(queue, {}), own))}

    def _renew(self, key: GangKey, now_s: float) -> None:
        old = self._shares.pop(key, None)
        if old is not None:
            for queue, amounts in old.amounts.items():
                self._add(queue, amounts, -1)
            for group in old.groups:
                self._naming[group].discard(key)
                if not self._naming[group]:
                    del self._naming[group]
        pods = self._state.gangs().get(key)
        if not pods:
            self._bound_s.pop(key, None)
            return
        share = self._shares[key] = self._share(key, pods, now_s)
        for queue, amounts in share.amounts.items():
            self._add(queue, amounts, 1)
        for group in share.groups:
            self._naming.setdefault(group, set()).add(key)

    def _share(self, key: GangKey, pods: Mapping[str, Pod], now_s: float) -> _Share:
        share = _Share(groups=frozenset(_group_of(pod) for pod in pods.values()))
        before, bound = self._bound_s.get(key, {}), dict[str, float]()
        for uid, pod in pods.items():
            if pod.spec.node_name:
                since_s = bound[uid] = before.get(uid, now_s)
                counts = now_s < since_s + QUEUE_LAG_S
                if counts:
                    heapq.heappush(self._settling, (since_s + QUEUE_LAG_S, key))
            else:
                counts = not pod.has_gate(GATE) or self._state.is_assumed(uid)
            if counts:
                queue = self._queue_of((pod,))
                share.amounts[queue] = sum_amounts((share.amounts.get(queue, {}), readable_request(pod.spec)[0]))
        if bound:
            self._bound_s[key] = bound
        else:
            self._bound_s.pop(key, None)
        if reserved := self._reserved.get(key):
            queue = self._queue_of(tuple(pods.values()))
            share.amounts[queue] = sum_amounts((share.amounts.get(queue, {}), reserved))
        return share

    def _add(self, queue: str, amounts: Amounts, sign: int) -> None:
        total = self._total.setdefault(queue, {})
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + sign * amount
            if not total[name]:
                del total[name]
        if not total:
            del self._total[queue]

    def _queue_of(self, pods: tuple[Pod, ...]) -> str:
        return queue_of(pods, self._pod_groups)


def _group_of(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.annotation(GROUP_NAME)}"
