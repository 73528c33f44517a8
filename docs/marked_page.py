"""A page with parts that a script makes, each between `<!-- name:start -->` and `<!-- name:end -->`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def renewed(text: str, parts: Mapping[str, Sequence[str]]) -> str:
    """The page with these parts renewed, as lines. Raises ValueError where a marker is missing."""
    for name, lines in parts.items():
        start, end = f"<!-- {name}:start -->\n", f"<!-- {name}:end -->"
        before, rest = text.split(start, 1)
        _, after = rest.split(end, 1)
        text = before + start + "\n".join(lines) + "\n" + end + after
    return text


def keep(page: Path, parts: Mapping[str, Sequence[str]]) -> int:
    """Writes the page; with `--check` only says by 1 that it is not up to date. 0 if it is (now) right."""
    text = page.read_text()
    new = renewed(text, parts)
    if "--check" in sys.argv[1:]:
        return int(text != new)
    page.write_text(new)
    return 0
