"""Reach with measurements in it: the model, and over it what was measured, as long as that counts.

Rules of this file. (1) A node pair's own value wins; where it has none, the value of the narrowest pair of domains that
was measured; else the model. (2) Same interface as `ReachModel`, so whoever plans need not know: kinds of nodes split
where measurements tell nodes apart. (3) Symmetric: the slower direction counts for both. (4) At most MAX_OWN nodes
become kinds of their own; of more, those with the pairs furthest from their domain pair's value, and the other pairs
count as their domains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topology.labels import DEFAULT_REACH_SIZE_BYTES
from topology.measured.domains import DomainPair, NodePairs
from topology.measured.store import Pair
from topology.reach.domains import DomainChain
from topology.reach.measured_values import (
    FABRIC,
    LEAF,
    NODE,
    SPINE,
    TIERS,
    ZONE,
    Curve,
    MeasuredPlace,
    Sample,
    curve_of,
)
from topology.reach.model import NO_DOMAIN, Reach, ReachModel, retained
from topology.units import show_age

MAX_OWN: Final = 256

Known = tuple[Sequence[Sample], frozenset[str] | None, float, Curve | None]
"""Samples, transports, until when the curve is the same, and the curve."""


@dataclass(frozen=True, slots=True)
class ReachValue:
    """A curve, and on which tier it was measured: node to node, leaf to leaf, within a leaf ..."""

    curve: Curve
    tier: str
    within: bool = False


class MeasuredReach(ReachModel):
    """`base` with the measurements of `pairs` (undirected) at `now_s`. Immutable like the base.

    `names` and `chains` are those of the base's nodes. `known` is a memory of curves that the next one may share: most
    pairs did not change since.
    """

    def __init__(
        self,
        base: ReachModel,
        names: Sequence[str],
        chains: Sequence[DomainChain],
        pairs: Mapping[Pair, Sequence[Sample]],
        now_s: float,
        known: dict[tuple[int, int], Known] | None = None,
    ) -> None:
        self.__dict__.update(base.__dict__)
        self.now_s = now_s
        self.base = base
        self._columns = {FABRIC: base.fabric, LEAF: base.leaf, SPINE: base.spine, ZONE: base.zone}
        self._named = {tier: _named(tier, chains, column) for tier, column in self._columns.items()}
        index = {name: i for i, name in enumerate(names)}
        nodes = {
            pair: curve
            for pair, samples in self._node_pairs(pairs, index)
            if (curve := _curve(samples, self.transports(*pair), now_s, known if known is not None else {}, pair))
        }
        measured = NodePairs.of(nodes)
        self._domains = measured.implied(self._columns) | self._given(pairs, now_s)
        self._nodes = self._own(nodes, measured)
        own = np.full(len(base), -1, dtype=np.int64)
        involved = sorted({i for pair in self._nodes for i in pair})
        own[involved] = involved
        _, first, kind = np.unique(np.stack([base.kind, own]), axis=1, return_index=True, return_inverse=True)
        self.first, self.kind = first, kind.reshape(-1)
        self._index_domains()
        self._row = lru_cache(maxsize=retained(len(self.kind)))(self._compute_row)
        self._kind_row = lru_cache(maxsize=retained(len(first)))(self._compute_kind_row)
        self._modelled = lru_cache(maxsize=64)(super()._compute_kind_row)

    def at(self, now_s: float) -> MeasuredReach:
        """The same values, with ages told as of another moment."""
        later = copy(self)
        later.now_s = now_s
        return later

    def self_us(self, size_bytes: int) -> NDArray[np.float64]:
        """Reach of every node to itself, shape (N,), microseconds: measured between its GPUs where that counts."""
        own = self.base.self_us(size_bytes).copy()
        for (a, b), curve in self._nodes.items():
            if a == b:
                own[[a]] = _at(curve, size_bytes, own[[a]], self.base.self_us(curve.largest_bytes)[[a]])
        return own

    def between(self, a: int, b: int, size_bytes: int) -> Reach:
        """Reach of one pair, its path in words, and whether it was measured and when."""
        us, path = float(self.row_us(a, size_bytes)[b]), self._path(a, b)
        value = self._value(a, b)
        if value is None:
            return Reach(us=us, path=path)
        rests_on = value.curve.nearest(size_bytes)
        where = ""
        if value.tier != NODE:
            where = f", within the {value.tier}" if value.within else f", {value.tier} to {value.tier}"
        fading = "" if value.curve.weight >= 1 else ", fading to the model"
        age = show_age(max(0.0, self.now_s - rests_on.measured_at_s))
        return Reach(us, path.removesuffix(", not measured"), f"measured {age} ago{where}{fading}", rests_on)

    # --- building ------------------------------------------------------------------------------

    def _node_pairs(
        self, pairs: Mapping[Pair, Sequence[Sample]], index: Mapping[str, int]
    ) -> Iterable[tuple[tuple[int, int], Sequence[Sample]]]:
        for (a, b), samples in pairs.items():
            if a.tier == b.tier == NODE and a.name in index and b.name in index:
                i, j = index[a.name], index[b.name]
                yield (min(i, j), max(i, j)), samples

    def _given(self, pairs: Mapping[Pair, Sequence[Sample]], now_s: float) -> dict[DomainPair, Curve]:
        """Domain pairs that an import names."""
        found = {}
        for (a, b), samples in pairs.items():
            if a.tier != b.tier or a.tier not in TIERS or (ends := self._one_of_each(a, b)) is None:
                continue
            key = self._key(a.tier, *ends)
            if key is not None and (curve := curve_of(samples, self.transports(*ends), now_s)) is not None:
                found[key] = curve
        return found

    def _one_of_each(self, a: MeasuredPlace, b: MeasuredPlace) -> tuple[int, int] | None:
        """A node of each of two named domains, nothing narrower in common; None if a name fits none, or several."""
        ends = []
        for place in (a, b):
            codes = self._named[place.tier].get(place.name, set())
            if len(codes) != 1:
                return None
            ends.append(np.flatnonzero(self._columns[a.tier] == next(iter(codes))))
        first = int(ends[0][0])
        return next(((first, int(j)) for j in ends[1] if j != first and self._key(a.tier, first, int(j))), None)

    def _key(self, tier: str, i: int, j: int) -> DomainPair | None:
        """The pair of domains of two nodes on a tier; None where one is in none, or both share a narrower one."""
        a, b = int(self._columns[tier][i]), int(self._columns[tier][j])
        if NO_DOMAIN in (a, b):
            return None
        narrower = (self._columns[each] for each in TIERS[: TIERS.index(tier)])
        if any(column[i] == column[j] != NO_DOMAIN for column in narrower):
            return None
        return tier, min(a, b), max(a, b)

    def _own(self, nodes: Mapping[tuple[int, int], Curve], pairs: NodePairs) -> dict[tuple[int, int], Curve]:
        """The node pairs that count by themselves: all, or those furthest from what counts without them."""
        if len({i for pair in nodes for i in pair}) <= MAX_OWN:
            return dict(sorted(nodes.items()))
        apart = np.full(len(pairs.us), np.inf)
        for tier, (low, high, speaks) in pairs.domains(self._columns).items():
            for at in np.flatnonzero(speaks & np.isinf(apart)).tolist():
                if (curve := self._domains.get((tier, int(low[at]), int(high[at])))) is not None:
                    apart[at] = abs(math.log(pairs.us[at] / curve.us(DEFAULT_REACH_SIZE_BYTES)))
        ranked = [pair for pair in sorted(nodes) if pair[0] == pair[1]]
        order = np.lexsort((pairs.b, pairs.a, -apart))
        ranked += zip(pairs.a[order].tolist(), pairs.b[order].tolist(), strict=True)
        own: dict[tuple[int, int], Curve] = {}
        involved: set[int] = set()
        for pair in ranked:
            if len(involved | set(pair)) <= MAX_OWN:
                involved |= set(pair)
                own[pair] = nodes[pair]
        return own

    def _index_domains(self) -> None:
        """By domain and by node, what a row has to lay over the model."""
        self._beside: dict[tuple[str, int], list[tuple[int, Curve]]] = {}
        for (tier, a, b), curve in self._domains.items():
            for one, other in {(a, b), (b, a)}:
                self._beside.setdefault((tier, one), []).append((other, curve))
        self._partners: dict[int, list[tuple[int, Curve]]] = {}
        for (a, b), curve in self._nodes.items():
            if a != b:
                self._partners.setdefault(a, []).append((b, curve))
                self._partners.setdefault(b, []).append((a, curve))

    # --- looking up ----------------------------------------------------------------------------

    def _value(self, a: int, b: int) -> ReachValue | None:
        if (curve := self._nodes.get((min(a, b), max(a, b)))) is not None:
            return ReachValue(curve, NODE)
        return self._domain_value(a, b) if a != b else None

    def _domain_value(self, a: int, b: int) -> ReachValue | None:
        for tier in TIERS:
            key = self._key(tier, a, b)
            if key is not None and (curve := self._domains.get(key)) is not None:
                return ReachValue(curve, tier, key[1] == key[2])
        return None

    def _compute_kind_row(self, kind: int, size_bytes: int) -> NDArray[np.float64]:
        modelled = self._modelled(kind, size_bytes)
        row = modelled.copy()
        narrower = np.zeros(len(row), dtype=bool)
        open_to = {}  # per tier, the kinds that share nothing narrower with this one
        for tier in TIERS:
            open_to[tier] = ~narrower
            narrower |= self._shares(self._columns[tier], kind)
        for tier in reversed(TIERS):
            codes = self._columns[tier][self.first]
            for other, curve in self._beside.get((tier, int(codes[kind])), ()):
                self._lay(row, modelled, open_to[tier] & (codes == other), curve, kind, size_bytes)
        for node, curve in self._partners.get(int(self.first[kind]), ()):
            where = np.zeros(len(row), dtype=bool)
            where[self.kind[node]] = True
            self._lay(row, modelled, where, curve, kind, size_bytes)
        row.setflags(write=False)
        return row

    def _lay(
        self,
        row: NDArray[np.float64],
        modelled: NDArray[np.float64],
        where: NDArray[np.bool_],
        curve: Curve,
        kind: int,
        size_bytes: int,
    ) -> None:
        """Write a curve's value into some kinds of a row."""
        at_largest = modelled if size_bytes <= curve.largest_bytes else self._modelled(kind, curve.largest_bytes)
        row[where] = _at(curve, size_bytes, modelled[where], at_largest[where])


def _curve(
    samples: Sequence[Sample],
    transports: frozenset[str] | None,
    now_s: float,
    known: dict[tuple[int, int], Known],
    pair: tuple[int, int],
) -> Curve | None:
    """A pair's curve; the known one while its samples are the same and none of them began to fade."""
    if (held := known.get(pair)) is not None and held[0] is samples and held[1] == transports and now_s <= held[2]:
        return held[3]
    curve = curve_of(samples, transports, now_s)
    until = min((s.measured_at_s + s.fresh_s for s in samples), default=now_s)
    known[pair] = (samples, transports, until if until > now_s else now_s, curve)
    return curve


def _named(tier: str, chains: Sequence[DomainChain], column: NDArray[np.int32]) -> dict[str, set[int]]:
    """Domains by the label's value, and by the whole name with region and zone in front; a value may name several."""
    named: dict[str, set[int]] = {}
    for chain, code in zip(chains, column.tolist(), strict=True):
        if code != NO_DOMAIN:
            whole = str(getattr(chain, tier))
            for name in (whole, whole.rpartition("/")[2]):
                named.setdefault(name, set()).add(code)
    return named


def _at(
    curve: Curve, size_bytes: int, modelled_us: NDArray[np.float64], at_largest_us: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The value at a size: measured, continued as the model grows above the largest size, faded towards the model."""
    us = np.full_like(modelled_us, curve.us(size_bytes))
    if size_bytes > curve.largest_bytes and curve.us_per_byte == 0:
        us += np.maximum(0.0, modelled_us - at_largest_us)
    if curve.weight >= 1:
        return us
    blended: NDArray[np.float64] = us**curve.weight * modelled_us ** (1 - curve.weight)
    return blended
