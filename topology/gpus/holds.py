"""What pods hold on the cards of a node, and where: from their annotations where these say so, else predicted.

Only pods that ask for more than plain whole GPUs are kept here; whole GPUs are counted by amounts. Everything is keyed
by pod uid, so a pod that is allocated, then seen again, counts once. An allocation that cannot be read counts what the
pod asks for, on the safe side, and the node says that it is partly unknown until better news comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from topology.bad_input import BadInput
from topology.gpus.asked import GpuRequest, whole_gpus
from topology.gpus.capacity import NodeCards
from topology.gpus.cards import EVERYTHING, CardRow, choose, empty_row, put, put_all
from topology.gpus.devices import ALLOCATED, Share, pod_shares
from topology.gpus.forms import HAMI, KAI, OURS, WHOLE
from topology.gpus.request import asks_for_cards, readable_gpus
from topology.labels import PHASE
from topology.objects import Pod


@dataclass(frozen=True, slots=True)
class GpuHold:
    """One pod's part of a node's cards. `shares` is empty where nobody says which cards they are."""

    request: GpuRequest
    phase: str = ""
    shares: tuple[Share, ...] = ()
    doubt: str = ""
    """What could not be read, with the pod's name."""

    @property
    def units(self) -> int:
        """What the pod takes of nvidia.com/gpu."""
        return self.request.count if self.request.form in (WHOLE.name, HAMI.name) else 0


def hold_of(pod: Pod) -> GpuHold | None:
    """A pod's hold on cards, or None for a pod that amounts alone describe: no GPU, plain whole GPUs, MIG instances.

    Never raises: a request that cannot be read holds nothing here (it is reported where requests are read), and an
    allocation that cannot be read holds what the request says.
    """
    notes = pod.metadata.annotations
    if not asks_for_cards(pod.spec, notes) and (not notes or ALLOCATED.isdisjoint(notes)):
        return None
    request, _ = readable_gpus(pod.spec, notes)
    if request is None or request.profiles:
        return None
    doubt = ""
    try:
        shares = pod_shares(notes) or ()
    except BadInput as bad:
        shares, doubt = (), f"{pod.metadata.namespace}/{pod.metadata.name}: {bad}"
    if request.plain and not shares and not doubt:
        return None
    return GpuHold(request, pod.metadata.label(PHASE), shares, doubt)


def hold_of_request(request: GpuRequest | None, phase: str) -> GpuHold | None:
    """What a planned pod will hold on cards, or None where its amounts say everything."""
    return None if request is None or request.plain or request.profiles else GpuHold(request, phase)


@dataclass(slots=True)
class NodeHolds:
    """All holds on one node by pod uid. Never changed but for what is remembered; `with_hold` gives another."""

    holds: Mapping[str, GpuHold] = field(default_factory=dict)
    _row: tuple[NodeCards, int, CardRow] | None = field(default=None, compare=False)
    _next: tuple[str, GpuHold, NodeHolds] | None = field(default=None, compare=False, repr=False)

    def with_hold(self, uid: str, hold: GpuHold | None) -> NodeHolds:
        """These holds with one pod's replaced, or removed with None. The same pod added again gives the same value
        again: a pod tried in a session is added in every call, and its node's cards are worked out once."""
        if hold is not None and self._next is not None and self._next[0] == uid and self._next[1] is hold:
            return self._next[2]
        holds = {k: v for k, v in self.holds.items() if k != uid}
        if hold is None:
            return NodeHolds(holds)
        after = NodeHolds(holds | {uid: hold})
        self._next = uid, hold, after
        return after

    def doubts(self) -> tuple[str, ...]:
        """Why the node is partly unknown, sorted; empty where everything could be read."""
        return tuple(sorted(h.doubt for h in self.holds.values() if h.doubt))

    def row(self, cards: NodeCards, units: int) -> CardRow:
        """The node's cards with every pod on them; `units` is what amounts count as taken of nvidia.com/gpu."""
        if self._row is None or self._row[0] is not cards or self._row[1] != units:
            self._row = (cards, units, held_row(cards, self.holds, units))
        return self._row[2]


def held_row(cards: NodeCards, holds: Mapping[str, GpuHold], units: int) -> CardRow:
    """A node's cards with all holds placed: those whose cards are known first, then predictions in the order of uids,
    then `units` less what the holds explain as plain whole GPUs on the lowest free indices."""
    if all(not hold.shares and not hold.request.pinned for hold in holds.values()):
        # Nobody's card is known, so which cards they are matters no more than by size and state: many nodes are alike.
        alike = replace(cards, model="", uuids=("",) * len(cards.uuids), instances=(), links=None, problem="")
        return _predicted(alike, tuple((holds[uid].request, holds[uid].phase) for uid in sorted(holds)), units)
    return _placed(cards, holds, units)


@lru_cache(maxsize=4096)
def _predicted(cards: NodeCards, asked: tuple[tuple[GpuRequest, str], ...], units: int) -> CardRow:
    holds = {f"{i:05}": GpuHold(request, phase) for i, (request, phase) in enumerate(asked)}
    return _placed(cards, holds, units)


def _placed(cards: NodeCards, holds: Mapping[str, GpuHold], units: int) -> CardRow:
    row = empty_row(cards)
    index = {uuid: i for i, uuid in enumerate(cards.uuids) if uuid}
    unknown: list[GpuHold] = []
    shared: set[int] = set()
    for uid in sorted(holds):
        hold = holds[uid]
        at = [_card(share.card, index, len(cards.memory_mib)) for share in hold.shares]
        if not at or None in at:
            unknown.append(hold)
            continue
        for share, card in zip(hold.shares, at, strict=True):
            if card is not None:
                row = put(cards, row, card, _given(hold.request, share), hold.phase, share.memory_mib or None)
    for hold in unknown:
        chosen = choose(cards, row, hold.request, hold.phase, EVERYTHING) or _least_bad(row, hold.request.count)
        row = put_all(cards, row, chosen, hold.request, hold.phase)
        if hold.request.form in (KAI.name, OURS.name):
            shared.update(chosen)
    # A fraction without a device of its own lives on a card that a reservation pod holds as a whole GPU.
    plain = max(0, units - sum(hold.units for hold in holds.values()) - len(shared))
    return put_plain(cards, row, plain)


def _given(request: GpuRequest, share: Share) -> GpuRequest:
    """What was given counts before what was asked, where it says how much."""
    if not share.memory_mib:
        return request
    compute = share.compute_percent * 10
    return replace(request, whole=False, memory_mib=share.memory_mib, memory_milli=0, compute_milli=compute)


def put_plain(cards: NodeCards, row: CardRow, units: int) -> CardRow:
    """`units` of nvidia.com/gpu on a node: whole cards by the lowest index, or replicas by the fewest taken first
    (NVIDIA/k8s-device-plugin internal/rm/allocate.go, the `distributed` policy)."""
    one = whole_gpus(1)
    for _ in range(units):
        chosen = choose(cards, row, one, "", EVERYTHING)
        if chosen is None:
            return row  # more is taken than there is: nothing is left, which the amounts say too
        if cards.replicas > 1 and not cards.listed:
            chosen = (max(range(len(row.left_compute)), key=lambda i: (row.left_compute[i], -i)),)
        row = put(cards, row, chosen[0], one, "")
    return row


def _card(name: str, index: Mapping[str, int], count: int) -> int | None:
    """A card by UUID, or by number where the allocation gives numbers."""
    if name in index:
        return index[name]
    return int(name) if name.isdigit() and int(name) < count else None


def _least_bad(row: CardRow, count: int) -> tuple[int, ...]:
    """More is held than fits by our rules: it counts on the cards with the most left."""
    order = sorted(range(len(row.left_mib)), key=lambda i: (row.users[i] < 0, -row.left_mib[i], i))
    return tuple(order[:count])
