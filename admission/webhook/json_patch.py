"""JSON patches (RFC 6902), built for the API server.

Rules: a map or list that is absent is created first and by itself; one that is there is never replaced; a key that
is there keeps its value; `~` and `/` in keys are escaped (RFC 6901). It must never know pods or labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec


class Add(msgspec.Struct, frozen=True, tag_field="op", tag="add"):
    """One operation of a patch."""

    path: str
    value: object


class Remove(msgspec.Struct, frozen=True, tag_field="op", tag="remove"):
    """Takes off what is there."""

    path: str


Operation = Add | Remove


@lru_cache(maxsize=1024)
def pointer(*parts: str | int) -> str:
    """A JSON pointer, keys escaped."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def add_entries(
    path: tuple[str | int, ...], existing: Mapping[str, object] | None, entries: Mapping[str, object]
) -> list[Add]:
    """Puts the entries that are missing into the map at `path`; `existing` is None where there is no map yet."""
    missing = [Add(pointer(*path, key), value) for key, value in entries.items() if key not in (existing or {})]
    return [Add(pointer(*path), {}), *missing] if missing and existing is None else missing


def add_item(path: tuple[str | int, ...], existing: Sequence[object] | None, item: object) -> list[Add]:
    """Appends to the list at `path`; `existing` is None where there is no list yet."""
    append = Add(pointer(*path, "-"), item)
    return [append] if existing is not None else [Add(pointer(*path), []), append]


def removed(*parts: str | int) -> Remove:
    """Takes off the entry at this path, which must be there."""
    return Remove(pointer(*parts))


def encode(operations: Iterable[Operation]) -> bytes:
    """The patch as the API server reads it."""
    return msgspec.json.encode(list(operations))
