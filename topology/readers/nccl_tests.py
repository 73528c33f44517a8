"""Reads what nccl-tests print (`sendrecv_perf` and the collectives): the text, the file's name; a Readout.

Only `sendrecv` between two ranks times a pair: both send and receive at once, so a row is one message one way, a mean
over the iterations. A collective runs over all ranks and measures none of their pairs; its size, time and bus bandwidth
are kept as group values. The table's format: NVIDIA/nccl-tests, src/common.cu; older versions have no `root` column and
leave `redop` empty for some operations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from topology.bad_input import BadInput
from topology.reach.measurement import MAX_RANKS, MAX_VALUES, End, GroupTime, Measurement, Readout, Scope, Warnings
from topology.readers.numbers_in_text import lines_of, micros, number, shown, whole

TOOL: Final = "nccl-tests"
SENDRECV: Final = "sendrecv"
OPERATIONS: Final = (
    *(SENDRECV, "all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast"),
    *("reduce", "gather", "scatter", "hypercube"),
)
UNKNOWN: Final = "a collective"

_RANK = re.compile(r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\b")
_ITERS = re.compile(r"(?<!warmup )\biters: (\d{1,9})\b")
_PROGRAM = re.compile(r"\b([a-z_]{3,20})_perf\b")
_NET = re.compile(r"\bNET/(IB|Socket|AWS Libfabric|OFI)\b")
_LETTERS = re.compile(r"[^a-z]")


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns of a row: how many, with `redop` in it or not."""

    columns: int
    redop: bool
    root: bool


def is_nccl_tests(lines: Sequence[str]) -> bool:
    """Whether a table of nccl-tests is in here."""
    return any(_header(line) is not None for line in lines)


def read_nccl_tests(text: str, name: str = "", operation: str = "") -> Readout:
    """The pair or group values of one output. `operation` (one of OPERATIONS) wins over what text and name say.

    Raises BadInput where no whole row is found, or `operation` is unknown.
    """
    if operation and operation not in OPERATIONS:
        raise BadInput("operation", operation, "use one of " + ", ".join(OPERATIONS))
    lines = lines_of(text)
    value = operation or _operation(lines, name)
    comments = [line for line in lines if _is_comment(line)]
    ranks, iters = _ranks(comments), _iterations(comments)
    warnings = Warnings()
    rows = _rows(lines, warnings)
    if not rows:
        raise BadInput("the file", name or "unnamed", "no whole row of an nccl-tests table is in it")
    if value == SENDRECV and len(ranks) in (0, 2):
        return _pairs(rows, list(ranks.values()), iters, _network(lines), warnings)
    return _groups(value or UNKNOWN, rows, len(ranks), warnings)


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _ranks(comments: Sequence[str]) -> dict[int, End]:
    """Rank to the GPU that it runs on."""
    ranks: dict[int, End] = {}
    for line in comments:
        if (match := _RANK.match(line.lstrip())) and int(match[1][:6]) < MAX_RANKS:
            ranks[int(match[1][:6])] = End(match[2][:253], whole(match[3], 1023))
    return ranks


def _iterations(comments: Sequence[str]) -> int | None:
    return next((int(match[1]) for line in comments if (match := _ITERS.search(line))), None)


def _network(lines: Sequence[str]) -> str:
    """The transport that NCCL's log names first; empty where it names none."""
    found = (match for line in lines if not _is_comment(line) and (match := _NET.search(line)))
    first = next(found, None)
    return "" if first is None else "TCP" if first[1] == "Socket" else "RDMA"


def _rows(lines: Sequence[str], warnings: Warnings) -> list[tuple[int, int, float, float, float]]:
    """Line, size, time, algorithm and bus bandwidth of each whole row; a damaged one is a warning."""
    table: _Table | None = None
    rows: list[tuple[int, int, float, float, float]] = []
    for at, line in enumerate(lines, start=1):
        if _is_comment(line):
            table = _header(line) or table
            continue
        tokens = line.split()
        if table is None or not tokens or whole(tokens[0]) is None:
            continue
        row = _row(tokens, table)
        if row is None:
            warnings.add(at, f"a row that is cut or damaged was left out: {shown(line)}")
        elif len(rows) < MAX_VALUES:
            rows.append((at, *row))
    return rows


def _header(line: str) -> _Table | None:
    fields = line.split()
    if fields[:4] != ["#", "size", "count", "type"] or "algbw" not in fields:
        return None
    return _Table(len(fields) - 1, "redop" in fields, "root" in fields)


def _row(tokens: Sequence[str], table: _Table) -> tuple[int, float, float, float] | None:
    """Size, and time, algorithm and bus bandwidth out of place; None where the row is not whole."""
    expected = table.columns
    if table.redop and len(tokens) > 3 and number(tokens[3]) is not None:
        expected -= 1  # the operation has none and the column was left empty
    if len(tokens) != expected or len(tokens) < 11:
        return None
    size = whole(tokens[0])
    us, algbw, busbw = micros(tokens[-8]), number(tokens[-7]), number(tokens[-6])
    if size is None or us is None or algbw is None or busbw is None or micros(tokens[-4]) is None:
        return None
    return size, us, algbw, busbw


def _operation(lines: Sequence[str], name: str) -> str:
    """By the program's name in the text, else by the file's; empty where neither says it."""
    for line in lines:
        if match := _PROGRAM.search(line):
            squeezed = match[1].replace("_", "")
            for operation in OPERATIONS:
                if squeezed == operation.replace("_", ""):
                    return operation
    plain = _LETTERS.sub("", name.rsplit("/", 1)[-1].lower())
    return next((operation for operation in OPERATIONS if operation.replace("_", "") in plain), "")


def _pairs(
    rows: Sequence[tuple[int, int, float, float, float]],
    ends: Sequence[End],
    iters: int | None,
    net: str,
    warnings: Warnings,
) -> Readout:
    a, b = ends if ends else (End(), End())
    scope = Scope.UNKNOWN if not a.node else Scope.SAME_NODE if a.node == b.node else Scope.BETWEEN_NODES
    values = tuple(
        Measurement(size_bytes=size, a=a, b=b, mean_us=us, count=iters, transport=net, scope=scope, line=at)
        for at, size, us, _, _ in rows
        if size > 0
    )
    return Readout(TOOL, pairs=values, warnings=warnings.all())


def _groups(
    operation: str, rows: Sequence[tuple[int, int, float, float, float]], ranks: int, warnings: Warnings
) -> Readout:
    values = tuple(
        GroupTime(operation, ranks, size, us, busbw * 1000.0, at) for at, size, us, _, busbw in rows if size > 0
    )
    who = f"{ranks} ranks" if ranks else "a group of ranks"
    note = f"{operation} over {who} measures no pair: sizes, times and bus bandwidth are kept for the group only"
    if operation == UNKNOWN:
        note = f"which operation ran is not said, so no pair is taken from it; if it was {SENDRECV}, say so"
    return Readout(TOOL, groups=values, notes=(note,), warnings=warnings.all())
