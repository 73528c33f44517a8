"""Fits a link row to its logs: latency + size / bandwidth, each log with the same weight, relative errors.

Least absolute error of log(model / measured): an outlier (a first message, a protocol switch) does not pull the line.
Found on a grid that is narrowed around the best point, so the answer depends on nothing but the points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from e2e.bench.measured_logs import Points
from topology.reach.link_rows import FIXED, ROWS, Hardware, LinkRow

ROUNDS: Final = 5
STEPS: Final = 61
LATENCY_US: Final = (0.2, 3000.0)
BYTES_PER_US: Final = (100.0, 1e6)
LARGE_BYTES: Final = 2**20
"""Without a size of 1 MiB or more a log says nothing about bandwidth: then the row's own, from its source, is taken."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What the logs of one hardware say."""

    latency_us: float
    bytes_per_us: float

    def us(self, sizes: Sequence[int]) -> NDArray[np.float64]:
        """Typical time of each size."""
        return self.latency_us + np.array(sizes) / self.bytes_per_us


def fit(logs: Sequence[Points], bytes_per_us: float | None) -> Fit:
    """The best latency and bandwidth; the bandwidth given, where no log has a large size."""
    sizes = np.concatenate([np.array(log.size_bytes, dtype=float) for log in logs])
    times = np.concatenate([np.array(log.typical_us) for log in logs])
    weights = np.concatenate([np.full(len(log.size_bytes), 1 / len(log.size_bytes)) for log in logs])
    known = sizes.max() < LARGE_BYTES and bytes_per_us is not None
    low, high = np.log([LATENCY_US[0], BYTES_PER_US[0]]), np.log([LATENCY_US[1], BYTES_PER_US[1]])
    for _ in range(ROUNDS):
        latency = np.exp(np.linspace(low[0], high[0], STEPS))
        rate = np.array([bytes_per_us]) if known else np.exp(np.linspace(low[1], high[1], STEPS))
        model = latency[:, None, None] + sizes / rate[None, :, None]
        cost = (weights * np.abs(np.log(model / times))).sum(axis=-1)
        i, j = np.unravel_index(int(np.argmin(cost)), cost.shape)
        best = np.log([latency[i], rate[j]])
        step = (high - low) / 12
        low, high = best - step, best + step
    return Fit(float(f"{latency[i]:.3g}"), float(f"{rate[j]:.3g}"))


def refit(logs: Sequence[Points]) -> Mapping[Hardware, Fit]:
    """Every row of the link table that rests on a fit, from its logs."""
    rows: dict[Hardware, list[Points]] = {}
    for points in logs:
        rows.setdefault(points.log.hardware, []).append(points)
    return {
        hardware: fit(each, ROWS[hardware].bytes_per_us) for hardware, each in rows.items() if hardware not in FIXED
    }


def errors(row: LinkRow, points: Points) -> NDArray[np.float64]:
    """Relative error of the row at each point, as a share: against p99 where the log has it, else the typical time."""
    found = []
    for size, typical, p99 in zip(points.size_bytes, points.typical_us, points.p99_us, strict=True):
        model, measured = (row.typical_us(size), typical) if p99 is None else (row.p99_us(size), p99)
        found.append(abs(model / measured - 1))
    return np.array(found)
