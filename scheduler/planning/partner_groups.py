"""Who is whose partner with `pairing: nearest`: a planned gang cut into groups that keep the promise on their own.

Each planned pod needs one partner within the bound. A group is a star: one pod in the middle and pods of the other
phase around it, so every pod has a partner in its group, and if each group stays within its pair of isochrone sets the
promise holds wherever in them its pods end up. With `all` the whole gang is one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.evaluate.partner_reach import other_phase
from topology.labels import PHASES
from topology.reach.model import ReachModel


@dataclass(frozen=True, slots=True)
class PartnerPlaces:
    """A pod of a gang and where it stands, or may stand. Only planned pods need a group."""

    name: str
    phase: str
    nodes: tuple[int, ...]
    planned: bool


def groups_of(pods: Sequence[PartnerPlaces], reach: ReachModel, size_bytes: int) -> list[list[PartnerPlaces]]:
    """The stars around the nearest partners, each with its centre first. Pods without any partner are left out."""
    pods = sorted(pods, key=lambda p: (p.phase, p.name))
    sides = {phase: _Side([(i, pod.nodes) for i, pod in enumerate(pods) if pod.phase == phase]) for phase in PHASES}
    targets = {
        i: target
        for i, pod in enumerate(pods)
        if pod.planned
        and (target := sides[other_phase(pod.phase)].nearest(reach, pod.nodes[0], size_bytes)) is not None
    }
    centre_of = _centres(targets)
    stars: dict[int, list[PartnerPlaces]] = {}
    for i, centre in sorted(centre_of.items()):
        stars.setdefault(centre, [pods[centre]]).append(pods[i])
    return [stars[centre] for centre in sorted(stars)]


class _Side:
    """The pods of one phase, by number, with the nodes that each may stand on."""

    def __init__(self, pods: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        self._numbers = [number for number, _ in pods]
        self._nodes = np.array([node for _, nodes in pods for node in nodes], dtype=np.int64)
        self._starts = np.cumsum([0, *(len(nodes) for _, nodes in pods)])[:-1]
        self._known: dict[int, int] = {}

    def nearest(self, reach: ReachModel, node: int, size_bytes: int) -> int | None:
        """The pod that is nearest to this node wherever it stands; the first of equals; None without any."""
        if not self._numbers:
            return None
        if node not in self._known:
            us = np.maximum.reduceat(reach.row_us(node, size_bytes)[self._nodes], self._starts)
            self._known[node] = self._numbers[int(np.argmin(us))]
        return self._known[node]


def _centres(targets: Mapping[int, int]) -> dict[int, int]:
    """The centre of every pod that is not one, given whom each points at.

    Pods that nobody points at come first: each joins whom it points at, which thereby becomes a centre. Who then
    remains points at a centre, or in pairs at each other.
    """
    waiting, centre_of, centres = dict(targets), dict[int, int](), set[int]()
    while waiting:
        pointed = {target for pod, target in waiting.items()}
        free = [pod for pod in sorted(waiting) if pod not in pointed] or [min(waiting)]
        for pod in free:
            if pod in waiting:
                target = waiting.pop(pod)
                centre_of[pod] = target
                centres.add(target)
        for pod in [p for p in waiting if p in centres]:
            del waiting[pod]  # it has pods around it: all it needs
        for pod in [p for p, target in waiting.items() if target in centres]:
            centre_of[pod] = waiting.pop(pod)
    return centre_of


def nodes_by_phase(group: Sequence[PartnerPlaces]) -> dict[str, list[int]]:
    """Nodes of a group by phase."""
    return {phase: sorted({n for pod in group if pod.phase == phase for n in pod.nodes}) for phase in PHASES}
