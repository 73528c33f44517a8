"""Scores of all nodes at once, in named parts that add up exactly.

Rules of this file. (1) Points are integers in billionths. (2) Every node within the bound scores above every node
beyond it. (3) Scores are distinct for every node asked: the last part is a place in the order of names, smaller than
any real difference. (4) The range starts at 0; a bad node is 0-ish, never negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduler.decision import NANO, Candidate, Part
from scheduler.policy import Policy
from topology.reach import Reach
from topology.snapshot import Amount2D, Mask, Snapshot

FLOOR_US = 5.0
"""Reach at and below this earns full points: the launch floor of a GPU copy (a cited link table row, NVLink 4)."""

BOUND_SHARE = 0.2
"""A node exactly at the bound earns this share of the reach points; everything beyond earns less and nothing else."""

_QUANTUM = 10_000_000  # a hundredth of a point: what two nodes must differ by to differ at all


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
        need: Amount2D,
        reach_us: NDArray[np.float64],
        bound_us: float,
        policy: Policy,
        fits: Mask,
    ) -> None:
        within = (reach_us <= bound_us) & fits
        self.nodes = nodes
        self.reach_us = reach_us
        self.within = within
        # A node without room is scored as if it were beyond: Volcano may still ask about it (room on the way).
        share = np.where(fits, reach_share(reach_us, bound_us), 0.0)
        self.reach_nano = _points(share, policy.reach_points)
        self.packing_nano = np.where(within, _points(_packed(snapshot, nodes, need), policy.packing_points), 0)
        self.order_nano = _order(snapshot, nodes)
        self.total_nano = self.reach_nano + self.packing_nano + self.order_nano
        self._policy = policy

    def candidate(self, position: int, name: str, reach: Reach | None) -> Candidate:
        """The readable form of one scored node."""
        policy = self._policy
        return Candidate(
            node=name,
            parts=(
                Part("reach", int(self.reach_nano[position]), policy.reach_points),
                Part("packing", int(self.packing_nano[position]), policy.packing_points),
                Part("order", int(self.order_nano[position]), policy.order_points),
            ),
            reach=reach,
            within=bool(self.within[position]),
        )


def _points(share: NDArray[np.float64], of: float) -> NDArray[np.int64]:
    # The little extra keeps 0.2 of 60 points at 12.00: floating point makes it 11.999... before it is cut.
    quanta = np.floor(np.clip(share, 0.0, 1.0) * of * (NANO // _QUANTUM) + 1e-6).astype(np.int64)
    points: NDArray[np.int64] = quanta * _QUANTUM
    return points


def _packed(snapshot: Snapshot, nodes: NDArray[np.int64], need: Amount2D) -> NDArray[np.float64]:
    """Share of the node's GPUs in use once the pod is there; cpu instead where no GPU is asked for."""
    column = snapshot.gpu_column
    if column is None or not need[column]:
        column = snapshot.table.column.get("cpu")
    if column is None:
        return np.zeros(len(nodes))
    have = snapshot.table.allocatable[nodes, column].astype(np.float64)
    used = (snapshot.used[nodes, column] + need[column]).astype(np.float64)
    share: NDArray[np.float64] = np.divide(used, have, out=np.zeros(len(nodes)), where=have > 0)
    return share


def _order(snapshot: Snapshot, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Below one quantum, distinct, the first name highest: indices into the table are in name order already."""
    count = len(snapshot.table)
    step = (_QUANTUM - 1) // max(count, 1)
    ordered: NDArray[np.int64] = (count - nodes) * step
    return ordered
