"""JSON patches (RFC 6902): built for the API server, and applied strictly to see what they do.

Rules: a map or list that is absent is created first and by itself; one that is there is never replaced; a key that
is there keeps its value; `~` and `/` in keys are escaped (RFC 6901). It must never know pods or labels.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from topology.bad_input import BadInput

Json = Any  # a decoded JSON document


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


def apply(document: Json, patch: bytes | str | Iterable[Operation]) -> Json:
    """The patched copy of a document. Raises BadInput for whatever RFC 6902 calls an error.

    Knows add, remove, replace and test: what the webhook and the controller write.
    """
    operations = msgspec.json.decode(patch if isinstance(patch, bytes | str) else encode(patch))
    root = [copy.deepcopy(document)]  # so that the whole document is a place like any other
    for number, operation in enumerate(operations):
        kind, path = operation.get("op"), operation.get("path")
        where = f"patch operation {number} ({kind} {path})"
        if not isinstance(path, str) or (path and not path.startswith("/")):
            raise BadInput(where, path, "use a JSON pointer")
        parts = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
        holder: Json = root
        key: str | int = 0
        for part in parts:
            holder = _child(holder, key, where)
            key = _index(holder, part, where) if isinstance(holder, list) else part
        _operate(kind, holder, key, operation, where)
    return root[0]


def _child(holder: Json, key: str | int, where: str) -> Json:
    inside = _there(holder, key) and isinstance(holder[key], dict | list)
    if not inside:
        raise BadInput(where, key, "its parent must be there and be a map or a list")
    return holder[key]


def _there(holder: Json, key: str | int) -> bool:
    return 0 <= key < len(holder) if isinstance(holder, list) and isinstance(key, int) else key in holder


def _index(holder: list[Json], part: str, where: str) -> int:
    if part == "-":
        return len(holder)
    if not (part.isascii() and part.isdigit()) or (part != "0" and part.startswith("0")):
        raise BadInput(where, part, "use a list position or -")
    return int(part)


def _operate(kind: object, holder: Json, key: str | int, operation: dict[str, Json], where: str) -> None:
    if kind in ("add", "replace", "test") and "value" not in operation:
        raise BadInput(where, operation, "a value is needed")
    if kind == "add" and isinstance(holder, list) and isinstance(key, int):
        if key > len(holder):
            raise BadInput(where, key, f"use a position up to {len(holder)}")
        holder.insert(key, operation["value"])
        return
    if kind == "add":
        holder[key] = operation["value"]
        return
    if kind not in ("replace", "remove", "test"):
        raise BadInput(where, kind, "use add, remove, replace or test")
    if not _there(holder, key):
        raise BadInput(where, key, "nothing is there")
    if kind == "replace":
        holder[key] = operation["value"]
    elif kind == "remove":
        del holder[key]
    elif holder[key] != operation["value"] or type(holder[key]) is not type(operation["value"]):
        raise BadInput(where, holder[key], f"the test wants {operation['value']!r}")
