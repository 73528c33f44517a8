"""How old each part of a node's facts is, in three words: fresh, stale, expired. Time comes in as an argument.

Fresh facts are used as they are; stale ones are used and said to be old; expired ones are left out of decisions, as if
the node had no agent. A node never looks empty because its agent is silent.
"""

from __future__ import annotations

from collections.abc import Mapping
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


class FactPart(StrEnum):
    """What one source of an agent tells. A source that is silent costs its own part only."""

    GPUS = "gpus"  # NVML: GPUs, memory, NVLinks, MIG, the NVLink domain
    NETWORK = "network"  # sysfs: network cards, what they are beside, GPUDirect
    PODS = "pods"  # the kubelet: who holds which device


@dataclass(frozen=True, slots=True)
class PartAge:
    """How long ago a part was last known to be good, and what that means."""

    age_s: float
    freshness: Freshness


PartAges = Mapping[FactPart, PartAge]


def part_ages(facts: NodeFacts, heard_s: float, now_s: float, limits: AgeLimits) -> PartAges:
    """The age of each part: since the agent was heard, and since its source answered the agent before that.

    A part whose source is silent is at best stale, however often the agent reports. `heard_s` and `now_s` are on the
    same clock; of the agent's own clock only the time between two of its moments is used.
    """
    state, since_s = facts.state, now_s - heard_s
    silent = (
        (FactPart.GPUS, (state.nvml_good_at_s or 0.0) if state.nvml is NvmlState.LOST else None),
        (FactPart.NETWORK, state.network_good_at_s),
        (FactPart.PODS, state.pods_good_at_s),
    )
    as_heard = PartAge(since_s, limits.freshness(since_s))
    found = dict.fromkeys(FactPart, as_heard)
    for part, good_at_s in silent:
        if good_at_s is None:
            continue
        age_s = since_s + max(0.0, state.collected_at_s - good_at_s)
        freshness = limits.freshness(age_s)
        found[part] = PartAge(age_s, Freshness.STALE if freshness is Freshness.FRESH else freshness)
    return found


@dataclass(frozen=True, slots=True)
class Aged:
    """A part of a node's facts that is not fresh, and the wall time in seconds at which it was last good."""

    freshness: Freshness
    good_at_s: float


AgedParts = Mapping[FactPart, Aged]
"""The parts of a node's facts that are not fresh."""


@dataclass(frozen=True, slots=True)
class AgentAge:
    """How old the facts of one node were when something was decided, for explanations. `parts` are those that are this
    old, in their order; all of them where the agent itself is silent."""

    node: str
    age_s: float
    freshness: Freshness
    parts: tuple[FactPart, ...] = tuple(FactPart)

    @property
    def whole(self) -> bool:
        """It is about everything that the agent tells."""
        return len(self.parts) == len(FactPart)


def ages_of(node: str, aged: AgedParts, now_s: float) -> tuple[AgentAge, ...]:
    """For explanations, oldest first: parts that are equally old are said together."""
    together: dict[tuple[float, Freshness], list[FactPart]] = {}
    for part in FactPart:
        if (found := aged.get(part)) is not None:
            together.setdefault((found.good_at_s, found.freshness), []).append(part)
    return tuple(
        AgentAge(node, now_s - good_at_s, freshness, tuple(parts))
        for (good_at_s, freshness), parts in sorted(together.items())
    )


def age_text(age_s: float, freshness: Freshness) -> str:
    """For people: `42s old`, `2m5s old, stale`, `12m0s old, expired: not used`."""
    old = f"{show_age(age_s)} old"
    if freshness is Freshness.FRESH:
        return old
    return f"{old}, stale" if freshness is Freshness.STALE else f"{old}, expired: not used"
