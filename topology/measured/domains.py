"""What the measured node pairs say about the pairs of domains they stand in: the upper median of the freshest.

One odd node must not speak for its whole domain, so at least two pairs are needed and no node may be in all of them. A
pair speaks for a pair of domains only where it shares nothing narrower: two nodes of one leaf say nothing about two
leaves of their spine. All pairs at once, as arrays: 20,000 of them take some 30 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topology.labels import DEFAULT_REACH_SIZE_BYTES
from topology.reach.measured_values import TIERS, Curve
from topology.reach.model import NO_DOMAIN

DomainPair = tuple[str, int, int]
"""Tier, and the codes of two domains, the lower first."""


@dataclass(frozen=True, slots=True)
class NodePairs:
    """Measured pairs of nodes: columns a < b, and what each measured. `us` is the time of one page."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    curves: Sequence[Curve]
    us: NDArray[np.float64]
    weight: NDArray[np.float64]

    @classmethod
    def of(cls, curves: Mapping[tuple[int, int], Curve]) -> NodePairs:
        """From curves by pair; a node with itself is left out."""
        pairs = sorted(pair for pair in curves if pair[0] != pair[1])
        each = [curves[pair] for pair in pairs]
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        us = np.array([curve.us(DEFAULT_REACH_SIZE_BYTES) for curve in each])
        return cls(ends[:, 0], ends[:, 1], each, us, np.array([curve.weight for curve in each]))

    def implied(self, columns: Mapping[str, NDArray[np.int32]]) -> dict[DomainPair, Curve]:
        """By pair of domains what its node pairs say; `columns` are the domains' codes by tier, shape (N,)."""
        found: dict[DomainPair, Curve] = {}
        for tier, (low, high, speaks) in self.domains(columns).items():
            mine = np.flatnonzero(speaks)
            order = mine[np.lexsort((mine, self.us[mine], -self.weight[mine], high[mine], low[mine]))]
            if not len(order):
                continue
            new = np.ones(len(order), dtype=bool)
            new[1:] = (low[order][1:] != low[order][:-1]) | (high[order][1:] != high[order][:-1])
            new[1:] |= self.weight[order][1:] != self.weight[order][:-1]
            starts = np.flatnonzero(new)
            counts = np.diff(np.append(starts, len(order)))
            seen: set[tuple[int, int]] = set()
            for start, count, common in zip(
                starts.tolist(), counts.tolist(), self._common(order, starts, counts).tolist(), strict=True
            ):
                first = order[start]
                key = int(low[first]), int(high[first])
                if key in seen:
                    continue  # a staler group of the same domains
                seen.add(key)
                if count > 1 and not common:
                    found[tier, *key] = self.curves[order[start + count // 2]]
        return found

    def domains(
        self, columns: Mapping[str, NDArray[np.int32]]
    ) -> dict[str, tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]]:
        """Per tier each pair's two domains, the lower code first, and whether the pair speaks for them."""
        result = {}
        narrower = np.zeros(len(self.a), dtype=bool)
        for tier in TIERS:
            one, other = columns[tier][self.a], columns[tier][self.b]
            known = (one != NO_DOMAIN) & (other != NO_DOMAIN)
            result[tier] = np.minimum(one, other), np.maximum(one, other), known & ~narrower
            narrower |= known & (one == other)
        return result

    def _common(
        self, order: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Per group of pairs whether one node is in all of them: then it is an end of the first."""
        a, b = self.a[order], self.b[order]
        common = np.zeros(len(starts), dtype=bool)
        for ends in (a, b):
            node = np.repeat(ends[starts], counts)
            common |= np.add.reduceat(((a == node) | (b == node)).astype(np.int64), starts) == counts
        return common
