"""Reads what the OSU micro-benchmarks print (`osu_latency`, `osu_bw`, `osu_bibw`): the text; a Readout.

A latency is half a ping-pong, hence one way, a mean over the iterations (which the output does not count); newer
versions add percentiles. A bandwidth is a stream with many messages under way: it says nothing about the time of one.
One file may hold several runs: a comment before a run is its label. Format: OSU Micro-Benchmarks 7.5, c/util.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from topology.bad_input import BadInput
from topology.reach.measurement import MAX_VALUES, Direction, Measurement, Readout, Scope, Warnings, unique
from topology.readers.numbers_in_text import lines_of, micros, number, shown, whole

TOOL: Final = "osu"
_TITLE = re.compile(r"# OSU MPI(?:-(\w+))? (.{1,40}?) Test(?: v[\w.]+)?\s*$")
_COLUMN = re.compile(
    r"P(\d{2}(?:\.\d)?) Tail Lat\(us\)|(Avg Latency|Latency|Min Lat|Max Lat)\w{0,9} ?\(us\)|(Bandwidth) ?\(MB/s\)"
)
_OURS = ("# Size", "# Datatype", "# Send Buffer")


@dataclass(slots=True)
class _Run:
    """One test of a file: what it measures, and the columns after the size."""

    test: str
    memory: str
    label: str
    columns: tuple[str, ...] = ()

    @property
    def direction(self) -> Direction:
        return Direction.BOTH_WAYS if self.test.startswith("Bi-Directional") else Direction.ONE_WAY


def is_osu(lines: Sequence[str]) -> bool:
    """Whether a title of the OSU benchmarks is in here."""
    return any(_TITLE.match(line) for line in lines)


def read_osu(text: str, name: str = "") -> Readout:
    """All runs of one output. Raises BadInput where no whole row is found."""
    warnings, notes = Warnings(), []
    values: list[Measurement] = []
    run: _Run | None = None
    label = ""
    for at, line in enumerate(lines_of(text), start=1):
        if match := _TITLE.match(line):
            run = _run(match, label)
            if not _wanted(run):
                notes.append(f"the {run.test} test measures no pair and was left out")
        elif line.startswith("# Size") and run is not None:
            run.columns = _columns(line)
        elif line.startswith("#"):
            label = _label(line, label)
        elif run is not None and _wanted(run) and _is_row(tokens := line.split()):
            value = _value(run, tokens, at)
            if value is None:
                warnings.add(at, f"a row that is cut or damaged was left out: {shown(line)}")
            elif value.size_bytes > 0 and len(values) < MAX_VALUES:
                values.append(value)
    if not values:
        raise BadInput("the file", name or "unnamed", "no whole row of an osu_latency or osu_bw table is in it")
    return Readout(TOOL, pairs=tuple(values), notes=unique(notes), warnings=warnings.all())


def _run(title: re.Match[str], label: str) -> _Run:
    return _Run(title[2], title[1] or "", label)


def _columns(line: str) -> tuple[str, ...]:
    return tuple(_column(match) for match in _COLUMN.finditer(line))


def _label(line: str, before: str) -> str:
    """What a comment calls the run to come; a comment of OSU's own changes nothing."""
    return before if line.startswith(_OURS) else line.lstrip("# ")[:100]


def _is_row(tokens: Sequence[str]) -> bool:
    """Whether a line begins with a size, as rows of a table do."""
    return bool(tokens) and whole(tokens[0]) is not None


def _wanted(run: _Run) -> bool:
    return run.test in ("Latency", "Bandwidth", "Bi-Directional Bandwidth")


def _column(match: re.Match[str]) -> str:
    return match[1] or match[2] or match[3]


def _value(run: _Run, tokens: Sequence[str], at: int) -> Measurement | None:
    size = whole(tokens[0])
    columns = run.columns or (("Latency",) if run.test == "Latency" else ("Bandwidth",))
    if size is None or len(tokens) < len(columns) + 1:
        return None
    given = dict(zip(columns, tokens[1:], strict=False))
    scope = Scope.SAME_NODE if "intra-node" in run.label else Scope.UNKNOWN
    if "nodes" in run.label:
        scope = Scope.BETWEEN_NODES
    if "Bandwidth" in given:
        rate = number(given["Bandwidth"])  # MB/s are bytes per microsecond
        if not rate:
            return None
        return Measurement(size, bytes_per_us=rate, direction=run.direction, scope=scope, label=run.label, line=at)
    mean = micros(given.get("Avg Latency", given.get("Latency", "")))
    if mean is None:
        return None
    tails = {key: micros(given[key]) for key in ("50", "99", "99.9") if key in given}
    return Measurement(
        size,
        mean_us=mean,
        p50_us=tails.get("50"),
        p99_us=tails.get("99"),
        p999_us=tails.get("99.9"),
        scope=scope,
        label=run.label,
        line=at,
    )
