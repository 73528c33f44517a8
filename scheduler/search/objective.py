"""What makes one plan better than another: a published cost, positive, in points, the lower the better.

    cost =  reach_worst_points x r(worst)       r(us) = ln(1 + us / 5) / ln(1 + bound / 5)
          + reach_mean_points x r(mean)
          + lost_points x lost                  GPUs that expected pods can no longer use, per GPU the gang takes, at
                                                least one
          + set_points / nodes                  nodes of the smaller isochrone set
          + rail_points x off rail              share of the gang's GPUs on no network rail of their partners
          + root_points x torn                  share of the gang's groups without room under one PCI root

With `pairing: all` worst and mean are over all prefill-decode pairs with a planned pod in them; with `nearest` over the
planned pods, each with its nearest partner. r is 0 at no distance and 1 at the bound; it is logarithmic because reach
matters by orders of magnitude (8 us on NVLink, 80 us over TCP, 2 ms between zones), and 5 us is the launch floor of a
GPU copy, as in the score.

`lost` is FGD's measure (Weng et al., USENIX ATC 2023, section 4.1) for whole GPUs, turned round: of f free GPUs on a
node the share of expected pods that fit there can use all, the others none, so usable(f) = f x sum of the shares of
pods that need at most f. A gang loses usable(before) - usable(after) on each node it stands on: never negative. Of a
shared card, for gangs that ask for one, what is left counts for the pods whose share fits on it; of MIG cards the
memory that instances of the mix lose for want of a place (scheduler/search/capacity_loss.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.gpu_fit import limits_of
from scheduler.evaluate.score import FLOOR_US
from scheduler.model.decision import Terms
from scheduler.model.policy import Policy
from topology.cluster.snapshot import Snapshot
from topology.fragmentation.pod_shape import PodShape
from topology.gpus.gpu_row import WHOLE_MILLI

EXPECTED: Final[Mapping[int, float]] = {1: 0.25, 2: 0.25, 4: 0.25, 8: 0.25}
"""Share of expected pods by whole GPUs, while none was seen: the usual tensor-parallel sizes, alike."""

Floats = NDArray[np.float64]


def usable_gpus(most: int, expected: Mapping[int, float] = EXPECTED) -> Floats:
    """GPUs of 0 to `most` free ones on a node that expected pods can use, shape (most + 1,)."""
    free = np.arange(most + 1)
    share = np.zeros(most + 1)
    for gpus, often in expected.items():
        share += often * (free >= gpus)
    usable: Floats = free * share
    return usable


def expected_pods(snapshot: Snapshot) -> Mapping[int, float]:
    """Share of the pods that the cluster is asked to run, by the GPUs they need: the mix of the score, or `EXPECTED`
    where no pod with a GPU was seen. How much of a card pods need, and their CPU, is left to the score."""
    of = snapshot.mix.on_gpu(0)
    if not of.total or not len(of.gpus):
        return EXPECTED
    share: dict[int, float] = {}
    for gpus, count in zip(of.gpus.tolist(), of.counts.tolist(), strict=True):
        share[gpus] = share.get(gpus, 0.0) + count / of.total
    return share


def taken_gpus(pods: Iterable[tuple[PodShape, int]], snapshot: Snapshot, policy: Policy) -> float:
    """GPUs that pods of these shapes, each so often, take in all: a part of a card as a part of the cluster's largest,
    of what may be promised of that."""
    memory = snapshot.table.gpus.memory_mib
    size = int(memory.max(initial=0)) * limits_of(policy).planned_milli // WHOLE_MILLI
    return sum(count * shape.gpus * min(shape.share_of(size), WHOLE_MILLI) / WHOLE_MILLI for shape, count in pods)


class Objective:
    """The cost of plans of one gang: `gpus` that it takes in all, within one bound; `expected` as in `usable_gpus`."""

    def __init__(self, policy: Policy, bound_us: float, gpus: float, expected: Mapping[int, float] = EXPECTED) -> None:
        self._policy, self._gpus, self._expected = policy, max(gpus, 1.0), expected
        self._span = float(np.log1p(bound_us / FLOOR_US))

    def usable(self, most: int) -> Floats:
        """`usable_gpus` of the pods that are expected."""
        return usable_gpus(most, self._expected)

    def of(
        self,
        worst_us: Floats,
        mean_us: Floats,
        lost_gpus: Floats,
        set_share: Floats | float,
        split_groups: float = 0.0,
        off_rail: float = 0.0,
    ) -> Floats:
        """Costs of many plans at once; `set_share` is one over the nodes of the smaller set."""
        policy = self._policy
        cost: Floats = (
            policy.reach_worst_points * np.log1p(worst_us / FLOOR_US) / self._span
            + policy.reach_mean_points * np.log1p(mean_us / FLOOR_US) / self._span
            + policy.lost_points * lost_gpus / self._gpus
            + policy.set_points * set_share
            + policy.root_points * split_groups
            + policy.rail_points * off_rail
        )
        return cost

    def cost(self, terms: Terms) -> float:
        """The cost of one plan, in points."""
        share = 1.0 / terms.nodes if terms.nodes else 0.0
        one = [np.array(v) for v in (terms.worst_us, terms.mean_us, terms.lost_gpus)]
        return float(self.of(one[0], one[1], one[2], share, terms.split_groups, terms.off_rail))


def least_loss(usable: Floats, gpus: Sequence[int]) -> list[float]:
    """The least that a pod of so many GPUs can lose anywhere, whatever stands there already: a bound for each."""
    return [float((usable[g:] - usable[: len(usable) - g]).min()) if 0 < g < len(usable) else 0.0 for g in gpus]
