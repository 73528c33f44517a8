"""The documents of a manifest as kubectl reads it: many in one text, lists of objects, JSON or YAML.

Decides what is a readable document and says in one sentence, with the line, what is not. It must never know what the
objects mean. Bounded: a text of at most 16 MiB, and no more than a million values however often an alias repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from topology.bad_input import BadInput

MAX_BYTES: Final = 16 * 2**20
_MAX_VALUES: Final = 1_000_000
_MAX_DOCUMENTS: Final = 10_000

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # which base depends on whether libyaml was there at build time
    """YAML as Kubernetes takes it: a date is a string, and a key stands once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"key {key.value[:64]!r} stands twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Document:
    """One object. `where` is for people: the file and the number of the document in it."""

    where: str
    content: dict[str, Any]


def documents(text: str, file: str) -> list[Document]:
    """Every object in the text, the members of a List each by itself. Raises BadInput naming file and line."""
    if len(text) > MAX_BYTES:
        raise BadInput(file, f"{len(text)} characters", f"at most {MAX_BYTES} are read")
    found: list[Document] = []
    for number, content in enumerate(_loaded(text, file), start=1):
        if content is None:
            continue
        _count(content, file)
        if not isinstance(content, dict):
            raise BadInput(file, f"document {number}", "it must be an object: lines of `field: value`")
        found += _members(content, f"{file}, document {number}")
        if len(found) > _MAX_DOCUMENTS:
            raise BadInput(file, f"over {_MAX_DOCUMENTS} objects", "split it")
    return found


def _loaded(text: str, file: str) -> Iterator[Any]:
    try:
        yield from yaml.load_all(text, Loader=_Loader)  # a safe loader with one rule less
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"line {mark.line + 1}" if mark else "a line"
        hint = "; render a Helm chart first (helm template)" if "{{" in text else ""
        raise BadInput(file, at, f"it must be YAML: {error.problem or error.context}{hint}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(file, "not readable", f"it must be YAML: {str(error).splitlines()[0]}") from None


def _members(content: dict[str, Any], where: str) -> list[Document]:
    items = content.get("items")
    if not str(content.get("kind", "")).endswith("List") or not isinstance(items, list):
        return [Document(where, content)]
    found = []
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise BadInput(where, f"item {number}", "it must be an object")
        found += _members(item, f"{where}, item {number}")
    return found


def _count(content: Any, file: str) -> None:
    left = [content]
    seen = 0
    while left:
        seen += 1
        if seen > _MAX_VALUES:
            raise BadInput(file, f"over {_MAX_VALUES} values", "split it, or use fewer aliases")
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
