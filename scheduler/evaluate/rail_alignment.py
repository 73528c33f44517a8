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
from topology.gpus.rails import RailCapacity, picked, rails_of
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
    capacity = snapshot.rail_capacity()
    if not gpus or not len(capacity.nodes) or not partners:
        return None
    theirs = {node: _in_use(capacity, node) for node in sorted(partners)}
    if not any(theirs.values()):
        return None
    every = frozenset[int]().union(*theirs.values())
    share = _share_off(capacity, gpus, nodes, every)
    for node in theirs:  # beside a partner only those on other nodes are far
        here = np.flatnonzero(nodes == node)
        others = frozenset[int]().union(*(rails for other, rails in theirs.items() if other != node))
        if len(here) and (place := capacity.at(node)) >= 0:
            off = _off(capacity, int(capacity.kind[place]), int(capacity.free[place]), gpus, others) if others else 0
            share[here] = np.nan if off is None else off / gpus
    return share


def _share_off(capacity: RailCapacity, gpus: int, nodes: Ints, rails: frozenset[int]) -> Floats:
    """Share of a pod's GPUs that are on none of these rails, on each of `nodes`, (n,); NaN where nobody knows."""
    share = np.full(len(nodes), np.nan)
    at = np.searchsorted(capacity.nodes, nodes)
    known = at < len(capacity.nodes)
    known[known] = capacity.nodes[at[known]] == nodes[known]
    asked = np.flatnonzero(known)
    # Nodes whose GPUs are joined and free in the same way are one state; of eight GPUs there are a few dozen.
    states, equivalent = np.unique(
        capacity.kind[at[asked]] << MOST_GPUS | capacity.free[at[asked]], return_inverse=True
    )
    offs = [_off(capacity, state >> MOST_GPUS, state & (1 << MOST_GPUS) - 1, gpus, rails) for state in states.tolist()]
    share[asked] = np.array([np.nan if off is None else off / gpus for off in offs])[equivalent.reshape(-1)]
    return share


def _in_use(capacity: RailCapacity, node: int) -> frozenset[int]:
    at = capacity.at(node)
    return rails_of(capacity.links[int(capacity.kind[at])], int(capacity.taken[at])) if at >= 0 else frozenset()


def _off(capacity: RailCapacity, kind: int, free: int, gpus: int, theirs: frozenset[int]) -> int | None:
    links = capacity.links[kind]
    chosen = picked(links, free, gpus)
    return None if chosen is None else sum(1 for gpu in chosen if links.rails[gpu] not in theirs)


class GangRails:
    """The rails of a whole gang as its pods are placed; `partners` are the nodes of pods of the first and of the second
    phase that have places."""

    def __init__(self, capacity: RailCapacity, partners: tuple[Collection[int], Collection[int]]) -> None:
        self._capacity = capacity
        self._there = tuple({node: _in_use(capacity, node) for node in sorted(side)} for side in partners)

    def off(self, pods: Iterable[Placed]) -> float:
        """Share of the gang's GPUs that are on no rail of the other phase's GPUs on other nodes. Pods take GPUs one
        after the other, by phase and the widest first."""
        capacity, free, total = self._capacity, dict[int, int](), 0
        taken: list[tuple[Placed, tuple[int, ...]]] = []
        rails: tuple[dict[int, frozenset[int]], ...] = tuple(dict(side) for side in self._there)
        for pod in sorted(pods, key=lambda p: (p.second, -p.gpus, p.node)):
            total += pod.gpus
            at = capacity.at(pod.node) if pod.gpus else -1
            if at < 0:
                continue
            links, left = capacity.links[int(capacity.kind[at])], free.get(pod.node, int(capacity.free[at]))
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
        links = self._capacity.links[int(self._capacity.kind[self._capacity.at(pod.node)])]
        return sum(1 for gpu in chosen if links.rails[gpu] not in theirs)


def gang_rails(
    snapshot: Snapshot, partners: tuple[Collection[int], Collection[int]], nodes: Ints | None = None
) -> GangRails | None:
    """For pods on these nodes (all by default); None where the rails of none of them are known."""
    capacity = snapshot.rail_capacity()
    if not len(capacity.nodes):
        return None
    known = capacity.nodes if nodes is None else np.intersect1d(capacity.nodes, nodes)
    return GangRails(capacity, partners) if len(known) else None
