"""What pods hold of the cards of each node, as a mapping that is cheap to copy and to compare with a copy of it.

A copy shares the large part and has a small part of its own, what changed since; when that grows, it is folded into a
large part of its own. So a snapshot for every decision costs what changed, not what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from topology.gpus.allocations import GpuAllocation, NodeAllocations

MOST_CHANGED: Final = 512
"""Nodes that may differ from the shared part: looking at so many costs a tenth of a millisecond."""


class AllocationBook(Mapping[str, NodeAllocations]):
    """Holds by node name; a node without any is not in it."""

    __slots__ = ("_base", "_before", "_changed", "_most", "_size")
    _before: tuple[
        Mapping[str, NodeAllocations], frozenset[str]
    ]  # the shared part before this one, and where it differs
    _base: Mapping[str, NodeAllocations]
    _changed: dict[str, NodeAllocations | None]
    _size: int
    _most: int

    def __init__(self, of: Mapping[str, NodeAllocations] | None = None) -> None:
        """A copy of what is given; changes to one are none to the other."""
        if isinstance(of, AllocationBook):
            self._base, self._before, self._size = of._base, of._before, of._size
            # What a copy adds is a session's few pods: folding for their sake would be done again in every copy.
            self._changed, self._most = dict(of._changed), 2 * MOST_CHANGED
        else:
            self._base, self._before, self._changed = dict(of or {}), ({}, frozenset()), {}
            self._size, self._most = len(self._base), MOST_CHANGED

    def __getitem__(self, node: str) -> NodeAllocations:
        found = self.get(node)
        if found is None:
            raise KeyError(node)
        return found

    def get(self, node: str, default: NodeAllocations | None = None) -> NodeAllocations | None:  # type: ignore[override]
        """The holds of a node."""
        found = self._changed[node] if node in self._changed else self._base.get(node)
        return default if found is None else found

    def __iter__(self) -> Iterator[str]:
        yield from (node for node in self._base if node not in self._changed)
        yield from (node for node, held in self._changed.items() if held is not None)

    def __len__(self) -> int:
        return self._size

    def change(self, node: str, uid: str, hold: GpuAllocation | None) -> None:
        """Put one pod's hold on a node, or take it away with None."""
        before = self.get(node)
        after = (before or NodeAllocations()).with_hold(uid, hold)
        retained = after if after.holds else None
        self._size += (retained is not None) - (before is not None)
        self._changed[node] = retained
        if len(self._changed) > self._most:
            self._before = self._base, frozenset(self._changed)
            self._base, self._changed = dict(self), {}

    def differing(self, other: AllocationBook) -> list[str]:
        """Nodes whose holds are not the very same value in both."""
        if self._base is other._base:
            folded = frozenset[str]()
        elif self._before[0] is other._base:
            folded = self._before[1]
        elif other._before[0] is self._base:
            folded = other._before[1]
        else:
            folded = frozenset((*self, *other))
        names = self._changed.keys() | other._changed.keys() | folded
        mine, theirs = self._changed, other._changed
        if not folded:
            # Both changed most of them to the same value.
            names = {name for name in names if name not in mine or mine[name] is not theirs.get(name, mine)}
        return [name for name in names if self.get(name) is not other.get(name)]
