"""The one place that asks what time it is; edges call it, pure modules take the answer as an argument.

It decides how a moment is written for the API server. It must never know why somebody wants the time.
Ages and limits use the monotonic clock (it never jumps); the wall clock is only for what people and objects show.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


def monotonic_s() -> float:
    """Seconds on a clock that never goes back; only differences mean something."""
    return time.monotonic()


def wall_time_s() -> float:
    """Seconds since 1970-01-01 UTC."""
    return time.time()  # noqa: TID251  # this is the edge that the rule sends everybody to


def utc_now() -> datetime:
    """The wall time as certificates have it."""
    return datetime.fromtimestamp(wall_time_s(), UTC)


def rfc3339_seconds(at_s: float) -> str:
    """A wall time as `metav1.Time` wants it: `2026-11-02T10:41:07Z`, cut to the second."""
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(at_s: float) -> str:
    """A wall time as `metav1.MicroTime` wants it (Leases): `2026-11-02T10:41:07.250000Z`."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339_s(text: str) -> float:
    """Either form, and any offset, back to seconds since 1970. Raises ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; use RFC 3339, such as 2026-11-02T10:41:07Z")
    return moment.timestamp()
