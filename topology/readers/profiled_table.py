"""Reads tables that profilers and suites wrote from their runs: the text; a Readout.

Three shapes. (1) CSV of a communication profiler: `time_stats.<operation>.{min,max,mean,median}` in milliseconds,
`size` in bytes, `devices_per_node`, as in microsoft/vidur, data/profiling. (2) CSV of collectives: `op_name`,
`num_gpus`, `message_size` in bytes, `latency` in milliseconds, as in ai-dynamo/aiconfigurator. (3) One copy a line,
`gpu0_to_gpu1_write_by_dma 278.3` in GB/s, as superbench's gpu-copy-bw prints. A send/recv times a pair, a collective
does not, a copy is a bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from topology.bad_input import BadInput
from topology.reach.measurement import (
    MAX_RANKS,
    MAX_VALUES,
    Direction,
    End,
    GroupTime,
    Measurement,
    Readout,
    Scope,
    Warnings,
    unique,
)
from topology.readers.numbers_in_text import lines_of, micros, number, shown, whole

TOOL: Final = "profiled table"
COPY_TOOL: Final = "gpu-copy"
_STATS = re.compile(r"time_stats\.([a-z_]{1,30})\.(?:median|mean)")
_COPY = re.compile(r"(\w+?)_(to|and)_(\w+?)(?:_(?:read|write))?_by_(?:sm|dma)(?:_under_numa\d+)?")
_GPU = re.compile(r"gpu(\d{1,3})")
_COPY_BYTES: Final = 64 * 2**20


def is_profiled_table(lines: Sequence[str]) -> bool:
    """Whether the first line heads such a CSV, or the lines are copies."""
    return _columns(lines[0]) is not None or any(_is_copy(line) for line in lines[:64])


def read_profiled_table(text: str, name: str = "") -> Readout:
    """All rows. Raises BadInput where none is whole."""
    lines = lines_of(text)
    if _columns(lines[0]) is None:
        return _copies(lines, name)
    warnings, notes = Warnings(), []
    pairs: list[Measurement] = []
    groups: list[GroupTime] = []
    columns = _columns(lines[0]) or []
    for at, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = line.split(",")
        if len(cells) != len(columns):
            warnings.add(at, f"a row that is cut or damaged was left out: {shown(line)}")
            continue
        row = dict(zip(columns, cells, strict=True))
        value = _pair(row, at) if row.get("collective") == "send_recv" else _group(row, at)
        if value is None:
            warnings.add(at, f"a row that is cut or damaged was left out: {shown(line)}")
        elif len(pairs) + len(groups) < MAX_VALUES:
            if isinstance(value, Measurement):
                pairs.append(value)
            else:
                groups.append(value)
                notes.append(
                    f"{value.operation} over {value.ranks} GPUs measures no pair and is kept for the group only"
                )
    if not pairs and not groups:
        raise BadInput("the file", name or "unnamed", "no whole row of a profiled table is in it")
    return Readout(TOOL, tuple(pairs), tuple(groups), unique(notes), warnings.all())


def _columns(line: str) -> list[str] | None:
    if "," not in line or len(line) > 2000:
        return None
    columns = line.strip().split(",")
    profiled = {"size", "collective", "num_workers"} <= set(columns) and any(map(_STATS.fullmatch, columns))
    swept = {"op_name", "num_gpus", "message_size", "latency"} <= set(columns)
    return columns if profiled or swept else None


def _pair(row: Mapping[str, str], at: int) -> Measurement | None:
    given = {key: micros(row.get(f"time_stats.send_recv.{key}", ""), 1000.0) for key in ("median", "mean", "max")}
    size, ranks = whole(row.get("size", "")), whole(row.get("num_workers", ""), MAX_RANKS)
    per_node = whole(row.get("devices_per_node", ""), MAX_RANKS)
    if not size or ranks != 2 or (given["median"] is None and given["mean"] is None):
        return None
    scope = {1: Scope.BETWEEN_NODES, 2: Scope.SAME_NODE}.get(per_node or 0, Scope.UNKNOWN)
    return Measurement(size, p50_us=given["median"], mean_us=given["mean"], max_us=given["max"], scope=scope, line=at)


def _group(row: Mapping[str, str], at: int) -> GroupTime | None:
    operation = row.get("op_name") or row.get("collective") or ""
    us = micros(row.get("latency", row.get(f"time_stats.{operation}.median", "")), 1000.0)
    size = whole(row.get("message_size", row.get("size", "")))
    ranks = whole(row.get("num_gpus", row.get("num_workers", "")), MAX_RANKS)
    if not operation.isidentifier() or len(operation) > 30 or us is None or not size or not ranks:
        return None
    return GroupTime(operation, ranks, size, us, 0.0, at)


def _is_copy(line: str) -> bool:
    tokens = line.split()
    return len(tokens) == 2 and len(tokens[0]) < 100 and _COPY.fullmatch(tokens[0]) is not None


def _copies(lines: Sequence[str], name: str) -> Readout:
    warnings, notes = Warnings(), []
    values: list[Measurement] = []
    for at, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        tokens = line.split()
        match = _COPY.fullmatch(tokens[0]) if len(tokens[0]) < 100 else None
        rate = number(tokens[1]) if len(tokens) == 2 else None
        if match is None or not rate:
            warnings.add(at, f"a line that is no copy was left out: {shown(line)}")
            continue
        a, b = _GPU.fullmatch(match[1]), _GPU.fullmatch(match[3])
        if a is None or b is None or a[1] == b[1]:
            notes.append("copies with the host, with all GPUs at once or of a GPU with itself measure no pair")
        elif len(values) < MAX_VALUES:
            direction = Direction.ONE_WAY if match[2] == "to" else Direction.BOTH_WAYS
            values.append(
                Measurement(
                    _COPY_BYTES,
                    End(gpu=int(a[1])),
                    End(gpu=int(b[1])),
                    bytes_per_us=rate * 1000.0,
                    direction=direction,
                    scope=Scope.SAME_NODE,
                    line=at,
                )
            )
    if not values:
        raise BadInput("the file", name or "unnamed", "no copy between two GPUs is in it")
    return Readout(COPY_TOOL, pairs=tuple(values), notes=unique(notes), warnings=warnings.all())
