"""What a joint search is asked: the demands of a gang, the nodes they may go to, and who is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.rail_alignment import GangRails
from scheduler.search.capacity_loss import CapacityLoss
from scheduler.search.demand import Demand
from scheduler.search.gpu_usage import GpuUsage
from scheduler.search.objective import Floats
from topology.cluster.snapshot import Amount2D
from topology.gpus.roots import RootCapacity


class SetSizes(Protocol):
    """How large isochrone sets can be; nodes are positions in the problem."""

    def share(self, first: Sequence[int], second: Sequence[int]) -> float:
        """One over the nodes of the smaller set around these places."""

    def least_share(self, nodes: Sequence[int], candidates: NDArray[np.int64], second: bool) -> Floats | float:
        """The least it can still become once a candidate has joined the nodes of a phase, shape (candidates,)."""


@dataclass(frozen=True, slots=True)
class Partners:
    """What pods that have places mean for a pod of each phase (first, second) on each node.

    `worst`, `total` and `nearest` reach in us to the partners of the other phase, shape (2, V), and how many partners
    that is.
    """

    worst: Floats
    total: Floats
    nearest: Floats
    count: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Problem:
    """V nodes by position: free amounts (V, R), reach (V, V) with a node's reach to itself on the diagonal, a number
    that is the same for nodes that can be swapped (V,). Demands of the phase `first` come first."""

    free: Amount2D
    gpus: NDArray[np.int64]
    reach_us: Floats
    same: NDArray[np.int64]
    first: str
    demands: tuple[Demand, ...]
    partners: Partners
    bound_us: float
    nearest: bool = False
    devices: GpuUsage | None = None
    roots: RootCapacity | None = None  # nodes by position
    losses: CapacityLoss | None = None  # beyond whole GPUs; with cards everything that is lost
    rails: GangRails | None = None
    names: tuple[int, ...] = ()  # the node of each position in the cluster, where rails are known
