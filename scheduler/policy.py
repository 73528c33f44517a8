"""Weights and limits of a decision, one block, each with its unit and reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """Defaults that ship. Points add up to 100, so a score means something without a manual."""

    reach_points: float = 60.0
    """Closeness to the partners; first, because latency is what the user asked for."""

    packing_points: float = 39.99
    """How full the node's GPUs are afterwards; keeps whole nodes free for wide pods."""

    order_points: float = 0.01
    """Spread over nodes by name, far less than any real difference: scores stay distinct, since Volcano breaks ties at
    random and an explanation could then not be repeated."""

    volcano_weight: float = 10.0
    """Score points are multiplied by this for Volcano, which adds the scores of all plugins unweighted: its own ones
    differ by tens between nodes of a usual cluster (0 to 100 each), ours by up to 1,000."""

    search_budget: int = 5_000
    """Placements a plan may try before it answers `undecided`. A count, not a time, so a plan can be repeated."""

    memory_reserve: float = 0.15
    """Share of each card that nothing is planned into. Drivers, contexts and allocators take what no request names, and
    a card that is promised to the last byte fails its pods one by one."""

    peak_limit: float = 0.85
    """Share of each card that requests and prefill peaks together may reach. All peaks of a card share one head-room,
    since each is given back; this is how far that may go. At most 1 less the reserve."""

    improve_budget: int = 1_200
    """Placements a plan may try after its first complete one, to find a better one; the best so far counts then."""

    reach_worst_points: float = 40.0
    """Cost of a plan whose farthest pair is at the bound. Latency is what the user asked for, and its worst is felt."""

    reach_mean_points: float = 20.0
    """Cost of a plan whose pairs are at the bound on average: half of the worst's, since most requests see it."""

    lost_points: float = 30.0
    """Cost of a plan that takes a GPU from the expected pods for every GPU it uses. As much as half of the reach."""

    set_points: float = 10.0
    """Cost of a plan whose isochrone set is one node, a tenth of it for ten: a pod with one node to go to is stuck when
    that node fails before it is bound."""
