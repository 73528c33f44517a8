"""EDGE. `isochrone reach import`: files in, what they measure out, on standard output.

It reads files (gzip too, bounded), prints, and keeps the file of measured reach. It must never know a tool's format.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from topology.bad_input import BadInput
from topology.clock import parse_rfc3339_s
from topology.measured.file import merged, parse_place, read_measured_file, write_measured_file
from topology.measured.importing import samples_of
from topology.measured.show import COLUMNS, group_line, readout_json, row_of, saved_line
from topology.measured.store import Pair
from topology.reach.measured_values import MeasuredPlace, Sample
from topology.reach.measurement import MAX_TEXT_CHARS, Readout
from topology.readers.measurements import read_measurements

ROWS_SHOWN: Final = 24

app = typer.Typer(help="Read measurements of reach.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Keeps `import` a command of its own while it is the only one."""


@app.command("import")
def import_(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Outputs of measuring tools; - is standard input.")
    ],
    operation: Annotated[
        str, typer.Option("--operation", help="Which nccl-tests program ran, where the file does not say: sendrecv ...")
    ] = "",
    output: Annotated[str, typer.Option("-o", "--output", metavar="table|json", help="How to print.")] = "table",
    save: Annotated[
        str, typer.Option("--save", metavar="FILE", help="Put the values into this file of measured reach.")
    ] = "",
    from_: Annotated[str, typer.Option("--from", help="Node, or leaf:NAME ..., where the file does not say.")] = "",
    to: Annotated[str, typer.Option("--to", help="The other end.")] = "",
    time: Annotated[str, typer.Option("--time", help="When it was measured, RFC 3339; for --save.")] = "",
    valid: Annotated[str, typer.Option("--valid", help="How long it counts in full.")] = "30d",
) -> None:
    """Read what measuring tools print: between whom, how long.

    Of nccl-tests, OSU, perftest, p2pBandwidthLatencyTest, nvbandwidth (between GPUs) and superbench's gpu-copy, and
    profiled CSV tables.
    """
    if output not in ("table", "json"):
        raise BadInput("--output", output, "use table or json")
    wanted = (_ends(from_, to), _time_s(time), _valid_s(valid)) if save else None
    readouts, refused = _all(files, operation)
    if output == "json" and readouts:
        typer.echo(json.dumps([readout_json(file, readout) for file, readout in readouts], indent=1))
    elif output == "table":
        for file, readout in readouts:
            _print(file, readout)
    if refused:
        # Half an import would be a lie that nobody sees: the others are shown, and none is saved.
        for bad in refused[:-1]:
            sys.stderr.write(f"isochrone: {bad}\n")
        if save:
            sys.stderr.write(f"isochrone: {save}: nothing was saved\n")
        raise refused[-1]
    if wanted is not None:
        for line in _save(save, readouts, *wanted):
            typer.echo(line, err=output == "json")


def _all(files: Sequence[str], operation: str) -> tuple[list[tuple[str, Readout]], list[BadInput]]:
    """What each readable file holds, and why others cannot be read."""
    readouts: list[tuple[str, Readout]] = []
    refused: list[BadInput] = []
    for file in files:
        try:
            readouts.append((file, _read(file, operation)))
        except BadInput as bad:
            refused.append(bad)
    return readouts, refused


def _read(file: str, operation: str) -> Readout:
    content, name = _text(file)
    try:
        return read_measurements(content, name, operation)
    except BadInput as bad:
        raise BadInput(f"{file}: {bad.field}", bad.value, bad.allowed) from None


def _ends(from_: str, to: str) -> tuple[MeasuredPlace, MeasuredPlace] | None:
    if bool(from_) != bool(to):
        raise BadInput("--to" if from_ else "--from", "missing", "name both ends, or none where the file does")
    return (parse_place(from_, "--from"), parse_place(to, "--to")) if from_ else None


def _time_s(text: str) -> float:
    try:
        return parse_rfc3339_s(text)
    except ValueError:
        allowed = "say when it was measured, as 2026-11-30T10:00:00Z: the tools do not print it"
        raise BadInput("--time", text, allowed) from None


def _valid_s(text: str) -> float:
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    if match is None:
        raise BadInput("--valid", text, 'use minutes, hours or days, such as "30d"')
    return int(match[1]) * {"m": 60.0, "h": 3600.0, "d": 86_400.0}[match[2]]


def _save(
    file: str,
    readouts: Sequence[tuple[str, Readout]],
    ends: tuple[MeasuredPlace, MeasuredPlace] | None,
    time_s: float,
    valid_s: float,
) -> list[str]:
    """The file with the new values in it, replaced as a whole. One line a readout: what went into it."""
    path = Path(file)
    found = read_measured_file(path.read_bytes()) if path.exists() else {}
    held: dict[Pair, Sequence[Sample]] = {**found}
    lines: list[str] = []
    for name, readout in readouts:
        try:
            new = samples_of(readout, ends, time_s, valid_s)
        except BadInput as bad:
            raise BadInput(f"{name}: {bad.field}", bad.value, bad.allowed) from None
        lines.append(f"{name} to {saved_line(file, readout, new, len(held.keys() & new.keys()))}")
        held = merged(held, new)
    aside = path.with_name(path.name + ".new")
    try:
        aside.write_text(write_measured_file(held))
        aside.replace(path)
    except OSError as error:
        raise BadInput("--save", file, f"it cannot be written: {error.strerror}") from None
    return lines


def _text(file: str) -> tuple[str, str]:
    """Content and name. Raises BadInput naming the file."""
    try:
        content = sys.stdin.buffer.read(MAX_TEXT_CHARS + 1) if file == "-" else _bytes(Path(file))
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or "not a whole gzip file"
        raise BadInput("FILE", file, f"it must be a readable file: {why}") from None
    return content.decode(errors="replace"), file


def _bytes(path: Path) -> bytes:
    with path.open("rb") as plain:
        raw = plain.read(MAX_TEXT_CHARS + 1)
    if raw[:2] != b"\x1f\x8b":
        return raw
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as unpacked:
        return unpacked.read(MAX_TEXT_CHARS + 1)


def _print(file: str, readout: Readout) -> None:
    typer.echo(f"{file}: {readout.tool}")
    rows = [row_of(value) for value in readout.pairs[:ROWS_SHOWN]]
    if rows:
        for line in _aligned([COLUMNS, *rows]):
            typer.echo(f"  {line}")
    if len(readout.pairs) > ROWS_SHOWN:
        typer.echo(f"  and {len(readout.pairs) - ROWS_SHOWN} more; -o json prints all")
    if any(row[6].endswith("*") for row in rows):
        typer.echo("  * from a median or mean, widened by 1.5")
    for kind in sorted({(value.operation, value.ranks) for value in readout.groups}):
        typer.echo("  " + group_line([v for v in readout.groups if (v.operation, v.ranks) == kind]))
    for note in readout.notes:
        typer.echo(f"  note: {note}")
    for warning in readout.warnings:
        sys.stderr.write(f"isochrone: {file}: {warning}\n")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
