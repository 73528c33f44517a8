"""Which reader a file is for, found from its first lines, and the limits before any reader sees it.

A file that is recognised is read by one reader or refused by it with line and reason; nothing is tried twice. Bytes
come in (also gzip, as fabrics are archived so), a topology goes out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from topology import read_topo_matrix
from topology.bad_input import BadInput
from topology.graph import Topology

MAX_BYTES: Final = 32 * 1024 * 1024
"""An `ibnetdiscover` of 5,000 nodes with 9 adapters each is about 25 MB (300 kB for 540 adapters, measured)."""

_HEAD_LINES: Final = 400


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file. `claims` gets the first lines, without surrounding white space."""

    name: str
    claims: Callable[[list[str]], bool]
    read: Callable[[str], Topology]
    max_bytes: int = MAX_BYTES


FORMATS: Final[tuple[Format, ...]] = (
    Format(
        read_topo_matrix.SOURCE,
        lambda head: any(read_topo_matrix.looks_like(line) for line in head),
        read_topo_matrix.read,
        1024 * 1024,
    ),
)


def read(data: bytes) -> Topology:
    """The topology in a file. Raises BadInput: which line, what is there, what is allowed."""
    text = text_of(data)
    found = format_of(text)
    if len(data) > found.max_bytes:
        raise BadInput("size", f"{len(data)} bytes", f"{found.name} is read up to {found.max_bytes} bytes")
    return found.read(text)


def format_of(text: str) -> Format:
    """The format of a text."""
    head = [line.strip() for line in text[: 256 * 1024].split("\n", _HEAD_LINES)[:_HEAD_LINES]]
    for candidate in FORMATS:
        if candidate.claims(head):
            return candidate
    start = next((line for line in head if line), "")
    names = ", ".join(candidate.name for candidate in FORMATS)
    raise BadInput("line 1: format", start, f"it must be one of: {names}")


def text_of(data: bytes) -> str:
    """The text, unpacked if it is gzip; both bounded."""
    if data[:2] == b"\x1f\x8b":
        data = _unpacked(data)
    if len(data) > MAX_BYTES:
        raise BadInput("size", f"{len(data)} bytes", f"at most {MAX_BYTES} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"line {line}: byte", data[error.start : error.start + 1], "the file must be UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise BadInput(f"line {line}: character", "\0", "the file must be text")
    return text


def _unpacked(data: bytes) -> bytes:
    unpack = zlib.decompressobj(wbits=31)
    try:
        found = unpack.decompress(data, MAX_BYTES + 1)
    except zlib.error as error:
        raise BadInput("gzip data", str(error), "it must be whole") from None
    if not unpack.eof and len(found) <= MAX_BYTES:
        raise BadInput("gzip data", "cut off", "it must be whole")
    return found
