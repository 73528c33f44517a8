"""What Volcano has tried out in its current session, as far as it told us: which pod it put where, and took back.

The API server learns of a place only when the pod is bound; until then the gang's second pod must see where the first
one went. The ledger keeps exactly that, and forgets it when the session closes: what was not bound by then was a dry
run. It decides nothing, and it must never outlive the truth: a bound `spec.nodeName` is always believed before it.

Volcano names no session in its calls, so two schedulers that call one extender share a ledger, and the first to close
empties it. That costs scores for one cycle, no correctness: the bound rests on node affinity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from scheduler.extender.wire import TaskStatus
from scheduler.model.request import Partner, pod_request_of
from topology.cluster.snapshot import Assumed
from topology.objects import Pod

LIMIT: Final = 20_000
"""Pods remembered at most. A session that never closes (its call was lost) must not grow the process; the oldest go."""


@dataclass(frozen=True)
class SessionPod:
    """One pod where Volcano put it in this session. `status` is the call's: allocated, pipelined, or releasing."""

    uid: str
    name: str
    namespace: str
    gang: str
    phase: str
    node: str
    status: int
    pod: Pod

    @cached_property
    def assumed(self) -> Assumed:
        """What it takes from its node. Read when first asked for: most sessions place planned pods and score nobody."""
        request = pod_request_of(self.pod)
        return Assumed(self.node, request.amounts, request.hold)

    @property
    def leaving(self) -> bool:
        """It is being evicted from `node`, so it is no partner to anybody any more."""
        return self.status == TaskStatus.RELEASING


class SessionLedger:
    """By pod uid, in the order told. Every change is one call of Volcano's; the same call twice changes nothing."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._tried: dict[str, SessionPod] = {}
        self._by_gang: dict[tuple[str, str], dict[str, SessionPod]] = {}

    def __len__(self) -> int:
        return len(self._tried)

    def allocated(self, pod: SessionPod) -> None:
        """A place was taken. With status 32 an eviction was undone: the pod stays where the API server says it is."""
        self.forget(pod.uid)
        if pod.status != TaskStatus.RUNNING:
            self._keep(pod)

    def deallocated(self, pod: SessionPod) -> None:
        """A place was given back; with status 64 the pod is evicted from it. Unknown pods are no error."""
        self.forget(pod.uid)
        if pod.leaving:
            self._keep(pod)

    def forget(self, uid: str) -> None:
        """This pod was never told about."""
        pod = self._tried.pop(uid, None)
        if pod is None:
            return
        siblings = self._by_gang[pod.namespace, pod.gang]
        del siblings[uid]
        if not siblings:
            del self._by_gang[pod.namespace, pod.gang]

    def close(self) -> None:
        """The session is over: what remained of it is bound, and comes from the API server."""
        self._tried.clear()
        self._by_gang.clear()

    def partners(self, namespace: str, gang: str, phase: str) -> tuple[Partner, ...]:
        """The gang's pods of this phase that were put somewhere in this session, by name."""
        pods = self._by_gang.get((namespace, gang), {}).values()
        found = [
            Partner(p.uid, p.name, phase, (p.node,), bound=False) for p in pods if p.phase == phase and not p.leaving
        ]
        return tuple(sorted(found, key=lambda partner: (partner.name, partner.uid)))

    def leaving(self, uid: str) -> bool:
        """Whether the pod is being evicted in this session."""
        pod = self._tried.get(uid)
        return pod is not None and pod.leaving

    def gangs(self) -> Iterable[tuple[str, str]]:
        """(namespace, gang) of everything remembered."""
        return tuple(self._by_gang)

    def assumed(self, without: Collection[str] = ()) -> dict[str, Assumed]:
        """What to lay over a snapshot: pods with a place in this session, but for those named by uid.

        An evicted pod is not laid over: it holds its node until it is gone, and the snapshot counts it there.
        """
        return {uid: pod.assumed for uid, pod in self._tried.items() if not pod.leaving and uid not in without}

    def _keep(self, pod: SessionPod) -> None:
        while len(self._tried) >= self._limit:
            self.forget(next(iter(self._tried)))
        self._tried[pod.uid] = pod
        self._by_gang.setdefault((pod.namespace, pod.gang), {})[pod.uid] = pod
