"""What one measurement of a path says: how long a message took, how often, how it was summed up, and between whom.

Values of the readers (`read_nccl_tests`, `read_osu`, `read_perftest`, `read_p2p_matrix`, `read_profiled_table`) and of
the probes between agents. A field that the source does not state is None or empty, never a guess: a file without names
measures some pair, and whoever imports it says which.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

MAX_TEXT_CHARS: Final = 8 * 1024 * 1024
MAX_LINES: Final = 200_000
MAX_LINE_CHARS: Final = 4096
MAX_VALUES: Final = 100_000
MAX_WARNINGS: Final = 20
MAX_US: Final = 3600e6
MAX_SIZE_BYTES: Final = 2**50
MAX_RANKS: Final = 65_536

TAIL: Final = 1.5
"""p99 over a median or mean, where only those are known. In the public perftest outputs that carry both, p99 is 1.02 to
1.42 times the typical value (EFA send of 2 bytes: 22.37 over 15.78 us), once 1.56; `isochrone.dev/reach` is p99."""


class Direction(Enum):
    """What was timed. The value is the word people read."""

    ONE_WAY = "one way"
    ROUND_TRIP = "round trip"
    BOTH_WAYS = "both ways at once"
    UNKNOWN = "not said"


class Scope(Enum):
    """Whether the two ends are on one node. The value is the word people read."""

    SAME_NODE = "same node"
    BETWEEN_NODES = "between nodes"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class End:
    """One end of a path: a node as the source names it ("" if it does not), and a GPU index on it."""

    node: str = ""
    gpu: int | None = None

    def __str__(self) -> str:
        gpu = "" if self.gpu is None else f"GPU{self.gpu}"
        return "/".join(part for part in (self.node, gpu) if part)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one message of `size_bytes` from `a` to `b`, in microseconds, or a stream's bandwidth.

    At least one of the times or `bytes_per_us` is there. `count` is the number of messages timed, `time_s` seconds
    since 1970, `line` where it stands in the file (0: not from a file).
    """

    size_bytes: int
    a: End = End()
    b: End = End()
    p50_us: float | None = None
    mean_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    max_us: float | None = None
    bytes_per_us: float | None = None
    count: int | None = None
    time_s: float | None = None
    transport: str = ""
    direction: Direction = Direction.ONE_WAY
    scope: Scope = Scope.UNKNOWN
    label: str = ""
    line: int = 0

    @property
    def typical_us(self) -> float | None:
        """Median, else mean; None for a bandwidth."""
        return self.p50_us if self.p50_us is not None else self.mean_us

    @property
    def percentile(self) -> str:
        """Which statistic `reach_us` rests on: `p99`, `p50`, `mean`, `p99.9` or `max`; empty for a bandwidth."""
        names = ("p99", "p50", "mean", "p99.9", "max")
        values = (self.p99_us, self.p50_us, self.mean_us, self.p999_us, self.max_us)
        return next((name for name, value in zip(names, values, strict=True) if value is not None), "")

    @property
    def reach_from(self) -> str:
        """How `reach_us` comes about: `percentile`, with the factor where it was widened, as `mean x1.5`."""
        return f"{self.percentile} x{TAIL:g}" if self.percentile in ("p50", "mean") else self.percentile

    @property
    def reach_us(self) -> float | None:
        """The one-way p99 this measurement stands for; None for a bandwidth or for both directions at once.

        p99 as measured; a median or mean is widened by TAIL; a higher percentile stands for itself. A round trip is
        taken whole, since what the answer costs is not known apart: never too rosy.
        """
        if self.direction is Direction.BOTH_WAYS:
            return None
        if self.p99_us is not None:
            return self.p99_us
        typical = self.typical_us
        if typical is not None:
            return typical * TAIL
        return self.p999_us if self.p999_us is not None else self.max_us


@dataclass(frozen=True, slots=True)
class GroupTime:
    """One size of a collective over `ranks` GPUs (0: not said). It measures no pair.

    `bus_bytes_per_us` is nccl-tests' bus bandwidth, which is held against the slowest link of the group
    (nccl-tests, doc/PERFORMANCE.md); 0 where it is not said.
    """

    operation: str
    ranks: int
    size_bytes: int
    us: float
    bus_bytes_per_us: float
    line: int


@dataclass(frozen=True, slots=True)
class Readout:
    """What one file held. `notes` say what was left out and why; `warnings` name damaged lines."""

    tool: str
    pairs: tuple[Measurement, ...] = ()
    groups: tuple[GroupTime, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class Warnings:
    """A bounded list of damaged lines."""

    found: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, line: int, what: str) -> None:
        """One damaged line; beyond MAX_WARNINGS they are only counted."""
        if len(self.found) < MAX_WARNINGS:
            self.found.append(f"line {line}: {what}")
        else:
            self.more += 1

    def all(self) -> tuple[str, ...]:
        """For the readout."""
        more = (f"and {self.more} more lines like these",) if self.more else ()
        return (*self.found, *more)


def unique(notes: Iterable[str]) -> tuple[str, ...]:
    """Each note once, in order."""
    return tuple(dict.fromkeys(notes))
