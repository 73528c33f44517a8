"""Room that Volcano is to make for gangs that were let go to preempt: nobody else may count on it meanwhile. Pure.

Such pods are released without nomination, so nothing shows where their victims are. Two gangs could count on the same
ones; and once a victim has left, a third would be planned into its place. So the places of the plan that let the gang
go are booked, beside what Volcano knows, until the pod is bound, gone, nominated or given up: for a time at most,
because it may be that nobody makes the room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduler.model.decision import Plan
from topology.cluster.snapshot import Assumed, Snapshot
from topology.cluster.state import GangKey
from topology.labels import GATE
from topology.objects import Pod

Gangs = Mapping[GangKey, Mapping[str, Pod]]


@dataclass(frozen=True, slots=True)
class _Claim:
    key: GangKey
    place: Assumed
    until_s: float


class Claims:
    """By pod uid. Times are monotonic seconds; each claim lasts `lasts_s` at most."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s = lasts_s
        self._claims: dict[str, _Claim] = {}

    def book(self, key: GangKey, result: Plan, now_s: float) -> None:
        """The places of these pods are theirs to be."""
        for m in result.request.members:
            if m.uid in result.places:
                place = Assumed(result.places[m.uid], m.amounts, m.hold)
                self._claims[m.uid] = _Claim(key, place, now_s + self._lasts_s)

    def drop(self, uids: Iterable[str]) -> None:
        """These pods are planned anew."""
        for uid in uids:
            self._claims.pop(uid, None)

    def settle(self, gangs: Gangs, now_s: float) -> bool:
        """Ends claims that are over; whether room is free again thereby: it is not where the pod is bound as booked."""
        freed = False
        for uid, claim in list(self._claims.items()):
            pod = gangs.get(claim.key, {}).get(uid)
            if pod is None or now_s >= claim.until_s:
                freed = True
            elif pod.spec.node_name:
                freed = freed or pod.spec.node_name != claim.place.node
            elif pod.has_gate(GATE) or not pod.status.nominated_node_name:
                continue
            del self._claims[uid]
        return freed

    def next_s(self) -> float | None:
        """When the first of them ends by time."""
        return min((claim.until_s for claim in self._claims.values()), default=None)

    def laid_over(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot in which what is claimed is taken. On a node whose victims are still there less than nothing is
        left."""
        if not self._claims:
            return snapshot
        return snapshot.with_assumed({uid: claim.place for uid, claim in self._claims.items()})
