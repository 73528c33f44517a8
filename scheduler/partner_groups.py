"""Who is whose partner with `pairing: nearest`: a planned gang cut into groups that keep the promise on their own.

Each planned pod needs one partner within the bound. A group is a star: one pod in the middle and pods of the other
phase around it, so every pod has a partner in its group, and if each group stays within its pair of isochrone sets the
promise holds wherever in them its pods end up. With `all` the whole gang is one group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.partners import other_phase
from topology.labels import PHASES
from topology.reach.model import ReachModel


@dataclass(frozen=True, slots=True)
class Standing:
    """A pod of a gang and where it stands, or may stand. Only planned pods need a group."""

    name: str
    phase: str
    nodes: tuple[int, ...]
    planned: bool


def groups_of(pods: Sequence[Standing], reach: ReachModel, size_bytes: int) -> list[list[Standing]]:
    """The stars around the nearest partners, each with its centre first. Pods without any partner are left out."""
    pods = sorted(pods, key=lambda p: (p.phase, p.name))
    targets = {
        i: target for i, pod in enumerate(pods) if pod.planned and (target := _nearest(i, pods, reach, size_bytes)) >= 0
    }
    centre_of = _centres(targets)
    stars: dict[int, list[Standing]] = {}
    for i, centre in sorted(centre_of.items()):
        stars.setdefault(centre, [pods[centre]]).append(pods[i])
    return [stars[centre] for centre in sorted(stars)]


def _nearest(of: int, pods: Sequence[Standing], reach: ReachModel, size_bytes: int) -> int:
    """The pod of the other phase that is nearest wherever it stands; the first name of equals; -1 without any."""
    row = reach.row_us(pods[of].nodes[0], size_bytes)
    others = [i for i, pod in enumerate(pods) if pod.phase == other_phase(pods[of].phase)]
    return min(others, key=lambda i: (max(float(row[n]) for n in pods[i].nodes), i), default=-1)


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


def nodes_by_phase(group: Sequence[Standing]) -> dict[str, list[int]]:
    """Nodes of a group by phase."""
    return {phase: sorted({n for pod in group if pod.phase == phase for n in pod.nodes}) for phase in PHASES}
