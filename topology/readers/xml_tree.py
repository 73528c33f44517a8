"""XML as a small tree with line numbers, bounded, without document types: so no entity is ever expanded.

It decides what XML is accepted at all. It must never know what an element means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from topology.bad_input import BadInput
from topology.graph.parts import bad

MAX_DEPTH: Final = 24  # NCCL nests system, cpu, a few bridges, device, gpu, nvlink
MAX_ELEMENTS: Final = 20_000
MAX_ATTRIBUTES: Final = 32
MAX_VALUE_CHARS: Final = 1_024


@dataclass(slots=True)
class Element:
    """One element; text between elements is not kept."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def named(self, *names: str) -> Iterator[Element]:
        """Children with one of these names."""
        return (child for child in self.children if child.name in names)

    def get(self, attribute: str, default: str = "") -> str:
        """An attribute's value."""
        return self.attributes.get(attribute, default)

    def number(self, attribute: str, low: int, high: int, default: int | None = None) -> int:
        """An attribute as a whole number between two bounds."""
        value = self.attributes.get(attribute)
        if value is None and default is not None:
            return default
        digits = (value or "").removeprefix("-")
        if value is None or not (digits.isascii() and digits.isdigit() and len(digits) < 12):
            raise bad(self.line, f"{attribute} of {self.name}", value or "", f"it is a number from {low} to {high}")
        if not low <= int(value) <= high:
            raise bad(self.line, f"{attribute} of {self.name}", value, f"it is a number from {low} to {high}")
        return int(value)


def parse(text: str) -> Element:
    """The root element. Raises BadInput with line and reason."""
    parser = expat.ParserCreate(encoding="utf-8")
    open_elements: list[Element] = []
    root: list[Element] = []
    count = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        line = parser.CurrentLineNumber
        if count > MAX_ELEMENTS:
            raise bad(line, "number of elements", f"above {MAX_ELEMENTS}", "the file is no description of one machine")
        if len(open_elements) >= MAX_DEPTH:
            raise bad(line, "nesting", f"above {MAX_DEPTH}", "the file is no description of one machine")
        if len(attributes) > MAX_ATTRIBUTES or any(len(value) > MAX_VALUE_CHARS for value in attributes.values()):
            allowed = f"at most {MAX_ATTRIBUTES}, of at most {MAX_VALUE_CHARS} characters"
            raise bad(line, f"attributes of {name}", "too many or too long", allowed)
        element = Element(name, attributes, line)
        (open_elements[-1].children if open_elements else root).append(element)
        open_elements.append(element)

    def end(_name: str) -> None:
        open_elements.pop()

    def document_type(name: str, *_: object) -> None:
        raise bad(parser.CurrentLineNumber, "document type", name, "leave DOCTYPE and entities out")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = document_type
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise BadInput(f"line {error.lineno}: XML", expat.ErrorString(error.code), "it must be well-formed") from None
    return root[0]
