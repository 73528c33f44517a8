"""Room on cards while a search places pods: the rules of `topology.gpus.cards`, one node at a time, with a way back.

Only gangs with a pod that must be looked at card by card have one of these; for all others amounts say everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.gpu_fit import CardNeed, card_slots
from topology.cluster.snapshot import Mask, Snapshot
from topology.gpus.capacity import NodeCards
from topology.gpus.cards import CardRow, choose, put_all
from topology.gpus.holds import put_plain
from topology.gpus.table import GpuTable

PLENTY = 1_000
"""Slots where cards set no limit."""


@dataclass(frozen=True, slots=True)
class Asker:
    """One kind of pod: what it asks of cards, if that matters, whole GPUs it takes by amounts, and how many pods."""

    cards: CardNeed | None
    gpus: int
    count: int


def with_pod(cards: NodeCards, row: CardRow, asker: Asker) -> CardRow | None:
    """Cards with one pod more, on those that its form's owner would choose; None where it does not fit."""
    need = asker.cards
    if need is None:
        return put_plain(cards, row, asker.gpus) if asker.gpus else row
    if need.request.profiles:
        return row
    chosen = choose(cards, row, need.request, need.phase, need.limits)
    return None if chosen is None else put_all(cards, row, chosen, need.request, need.phase)


class CardRoom:
    """Cards of some nodes of a snapshot as pods of these kinds are put on and taken off again; nodes by position."""

    def __init__(self, gpus: GpuTable, askers: Sequence[Asker], nodes: NDArray[np.int64]) -> None:
        self._gpus, self._askers, self._nodes = gpus, askers, nodes
        self._rows: dict[int, CardRow] = {}
        self.slots: NDArray[np.int64] = np.array(
            [
                np.full(len(nodes), PLENTY) if asker.cards is None else card_slots(gpus, asker.cards, nodes)
                for asker in askers
            ],
            dtype=np.int64,
        ).reshape(len(askers), len(nodes))
        """How many pods of each kind the cards of each node take now, (kinds, nodes)."""

    def put(self, kind: int, node: int) -> tuple[CardRow, NDArray[np.int64]] | None:
        """One pod on a node, on the cards that its form's owner would choose; what `back` needs, None if it cannot."""
        before, row = self.row(node), self.after(kind, node)
        if row is None:
            return None
        slots = self.slots[:, node].copy()
        self._rows[node] = row
        for i, other in enumerate(self._askers):
            if other.cards is not None and not other.cards.request.profiles:
                self.slots[i, node] = self._fit(node, row, other)
        return before, slots

    def after(self, kind: int, node: int) -> CardRow | None:
        """A node's cards with one more pod on them; None where it does not fit."""
        return with_pod(self.cards(node), self.row(node), self._askers[kind])

    def back(self, node: int, token: tuple[CardRow, NDArray[np.int64]]) -> None:
        """Takes the last pod that was put on a node off it."""
        self._rows[node], self.slots[:, node] = token

    def state(self, node: int) -> object:
        """Equal for nodes whose cards can be swapped."""
        cards, row = self.cards(node), self.row(node)
        pinned = any(a.cards is not None and a.cards.request.pinned for a in self._askers)
        return (
            row,
            cards.memory_mib,
            cards.kind,
            cards.healthy,
            cards.replicas,
            cards.listed,
            cards.instances,
            pinned and node,
        )

    def row(self, node: int) -> CardRow:
        """A node's cards as they are now."""
        if node not in self._rows:
            self._rows[node] = self._gpus.row(int(self._nodes[node]))
        return self._rows[node]

    def cards(self, node: int) -> NodeCards:
        """What cards a node has."""
        return self._gpus.static.cards[int(self._nodes[node])]

    def _fit(self, node: int, row: CardRow, asker: Asker) -> int:
        """Pods of one kind that fit beside what is there, at most as many as there are."""
        cards, need = self.cards(node), asker.cards
        assert need is not None
        for fitting in range(asker.count):
            chosen = choose(cards, row, need.request, need.phase, need.limits)
            if chosen is None:
                return fitting
            row = put_all(cards, row, chosen, need.request, need.phase)
        return asker.count


def room_together(snapshot: Snapshot, one: CardNeed | None, other: CardNeed | None, nodes: Mask) -> Mask:
    """Of the nodes (N,) those whose cards take a pod of each need at once; whichever comes first may leave a card for
    the other, so both orders count."""
    at = np.flatnonzero(nodes)
    if (one is None and other is None) or not len(at):
        return nodes
    room = CardRoom(snapshot.gpus, [Asker(one, 0, 1), Asker(other, 0, 1)], at)
    both = nodes.copy()
    for i, node in enumerate(at.tolist()):
        fits = False
        for first, second in ((0, 1), (1, 0)):
            if room.slots[first, i] and (token := room.put(first, i)) is not None:
                fits |= bool(room.slots[second, i])
                room.back(i, token)
        both[node] = fits
    return both
