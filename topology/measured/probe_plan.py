"""Who probes whom, and when: a few node pairs of every pair of domains, never much at once.

Rules of this file. (1) A pair of domains is what two nodes differ by on the widest tier: two zones, two spines of a
zone, two leaves of a spine, or one leaf with itself. Each is to have PAIRS measured node pairs without a common node,
no older than `every_s`; the nodes take turns. (2) A node is in one probe at a time, and a domain in at most BUSY of
them. (3) Pure: time comes in. What is under way is forgotten after LOST_S: an agent that died blocks nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from topology.reach.domains import DomainChain

PAIRS: Final = 3
BUSY: Final = 2
LOST_S: Final = 120.0
MOST_AT_ONCE: Final = 64
"""Orders given in one turn: 64 every 5 seconds measure 5,000 nodes' domains anew within five minutes."""

Domain = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """`node` is to probe `peer`."""

    node: str
    peer: str


@dataclass(slots=True)
class _PairTurn:
    """Where the turns of one pair of domains stand."""

    asked_s: float = float("-inf")
    next: int = 0


@dataclass(slots=True)
class ProbePlan:
    """Keeps turns and what is under way. `counts(a, b)` says whether a probe between two nodes would count at all."""

    every_s: float
    counts: Callable[[str, str], bool] = lambda _a, _b: True
    _turns: dict[tuple[Domain, Domain], _PairTurn] = field(default_factory=dict)
    _under_way: dict[tuple[str, str], tuple[float, _PairTurn]] = field(default_factory=dict)

    def done(self, node: str, peer: str) -> None:
        """The probe ended. Unknown ones are no error."""
        self._under_way.pop((node, peer), None)

    def failed(self, node: str, peer: str) -> None:
        """The order could not be given: the next pair in turn may be asked at once."""
        _, turn = self._under_way.pop((node, peer), (0.0, _PairTurn()))
        turn.asked_s = float("-inf")

    def due(self, nodes: Mapping[str, DomainChain], now_s: float) -> list[Order]:
        """What to order now, among nodes that have an agent to ask and to answer. They count as under way."""
        busy, load = self._occupied(nodes, now_s)
        groups = _groups(nodes)
        for gone in self._turns.keys() - groups.keys():
            del self._turns[gone]
        orders: list[Order] = []
        waiting = sorted(groups, key=lambda key: (self._turns.get(key, _PairTurn()).asked_s, key))
        for key in waiting:
            turn = self._turns.setdefault(key, _PairTurn())
            if now_s - turn.asked_s < self.every_s / PAIRS or len(orders) >= MOST_AT_ONCE:
                continue
            order = self._pick(groups[key], turn, busy, load, nodes)
            if order is None:
                continue
            turn.asked_s = now_s
            busy |= {order.node, order.peer}
            load.update({_path(nodes[order.node]), _path(nodes[order.peer])})
            self._under_way[order.node, order.peer] = now_s, turn
            orders.append(order)
        return orders

    def _occupied(self, nodes: Mapping[str, DomainChain], now_s: float) -> tuple[set[str], Counter[Domain]]:
        """Nodes in a probe, and how many probes each domain is in. What is under way too long is forgotten first."""
        self._under_way = {pair: begun for pair, begun in self._under_way.items() if now_s - begun[0] <= LOST_S}
        busy = {name for pair in self._under_way for name in pair}
        load: Counter[Domain] = Counter()
        for pair in self._under_way:
            load.update({_path(nodes[name]) for name in pair if name in nodes})
        return busy, load

    def _pick(
        self,
        ends: tuple[Sequence[str], Sequence[str]],
        turn: _PairTurn,
        busy: set[str],
        load: Counter[Domain],
        nodes: Mapping[str, DomainChain],
    ) -> Order | None:
        """The next pair in turn that is free and would count."""
        ones, others = ends
        most = len(ones) * len(others) if ones is not others else max(1, len(ones) // 2) * 2
        for step in range(min(most, 8 * PAIRS)):
            at = turn.next + step
            if ones is others:
                if len(ones) < 2:
                    return None
                a, b = ones[2 * at % len(ones)], ones[(2 * at + 1 + (2 * at // len(ones))) % len(ones)]
            else:
                a, b = ones[at % len(ones)], others[(at + at // len(ones)) % len(others)]
            full = any(load[_path(nodes[name])] >= BUSY for name in (a, b))
            if a != b and a not in busy and b not in busy and not full and self.counts(a, b):
                turn.next = at + 1
                return Order(a, b)
        return None


def _path(chain: DomainChain) -> Domain:
    """The narrowest domain of a node, by all its names from the zone down."""
    return tuple(part for part in (chain.zone, chain.spine, chain.leaf) if part)


def _groups(nodes: Mapping[str, DomainChain]) -> dict[tuple[Domain, Domain], tuple[Sequence[str], Sequence[str]]]:
    """By pair of domains the nodes on either side: siblings under one parent, and each narrowest domain with itself."""
    members: dict[Domain, list[str]] = {}
    children: dict[Domain, set[Domain]] = {}
    narrowest: dict[Domain, list[str]] = {}
    for name in sorted(nodes):
        path = _path(nodes[name])
        narrowest.setdefault(path, []).append(name)
        for depth in range(1, len(path) + 1):
            members.setdefault(path[:depth], []).append(name)
            children.setdefault(path[: depth - 1], set()).add(path[:depth])
    groups: dict[tuple[Domain, Domain], tuple[Sequence[str], Sequence[str]]] = {}
    for path, names in narrowest.items():
        groups[path, path] = (names, names)
    for siblings in children.values():
        for one, other in combinations(sorted(siblings), 2):
            groups[one, other] = (members[one], members[other])
    return groups
