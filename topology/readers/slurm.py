"""Reads Slurm's `topology.conf`: a tree of switches (topology/tree) or NVLink blocks (topology/block).

Source: the manual page topology.conf(5). Keys are read without regard to case; a host has one leaf and one block.
"""

from __future__ import annotations

import re
from typing import Final

from topology.graph.network_tree import NetworkTree
from topology.graph.parts import Topology, TopologyBuilder, bad, check_name
from topology.readers.hostlist import MAX_NAMES, unfold

SOURCE: Final = "Slurm topology.conf"
MAX_LINES: Final = 100_000
MAX_LINE_CHARS: Final = 65_536

_PAIR = re.compile(r"([A-Za-z]{1,32})=(\S{1,65536})", re.ASCII)
_KEYS: Final = {
    "switchname": {"switches", "nodes", "linkspeed"},
    "blockname": {"nodes"},
    "blocksizes": set[str](),
}


def recognises(line: str) -> bool:
    """Whether this line opens a switch or a block."""
    return line.lower().startswith(("switchname=", "blockname=", "blocksizes="))


def read(text: str) -> Topology:
    """Hosts, switches and blocks. Raises BadInput with line and reason."""
    tree = NetworkTree(TopologyBuilder(SOURCE))
    left = MAX_NAMES
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) > MAX_LINES:
        raise bad(MAX_LINES, "number of lines", len(lines), f"at most {MAX_LINES} are read")
    declared: set[str] = set()
    named: dict[str, int] = {}
    for number, pairs in _statements(lines):
        first = next(iter(pairs))
        name = pairs[first]
        if first != "blocksizes":
            check_name(name, number)
            if f"{first} {name}" in declared:
                raise bad(number, first, name, "it is there twice; every switch and block has one line")
            declared.add(f"{first} {name}")
        nodes = unfold(pairs["nodes"], number, left) if "nodes" in pairs else []
        left -= len(nodes)
        if first == "switchname":
            children = unfold(pairs["switches"], number, left) if "switches" in pairs else []
            left -= len(children)
            tree.switch(name, number)
            for child in children:
                named.setdefault(child, number)
                tree.put(child, tree.switch(child, number), name, number)
            for host in nodes:
                tree.put(host, tree.host(host, number), name, number)
        elif first == "blockname":
            _put_in_block(tree, nodes, name, number)
        elif not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", name, re.ASCII):
            raise bad(number, "BlockSizes", name, "it is numbers with commas")
    for child, number in named.items():
        if f"switchname {child}" not in declared:
            raise bad(number, "switch", child, "it has no SwitchName line of its own")
    return tree.finish()


def _put_in_block(tree: NetworkTree, hosts: list[str], block: str, number: int) -> None:
    for host in hosts:
        node = tree.host(host, number)
        if node.domain not in ("", block):
            raise bad(number, f"block of {host}", block, f"it is in {node.domain} already; a host has one block")
        node.domain = block


def _statements(lines: list[str]) -> list[tuple[int, dict[str, str]]]:
    """Line number and pairs of each statement; a backslash continues a line, a # ends it."""
    found: list[tuple[int, dict[str, str]]] = []
    text, start = "", 0
    for number, line in enumerate([*lines, ""], 1):
        start = start or number
        text += line.partition("#")[0].rstrip()
        if len(text) > MAX_LINE_CHARS:
            raise bad(number, "length", len(text), f"a line has at most {MAX_LINE_CHARS} characters")
        if text.endswith("\\") and number <= len(lines):
            text = text[:-1] + " "
            continue
        if text.strip():
            found.append((start, _pairs(text, start)))
        text, start = "", 0
    return found


def _pairs(text: str, number: int) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in text.split():
        match = _PAIR.fullmatch(word)
        if match is None:
            raise bad(number, "word", word, "a line is KEY=VALUE pairs without spaces in the values")
        key = match[1].lower()
        if key in pairs:
            raise bad(number, "key", match[1], "it is there twice on this line")
        pairs[key] = match[2]
    first = next(iter(pairs))
    if first not in _KEYS:
        raise bad(number, "key", first, "a line begins with SwitchName=, BlockName= or BlockSizes=")
    for key in list(pairs)[1:]:
        if key not in _KEYS[first]:
            allowed = ", ".join(sorted(_KEYS[first])) or "nothing"
            raise bad(number, f"key after {first}", key, f"behind it may stand {allowed}")
    return pairs
