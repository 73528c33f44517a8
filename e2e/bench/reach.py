"""How far the reach model is from what was measured: the link table against every public log of a pair.

A log's error is the median over its sizes, the figure the median of the logs. The side of 1 ms is asked of one 64 KiB
page, or of the measured size next to it. `labels only` is the same for a model that knows no more than node labels say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from e2e.bench.link_fit import errors, fit
from e2e.bench.measured_logs import LOGS, Points, points_of
from e2e.bench.report import Figure, Goal, NotHere, matrix
from topology.labels import DEFAULT_REACH_SIZE_BYTES, DEFAULT_REACH_US
from topology.reach.link_rows import FIXED, ROWS, LinkRow
from topology.reach.links import LINKS
from topology.units import show_bytes, show_us

CHECKOUT: Final = Path(__file__).resolve().parents[2]
HOW: Final = "link table against {} public logs; median over the sizes of a log, then over logs"


def folder() -> Path:
    """Where the public logs are. Raises NotHere."""
    found = Path(os.environ.get("ISOCHRONE_DATA") or CHECKOUT.parent / "shared" / "data") / "nccl"
    if not found.is_dir():
        raise NotHere(f"{found} is not here; set ISOCHRONE_DATA to the folder that holds nccl/")
    return found


def measure() -> Iterator[list[Figure]]:
    """The table of logs, then the figures."""
    logs = [points_of(log, folder()) for log in LOGS]
    _print(logs)
    known = [float(np.median(errors(ROWS[each.log.hardware], each))) * 100 for each in logs]
    labels = [float(np.median(errors(_by_label(each), each))) * 100 for each in logs]
    apart = [_left_out(each, logs) for each in logs]
    left_out = [value for value in apart if value is not None]
    how = HOW.format(len(logs))
    yield [
        Figure("median error percent", float(np.median(known)), "%", Goal("<=", 20), source=how),
        Figure(
            "wrong side of 1 ms",
            sum(_wrong(ROWS[each.log.hardware], each) for each in logs),
            "logs",
            Goal("<=", 0),
            source="one page of 64 KiB, or the measured size next to it; model and log on different sides",
        ),
        Figure("largest error percent", max(known), "%", source="the worst log's median"),
        Figure(
            "median error percent, log left out",
            float(np.median(left_out)),
            "%",
            source=f"the row fitted without the log, for the {len(left_out)} logs whose row has others",
        ),
        Figure("median error percent, labels only", float(np.median(labels)), "%", source="deliberate upper readings"),
        Figure(
            "wrong side of 1 ms, labels only",
            sum(_wrong(_by_label(each), each) for each in logs),
            "logs",
            source="GPUDirect that is off is in no label: nobody measured it, and the explanation says modelled",
        ),
        Figure(
            "wrong side of 1 ms, any size",
            sum(any(_sides(ROWS[each.log.hardware], each)) for each in logs),
            "logs",
            source="logs with a size, up to 64 MiB, on the other side than the model",
        ),
    ]


def _by_label(points: Points) -> LinkRow:
    """What is known without the hardware: the kind of link, from `links.LINKS`."""
    kind = ROWS[points.log.hardware].kind
    link = LINKS[kind]
    return LinkRow(kind, link.latency_us, link.bytes_per_us, 1.0, 0.0, link.source)


def _sides(row: LinkRow, points: Points) -> list[bool]:
    """For each size whether model and log stand on different sides of 1 ms."""
    pairs = zip(points.size_bytes, points.typical_us, strict=True)
    return [(row.typical_us(size) > DEFAULT_REACH_US) != (us > DEFAULT_REACH_US) for size, us in pairs]


def _page(points: Points) -> int:
    """Which point is nearest to one page."""
    return int(np.argmin(np.abs(np.log(np.array(points.size_bytes) / DEFAULT_REACH_SIZE_BYTES))))


def _wrong(row: LinkRow, points: Points) -> bool:
    return _sides(row, points)[_page(points)]


def _left_out(points: Points, logs: list[Points]) -> float | None:
    """The log's error with a row that was fitted without it; None if its row has no other log or is no fit."""
    hardware = points.log.hardware
    others = [each for each in logs if each.log.hardware is hardware and each is not points]
    if not others or hardware in FIXED:
        return None
    row = ROWS[hardware]
    apart = fit(others, row.bytes_per_us)
    row = LinkRow(row.kind, apart.latency_us, apart.bytes_per_us, row.tail, 0.0, row.source)
    return float(np.median(errors(row, points))) * 100


def _print(logs: list[Points]) -> None:
    rows = []
    for each in logs:
        row, at = ROWS[each.log.hardware], _page(each)
        size = each.size_bytes[at]
        percent = float(np.median(errors(row, each))) * 100
        rows.append(
            (
                each.log.name,
                each.log.hardware.value,
                str(len(each.size_bytes)),
                f"{percent:.0f} %",
                show_bytes(size),
                show_us(each.typical_us[at]),
                show_us(row.typical_us(size)),
            )
        )
    matrix(
        "the model against each log",
        ("log", "hardware", "sizes", "error", "at", "measured", "modelled"),
        rows,
    )
