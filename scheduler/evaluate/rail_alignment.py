"""Whether the GPUs that pods will get are on rails of their partners' network cards, where agents tell the rails.

Pages between two nodes stay on one rail where both GPUs have their network card on it, and take one tier of switches
more where not (or the detour over NVLink that NCCL calls PXN). Which GPU a pod gets is the device plugin's choice and
predicted; on one node no network card matters; what nobody tells is neither good nor bad.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topology.cluster.snapshot import Snapshot
from topology.gpus.rails import RailRoom, picked, rails_of
from topology.gpus.sets import MOST_GPUS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Placed(NamedTuple):
    """One pod of a gang: of the second phase or the first, its whole GPUs, its node."""

    second: bool
    gpus: int
    node: int


def off_rail(snapshot: Snapshot, gpus: int, nodes: Ints, partners: Collection[int]) -> Floats | None:
    """Share of a pod's GPUs that are on no rail of the GPUs in use on its partners' nodes, for each of `nodes`, (n,);
    NaN where a node's rails are not known or too few of its GPUs are free. None where nobody tells the partners'."""
    room = snapshot.rail_room()
    if not gpus or not len(room.nodes) or not partners:
        return None
    theirs = {node: _in_use(room, node) for node in sorted(partners)}
    if not any(theirs.values()):
        return None
    every = frozenset[int]().union(*theirs.values())
    share = np.full(len(nodes), np.nan)
    at = np.searchsorted(room.nodes, nodes)
    known = at < len(room.nodes)
    known[known] = room.nodes[at[known]] == nodes[known]
    asked = np.flatnonzero(known)
    # Nodes whose GPUs are joined and free alike are one state; of eight GPUs there are a few dozen.
    states, alike = np.unique(room.kind[at[asked]] << MOST_GPUS | room.free[at[asked]], return_inverse=True)
    offs = [_off(room, state >> MOST_GPUS, state & (1 << MOST_GPUS) - 1, gpus, every) for state in states.tolist()]
    share[asked] = np.array([np.nan if off is None else off / gpus for off in offs])[alike.reshape(-1)]
    for node in theirs:  # beside a partner only those on other nodes are far
        here = np.flatnonzero(nodes == node)
        others = frozenset[int]().union(*(rails for other, rails in theirs.items() if other != node))
        if len(here) and (place := room.at(node)) >= 0:
            off = _off(room, int(room.kind[place]), int(room.free[place]), gpus, others) if others else 0
            share[here] = np.nan if off is None else off / gpus
    return share


def _in_use(room: RailRoom, node: int) -> frozenset[int]:
    at = room.at(node)
    return rails_of(room.links[int(room.kind[at])], int(room.taken[at])) if at >= 0 else frozenset()


def _off(room: RailRoom, kind: int, free: int, gpus: int, theirs: frozenset[int]) -> int | None:
    links = room.links[kind]
    chosen = picked(links, free, gpus)
    return None if chosen is None else sum(1 for gpu in chosen if links.rails[gpu] not in theirs)


class GangRails:
    """The rails of a whole gang as its pods are placed; `partners` are the nodes of pods of the first and of the second
    phase that have places."""

    def __init__(self, room: RailRoom, partners: tuple[Collection[int], Collection[int]]) -> None:
        self._room = room
        self._there = tuple({node: _in_use(room, node) for node in sorted(side)} for side in partners)

    def off(self, pods: Iterable[Placed]) -> float:
        """Share of the gang's GPUs that are on no rail of the other phase's GPUs on other nodes. Pods take GPUs one
        after the other, by phase and the widest first."""
        room, free, total = self._room, dict[int, int](), 0
        taken: list[tuple[Placed, tuple[int, ...]]] = []
        rails: tuple[dict[int, frozenset[int]], ...] = tuple(dict(side) for side in self._there)
        for pod in sorted(pods, key=lambda p: (p.second, -p.gpus, p.node)):
            total += pod.gpus
            at = room.at(pod.node) if pod.gpus else -1
            if at < 0:
                continue
            links, left = room.links[int(room.kind[at])], free.get(pod.node, int(room.free[at]))
            chosen = picked(links, left, pod.gpus)
            if chosen is None:
                continue
            bits = sum(1 << gpu for gpu in chosen)
            free[pod.node] = left & ~bits
            side = rails[pod.second]
            side[pod.node] = side.get(pod.node, frozenset()) | rails_of(links, bits)
            taken.append((pod, chosen))
        return sum(self._off_of(pod, chosen, rails[not pod.second]) for pod, chosen in taken) / max(total, 1)

    def _off_of(self, pod: Placed, chosen: Sequence[int], others: dict[int, frozenset[int]]) -> int:
        theirs = frozenset[int]().union(*(rails for node, rails in others.items() if node != pod.node))
        if not theirs:
            return 0
        links = self._room.links[int(self._room.kind[self._room.at(pod.node)])]
        return sum(1 for gpu in chosen if links.rails[gpu] not in theirs)


def gang_rails(
    snapshot: Snapshot, partners: tuple[Collection[int], Collection[int]], nodes: Ints | None = None
) -> GangRails | None:
    """For pods on these nodes (all by default); None where the rails of none of them are known."""
    room = snapshot.rail_room()
    if not len(room.nodes):
        return None
    known = room.nodes if nodes is None else np.intersect1d(room.nodes, nodes)
    return GangRails(room, partners) if len(known) else None
