"""How large the isochrone sets of places are, on a cluster of a few nodes: sets as bits of an integer.

The same closure as `topology.cluster.isochrone_sets.isochrone_masks`, fast enough to be asked for every plan a search
looks at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_

import numpy as np
from numpy.typing import NDArray

from topology.cluster.snapshot import NodeTable

FEW = 64
"""Nodes of a cluster for which sets are looked at in a search. In a larger one they are whole domains, and places in
one domain have the same."""


class SmallSets:
    """Sets around places of one gang. Places are positions in `nodes`; partners stand where they stand."""

    def __init__(
        self,
        table: NodeTable,
        nodes: NDArray[np.int64],
        partners: tuple[Sequence[int], Sequence[int]],
        bound_us: float,
        size_bytes: int,
    ) -> None:
        self._near = [
            _bits(np.flatnonzero(table.reach.row_us(node, size_bytes) <= bound_us).tolist())
            for node in range(len(table))
        ]
        self._everywhere = (1 << len(table)) - 1
        self._nodes = nodes.tolist()
        self._partners = partners
        self._closed: dict[int, int] = {}

    def share(self, first: Sequence[int], second: Sequence[int]) -> float:
        """One over the nodes of the smaller set around these places and the partners."""
        return 1.0 / max(1, self.smaller([self._nodes[i] for i in first], [self._nodes[i] for i in second]))

    def smaller(self, first: Sequence[int], second: Sequence[int]) -> int:
        """Nodes of the smaller set: around nodes by index, the larger of the two closures."""
        best = 0
        for mine, known in ((first, self._partners[0]), (second, self._partners[1])):
            if not mine and not known:
                continue
            other = self._around([*mine, *known])
            if other not in self._closed:
                self._closed[other] = self._around(list(_ones(other)))
            best = max(best, min(other.bit_count(), self._closed[other].bit_count()))
        return best

    def least_share(
        self, nodes: Sequence[int], candidates: NDArray[np.int64], second: bool
    ) -> NDArray[np.float64] | float:
        """A set only shrinks with every place: what it is at least once a candidate has joined `nodes` of a phase."""
        around = self._around([self._nodes[i] for i in nodes] + list(self._partners[int(second)]))
        sizes = [(around & self._near[self._nodes[i]]).bit_count() for i in candidates.tolist()]
        return 1.0 / np.maximum(np.array(sizes, dtype=np.float64), 1.0)

    def _around(self, nodes: Sequence[int]) -> int:
        return reduce(and_, (self._near[node] for node in nodes), self._everywhere)


def _bits(nodes: Sequence[int]) -> int:
    return sum(1 << node for node in nodes)


def _ones(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
