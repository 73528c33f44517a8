"""What pods take from the pods that are expected, where whole GPUs do not say it: on shared cards and on MIG instances.

Shared cards: of a node's cards the whole free ones count for whole pods, all or none, and of every card what is left
for pods whose share fits on it; a loss is the value before less the value after. MIG: memory that the instances of the
mix lose for want of a place, in cards, as in the score (scheduler/evaluate/mig_cost.py). Both are in GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.evaluate import Need
from scheduler.evaluate.gpu_fit import limits_of
from scheduler.evaluate.mig_cost import mig_harm
from scheduler.model.policy import Policy
from scheduler.search.demand import Demand
from scheduler.search.gpu_usage import CardRoom, with_pod
from scheduler.search.objective import EXPECTED, Floats, Objective
from topology.cluster.snapshot import Snapshot
from topology.fragmentation.pod_mix import Mix
from topology.gpus.capacity import NodeCards
from topology.gpus.cards import WHOLE_MILLI, CardRow

LEAST_MIG = -1.0
"""The most that one MIG instance can mend, in cards: it is on one card."""

Ints = NDArray[np.int64]


class CardValue:
    """What a node's cards are worth to expected pods, in GPUs."""

    def __init__(self, mix: Mix, policy: Policy) -> None:
        self._mix, self._planned = mix, limits_of(policy).planned_milli
        self._expected: dict[int, list[tuple[float, int, int]]] = {}
        self._known: dict[tuple[tuple[int, ...], CardRow], float] = {}

    def of(self, cards: NodeCards, row: CardRow) -> float:
        """Of cards in this state. Sum over expected pods of how often they come times the GPUs they can use."""
        key = cards.memory_mib, row
        if key not in self._known:
            self._known[key] = self._value(cards, row)
        return self._known[key]

    def _value(self, cards: NodeCards, row: CardRow) -> float:
        left = [self._left(cards, row, i) for i in range(len(row.users))]
        whole = sum(1 for i, users in enumerate(row.users) if users == 0 and left[i] == WHOLE_MILLI)
        size = max(cards.memory_mib, default=0) * self._planned // WHOLE_MILLI
        if size not in self._expected:
            self._expected[size] = self._pods(size)
        value = 0.0
        for often, gpus, ask in self._expected[size]:
            if ask == WHOLE_MILLI:
                value += often * whole * (whole >= gpus)
            else:
                able = [milli for milli in left if milli >= ask]
                value += often * sum(able) / WHOLE_MILLI * (len(able) >= gpus)
        return value

    def _left(self, cards: NodeCards, row: CardRow, card: int) -> int:
        """Thousandths of one card that may still be promised: a card in use has its reserve and peaks kept free."""
        if row.users[card] <= 0:
            return WHOLE_MILLI if row.users[card] == 0 else 0
        capacity, compute = cards.memory_mib[card], row.left_compute[card]
        if not capacity:
            return compute
        reserve = capacity - capacity * self._planned // WHOLE_MILLI
        kept = max(0, row.left_mib[card] - row.peak_mib[card] - reserve)
        return min(compute, WHOLE_MILLI * kept // max(1, capacity - reserve))

    def _pods(self, size: int) -> list[tuple[float, int, int]]:
        """(share of all pods, GPUs, thousandths of each) on cards of this size; what no card can hold is left out."""
        of = self._mix.on_card(size)
        if not of.total or not len(of.gpus):
            return [(often, gpus, WHOLE_MILLI) for gpus, often in EXPECTED.items()]
        asks = of.asks[of.ask_of].tolist()
        each = zip(of.counts.tolist(), of.gpus.tolist(), asks, strict=True)
        return [(count / of.total, gpus, ask) for count, gpus, ask in each if ask <= WHOLE_MILLI]


class RoomLoss:
    """What one more pod of each demand takes on each of some nodes, by position, as pods come and go."""

    def __init__(
        self, snapshot: Snapshot, demands: Sequence[Demand], nodes: Ints, value: CardValue, cards: CardRoom | None
    ) -> None:
        """`demands` are over all columns. With `cards` everything follows from the state of cards, whole GPUs too."""
        self._snapshot, self._demands, self._nodes, self._value, self._cards = snapshot, demands, nodes, value, cards
        self._used = snapshot.used[nodes].copy()
        self.least = [LEAST_MIG if demand.shape.profile else 0.0 for demand in demands]
        """What one pod of each demand loses at least, wherever it goes."""
        self.gpus: Floats = np.array([self._of(i, np.arange(len(nodes))) for i in range(len(demands))]).reshape(
            len(demands), len(nodes)
        )
        """GPUs lost for one more pod, (demands, nodes)."""

    def put(self, index: int, node: int) -> Floats:
        """A pod of this demand has come to a node, on its cards already; what `back` needs."""
        before = self.gpus[:, node].copy()
        self._used[node] += self._demands[index].request
        for other in range(len(self._demands)):
            self.gpus[other, node] = self._of(other, np.array([node]))[0]
        return before

    def back(self, index: int, node: int, before: Floats) -> None:
        """The last pod that came to a node has gone."""
        self._used[node] -= self._demands[index].request
        self.gpus[:, node] = before

    def state(self, node: int) -> object:
        """Equal for nodes that can be swapped as far as MIG is concerned; shared cards say it themselves."""
        if not any(demand.shape.profile for demand in self._demands):
            return None
        table, at = self._snapshot.table, int(self._nodes[node])
        if table.mig_of(at) is not None:
            return at
        return table.allocatable[at].tobytes(), self._used[node].tobytes(), int(table.gpus.model_kind[at])

    def _of(self, index: int, at: Ints) -> Floats:
        lost = np.zeros(len(at))
        if self._cards is not None:
            for i, node in enumerate(at.tolist()):
                after = self._cards.after(index, node) if self._cards.slots[index, node] else None
                if after is not None:
                    cards, row = self._cards.cards(node), self._cards.row(node)
                    lost[i] = self._value.of(cards, row) - self._value.of(cards, after)
        if profile := self._demands[index].shape.profile:
            lost += mig_harm(self._snapshot, self._nodes[at], (profile,), self._snapshot.mix.profiles, self._used[at])
        return lost


def lost_gpus(
    before: Snapshot,
    after: Snapshot,
    placed: Sequence[tuple[Need, int]],
    policy: Policy,
    objective: Objective,
) -> float:
    """GPUs that expected pods lose to these pods, each with its node: `after` is `before` with them in it."""
    lost = 0.0
    if any(need.cards is not None for need, _ in placed):
        lost += _on_cards(before, after, placed, before.gpu_column, CardValue(before.mix, policy))
    elif (gpu := before.gpu_column) is not None:
        rows = np.flatnonzero(before.used[:, gpu] != after.used[:, gpu])
        free = [np.maximum(s.table.allocatable[rows, gpu] - s.used[rows, gpu], 0) for s in (before, after)]
        usable = objective.usable(int(free[0].max(initial=0)))
        lost += float((usable[free[0]] - usable[free[1]]).sum())
    split: dict[int, list[Need]] = {}
    for need, node in placed:
        if need.shape.profile:
            split.setdefault(node, []).append(need)
    return lost + _places(before, split)


def _on_cards(
    before: Snapshot, after: Snapshot, placed: Sequence[tuple[Need, int]], gpu: int | None, value: CardValue
) -> float:
    """GPUs that expected pods lose on the cards of these nodes. The pods come one after the other, in the order given,
    each to the card that its form's owner would choose of those within the limits of plans."""
    on: dict[int, list[Need]] = {}
    for need, node in placed:
        on.setdefault(node, []).append(need)
    lost = 0.0
    for node, needs in sorted(on.items()):
        cards, row = before.table.gpus.cards[node], before.gpus.row(node)
        now: CardRow | None = row
        for need in needs:
            taken = int(need.row[gpu]) if gpu is not None else 0
            now = with_pod(cards, now, need.cards, taken) if now is not None else None
        # Where they do not fit in this order they do in another.
        lost += value.of(cards, row) - value.of(cards, now if now is not None else after.gpus.row(node))
    return lost


def _places(before: Snapshot, pods: Mapping[int, Sequence[Need]]) -> float:
    """Cards of MIG memory that the mix loses to these pods, by node; on a node one after the other, by profile."""
    lost = 0.0
    for node, needs in sorted(pods.items()):
        used, at = before.used[[node]].copy(), np.array([node])
        for need in sorted(needs, key=lambda n: n.shape.profile):
            lost += float(mig_harm(before, at, (need.shape.profile,), before.mix.profiles, used)[0])
            used[0] += need.row
    return lost
