"""Derives the link table (topology/reach/link_rows.py) again from the public logs and shows each row's fit error.

`python -m docs.update_links` needs the logs (ISOCHRONE_DATA, or ../shared/data) and prints what the rows should hold;
code 1 if they hold something else. The files in Parquet measure collectives, hence no pair, and are not needed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np

from e2e.bench.link_fit import Fit, errors, refit
from e2e.bench.measured_logs import LOGS, Points, points_of
from e2e.bench.reach import folder
from topology.reach.link_rows import ROWS, Hardware, LinkRow


@dataclass(frozen=True, slots=True)
class Derived:
    """What the logs say one row is."""

    hardware: Hardware
    row: LinkRow
    logs: int

    @property
    def same(self) -> bool:
        """Whether the table holds it."""
        held = ROWS[self.hardware]
        return (held.latency_us, held.bytes_per_us) == (self.row.latency_us, self.row.bytes_per_us) and abs(
            held.error_percent - self.row.error_percent
        ) < 0.06


def derive() -> list[Derived]:
    """Every row, in the table's order. Raises NotHere without the logs."""
    logs = [points_of(log, folder()) for log in LOGS]
    fits = refit(logs)
    return [_derived(hardware, fits.get(hardware), logs) for hardware in Hardware]


def _derived(hardware: Hardware, found: Fit | None, logs: list[Points]) -> Derived:
    own = [each for each in logs if each.log.hardware is hardware]
    row = ROWS[hardware]
    if found is not None:
        row = replace(row, latency_us=found.latency_us, bytes_per_us=found.bytes_per_us)
    percent = float(np.median([np.median(errors(row, each)) for each in own])) * 100
    return Derived(hardware, replace(row, error_percent=round(percent, 1)), len(own))


def main() -> int:
    """Prints the table; 1 if the code holds another."""
    derived = derive()
    sys.stdout.write(f"{'hardware':28} {'latency, us':>11} {'GB/s':>6} {'logs':>4} {'error':>7}\n")
    for each in derived:
        row = each.row
        value = "" if each.same else "  differs from topology/reach/link_rows.py"
        sys.stdout.write(
            f"{each.hardware.value:28} {row.latency_us:11g} {row.bytes_per_us / 1000:6g} {each.logs:4} "
            f"{row.error_percent:5.1f} %{value}\n"
        )
    return int(not all(each.same for each in derived))


if __name__ == "__main__":
    sys.exit(main())
