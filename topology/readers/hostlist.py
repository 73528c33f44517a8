"""Slurm's short form for many names: `srv[1101-1108,1112],login1`, unfolded under a limit.

Source: "Hostlist expressions" in the manual page of scontrol (Slurm). A range keeps the zeros in front: n[08-10] is
n08, n09, n10. Several brackets in one name multiply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from topology.graph.parts import MAX_NAME_CHARS, bad

MAX_NAMES: Final = 65_536
"""Slurm's own default limit for a node table is lower; a cluster of 20,000 nodes is listed twice without meeting it."""

_ALLOWED = re.compile(r"[A-Za-z0-9_.:@/\[\],-]{1,65536}", re.ASCII)
_NAME = re.compile(r"[^,\[\]]*+(?:\[[^\[\]]*+\][^,\[\]]*+)*+(?:,|$)")
_PART = re.compile(r"([^\[\]]+)|\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def unfold(text: str, line: int, limit: int = MAX_NAMES) -> list[str]:
    """The names in order. Raises BadInput with the line, before more than `limit` names are made."""
    text = text.strip()
    if not _ALLOWED.fullmatch(text):
        raise bad(line, "host list", text, "it holds letters, digits, - _ . : @ / and ranges in brackets")
    names: list[str] = []
    at = 0
    while at < len(text):
        match = _NAME.match(text, at)
        if match is None or match.end() == at:
            raise bad(line, "host list", text[at:], "brackets come in pairs and are not nested")
        at = match.end()
        one = match[0].removesuffix(",")
        if not one:
            raise bad(line, "host list", text, "a name is missing between two commas")
        names += _unfolded(one, line, limit - len(names))
    if text.endswith(","):
        raise bad(line, "host list", text, "a name is missing after the last comma")
    return names


def _unfolded(one: str, line: int, limit: int) -> list[str]:
    made = [""]
    for plain, ranges in _PART.findall(one):
        endings = [plain] if plain else list(_numbers(ranges, one, line, limit))
        if len(made) * len(endings) > limit:
            raise bad(line, "host list", one, f"the file names more than {MAX_NAMES} hosts")
        made = [before + ending for before in made for ending in endings]
    if len(made) > limit:
        raise bad(line, "host list", one, f"the file names more than {MAX_NAMES} hosts")
    if len(made[0]) > MAX_NAME_CHARS:
        raise bad(line, "host list", one, f"a name has at most {MAX_NAME_CHARS} characters")
    return made


def _numbers(ranges: str, one: str, line: int, limit: int) -> Iterator[str]:
    left = limit
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise bad(line, "host list", one, "between brackets stand numbers and ranges like 1-8, with commas")
        low, high = int(match[1]), int(match[2] or match[1])
        left -= high - low + 1
        if high < low:
            raise bad(line, "host list", one, f"the range {part} runs backwards")
        if left < 0:
            raise bad(line, "host list", one, f"the file names more than {MAX_NAMES} hosts")
        width = len(match[1])
        yield from (f"{number:0{width}d}" for number in range(low, high + 1))
