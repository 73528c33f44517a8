"""The closed set of Event reasons, and which of them a plan comes to.

Rules of this file. (1) `Reason` is a contract: each member has a heading in docs/reasons.md. (2) The reason of a held
gang is the same for all of its pods and for its PodGroup, so no two places disagree. (3) A reason is chosen from counts
and numbers of the plan, never from text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from scheduler.model.decision import Decision, Outcome, Plan
from scheduler.model.verdict import VerdictCode
from topology.labels import PHASES


class Reason(StrEnum):
    """Every `reason` an Event of ours can have."""

    PLACED = "Placed"
    WAITING_FOR_PARTNER = "WaitingForPartner"
    WAITING_FOR_GANG = "WaitingForGang"
    REACH_EXCEEDED = "ReachExceeded"
    INSUFFICIENT_GPU = "InsufficientGPU"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    FRAGMENTED = "Fragmented"
    UNDECIDED = "Undecided"
    REACH_BREACHED = "ReachBreached"
    FACTS_STALE = "FactsStale"
    PHASE_CONFLICT = "PhaseConflict"
    NOT_RECOGNISED = "NotRecognised"
    WAITING_FOR_QUEUE = "WaitingForQueue"
    REPLANNED = "Replanned"

    @property
    def type(self) -> str:
        """`Normal` for news, `Warning` where a person may have to act."""
        return "Normal" if self in _NORMAL else "Warning"


_NORMAL = frozenset(
    {
        Reason.PLACED,
        Reason.WAITING_FOR_PARTNER,
        Reason.WAITING_FOR_GANG,
        Reason.WAITING_FOR_QUEUE,
        Reason.REPLANNED,
    }
)
_BY_OUTCOME = {
    Outcome.WAITING_FOR_PARTNER: Reason.WAITING_FOR_PARTNER,
    Outcome.WAITING_FOR_GANG: Reason.WAITING_FOR_GANG,
    Outcome.UNDECIDED: Reason.UNDECIDED,
}


class Obstacle(Enum):
    """What stands in the way, from the simplest to the most entangled. A case is only ever the first that applies."""

    NO_CAPACITY = "no node has room for a pod"
    OUT_OF_REACH = "room, but none of it within the bound"
    DOES_NOT_FIT_TOGETHER = "room within the bound, but not for all that must come together"


@dataclass(frozen=True, slots=True)
class Blocked:
    """The obstacle, and the decision that shows it: the pod whose counts and nearest misses tell the story."""

    obstacle: Obstacle
    decision: Decision


def obstacle_of(decision: Decision) -> Obstacle:
    """What keeps one pod without a place from having one."""
    if decision.ruled_out.get(VerdictCode.GANG_TOO_LARGE) or decision.eligible:
        return Obstacle.DOES_NOT_FIT_TOGETHER
    if decision.ruled_out.get(VerdictCode.REACH_EXCEEDED):
        return Obstacle.OUT_OF_REACH
    return Obstacle.NO_CAPACITY


# complexity: one case a reason, in the order in which they win
def blocked_of(plan: Plan, decision: Decision | None = None) -> Blocked | None:
    """Why there is no place: for the whole gang while it is below its minimum, else for this one pod.

    None when there is nothing to explain: placed, or pods are still missing.
    """
    if is_joiner(plan):
        alone = decision or next((d for d in plan.decisions.values() if d.chosen is None), None)
        return None if alone is None or alone.chosen is not None else Blocked(obstacle_of(alone), alone)
    members = sorted(plan.request.members, key=lambda m: (m.phase, m.name, m.uid))
    for obstacle in (Obstacle.NO_CAPACITY, Obstacle.OUT_OF_REACH):
        for phase in PHASES:
            mine = [plan.decisions[m.uid] for m in members if m.phase == phase and m.uid in plan.decisions]
            stuck = [d for d in mine if _at_or_before(obstacle_of(d), obstacle)]
            # A phase is stuck when too few of its members remain; one odd member beyond the minimum stops nobody.
            if stuck and len(mine) - len(stuck) < plan.request.still_needed(phase):
                return Blocked(obstacle, next(d for d in stuck if obstacle_of(d) is obstacle))
    needed = {phase for phase in PHASES if plan.request.still_needed(phase)}
    core = [plan.decisions[m.uid] for m in members if m.phase in needed and m.uid in plan.decisions]
    apart = next((d for d in core if obstacle_of(d) is Obstacle.DOES_NOT_FIT_TOGETHER), None)
    return Blocked(Obstacle.DOES_NOT_FIT_TOGETHER, apart) if apart is not None else None


def _at_or_before(obstacle: Obstacle, limit: Obstacle) -> bool:
    order = list(Obstacle)
    return order.index(obstacle) <= order.index(limit)


def is_joiner(plan: Plan) -> bool:
    """The gang has its minimum, by this plan or before it: whoever is left out waits alone and holds up nobody."""
    return bool(plan.places) or plan.request.satisfied


def reason_of(plan: Plan, decision: Decision | None = None) -> Reason:
    """The Event reason of a gang (no decision), or of one of its pods.

    All pods of a held gang have the gang's reason. A pod that has a place in the plan, and a plan that left nobody out,
    come to `Placed`: whether the binding has been seen, and the word may be used, is the caller's to know.
    """
    if (waiting := _BY_OUTCOME.get(plan.outcome)) is not None:
        return waiting
    if decision is None and plan.places:
        return Reason.PLACED
    blocked = blocked_of(plan, decision)
    if blocked is None:
        return Reason.PLACED
    short = plan.shortfall
    if blocked.obstacle is Obstacle.NO_CAPACITY:
        return _of_capacity(blocked.decision)
    if short is not None and short.beyond_cluster:
        return Reason.INSUFFICIENT_GPU
    if blocked.obstacle is Obstacle.OUT_OF_REACH:
        return Reason.REACH_EXCEEDED
    if short is not None and short.best_gpus < short.needed_gpus:
        return Reason.INSUFFICIENT_GPU
    return Reason.FRAGMENTED


def _of_capacity(decision: Decision) -> Reason:
    """By the shortage that rules out most nodes that accept the pod.

    The set is closed: a shortage of cpu, of pod slots or of any other counted resource, and a pod that no node accepts
    at all, come to InsufficientGPU, whose page and whose text say which of them it is.
    """
    shortages = (VerdictCode.INSUFFICIENT_GPU, VerdictCode.INSUFFICIENT_MEMORY, VerdictCode.INSUFFICIENT_OTHER)
    worst = max(shortages, key=lambda code: (decision.ruled_out.get(code, 0), -code))
    return Reason.INSUFFICIENT_MEMORY if worst is VerdictCode.INSUFFICIENT_MEMORY else Reason.INSUFFICIENT_GPU
