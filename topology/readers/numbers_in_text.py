"""Numbers and lines out of what measuring tools print: bounded, so that no file costs more than its size.

Rules of this file. (1) A number is finite, not negative and within the limits of `measurement`, or it is none. (2) It
knows no tool.
"""

from __future__ import annotations

import math
import re

from topology.bad_input import BadInput
from topology.reach.measurement import MAX_LINE_CHARS, MAX_LINES, MAX_SIZE_BYTES, MAX_TEXT_CHARS, MAX_US

_NUMBER = re.compile(r"\d{1,18}(?:\.\d{0,18})?(?:[eE][+-]?\d{1,2})?")


def lines_of(text: str) -> list[str]:
    """The lines, each cut at MAX_LINE_CHARS. Raises BadInput for a text that is too long or binary."""
    if len(text) > MAX_TEXT_CHARS:
        raise BadInput("the file", f"{len(text)} characters long", f"at most {MAX_TEXT_CHARS} are read")
    if "\x00" in text[:4096]:
        raise BadInput("the file", "binary", "give the text that the tool printed")
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise BadInput("the file", f"{len(lines)} lines long", f"at most {MAX_LINES} are read")
    return [line[:MAX_LINE_CHARS].rstrip("\r") for line in lines]


def number(token: str) -> float | None:
    """A plain decimal of at most 18 digits, not negative; None for anything else."""
    if _NUMBER.fullmatch(token) is None:
        return None
    value = float(token)
    return value if math.isfinite(value) else None


def whole(token: str, most: int = MAX_SIZE_BYTES) -> int | None:
    """A whole number from 0 to `most`; None for anything else."""
    if not token.isascii() or not token.isdigit() or len(token) > 18:
        return None
    value = int(token)
    return value if value <= most else None


def micros(token: str, factor: float = 1.0) -> float | None:
    """A time above 0 and at most MAX_US microseconds, given in units of `factor` microseconds."""
    value = number(token)
    if value is None:
        return None
    us = value * factor
    return us if 0 < us <= MAX_US else None


def shown(line: str) -> str:
    """A line as a message may quote it."""
    text = " ".join(line.split())
    return repr(text if len(text) <= 60 else text[:57] + "...")
