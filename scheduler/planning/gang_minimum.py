"""Which members of a gang make up its minimum: the choices worth trying, since members need not be alike.

A gang of alike members has one choice. Where members differ (two Deployments of one phase, a selector on some), another
choice may fit where the first does not, and a gang must not wait for a pod that it does not need.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import product

from scheduler.model.request import GangRequest, PodRequest
from topology.labels import PHASES

MAX_CHOICES = 64
"""Choices tried before the answer is `undecided`. Two kinds in each phase make a handful; more is a gang of singles."""


def choices(
    gang: GangRequest, members: Sequence[PodRequest], kinds: Mapping[str, Hashable]
) -> Iterator[list[PodRequest] | None]:
    """Each choice of members that reaches the minimum, up to swapping members of one kind; the first by name first.

    `members` are in the order of names, `kinds` is by uid. Ends with None where choices were left out.
    """
    yielded: set[tuple[str, ...]] = set()
    per_phase = [_of_phase(gang.still_needed(p), [m for m in members if m.phase == p], kinds) for p in PHASES]
    for i, parts in enumerate(product(*per_phase)):
        if i == MAX_CHOICES:
            yield None
            return
        core = [member for part in parts for member in part]
        key = tuple(sorted(m.uid for m in core))
        if key not in yielded:
            yielded.add(key)
            yield core


def _of_phase(needed: int, members: Sequence[PodRequest], kinds: Mapping[str, Hashable]) -> list[list[PodRequest]]:
    """The choices of `needed` members of one phase, at most one more than are tried."""
    by_kind: dict[Hashable, list[PodRequest]] = {}
    for member in members:
        by_kind.setdefault(kinds[member.uid], []).append(member)
    groups = list(by_kind.values())
    first = list(members[:needed])
    found = [first]
    first_counts = tuple(sum(1 for m in first if kinds[m.uid] == kinds[group[0].uid]) for group in groups)
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
