"""What to do about a pod that was let go and is not placed: wait, take its nomination back, or start anew. Pure.

A pod cannot be gated again, so a new plan needs a new pod: after `replan_after` it is deleted and its owner makes
another, which is held and planned like any joiner. Only a pod that never started, and only where the owner is a
ReplicaSet or StatefulSet: a Job would count a failure, nobody would remake a bare pod, and an LWS group, whose
StatefulSets LWS makes, would restart as a whole. Each time in a row a gang is planned anew the patience doubles, so
that a disagreement with Volcano (a rule that the plan does not know) does not turn into pods that come and go for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from admission.recognition.replica_group import LWS_NAME
from topology.cluster.state import GangKey
from topology.objects import Pod

REMAKERS: Final = ("ReplicaSet", "StatefulSet")
_MOST_DOUBLINGS: Final = 5


class Step(Enum):
    """What comes next for one pod."""

    WAIT = "nothing yet"
    CLEAR = "its nominated node cannot take it: take the nomination back"
    RENEW = "delete it, its owner makes another"
    REPORT = "say that it waits, and take the nomination back: nobody would make another"


@dataclass(slots=True)
class _Waits:
    since_s: float
    reported: bool = False


class StuckPodPolicy:
    """Pods that were let go and are not placed, and how patient we are with each gang. Times are monotonic seconds."""

    def __init__(self, replan_after_s: float) -> None:
        self._replan_after_s = replan_after_s  # 0 is never
        self._waits: dict[str, _Waits] = {}
        self._renewals: dict[GangKey, int] = {}

    def patience_s(self, gang: GangKey) -> float:
        """How long a pod of this gang may stay unplaced."""
        return float(self._replan_after_s * 2 ** min(self._renewals.get(gang, 0), _MOST_DOUBLINGS))

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these: placed, gone, or held anew."""
        for uid in [uid for uid in self._waits if uid not in uids]:
            del self._waits[uid]

    def calm(self, running: Callable[[GangKey], bool]) -> None:
        """Gangs that run, or are gone, are trusted again."""
        for gang in [gang for gang in self._renewals if running(gang)]:
            del self._renewals[gang]

    def step(self, gang: GangKey, pod: Pod, now_s: float, *, fits_nomination: bool) -> Step:
        """What comes next for a pod that is released and not placed. `REPORT` comes once per pod."""
        waits = self._waits.setdefault(pod.metadata.uid, _Waits(now_s))
        nominated = pod.status.nominated_node_name
        if not self._replan_after_s or now_s - waits.since_s < self.patience_s(gang):
            return Step.CLEAR if nominated and not fits_nomination else Step.WAIT
        owner = pod.metadata.controller
        remade = owner is not None and owner.kind in REMAKERS and not pod.metadata.label(LWS_NAME)
        if remade and pod.status.phase in ("", "Pending"):
            return Step.RENEW
        if waits.reported:
            return Step.WAIT
        waits.reported = True
        return Step.REPORT

    def renewed(self, gang: GangKey) -> None:
        """Pods of this gang are made anew; next time we are more patient. Called once per round."""
        self._renewals[gang] = self._renewals.get(gang, 0) + 1

    def waited_s(self, pod: Pod, now_s: float) -> float:
        """How long it has waited, as far as this process saw."""
        waits = self._waits.get(pod.metadata.uid)
        return now_s - waits.since_s if waits is not None else 0.0
