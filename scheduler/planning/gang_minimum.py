"""Which members of a gang make up its minimum: all choices worth trying, whole units, the fewest GPUs.

A gang whose members are interchangeable has one choice. Where members differ (two Deployments of one phase, a selector
on some), another choice may fit where the first does not, and a gang must not wait for a pod that it does not need.
How many a phase still needs is `GangRequest.still_needed`; everybody who asks which they are asks here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from scheduler.model.request import GangRequest, PodRequest
from scheduler.planning.gang_members import GangMembers
from topology.labels import PHASES

MAX_CHOICES = 64
"""Choices tried before the answer is `undecided`. Two kinds in each phase make a handful; more is a gang of singles."""


def choices(asked: GangMembers) -> Iterator[list[PodRequest] | None]:
    """Each choice of members that reaches the minimum, up to swapping members of one equivalence class; the first by
    name first. Ends with None where choices were left out."""
    yielded: set[tuple[str, ...]] = set()
    for i, of_phases in enumerate(product(*(_of_phase(asked, phase) for phase in PHASES))):
        if i == MAX_CHOICES:
            yield None
            return
        minimum = [member for of_phase in of_phases for member in of_phase]
        key = tuple(sorted(m.uid for m in minimum))
        if key not in yielded:
            yielded.add(key)
            yield minimum


def minimum_units(gang: GangRequest, first: int = 0) -> tuple[list[PodRequest], list[list[PodRequest]]]:
    """Whole units that make up the minimum of each phase, by name from the `first` on; and the units beyond it, one of
    each phase in turn."""
    minimum: list[PodRequest] = []
    beyond: list[tuple[int, str, list[PodRequest]]] = []
    for phase in PHASES:
        units = _units_of(gang, phase)
        shift = first % len(units) if units else 0
        needed, turn = gang.still_needed(phase), 0
        for unit in units[shift:] + units[:shift]:
            if needed > 0:
                minimum += unit
                needed -= len(unit)
            else:
                beyond.append((turn, phase, unit))
                turn += 1
    return minimum, [unit for _, _, unit in sorted(beyond, key=lambda r: r[:2])]


def narrowest_minimum(gang: GangRequest) -> list[PodRequest]:
    """The members that would make up the minimum with the fewest GPUs."""
    return [
        member
        for phase in PHASES
        for member in sorted(_of(gang, phase), key=lambda m: m.gpus)[: gang.still_needed(phase)]
    ]


def _of(gang: GangRequest, phase: str) -> list[PodRequest]:
    return [member for member in gang.members if member.phase == phase]


def _units_of(gang: GangRequest, phase: str) -> list[list[PodRequest]]:
    """The units of a phase in the order of their first pods; a pod without one is a unit of itself."""
    units: dict[str, list[PodRequest]] = {}
    for member in sorted(_of(gang, phase), key=lambda m: (m.name, m.uid)):
        units.setdefault(member.unit or f"{member.uid}/", []).append(member)
    return list(units.values())


def _of_phase(asked: GangMembers, phase: str) -> list[list[PodRequest]]:
    """The choices of members of one phase, at most one more than are tried."""
    needed, members = asked.gang.still_needed(phase), [m for m in asked.members if m.phase == phase]
    classes = asked.by_class(members)
    groups = list(classes.values())
    first = members[:needed]
    found = [first]
    first_counts = tuple(sum(1 for m in first if asked.equivalence_class(m) == of) for of in classes)
    for counts in _splits(needed, [len(group) for group in groups]):
        if counts != first_counts:
            found.append([m for group, n in zip(groups, counts, strict=True) for m in group[:n]])
        if len(found) > MAX_CHOICES:
            break
    return found


def _splits(total: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ways to split a total over groups of limited size, the first group largest first."""
    if not limits:
        if total == 0:
            yield ()
        return
    if total > sum(limits):
        return
    for n in range(min(total, limits[0]), -1, -1):
        for rest in _splits(total - n, limits[1:]):
            yield (n, *rest)
