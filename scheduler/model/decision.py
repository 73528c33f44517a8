"""The central shapes: candidate, decision, plan. Frozen values that every surface is rendered from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.model.gpu_pick import GpuPick
from scheduler.model.request import GangRequest, PodRequest
from scheduler.model.verdict import Verdict, VerdictCode
from topology.cluster.isochrone_sets import NodeSet
from topology.facts.age import AgentAge, FactPart, Freshness
from topology.reach.model import Reach

KEEP = 5
"""Candidates kept in a decision: the choice and its runners-up."""

NANO = 1_000_000_000
"""Points are integers in billionths, so parts add up to the score exactly."""


@dataclass(frozen=True, slots=True)
class ScorePart:
    """One named part of a score, in billionths of a point, out of `of` points."""

    name: str
    points_nano: int
    of: float

    @property
    def points(self) -> float:
        """In points, for people."""
        return self.points_nano / NANO


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that was scored; its parts add up to the score exactly."""

    node: str
    parts: tuple[ScorePart, ...]
    reach: Reach | None  # worst to the partners; None while no partner has a place
    within: bool
    roots: tuple[int, int] | None = None  # groups of the gang with room under one PCI root, and how many there could be

    @property
    def score_nano(self) -> int:
        """The exact score in billionths of a point, 0 to 100 points."""
        return sum(part.points_nano for part in self.parts)

    @property
    def score(self) -> float:
        """The score in points."""
        return self.score_nano / NANO


@dataclass(frozen=True, slots=True)
class PairReach:
    """The worst pair of a placement: which partner, how far, and by which hops where a graph knows them."""

    prefill: str
    decode: str
    reach: Reach
    hops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A pod asks for `need` of `unit` (`gpus`, `bytes`, `gpu-bytes`); no node open to it has more than `largest`,
    even empty, or of the last no GPU.

    `anywhere`: some node that the pod may not use has as much.
    """

    need: int
    largest: int
    unit: str
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """One pod against one snapshot. `eligible + sum(ruled_out) == nodes evaluated`, always."""

    id: str
    snapshot_id: str
    request: PodRequest
    bound_us: float
    node_count: int
    eligible: int
    ruled_out: Mapping[VerdictCode, int]
    nearest: Mapping[VerdictCode, Verdict]
    ranked: tuple[Candidate, ...]
    chosen: str | None = None
    partner: PairReach | None = None
    facts_age_s: float = 0.0
    agents: tuple[AgentAge, ...] = ()  # named nodes whose agents' facts are not fresh
    pick: GpuPick | None = None  # which cards of the chosen node, where more than "some" can be said
    too_large: TooLarge | None = None  # why it can never have a place on these nodes, where that is so
    predicted_gpus: bool = True  # whole-GPU requests: the device plugin picks the cards, we choose the node only

    def __post_init__(self) -> None:
        counted = self.eligible + sum(self.ruled_out.values())
        assert counted == self.node_count, f"{counted} nodes explained, {self.node_count} looked at"

    @property
    def candidate(self) -> Candidate | None:
        """The chosen node's candidate, if it is among the kept ones."""
        return next((c for c in self.ranked if c.node == self.chosen), None)

    @property
    def silent(self) -> tuple[AgentAge, ...]:
        """Named nodes that were judged without some of their agents' facts, because these expired."""
        expired = (age for age in self.agents if age.freshness is Freshness.EXPIRED)
        return tuple(age for age in expired if age.parts != (FactPart.PODS,))


def decision_id(uid: str, snapshot_id: str) -> str:
    """Seven hex digits that tie log line, Event and annotation together."""
    return hashlib.sha256(f"{uid}/{snapshot_id}".encode()).hexdigest()[:7]


class Outcome:
    """What became of a gang: closed set."""

    PLANNED = "planned"  # at least the minimum has places
    HELD = "held"  # no plan: all stay gated
    WAITING_FOR_PARTNER = "waiting-for-partner"  # one phase has no pod at all
    WAITING_FOR_GANG = "waiting-for-gang"  # fewer pods than the minimum exist
    UNDECIDED = "undecided"  # the search budget ran out


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change that was tried on the snapshot and made the gang fit: `amount` of `unit` freed on `node`, or the bound
    raised to `amount` microseconds (no node then)."""

    amount: float
    unit: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a whole gang has no plan, in numbers.

    `closest`: the nearest pair of nodes with room for one pod of each phase, or with room on one and a partner on the
    other; of two phases the one that is worse off. `best_gpus` of `needed_gpus`: the most free GPUs within the bound
    of any one node, named by `best_where`. `remedies`: what was tried and would help. `cluster_gpus`: all GPUs of the
    nodes open to its pods, free or not; `held_gpus`: those that its own placed pods hold.
    """

    needed_gpus: int
    closest: PairReach | None = None
    best_gpus: int = 0
    best_where: str = ""
    remedies: tuple[Remedy, ...] = ()
    cluster_gpus: int | None = None
    held_gpus: int = 0

    @property
    def beyond_cluster(self) -> bool:
        """The minimum asks for more GPUs than there are: no room that comes can help."""
        return self.cluster_gpus is not None and 0 < self.cluster_gpus < self.needed_gpus + self.held_gpus


@dataclass(frozen=True, slots=True)
class Terms:
    """What a plan is judged by (`scheduler.search.objective`): reach in us, GPUs that expected pods can no longer use,
    nodes of the smaller isochrone set (0 where there is none), share of the gang's groups torn between PCI roots,
    and of its GPUs that are on no network rail of their partners."""

    worst_us: float
    mean_us: float
    lost_gpus: float
    nodes: int = 0
    split_groups: float = 0.0
    off_rail: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions for a whole gang, or why there is none."""

    request: GangRequest
    outcome: str
    snapshot_id: str
    decisions: Mapping[str, Decision]  # by pod uid; planned and unplanned members alike
    places: Mapping[str, str] = field(default_factory=dict)  # pod uid to node name
    sets: Mapping[str, NodeSet] = field(default_factory=dict)  # pod uid to its isochrone set
    worst: PairReach | None = None
    shortfall: Shortfall | None = None
    expanded: int = 0
    terms: Terms | None = None  # what the plan was judged by
    cost: float = 0.0  # points, the lower the better (scheduler.search.objective)
    equivalents: Mapping[str, str] = field(
        default_factory=dict
    )  # pod uid to the first one on its node that asks for the same

    def set_for(self, phase: str) -> NodeSet | None:
        """The isochrone set of one phase; None where planned pods have several (`pairing: nearest`)."""
        found = {self.sets.get(m.uid) for m in self.request.members if m.phase == phase and m.uid in self.places}
        return found.pop() if len(found) == 1 else None

    def set_of(self, uid: str) -> NodeSet | None:
        """The isochrone set of one planned pod: with `pairing: nearest` groups of partners have each their own."""
        return self.sets.get(uid)
