"""Which GPUs of the chosen node a pod will get: a prediction wherever somebody else hands them out.

The node is ours to choose; the cards are NVIDIA's plugin's, or the sharing plugin's. So this says what their own rule
would take from what is free now, how well those cards are joined, and whether better ones were there. It looks at one
node and never at the whole table, since every explained decision asks it.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.request import PodRequest
from topology.gpu_capacity import NodeCards
from topology.gpu_cards import EVERYTHING, CardRow, choose
from topology.gpu_holds import held_row
from topology.gpu_request import GpuRequest
from topology.gpu_sets import GpuSet, best_set, judge_set, plugin_set
from topology.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class GpuPick:
    """Cards by index. `predicted`: somebody else picks. `joined`: the word of their worst pair, empty for one card or
    where nobody knows it. `better`: the best set that was free and its word, where it is better than this one."""

    gpus: tuple[int, ...]
    predicted: bool = True
    joined: str = ""
    better: str = ""

    def show(self) -> str:
        """`0,1 (PIX)`, `2,3 (SYS; 4,5 would be PIX)`."""
        named = ",".join(map(str, self.gpus))
        said = "; ".join(part for part in (self.joined, self.better) if part)
        return f"{named} ({said})" if said else named


def gpu_pick(snapshot: Snapshot, request: PodRequest, node: int) -> GpuPick | None:
    """The cards a pod will have on a node, the pod itself not counted there yet; None where nothing better than "some"
    can be said: no GPU asked, MIG instances, or plain GPUs of which nobody knows how they are joined."""
    gpu = request.gpu
    if gpu is None or gpu.profiles:
        return None
    cards = snapshot.table.cards_of(node)
    if gpu.plain and cards.links is None:
        return None
    column, name = snapshot.gpu_column, snapshot.table.names[node]
    units = int(snapshot.used[node, column]) if column is not None else 0
    held = snapshot.holds.get(name)
    row = held_row(cards, held.holds if held is not None else {}, units)
    if gpu.whole and cards.links is not None:
        return _whole(cards, row, gpu)
    chosen = choose(cards, row, gpu, request.phase, EVERYTHING)
    return GpuPick(tuple(sorted(chosen)), gpu.predicted) if chosen else None


def _whole(cards: NodeCards, row: CardRow, gpu: GpuRequest) -> GpuPick | None:
    links = cards.links
    free = [users == 0 for users in row.users]
    taken = plugin_set(links, free, gpu.count) if links is not None else None
    if links is None or taken is None:
        return None
    got, best = judge_set(links, taken, free), best_set(links, free, gpu.count)
    if gpu.count == 1:
        return GpuPick(taken, gpu.predicted)
    return GpuPick(taken, gpu.predicted, got.worst, _better(got, best))


def _better(got: GpuSet, best: GpuSet | None) -> str:
    if best is None or best.worst == got.worst:
        return ""
    return f"{','.join(map(str, best.gpus))} would be {best.worst}"
