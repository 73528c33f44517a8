"""Numbers of GPU requests: counts, shares and memory, each read in its own unit or refused in one sentence.

Rules of this file. (1) A request is rounded up, never to zero; a capacity is rounded down. (2) The sentence names the
form, the key and the value. (3) Nothing here knows which form means what: `topology.gpus.request` does.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

from topology.bad_input import BadInput
from topology.units import parse_quantity

MOST_MIB: Final = 2**24
"""16 TiB: more than any card has for years, and sums of 2^30 such amounts stay within 63 bits."""

MOST_GPUS: Final = 1024
"""GPUs one pod may ask for: more than any node has."""

_MIB: Final = 2**20
_PLAIN: Final = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?")
_DECIMAL: Final = re.compile(r"\+?([0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})")


def read_count(raw: object, field: str, most: int = MOST_GPUS) -> int:
    """A whole number of devices, 0 to `most`, as a Kubernetes quantity (`2`, `2000m`, `1e1`). Raises BadInput."""
    allowed = f"use a whole number from 0 to {most}"
    try:
        milli = parse_quantity(_text(raw), field, milli=True)
    except BadInput as bad:
        raise BadInput(field, raw, allowed) from bad
    if milli % 1000 or milli > most * 1000:
        raise BadInput(field, raw, allowed)
    return milli // 1000


def read_percent(raw: object, field: str, *, least: int = 1) -> int:
    """Percent of a card, decimals allowed, to thousandths of a card rounded up: 12.5 is 125. Raises BadInput."""
    allowed = f"use a percentage of a card from {least} to 100" if least else "use a percentage of a card, 0 to 100"
    value = _number(raw, field, allowed)
    if not least <= value <= 100 and not 0 < value < least:
        raise BadInput(field, raw, allowed)
    return _ceiling(value * 10)


def read_fraction(raw: object, field: str) -> int:
    """A fraction of a card above 0 and at most 1 to thousandths, rounded up: "0.5" is 500. Raises BadInput."""
    allowed = 'use a fraction of a card above 0 and at most 1, such as "0.5"'
    value = _number(raw, field, allowed)
    if not 0 < value <= 1:
        raise BadInput(field, raw, allowed)
    return _ceiling(value * 1000)


def read_units_mib(raw: object, field: str, unit_mib: int = 1) -> int:
    """Memory as a bare count of units of `unit_mib` MiB, at least one unit. Raises BadInput."""
    unit = "MiB" if unit_mib == 1 else f"{unit_mib // 1024} GiB" if unit_mib % 1024 == 0 else f"{unit_mib} MiB"
    most = MOST_MIB // unit_mib
    allowed = f"use a whole number in units of {'1 ' if unit == 'MiB' else ''}{unit}, from 1 to {most}"
    try:
        milli = parse_quantity(_text(raw), field, milli=True)
    except BadInput as bad:
        raise BadInput(field, raw, allowed) from bad
    if not 0 < milli <= most * 1000:
        raise BadInput(field, raw, allowed)
    return -(-milli // 1000) * unit_mib


def read_size_mib(raw: object, field: str) -> int:
    """Memory with its unit (`60Gi`, `512Mi`, `80G`) to MiB, rounded up. A bare number is refused: of what? Raises
    BadInput."""
    allowed = 'use a size with its unit, such as "60Gi" or "512Mi", at most 16Ti'
    text = _text(raw)
    if _PLAIN.fullmatch(text):
        raise BadInput(field, raw, allowed)
    try:
        size = parse_quantity(text, field)
    except BadInput as bad:
        raise BadInput(field, raw, allowed) from bad
    # A size below one MiB is a unit that was forgotten or mistaken (`500m` is half a byte), not a request.
    if not _MIB <= size <= MOST_MIB * _MIB:
        raise BadInput(field, raw, allowed)
    return -(-size // _MIB)


def _text(raw: object) -> str:
    return raw if isinstance(raw, str) else repr(raw)


def _number(raw: object, field: str, allowed: str) -> Decimal:
    text = _text(raw)
    if not _DECIMAL.fullmatch(text):
        raise BadInput(field, raw, allowed)
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise BadInput(field, raw, allowed) from error


def _ceiling(value: Decimal) -> int:
    return int(value.to_integral_value(rounding="ROUND_CEILING"))
