"""Scores of all nodes at once, in named parts that add up exactly.

Rules of this file. (1) Points are integers in billionths. (2) Every node within the bound scores above every node
beyond it. (3) Scores are distinct for every node asked: the last part is a place in the order of names. (4) The range
starts at 0; a bad node is 0-ish, never negative. (5) Reach is one part; the rest say what the placement does to the
room that remains (scheduler/evaluate/capacity_score.py; MIG places: scheduler/evaluate/mig_cost.py), and count for
nodes within the bound alone.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.capacity_score import CAPACITY_PARTS, capacity_points, cut, lost, order_points, weights_for
from scheduler.evaluate.free_capacity import free_capacity
from scheduler.evaluate.mig_cost import mig_cost
from scheduler.evaluate.pci_affinity import RootFit
from scheduler.model.decision import Candidate, ScorePart
from scheduler.model.policy import Policy
from topology.cluster.snapshot import Mask, Snapshot
from topology.fragmentation.pod_shape import PodShape
from topology.reach.model import Reach

FLOOR_US = 5.0
"""Reach at and below this earns full points: the launch floor of a GPU copy (a cited link table row, NVLink 4)."""

BOUND_SHARE = 0.2
"""A node exactly at the bound earns this share of the reach points; everything beyond earns less and nothing else."""


ROOT_SHARE = 0.25
"""A node on which every group of the gang would be torn between PCI roots loses this share of the reach points above
those of the bound: less than the step from a node to its neighbour under the leaf, which costs three tenths of them."""


def reach_share(reach_us: NDArray[np.float64], bound_us: float) -> NDArray[np.float64]:
    """Share of the reach points, 0 to 1: falls with the logarithm from FLOOR_US to the bound, then on towards 0.

    Reach matters by orders of magnitude (8 us on NVLink, 80 us over TCP, 2 ms between zones), hence the logarithm.
    """
    at = np.maximum(reach_us, FLOOR_US)
    span = np.log(max(bound_us, FLOOR_US * 1.0001) / FLOOR_US)
    inside = 1.0 - (1.0 - BOUND_SHARE) * np.minimum(np.log(at / FLOOR_US) / span, 1.0)
    beyond = BOUND_SHARE * bound_us / np.maximum(at, bound_us) * 0.999
    return np.where(reach_us <= bound_us, inside, beyond)


class Scored:
    """Parts of every node asked, shape (n,) each, in the order of `nodes` (indices into the node table)."""

    def __init__(
        self,
        snapshot: Snapshot,
        nodes: NDArray[np.int64],
        shape: PodShape,
        reach_us: NDArray[np.float64],
        bound_us: float,
        policy: Policy,
        fits: Mask,
        roots: RootFit | None = None,
        off_rail: NDArray[np.float64] | None = None,
    ) -> None:
        """`off_rail` (n,) is the share of the pod's GPUs on no rail of its partners, NaN where nobody tells."""
        within = (reach_us <= bound_us) & fits
        self.nodes = nodes
        self.reach_us = reach_us
        self.within = within
        # A node without room is scored as if it were beyond: Volcano may still ask about it (room on the way).
        share = np.where(fits, reach_share(reach_us, bound_us), 0.0)
        self._roots = roots
        if roots is not None:
            split_groups = 1.0 - ROOT_SHARE * roots.lost(nodes)
            share = np.where(within, BOUND_SHARE + (share - BOUND_SHARE) * split_groups, share)
        on_rails = policy.rail_points if off_rail is not None else 0.0
        reach_points = policy.reach_points - on_rails
        reach = cut(share * reach_points, reach_points)
        rails: list[tuple[str, NDArray[np.int64], float]] = []
        if off_rail is not None:
            aligned = np.where(np.isnan(off_rail), 0.5, 1.0 - off_rail)  # what nobody tells is neither good nor bad
            rails = [("rails", cut(np.where(within, aligned, 0.0) * on_rails, on_rails), on_rails)]
        weights = weights_for(shape, policy)
        of = {name: getattr(weights, name).of for name in (*CAPACITY_PARTS, "mig")}
        # Only where the pod may go: what it would leave elsewhere is nobody's question.
        inside = np.flatnonzero(within)
        points = {name: np.zeros(len(nodes), dtype=np.int64) for name in of}
        if len(inside) and of["mig"]:
            devices = mig_cost(snapshot, nodes[inside], (shape.profile,), snapshot.mix.profiles)
            points["mig"][inside] = lost(devices, weights.mig)
        if len(inside) and any(of[name] for name in CAPACITY_PARTS):
            capacity = free_capacity(snapshot, nodes[inside], policy)
            found = capacity_points(capacity, shape, snapshot.mix, weights, snapshot.table.gpus.model_gpus)
            for name, of_node in found.parts.items():
                points[name][inside] = of_node
        order = order_points(nodes, len(snapshot.table), weights.order, within)
        self.parts: tuple[tuple[str, NDArray[np.int64], float], ...] = (
            ("reach", reach, reach_points),
            *rails,
            *((name, points[name], most) for name, most in of.items() if most),
            ("order", order, weights.order),
        )
        self.total_nano: NDArray[np.int64] = reduce(np.add, (part for _, part, _ in self.parts))

    def candidate(self, position: int, name: str, reach: Reach | None) -> Candidate:
        """The readable form of one scored node: the very numbers that make its score."""
        return Candidate(
            node=name,
            parts=tuple(ScorePart(part, int(points[position]), of) for part, points, of in self.parts),
            reach=reach,
            within=bool(self.within[position]),
            roots=self._roots.of(int(self.nodes[position])) if self._roots is not None else None,
        )
