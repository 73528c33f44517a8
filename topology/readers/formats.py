"""Which reader a file is for, found from its first lines, and the limits before any reader sees it.

A file that is recognised is read by one reader or refused by it with line and reason; nothing is tried twice. Bytes
come in (also gzip, as fabrics are archived so), a topology goes out.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from topology.bad_input import BadInput
from topology.graph.parts import Topology, bad
from topology.readers import hypernodes as read_hypernodes
from topology.readers import ibnetdiscover as read_ibnetdiscover
from topology.readers import nccl_graph as read_nccl_graph
from topology.readers import nccl_system as read_nccl_system
from topology.readers import netq as read_netq
from topology.readers import node_labels as read_labels
from topology.readers import slurm as read_slurm
from topology.readers import topo_matrix as read_topo_matrix
from topology.readers import topograph as read_topograph
from topology.readers.documents import DocumentValue, json_document, yaml_documents
from topology.readers.xml_tree import parse

_MIB: Final = 1024 * 1024
MAX_BYTES: Final = 32 * _MIB
"""An `ibnetdiscover` of 5,000 nodes with 9 adapters each is about 25 MB (300 kB for 540 adapters, counted)."""

KNOWN: Final = (
    "nvidia-smi topo -m, NCCL system or graph XML, ibnetdiscover, Slurm topology.conf, a topograph model, NetQ JSON, "
    "HyperNodes, Node objects, node labels"
)

_HEAD_LINES: Final = 400
_YAML_KEY = re.compile(r"(?:- )?[\"']?[A-Za-z][\w./-]*[\"']?:(?:\s.*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a topology down. `claims` gets the first lines, without surrounding white space."""

    name: str
    claims: Callable[[list[str]], bool]
    read: Callable[[str], Topology]
    max_bytes: int = MAX_BYTES
    by_line: bool = False  # a cut cannot be seen in it, but for its last line


def read(data: bytes) -> Topology:
    """The topology in a file. Raises BadInput: which line, what is there, what is allowed."""
    text = text_of(data)
    found = format_of(text)
    if len(text) > found.max_bytes:
        raise BadInput("size", f"{len(text)} characters", f"{found.name} is read up to {found.max_bytes}")
    topology = found.read(text)
    if found.by_line and not text.endswith("\n"):
        cut = f"line {text.count(chr(10)) + 1}: the last line has no end; the file may be cut off there"
        return replace(topology, warnings=(*topology.warnings, cut))
    return topology


def format_of(text: str) -> Format:
    """The format of a text."""
    head = [line.strip() for line in text[: 256 * 1024].split("\n", _HEAD_LINES)[:_HEAD_LINES]]
    for candidate in FORMATS:
        if candidate.claims(head):
            return candidate
    raise bad(1, "format", _first(head), f"it must be one of: {KNOWN}")


def _first(head: list[str]) -> str:
    return next((line for line in head if line), "")


def _xml(text: str) -> Topology:
    """An XML file, by its root element."""
    root = parse(text)
    if root.name == "system":
        return read_nccl_system.read(root)
    if root.name == "graphs":
        return read_nccl_graph.read(root)
    raise bad(root.line, "root element", root.name, "it is system or graphs (NCCL)")


def _json(text: str) -> Topology:
    document = json_document(text)
    return read_netq.read_document(document) if read_netq.is_one(document) else _documents([document])


def _yaml(text: str) -> Topology:
    documents = yaml_documents(text)
    if len(documents) == 1 and isinstance(documents[0].data, dict):
        keys = documents[0].data.keys()
        if "kind" not in keys and ("blocks" in keys or "switches" in keys):
            return read_topograph.read_document(documents[0])
        if "kind" not in keys and "labels" in keys:
            return read_labels.read_mapping(documents[0])
    return _documents(documents)


def _documents(documents: list[DocumentValue]) -> Topology:
    """Kubernetes objects of one kind, single or in lists."""
    objects: list[DocumentValue] = []
    for document in documents:
        kind = document.get("kind") if isinstance(document.data, dict) else None
        if kind is not None and kind.text("kind") in ("List", "NodeList", "HyperNodeList"):
            objects += document.need("items", "list").items("items")
        else:
            objects.append(document)
    kinds = set()
    for one in objects:
        kind = one.get("kind") if isinstance(one.data, dict) else None
        if kind is None or kind.text("kind") not in ("Node", "HyperNode"):
            raise bad(one.line, "kind", kind.shown() if kind else "missing", f"it must be one of: {KNOWN}")
        kinds.add(kind.text("kind"))
    if kinds == {"HyperNode"}:
        return read_hypernodes.read_objects(objects)
    if kinds == {"Node"}:
        return read_labels.read_objects(objects)
    raise bad(1, "kinds", ", ".join(sorted(kinds)) or "none", "a file holds Nodes or HyperNodes, not both")


FORMATS: Final[tuple[Format, ...]] = (
    Format(
        read_topo_matrix.SOURCE,
        lambda head: any(read_topo_matrix.recognises(line) for line in head),
        read_topo_matrix.read,
        _MIB,
    ),
    Format("NCCL XML", lambda head: _first(head).startswith("<"), _xml, 4 * _MIB),
    Format(
        read_ibnetdiscover.SOURCE,
        lambda head: any(read_ibnetdiscover.recognises(line) for line in head),
        read_ibnetdiscover.read,
        by_line=True,
    ),
    Format(
        read_slurm.SOURCE,
        lambda head: any(read_slurm.recognises(line) for line in head),
        read_slurm.read,
        8 * _MIB,
        by_line=True,
    ),
    Format(read_labels.SOURCE, lambda head: read_labels.recognises(_first(head)), read_labels.read, _MIB, by_line=True),
    Format("JSON", lambda head: _first(head)[:1] in ("[", "{"), _json, 16 * _MIB),
    Format("YAML", lambda head: any(_YAML_KEY.fullmatch(line) for line in head), _yaml, 4 * _MIB),
)
"""Asked in this order; what only looks like YAML comes last."""


def text_of(data: bytes) -> str:
    """The text, unpacked if it is gzip; both bounded."""
    if data[:2] == b"\x1f\x8b":
        data = _unpacked(data)
    if len(data) > MAX_BYTES:
        raise BadInput("size", f"{len(data)} bytes", f"at most {MAX_BYTES} are read")
    utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # what PowerShell writes
    try:
        text = data.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise bad(
            line, "byte", data[error.start : error.start + 1], "the file must be UTF-8, or UTF-16 with its mark"
        ) from None
    if "\0" in text:
        raise bad(text.count("\n", 0, text.index("\0")) + 1, "character", "\0", "the file must be text")
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
