"""Which GPUs of a node go together best: the best link, a network card beside each, least harm to the sets that remain.

Rules of this file. (1) Links are the words of `nvidia-smi topo -m` (topology/graph/link_types.py); a set is as good as
its worst pair. (2) Load comes before locality: a busy GPU near its network card is still busy. (3) A card whose network
is not known is neither good nor bad. (4) Ties go to the lowest indices. Pure: one node's words and masks in, indices
out.

The points of a pair are those of NVIDIA's own plugin (NVIDIA/go-gpuallocator gpuallocator/besteffort_policy.go): 10
across sockets to 50 behind one PCIe switch, and 100 for every NVLink.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from topology.bad_input import BadInput
from topology.graph.link_types import C2C, NODE, PHB, PIX, PXB, SELF, SYS, UNKNOWN, nvlinks, rank

PAIR_POINTS: Final = {SYS: 10, NODE: 20, PHB: 30, PXB: 40, PIX: 50, C2C: 100, SELF: 0}
NVLINK_POINTS: Final = 100

ROOT_TIERS: Final = (rank(NODE), rank(PHB))
"""Links beyond which GPUs are under another PCI root: across sockets, else across host bridges."""

TIERS: Final = (rank("NV1"), rank(C2C), rank(PIX), rank(PXB), rank(PHB), rank(NODE))
"""Links at which GPUs of a node form groups, tightest first; everything is one group across sockets."""

SIZES: Final = (2, 4, 8)
"""Sets that the next pods may want (tensor parallelism): how many fewer of them there are is the harm."""

MOST_GPUS: Final = 16
MOST_SETS: Final = 20_000
"""Sets looked at; C(16, 8) is 12,870."""


@dataclass(frozen=True)
class GpuLinks:
    """One node's GPUs by index. `link_types` (G, G): how each pair is joined. `numa` (G,): None where nobody knows.
    `rails` (G,): the rail of the live network card beside each GPU, None where there is none; `rails_known`: whether
    they were read at all."""

    link_types: tuple[tuple[str, ...], ...]
    numa: tuple[int | None, ...] = ()
    rails: tuple[int | None, ...] = ()
    rails_known: bool = False

    def __post_init__(self) -> None:
        count = len(self.link_types)
        if count > MOST_GPUS or any(len(row) != count for row in self.link_types):
            raise BadInput("links", f"{count} GPUs", f"a square matrix of words for at most {MOST_GPUS} GPUs")

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Per tier a group number for each GPU: GPUs that a chain of links of that tier or better joins."""
        return tuple(_components(self.link_types, tier) for tier in TIERS)

    @property
    def roots(self) -> tuple[int, ...]:
        """A number per GPU, the same for those under one PCI root or joined by NVLink. Empty where all are, where each
        is by itself, or where nobody knows."""
        return _roots(self.link_types)


@lru_cache(maxsize=1024)
def _roots(link_types: tuple[tuple[str, ...], ...]) -> tuple[int, ...]:
    if any(UNKNOWN in row for row in link_types):
        return ()
    for tier in ROOT_TIERS:
        groups = _components(link_types, tier)
        if len(set(groups)) > 1:
            return groups if len(set(groups)) < len(groups) else ()
    return ()


def _components(link_types: Sequence[Sequence[str]], tier: int) -> tuple[int, ...]:
    group = list(range(len(link_types)))
    for a, b in itertools.combinations(range(len(link_types)), 2):
        if rank(link_types[a][b]) <= tier and group[a] != group[b]:
            old, new = max(group[a], group[b]), min(group[a], group[b])
            group = [new if g == old else g for g in group]
    return tuple(group)


def pair_points(word: str) -> int:
    """What a pair is worth to NVIDIA's plugin; 0 where nothing is known."""
    return PAIR_POINTS[PHB] + NVLINK_POINTS * nvlinks(word) if nvlinks(word) else PAIR_POINTS.get(word, 0)


@dataclass(frozen=True, slots=True)
class GpuSet:
    """A choice: the GPUs, the word of their worst pair (`X` for one alone), how many lack a live network card beside
    them, how many are on no rail of the partner, and how many sets of 2, 4 and 8 are lost to others."""

    gpus: tuple[int, ...]
    worst: str
    without_nic: int
    off_rail: int
    placement_cost: int
    points: int
    load_milli: int

    @property
    def nic_share(self) -> float:
        """Share of the GPUs with a live network card beside them."""
        return 1.0 - self.without_nic / max(len(self.gpus), 1)


def sets_left(links: GpuLinks, free: Sequence[bool]) -> int:
    """How many sets of 2, 4 and 8 GPUs the free ones still form, over every tier of links."""
    total = 0
    for groups in links.groups:
        counts: dict[int, int] = {}
        for gpu, group in enumerate(groups):
            if free[gpu]:
                counts[group] = counts.get(group, 0) + 1
        total += sum(n // size for n in counts.values() for size in SIZES)
    return total


def evaluate_set(
    links: GpuLinks,
    gpus: tuple[int, ...],
    free: Sequence[bool],
    load_milli: Sequence[int] = (),
    partner_rails: frozenset[int] = frozenset(),
) -> GpuSet:
    """One set, `gpus` ascending, against the free GPUs of the node. `partner_rails` are those of the partner's network
    cards, empty where it is on the same node or unknown."""
    pairs = [links.link_types[a][b] for a, b in itertools.combinations(gpus, 2)]
    rails = [links.rails[g] for g in gpus] if links.rails_known else []
    left = [ok and i not in gpus for i, ok in enumerate(free)]
    return GpuSet(
        gpus=gpus,
        worst=max(pairs, key=rank, default=SELF),
        without_nic=sum(1 for r in rails if r is None),
        off_rail=sum(1 for r in rails if partner_rails and r not in partner_rails),
        placement_cost=sets_left(links, free) - sets_left(links, left),
        points=sum(map(pair_points, pairs)),
        load_milli=sum(load_milli[g] for g in gpus) if load_milli else 0,
    )


def _order(found: GpuSet) -> tuple[object, ...]:
    worst = rank(found.worst)
    return worst, found.load_milli, found.without_nic, found.off_rail, found.placement_cost, -found.points, found.gpus


def best_set(
    links: GpuLinks,
    free: Sequence[bool],
    count: int,
    load_milli: Sequence[int] = (),
    partner_rails: frozenset[int] = frozenset(),
) -> GpuSet | None:
    """The best set of `count` free GPUs, or None where too few are free. `load_milli` (G,) is what each GPU already
    carries, for pods that share; without it all are alike."""
    able = [i for i, ok in enumerate(free) if ok]
    if not 0 < count <= len(able):
        return None
    sets = itertools.islice(itertools.combinations(able, count), MOST_SETS)
    return min((evaluate_set(links, gpus, free, load_milli, partner_rails) for gpus in sets), key=_order)


def plugin_set(links: GpuLinks, free: Sequence[bool], count: int) -> tuple[int, ...] | None:
    """The GPUs that NVIDIA's plugin would prefer: of all ways to split the free ones into sets of this size the one
    with the most points, and of it the best set; lowest indices on ties. What a pod gets where only the node can be
    chosen. Up to eight free GPUs every split is looked at, as the plugin does; above that the best set alone counts.
    """
    able = tuple(i for i, ok in enumerate(free) if ok)
    if not 0 < count <= len(able):
        return None
    worth = {pair: pair_points(links.link_types[pair[0]][pair[1]]) for pair in itertools.combinations(able, 2)}

    def of(gpus: tuple[int, ...]) -> int:
        return sum(worth[pair] for pair in itertools.combinations(gpus, 2))

    if len(able) > max(SIZES):
        return min(itertools.islice(itertools.combinations(able, count), MOST_SETS), key=lambda g: (-of(g), g))
    best = min(_splits(able, count), key=lambda sets: (-sum(map(of, sets)), sets))
    return min(best, key=lambda gpus: (-of(gpus), gpus))


def _splits(able: tuple[int, ...], count: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to take as many disjoint sets of `count` as there are from these GPUs."""
    spare = len(able) % count
    for left in itertools.combinations(able, spare):
        yield from _partitions(tuple(g for g in able if g not in left), count)


def _partitions(gpus: tuple[int, ...], count: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    if not gpus:
        yield ()
        return
    for others in itertools.combinations(gpus[1:], count - 1):
        rest = tuple(g for g in gpus[1:] if g not in others)
        for more in _partitions(rest, count):
            yield ((gpus[0], *others), *more)
