"""Where the body of a call is put together: one place of its announced size, used again for the next body.

Decides how memory is taken and kept. It must never know what a body says, nor how it arrives.

Megabytes of fresh memory cost as much as decoding them, since the system hands out every page anew; so rooms up to a
limit are kept. A body that is larger than announced (or not announced at all) still finds room: beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

Body = bytes | bytearray | memoryview


class Room:
    """One body as it arrives."""

    def __init__(self, place: bytearray) -> None:
        self._place, self._more = place, bytearray()
        self.size = 0

    def add(self, piece: bytes) -> None:
        """The next bytes."""
        end = self.size + len(piece)
        if end <= len(self._place) and not self._more:
            self._place[self.size : end] = piece
        else:
            self._more += piece
        self.size = end

    def rest(self, size: int) -> memoryview:
        """The next `size` bytes' place, to be written to; whoever writes raises `size` by what was written."""
        assert not self._more
        assert self.size + size <= len(self._place)
        return memoryview(self._place)[self.size : self.size + size]

    def body(self) -> Body:
        """All of it. It is overwritten by the next body: nothing of it may be kept but copies."""
        inside = self.size - len(self._more)
        if not self._more:
            return memoryview(self._place)[:inside]
        return self._place[:inside] + self._more if inside else self._more


class Rooms:
    """`kept` places of at most `kept_bytes` each are used again."""

    def __init__(self, *, kept: int, kept_bytes: int) -> None:
        self._kept, self._kept_bytes = kept, kept_bytes
        self._free: list[bytearray] = []

    @contextlib.contextmanager
    def room_for(self, announced_bytes: int) -> Iterator[Room]:
        """A room for a body of this size; 0 when it was not announced."""
        place = self._free.pop() if self._free and announced_bytes <= self._kept_bytes else bytearray()
        if len(place) < announced_bytes:
            place = bytearray(announced_bytes)
        yield Room(place)
        if len(place) <= self._kept_bytes and len(self._free) < self._kept:
            self._free.append(place)
