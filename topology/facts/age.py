"""How old a node's facts are, in three words: fresh, stale, expired. Time comes in as an argument.

Fresh facts are used as they are; stale ones are used and said to be old; expired ones are left out of decisions, as if
the node had no agent. A node never looks empty because its agent is silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from topology.bad_input import BadInput
from topology.facts.report import NodeFacts, NvmlState
from topology.units import show_age


class Freshness(StrEnum):
    """What an age means."""

    FRESH = "fresh"
    STALE = "stale"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class AgeLimits:
    """Up to `stale_s` facts are fresh, from `expired_s` on they are expired."""

    stale_s: float = 45.0  # three reports of a node that reports every 15 s
    expired_s: float = 300.0  # as long as Kubernetes leaves pods on a node that is gone

    def __post_init__(self) -> None:
        """Raises BadInput unless 0 < stale_s < expired_s."""
        if not 0 < self.stale_s < self.expired_s:
            given = f"{self.stale_s:g} s and {self.expired_s:g} s"
            raise BadInput("ISOCHRONE_FACTS_STALE and ISOCHRONE_FACTS_EXPIRED", given, "use 0 < stale < expired")

    def freshness(self, age_s: float) -> Freshness:
        """The word for an age."""
        if age_s >= self.expired_s:
            return Freshness.EXPIRED
        return Freshness.STALE if age_s > self.stale_s else Freshness.FRESH


def of_gpus(facts: NodeFacts, heard_s: float, now_s: float, limits: AgeLimits) -> Freshness:
    """Freshness of what is said about GPUs: at best stale while NVML is lost, however often the agent reports.

    `heard_s` and `now_s` are on the same clock; the agent's own clock is used for the time since NVML answered only,
    between two times of its own.
    """
    found = limits.freshness(gpu_age_s(facts, heard_s, now_s))
    return Freshness.STALE if facts.state.nvml is NvmlState.LOST and found is Freshness.FRESH else found


def gpu_age_s(facts: NodeFacts, heard_s: float, now_s: float) -> float:
    """Age in seconds of what is said about GPUs: since the agent was heard, and since NVML answered it before that."""
    state = facts.state
    if state.nvml is not NvmlState.LOST:
        return now_s - heard_s
    return now_s - heard_s + max(0.0, state.collected_at_s - (state.nvml_good_at_s or 0.0))


@dataclass(frozen=True, slots=True)
class Aged:
    """Facts of a node that are not fresh, and the wall time in seconds at which they were last known to be good."""

    freshness: Freshness
    good_at_s: float


@dataclass(frozen=True, slots=True)
class AgentAge:
    """How old the facts of one node were when something was decided, for explanations."""

    node: str
    age_s: float
    freshness: Freshness


def say(age_s: float, freshness: Freshness) -> str:
    """For people: `42s old`, `2m5s old, stale`, `12m0s old, expired: not used`."""
    old = f"{show_age(age_s)} old"
    if freshness is Freshness.FRESH:
        return old
    return f"{old}, stale" if freshness is Freshness.STALE else f"{old}, expired: not used"
