"""Reads what perftest prints (`ib_write_lat`, `ib_send_lat`, `ib_read_lat`, `ib_write_bw` ...): text, name; a Readout.

Send and write latencies are half a ping-pong, hence one way; a read or an atomic is a full round trip (its README).
`t_typical` is the median. Buffers are in host memory unless the output says otherwise. Columns are read by their
headings, since versions and options differ; warnings of the tool between the rows are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from topology.bad_input import BadInput
from topology.reach.measurement import MAX_VALUES, Direction, Measurement, Readout, Warnings, unique
from topology.readers.numbers_in_text import lines_of, micros, number, shown, whole

TOOL: Final = "perftest"
_HEADING = re.compile(
    r"#bytes|#iterations|t_(?:min|max|typical|avg|stdev)\[usec\]|99(?:\.9)?% percentile\[usec\]"
    r"|BW (?:peak|average)\[(?:MB|Gb)/sec\]|MsgRate\[Mpps\]|tps average|CPU_Util\[%\]"
)
_TEST = re.compile(
    r"\b(?:RDMA_)?(Write|Read|Send|Atomic)(?:_IMM| Imm)? (?:BW|Latency|Bandwidth|Lat)\b.{0,40}Test"
    r"|(write|read|send|atomic)_(?:lat|bw)\b",
    re.IGNORECASE,
)
_ROW = re.compile(r"\s*\d+\s+\d+\s")
_ONE_WAY = ("write", "send")


def is_perftest(lines: Sequence[str]) -> bool:
    """Whether a heading of perftest is in here."""
    return any(line.lstrip().startswith("#bytes") and "#iterations" in line for line in lines)


def read_perftest(text: str, name: str = "") -> Readout:
    """All rows of one output. Raises BadInput where no whole row is found."""
    lines = lines_of(text)
    test = _test(lines, name)
    direction = Direction.UNKNOWN if not test else Direction.ONE_WAY if test in _ONE_WAY else Direction.ROUND_TRIP
    columns: list[str] = []
    warnings = Warnings()
    values: list[Measurement] = []
    for at, line in enumerate(lines, start=1):
        if line.lstrip().startswith("#bytes"):
            columns = _HEADING.findall(line)
        elif columns and _ROW.match(line):
            value = _value(columns, line.split(), direction, at)
            if value is None:
                warnings.add(at, f"a row that is cut or damaged was left out: {shown(line)}")
            elif len(values) < MAX_VALUES:
                values.append(value)
    if not values:
        raise BadInput("the file", name or "unnamed", "no whole row of a perftest table is in it")
    notes = []
    if direction is Direction.ROUND_TRIP and any(v.typical_us is not None for v in values):
        notes.append(f"{test} is a round trip: its time is taken whole, as an upper bound of one way")
    if direction is Direction.UNKNOWN:
        notes.append("which test ran is not said: its times are taken as they are, as an upper bound of one way")
    return Readout(TOOL, pairs=tuple(values), notes=unique(notes), warnings=warnings.all())


def _test(lines: Sequence[str], name: str) -> str:
    """`write`, `read`, `send` or `atomic` by the output's title, else by the file's name; else empty."""
    for line in lines:
        if "#bytes" not in line and (match := _TEST.search(line)):
            return (match[1] or match[2]).lower()
    match = re.search(r"(write|read|send|atomic)_(?:lat|bw)", name.rsplit("/", 1)[-1].lower())
    return match[1] if match else ""


def _value(columns: Sequence[str], tokens: Sequence[str], direction: Direction, at: int) -> Measurement | None:
    if len(tokens) < len(columns):
        return None
    given = dict(zip(columns, tokens, strict=False))
    size, count = whole(given.get("#bytes", "")), whole(given.get("#iterations", ""), 10**12)
    if size is None or size == 0 or count is None:
        return None
    for heading, factor in (("BW average[MB/sec]", 2**20 / 1e6), ("BW average[Gb/sec]", 125.0)):
        if heading in given:
            rate = number(given[heading])  # perftest's MB are 2^20 bytes
            if not rate:
                return None
            return Measurement(
                size, bytes_per_us=rate * factor, count=count, transport="RDMA", direction=direction, line=at
            )
    times = {key: micros(given[key]) for key in columns if key.endswith("[usec]") and key in given}
    p50, mean = times.get("t_typical[usec]"), times.get("t_avg[usec]")
    p99 = times.get("99% percentile[usec]")
    if p50 is None and mean is None and p99 is None:
        return None
    return Measurement(
        size,
        p50_us=p50,
        mean_us=mean,
        p99_us=p99,
        p999_us=times.get("99.9% percentile[usec]"),
        max_us=times.get("t_max[usec]"),
        count=count,
        transport="RDMA",
        direction=direction,
        line=at,
    )
