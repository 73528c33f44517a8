"""YAML and JSON as plain values that know their line, bounded: in depth, in number, and without aliases or tags.

It decides what YAML and JSON is accepted at all; it never knows what a key means. Scalars stay text (`tier: 1` is "1"),
so that a name like 007 or `no` is not turned into something else. An alias is refused because ten lines of them can
stand for a billion values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import yaml

from topology.bad_input import BadInput
from topology.graph.parts import bad

MAX_DEPTH: Final = 32
MAX_VALUES: Final = 400_000
MAX_SCALAR_CHARS: Final = 65_536

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_JSON: Final = msgspec.json.Decoder(msgspec.Raw)  # the syntax of all of it, and no value
_PLACE: Final = re.compile(r"\(byte ([0-9]+)\)$", re.ASCII)
_SEPARATOR: Final = re.compile(r"[\s,:\]}]")


@dataclass(slots=True)
class DocumentValue:
    """A mapping, a list, a text, or None for null and for nothing."""

    data: dict[str, DocumentValue] | list[DocumentValue] | str | None
    line: int

    def mapping(self, what: str) -> dict[str, DocumentValue]:
        """The value as a mapping."""
        if not isinstance(self.data, dict):
            raise bad(self.line, what, self.shown(), "it is a mapping of keys to values")
        return self.data

    def items(self, what: str) -> list[DocumentValue]:
        """The value as a list."""
        if not isinstance(self.data, list):
            raise bad(self.line, what, self.shown(), "it is a list")
        return self.data

    def text(self, what: str) -> str:
        """The value as text."""
        if not isinstance(self.data, str):
            raise bad(self.line, what, self.shown(), "it is text")
        return self.data

    def whole(self, what: str, low: int, high: int) -> int:
        """The value as a whole number between two bounds."""
        value = self.text(what)
        if not re.fullmatch(r"-?[0-9]{1,12}", value, re.ASCII) or not low <= int(value) <= high:
            raise bad(self.line, what, value, f"it is a number from {low} to {high}")
        return int(value)

    def get(self, key: str, what: str = "") -> DocumentValue | None:
        """The value of a key of this mapping, None if it is not there or null."""
        found = self.mapping(what or "value").get(key)
        return None if found is None or found.data is None else found

    def need(self, key: str, what: str) -> DocumentValue:
        """The value of a key that must be there."""
        found = self.get(key, what)
        if found is None:
            raise bad(self.line, f"{key} of {what}", "missing", "it is needed here")
        return found

    def shown(self) -> str:
        """A few words for a sentence about it."""
        if isinstance(self.data, dict):
            return "a mapping"
        if isinstance(self.data, list):
            return "a list"
        return "nothing" if self.data is None else self.data


class _Builder:
    """Puts values into one another as they come, and counts them."""

    def __init__(self) -> None:
        self.open: list[
            tuple[DocumentValue, DocumentValue | None]
        ] = []  # a container, and in a mapping the key that waits
        self.root: DocumentValue | None = None
        self.count = 0

    def add(self, value: DocumentValue, *, opens: bool = False) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            raise bad(value.line, "number of values", f"above {MAX_VALUES}", "split the file")
        if isinstance(value.data, str) and len(value.data) > MAX_SCALAR_CHARS:
            raise bad(value.line, "length of a text", len(value.data), f"at most {MAX_SCALAR_CHARS} characters")
        if not self.open:
            self.root = value
        else:
            container, key = self.open[-1]
            if isinstance(container.data, list):
                container.data.append(value)
            elif key is None:
                if not isinstance(value.data, str):
                    raise bad(value.line, "key", value.shown(), "a key is text")
                self.open[-1] = (container, value)
            else:
                assert isinstance(container.data, dict)
                assert isinstance(key.data, str)
                if key.data in container.data:
                    raise bad(key.line, "key", key.data, "it is there twice; every key stands once")
                container.data[key.data] = value
                self.open[-1] = (container, None)
        if opens:
            if len(self.open) >= MAX_DEPTH:
                raise bad(value.line, "nesting", f"above {MAX_DEPTH}", "no known file is nested so deep")
            self.open.append((value, None))


def yaml_documents(text: str) -> list[DocumentValue]:
    """Every document of a YAML text. Raises BadInput with line and reason."""
    found: list[DocumentValue] = []
    builder = _Builder()
    try:
        loader = _Loader(text)
        while loader.check_event():
            event = loader.get_event()
            _add_event(builder, event)
            if isinstance(event, yaml.DocumentEndEvent) and builder.root is not None:
                if builder.root.data is not None:
                    found.append(builder.root)
                builder.root = None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadInput(f"line {mark.line + 1 if mark else 1}: YAML", error.problem or "wrong", "mend it") from None
    except yaml.YAMLError as error:
        raise BadInput("line 1: YAML", str(error).split("\n", 1)[0], "mend it") from None
    return found


def _add_event(builder: _Builder, event: Any) -> None:
    line = event.start_mark.line + 1 if event.start_mark else 0
    if isinstance(event, yaml.AliasEvent):
        raise bad(line, "alias", f"*{event.anchor}", "write the value out")
    if isinstance(event, yaml.ScalarEvent):
        plain_null = not event.style and event.value in ("", "~", "null", "Null", "NULL")
        _no_tag(event.tag, line)
        builder.add(DocumentValue(None if plain_null else event.value, line))
    elif isinstance(event, yaml.CollectionStartEvent):
        _no_tag(event.tag, line)
        builder.add(DocumentValue({} if isinstance(event, yaml.MappingStartEvent) else [], line), opens=True)
    elif isinstance(event, yaml.CollectionEndEvent):
        builder.open.pop()


def _no_tag(tag: str | None, line: int) -> None:
    if tag is not None and tag != "!":
        raise bad(line, "tag", tag, "leave tags out")


def json_document(text: str) -> DocumentValue:
    """The value of a JSON text. Raises BadInput with line and reason.

    msgspec decides whether it is JSON; the values and their lines are read as YAML, of which JSON is a part. (But for
    characters outside of Unicode's first plane that are written as two `\\u`, and keys above 1,024 characters.)
    """
    encoded = text.encode()
    try:
        _JSON.decode(encoded)
    except RecursionError:
        raise bad(1, "nesting", f"above {MAX_DEPTH}", "no known file is nested so deep") from None
    except msgspec.DecodeError as error:
        raise _no_json(encoded, str(error)) from None
    indent = text[: len(text) - len(text.lstrip())]
    documents = yaml_documents("\n" * indent.count("\n") + text.strip())
    return documents[0] if documents else DocumentValue(None, 1)


def _no_json(encoded: bytes, error: str) -> BadInput:
    """What is there instead; `error` ends with the place in bytes, except at the end of the text."""
    place = _PLACE.search(error)
    if place is None:
        line, reason = encoded.rstrip().count(b"\n") + 1, "a bracket is still open, or there is nothing at all"
        return bad(line, "JSON", "the end of the file", reason)
    at = min(int(place[1]), len(encoded) - 1)
    shown = _SEPARATOR.split(encoded[at : at + 80].decode(errors="replace"), maxsplit=1)[0][:20]
    reason = "a comma, a colon or a bracket is missing before it, or it is no part of JSON"
    return bad(encoded.count(b"\n", 0, at) + 1, "JSON", shown or chr(encoded[at]), reason)
