"""Who used the processors between two moments, from /proc: the stack's processes, this one, and everybody else."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")
CLIENT: Final = "bench client"
BUSY: Final = 0.1
"""Others' part of the machine above which figures are not to be trusted."""
CALM_SECONDS: Final = 3


def of_process(pid: int) -> float:
    """User and system seconds of a process with all its threads; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def _of_machine() -> float:
    """Seconds in which the machine's processors were not idle, stolen time included."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds between two moments."""

    wall_s: float
    by_process: Mapping[str, float]
    others: float
    """What the rest of the machine used."""

    @property
    def others_share(self) -> float:
        """Processors taken by others, as a part of all."""
        return self.others / (self.wall_s * (os.cpu_count() or 1))


def wait_quiet(pids: Mapping[str, int], limit_s: float) -> None:
    """Waits until others leave the machine alone for a few seconds, or until the limit."""
    until, calm = time.monotonic() + limit_s, 0
    while calm < CALM_SECONDS and time.monotonic() < until:
        meter = Meter(pids)
        time.sleep(1)
        calm = calm + 1 if meter.read().others_share < BUSY else 0


class Meter:
    """Starts when made; `read` gives the usage since then."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids) | {CLIENT: os.getpid()}
        self._began = time.monotonic()
        self._machine = _of_machine()
        self._processes = self._now()

    def _now(self) -> dict[str, float]:
        return {name: of_process(pid) for name, pid in self._pids.items()}

    def read(self) -> Usage:
        """Usage since this meter was made."""
        used = {name: max(0.0, now - self._processes[name]) for name, now in self._now().items()}
        others = max(0.0, _of_machine() - self._machine - sum(used.values()))
        return Usage(time.monotonic() - self._began, used, others)
