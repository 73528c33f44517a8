"""One measured path between two places, at several sizes: what it says for a given size and time.

Formulas, all of them. Age is now less when it was measured.
  fresh     age <= fresh_s: the measurement counts as it is.
  fading    fresh_s < age < 2 fresh_s: weight w = 2 - age / fresh_s; the value is measured^w * modelled^(1 - w), since
            reaches lie decades apart and the way back should not depend on the unit.
  gone      age >= 2 fresh_s: the model alone.
  size      at most the smallest measured size: that size's time (a smaller message takes no longer); between two
            sizes: on the straight line, which is latency + size / bandwidth; above the largest: its time plus what the
            model, or the measured bandwidth, adds for the rest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from topology.reach.measurement import Measurement

NODE: Final = "node"
FABRIC: Final = "fabric"
LEAF: Final = "leaf"
SPINE: Final = "spine"
ZONE: Final = "zone"
TIERS: Final = (FABRIC, LEAF, SPINE, ZONE)
"""Domains, narrowest first."""

PROBE_FRESH_S: Final = 600.0
"""A probe is repeated within minutes: after ten without news it is on its way out."""
IMPORT_FRESH_S: Final = 30 * 86_400.0
"""A benchmark run says how the machine is built, which changes with the hardware and not by the minute."""
MAX_SIZES: Final = 16
RDMA: Final = "rdma"
TCP: Final = "tcp"


@dataclass(frozen=True, slots=True, order=True)
class MeasuredPlace:
    """A node, or a domain by its tier and label value."""

    tier: str
    name: str

    def __str__(self) -> str:
        return self.name if self.tier == NODE else f"{self.tier}:{self.name}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One-way p99 of one size, in microseconds, with what it rests on.

    `percentile` says what `reach_us` is: the statistic that was measured, or `mean x1.5` where it was widened;
    `transport` `rdma`, `tcp` or empty; `bytes_per_us` the bandwidth if that was measured instead (then `reach_us` is
    0).
    """

    size_bytes: int
    reach_us: float
    percentile: str
    count: int | None
    measured_at_s: float
    fresh_s: float = IMPORT_FRESH_S
    transport: str = ""
    bytes_per_us: float = 0.0

    def weight(self, now_s: float) -> float:
        """1 while fresh, then down to 0 at twice that age. A time ahead of ours counts as now."""
        age = max(0.0, now_s - self.measured_at_s)
        return min(1.0, max(0.0, 2.0 - age / self.fresh_s))


def sample_of(value: Measurement, measured_at_s: float, fresh_s: float) -> Sample | None:
    """A measurement as a sample; None where it says nothing about one message or one direction."""
    transport = {"RDMA": RDMA, "TCP": TCP}.get(value.transport, "")
    reach = value.reach_us
    if reach is None and (value.bytes_per_us is None or value.direction.value == "both ways at once"):
        return None
    return Sample(
        size_bytes=value.size_bytes,
        reach_us=reach or 0.0,
        percentile=value.reach_from,
        count=value.count,
        measured_at_s=value.time_s if value.time_s is not None else measured_at_s,
        fresh_s=fresh_s,
        transport=transport,
        bytes_per_us=value.bytes_per_us or 0.0,
    )


@dataclass(frozen=True, slots=True)
class Curve:
    """The samples of one path that count at one moment: times by ascending size, and a bandwidth if measured.

    `weight` is the freshest sample's.
    """

    times: tuple[Sample, ...]
    us_per_byte: float
    weight: float

    @property
    def oldest(self) -> Sample:
        """The sample that was measured first."""
        return min(self.times, key=lambda sample: (sample.measured_at_s, sample.size_bytes))

    @property
    def largest_bytes(self) -> int:
        """Above this size the curve is continued."""
        return self.times[-1].size_bytes

    def nearest(self, size_bytes: int) -> Sample:
        """The sample whose size is nearest, the smaller of two: what an explanation names."""
        return min(self.times, key=lambda s: (abs(s.size_bytes - size_bytes), s.size_bytes))

    def us(self, size_bytes: int) -> float:
        """The measured time at a size; above the largest only as far as a measured bandwidth goes on."""
        sizes = [sample.size_bytes for sample in self.times]
        at = bisect_left(sizes, size_bytes)
        if at == 0:
            return self.times[0].reach_us
        below = self.times[at - 1]
        if at == len(sizes):
            return below.reach_us + (size_bytes - below.size_bytes) * self.us_per_byte
        above = self.times[at]
        share = (size_bytes - below.size_bytes) / (above.size_bytes - below.size_bytes)
        return below.reach_us + share * (above.reach_us - below.reach_us)


def curve_of(samples: Iterable[Sample], transports: frozenset[str] | None, now_s: float) -> Curve | None:
    """What counts now on a path over one of `transports` (None: whichever); None if nothing does.

    Of one size the slowest counts, since the worst pair does. While anything is fresh, what fades is left out.
    """
    alive = [s for s in samples if (transports is None or s.transport in transports) and s.weight(now_s) > 0]
    timed = [s for s in alive if s.reach_us > 0]
    if not timed:
        return None
    weight = max(s.weight(now_s) for s in timed)
    slowest = _slowest(s for s in timed if weight < 1 or s.weight(now_s) >= 1)
    rates = [s.bytes_per_us for s in alive if s.bytes_per_us > 0]
    return Curve(slowest, 1 / min(rates) if rates else 0.0, weight)


def _slowest(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """The slowest of each size, the oldest of equal ones, by ascending size."""
    found: dict[int, Sample] = {}
    for sample in samples:
        known = found.get(sample.size_bytes)
        if known is None or (sample.reach_us, -sample.measured_at_s) > (known.reach_us, -known.measured_at_s):
            found[sample.size_bytes] = sample
    return tuple(found[size] for size in sorted(found))
