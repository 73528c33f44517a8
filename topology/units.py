"""Quantities and addresses in and out, and the only functions that print quantities.

Durations are microseconds (`_us`), sizes are bytes, Kubernetes quantities are integers in the unit the caller
names (thousandths for cpu, whole units for everything else).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache

from topology.bad_input import BadInput

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|μs|ms|s)")
_US_PER = {
    "ns": Decimal("0.001"),
    "us": Decimal(1),
    "µs": Decimal(1),
    "μs": Decimal(1),
    "ms": Decimal(1000),
    "s": Decimal(1_000_000),
}
_MAX_DURATION_US = 60_000_000
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i))?")
_FACTOR = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_INT64_MAX = 2**63 - 1
_CACHED_CHARS = 32


def parse_duration_us(text: str, field: str) -> float:
    """`1ms`, `100us`, `1.5ms`, `1ms500us` to microseconds. More than zero, at most one minute.

    Raises BadInput naming `field`.
    """
    allowed = 'use a duration such as "1ms", "100us" or "1.5ms", above 0 and at most 60s'
    total, end = Decimal(0), 0
    for match in _DURATION.finditer(text):
        if match.start() != end:
            break
        total += Decimal(match[1]) * _US_PER[match[2]]
        end = match.end()
    if end == 0 or end != len(text) or not 0 < total <= _MAX_DURATION_US:
        raise BadInput(field, text, allowed)
    return float(total)


def parse_quantity(text: str | int | float, field: str, *, milli: bool = False) -> int:
    """A Kubernetes quantity (`4`, `500m`, `80Gi`, `1e3`) to an integer, rounded up as Kubernetes does.

    In thousandths with `milli`. Raises BadInput naming `field` for anything else, negative and overflowing included.
    """
    written = str(text)
    whole = _whole(written, milli) if len(written) <= _CACHED_CHARS else _whole.__wrapped__(written, milli)
    if whole is None:
        raise BadInput(field, text, "use a Kubernetes quantity of 0 or more, such as 4, 500m or 80Gi")
    return whole


@lru_cache(maxsize=4096)  # a cluster's 50,000 pods write some dozens of different quantities
def _whole(text: str, milli: bool) -> int | None:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    try:
        value = Decimal(match[1] + (match[2] or "")) * _FACTOR[match[3] or ""]
    except InvalidOperation:
        return None
    if milli:
        value *= 1000
    whole = int(value.to_integral_value(rounding="ROUND_CEILING"))
    return whole if 0 <= whole <= _INT64_MAX else None


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where a server listens. Port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host_port(text: str, field: str, example_port: int) -> tuple[str, int]:
    """`HOST:PORT` or `[V6]:PORT`; port 0 lets the system choose. Raises BadInput naming `field`."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host_fine = bool(host) and (bracketed or ":" not in host) and not any(char.isspace() for char in host)
    if not (colon and host_fine and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        examples = f'"0.0.0.0:{example_port}" or "[::]:{example_port}"'
        raise BadInput(field, text, f"use HOST:PORT such as {examples}, with a port up to 65535")
    return host.strip("[]"), int(port)


def parse_size_bytes(text: str, field: str) -> int:
    """A message size such as `64Ki` or `8Mi`: 1 byte to 1 TiB. Raises BadInput naming `field`."""
    try:
        size = parse_quantity(text, field)
    except BadInput:
        size = 0
    if not 1 <= size <= 2**40:
        raise BadInput(field, text, 'use a size such as "64Ki" or "8Mi", at least 1 byte and at most 1Ti')
    return size


def show_us(us: float) -> str:
    """Microseconds for people, three significant digits: `8.3 us`, `126 us`, `1.00 ms`, `2.00 ms`."""
    if us < 99.95:
        return f"{us:.3g} us"
    if us < 999.5:
        return f"{us:.0f} us"
    # The limits are where two decimals would round up to one digit more.
    ms = us / 1000
    if ms < 99.95:
        return f"{ms:.2f} ms" if ms < 9.995 else f"{ms:.1f} ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.2f} s" if ms < 9995 else f"{ms / 1000:.1f} s"


def show_bytes(size: float) -> str:
    """Bytes for people: `64 KiB`, `38.0 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if size == int(size) and unit != "GiB" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def show_age(seconds: float) -> str:
    """An age for people: `0.4s`, `42s`, `5m10s`, `3h2m`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 7200:
        return f"{whole // 60}m{whole % 60}s"
    return f"{whole // 3600}h{whole % 3600 // 60}m"
