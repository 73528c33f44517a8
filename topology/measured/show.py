"""Measurements as rows for people and as plain values for JSON.

Rules of this file. (1) Every value shows its statistic and whether it is one way. (2) What is not known is empty or
null, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from topology.labels import DEFAULT_REACH_SIZE_BYTES
from topology.measured.importing import TIMES_RETAINED
from topology.measured.store import Pair
from topology.reach.measured_values import Sample, sample_of
from topology.reach.measurement import GroupTime, Measurement, Readout
from topology.units import show_bytes, show_us

COLUMNS: Final = (
    "line",
    "from",
    "to",
    "size",
    "time",
    "statistic",
    "p99 one way",
    "count",
    "measured",
    "transport",
    "direction",
)


def show_time(time_s: float | None) -> str:
    """`2026-11-30T10:00:00Z`, or empty."""
    return "" if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def row_of(value: Measurement) -> tuple[str, ...]:
    """One row under COLUMNS."""
    typical = value.typical_us
    if value.bytes_per_us is not None:
        text, statistic = f"{value.bytes_per_us / 1000:.4g} GB/s", "bandwidth"
    else:
        us = typical if typical is not None else value.reach_us
        text = show_us(us or 0.0)
        statistic = ("p50" if value.p50_us is not None else "mean") if typical is not None else value.percentile
    reach = value.reach_us
    return (
        str(value.line),
        str(value.a) or "-",
        str(value.b) or "-",
        show_bytes(value.size_bytes),
        text,
        statistic,
        "-" if reach is None else show_us(reach) + ("" if value.p99_us is not None else " *"),
        "-" if value.count is None else str(value.count),
        show_time(value.time_s) or "-",
        ", ".join(part for part in (value.transport, value.scope.value) if part) or "-",
        value.direction.value,
    )


def pair_json(value: Measurement) -> dict[str, Any]:
    """One pair's value, null for what the source does not state. Times in microseconds, bandwidth in bytes a us."""
    return {
        "line": value.line,
        "from": {"node": value.a.node, "gpu": value.a.gpu},
        "to": {"node": value.b.node, "gpu": value.b.gpu},
        "sizeBytes": value.size_bytes,
        "p50Us": value.p50_us,
        "meanUs": value.mean_us,
        "p99Us": value.p99_us,
        "p999Us": value.p999_us,
        "maxUs": value.max_us,
        "bytesPerUs": value.bytes_per_us,
        "reachUs": value.reach_us,
        "reachFrom": value.reach_from,
        "count": value.count,
        "time": show_time(value.time_s) or None,
        "transport": value.transport,
        "direction": value.direction.value,
        "scope": value.scope.value,
        "label": value.label,
    }


def group_json(value: GroupTime) -> dict[str, Any]:
    """One size of a collective."""
    return {
        "line": value.line,
        "operation": value.operation,
        "ranks": value.ranks or None,
        "sizeBytes": value.size_bytes,
        "us": value.us,
        "busBytesPerUs": value.bus_bytes_per_us or None,
    }


def readout_json(file: str, readout: Readout) -> dict[str, Any]:
    """One file."""
    return {
        "file": file,
        "tool": readout.tool,
        "pairs": [pair_json(value) for value in readout.pairs],
        "groups": [group_json(value) for value in readout.groups],
        "notes": list(readout.notes),
        "warnings": list(readout.warnings),
    }


def saved_line(into: str, readout: Readout, retained: Mapping[Pair, Sequence[Sample]], replaced: int) -> str:
    """What of a readout went into the file of measured reach, what did not, and why; `replaced` pairs were there."""
    values = sum(len(samples) for samples in retained.values())
    useless = sum(1 for value in readout.pairs if sample_of(value, 0.0, 1.0) is None)
    thinned = len(readout.pairs) - useless - values
    pairs = "pair" if len(retained) == 1 else "pairs"
    text = f"{into}: {values} of {len(readout.pairs)} values saved, of {len(retained)} {pairs}"
    if replaced:
        text += f", {replaced} of them in place of what the file held"
    if thinned:
        page = show_bytes(DEFAULT_REACH_SIZE_BYTES)
        text += (
            f"; {thinned} left out, which would change no reach: of a pair one size an octave stays, the "
            f"{TIMES_RETAINED} nearest to a page of {page}, of one size the slowest, and one bandwidth"
        )
    if useless:
        text += f"; {useless} left out, timed both ways at once: they say nothing about one way"
    return text


def group_line(groups: Sequence[GroupTime]) -> str:
    """`all_reduce over 8 ranks: 32 sizes, 4 B to 8.0 GiB, fastest 34.5 us, best bus bandwidth 235 GB/s`."""
    first = groups[0]
    who = f"{first.ranks} ranks" if first.ranks else "a group of ranks"
    sizes = [value.size_bytes for value in groups]
    best = max(value.bus_bytes_per_us for value in groups)
    bus = f", best bus bandwidth {best / 1000:.3g} GB/s" if best else ""
    return (
        f"{first.operation} over {who}: {len(groups)} sizes, {show_bytes(min(sizes))} to {show_bytes(max(sizes))}, "
        f"fastest {show_us(min(value.us for value in groups))}{bus}"
    )
