"""Reads matrices between the GPUs of one node: CUDA's p2pBandwidthLatencyTest and nvbandwidth; the text; a Readout.

Row is the writing GPU, column the other. The diagonal (a GPU with itself), matrices of the CPU's own launch time and
copies between host and GPU measure no pair and are left out. `P2P=Disabled` goes through host memory. Formats:
NVIDIA/cuda-samples, p2pBandwidthLatencyTest; NVIDIA/nvbandwidth, README.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from topology.bad_input import BadInput
from topology.reach.measurement import MAX_VALUES, Direction, End, Measurement, Readout, Scope, Warnings, unique
from topology.readers.numbers_in_text import lines_of, micros, number, shown, whole

TOOL: Final = "p2p matrix"
PEER: Final = "GPU peer to peer"
HOST: Final = "through host memory"
COPY_BYTES: Final = 160_000_000
"""p2pBandwidthLatencyTest copies 40,000,000 integers by default (cuda-samples)."""
LATENCY_BYTES: Final = 4
"""Its latency test writes one word (cuda-samples)."""
MAX_GPUS: Final = 256

_P2P = re.compile(
    r"(?:(Uni|Bi)directional )?P2P=(Enabled|Disabled) (Bandwidth|Latency)(?: \([^)]{1,40}\))? Matrix \((GB/s|us)\)"
)
_NVBAND = re.compile(r"memcpy (?:CE|SM) (CPU|GPU)\(row\) (<?->?) (CPU|GPU)\(column\) bandwidth \(GB/s\)")
_NVBAND_OTHER = re.compile(r"memory latency (?:CE|SM) .{1,60}\((?:ns|us)\)|memory .{1,60}bandwidth \(GB/s\)")


@dataclass(slots=True)
class _Matrix:
    """The matrix being read. `note` is why it is left out, or empty."""

    latency: bool
    direction: Direction
    transport: str
    note: str
    columns: int = 0
    reverse: bool = False
    size_bytes: int = COPY_BYTES


def is_p2p_matrix(lines: Sequence[str]) -> bool:
    """Whether a title of such a matrix is in here."""
    return any(_title(line) is not None for line in lines)


def read_p2p_matrix(text: str, _name: str = "") -> Readout:
    """All pairs of different GPUs. Raises BadInput where none is measured one way, with what the file holds instead."""
    warnings, notes = Warnings(), []
    values: list[Measurement] = []
    matrix: _Matrix | None = None
    first = (1, "")
    for at, line in enumerate(lines_of(text), start=1):
        title = _title(line)
        if title is not None:
            matrix = title
            first = first if first[1] else (at, line.strip())
            if matrix.note:
                notes.append(matrix.note)
            continue
        tokens = line.split()
        if matrix is None or not tokens:
            continue
        if _is_header(matrix, tokens):
            matrix.columns = _count_columns(tokens)
            if tokens[0] == "CPU":
                notes.append("the CPU's launch times measure no pair")
                matrix = None
            continue
        row = whole(tokens[0], MAX_GPUS)
        if row is None or matrix.note:
            matrix = matrix if tokens[0] != "SUM" else None
            continue
        if not _is_whole(matrix, tokens):
            warnings.add(at, f"a row that is cut or damaged was left out: {shown(line)}")
            continue
        values.extend(islice(_row_values(matrix, row, tokens, at), MAX_VALUES - len(values)))
    if not values:
        raise _no_pair(first, notes)
    return Readout(TOOL, pairs=tuple(values), notes=unique(notes), warnings=warnings.all())


def _is_header(matrix: _Matrix, tokens: Sequence[str]) -> bool:
    """The line with the numbers of the columns."""
    return tokens[0] in ("GPU", "D\\D", "CPU") or (matrix.columns == 0 and whole(tokens[0]) is not None)


def _count_columns(tokens: Sequence[str]) -> int:
    return sum(1 for token in tokens if whole(token, MAX_GPUS) is not None)


def _is_whole(matrix: _Matrix, tokens: Sequence[str]) -> bool:
    """Whether a row has a number, or N/A, in each column."""
    cells = [0.0 if word == "N/A" else number(word) for word in tokens[1:]]
    return len(cells) >= matrix.columns and None not in cells[: matrix.columns]


def _row_values(matrix: _Matrix, row: int, tokens: Sequence[str], at: int) -> Iterator[Measurement]:
    """What a row says of pairs of different GPUs."""
    for column, cell in enumerate(tokens[1 : matrix.columns + 1]):
        if column != row and (value := _value(matrix, row, column, cell, at)):
            yield value


def _no_pair(first: tuple[int, str], notes: Sequence[str]) -> BadInput:
    held = "; ".join(unique(notes)) or "no whole row of a matrix between GPUs is in it"
    return BadInput(f"line {first[0]}", first[1], held)


def _title(line: str) -> _Matrix | None:
    if match := _P2P.search(line):
        both = match[1] == "Bi"
        transport = PEER if match[2] == "Enabled" else HOST
        direction = Direction.BOTH_WAYS if both else Direction.ONE_WAY
        return _Matrix(match[3] == "Latency", direction, transport, "")
    if match := _NVBAND.search(line):
        hosts = "CPU" in (match[1], match[3])
        note = "copies between host and GPU measure no pair of GPUs" if hosts else ""
        direction = Direction.BOTH_WAYS if match[2] == "<->" else Direction.ONE_WAY
        return _Matrix(False, direction, PEER, note, reverse=match[2] == "<-", size_bytes=512 * 2**20)
    if _NVBAND_OTHER.search(line):
        return _Matrix(True, Direction.UNKNOWN, "", "load latencies between host and GPU measure no pair of GPUs")
    return None


def _value(matrix: _Matrix, row: int, column: int, cell: str, at: int) -> Measurement | None:
    a, b = End(gpu=row), End(gpu=column)
    if matrix.reverse:
        a, b = b, a
    if matrix.latency:
        us = micros(cell)
        if us is None:
            return None
        return Measurement(
            LATENCY_BYTES,
            a,
            b,
            mean_us=us,
            transport=matrix.transport,
            direction=matrix.direction,
            scope=Scope.SAME_NODE,
            line=at,
        )
    rate = number(cell)
    if not rate:
        return None  # nvbandwidth prints 0 or N/A where there is no path
    return Measurement(
        matrix.size_bytes,
        a,
        b,
        bytes_per_us=rate * 1000.0,
        transport=matrix.transport,
        direction=matrix.direction,
        scope=Scope.SAME_NODE,
        line=at,
    )
