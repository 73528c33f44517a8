"""From what a file measures to samples between named places: the sizes that stay, the worst where several measure one.

Pure. A file that names its ends needs no help; one that does not measures what its reader says it does. Of many sizes
one an octave stays, the size nearest to the power of two, MAX_SIZES in all around a page: more would change no reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from topology.bad_input import BadInput
from topology.labels import DEFAULT_REACH_SIZE_BYTES
from topology.measured.store import Pair
from topology.reach.measured_values import MAX_SIZES, NODE, MeasuredPlace, Sample, sample_of
from topology.reach.measurement import Measurement, Readout

TIMES_RETAINED: Final = MAX_SIZES - 1
"""One place is for a bandwidth."""


def samples_of(
    readout: Readout, ends: tuple[MeasuredPlace, MeasuredPlace] | None, measured_at_s: float, fresh_s: float
) -> dict[Pair, list[Sample]]:
    """By pair of places. `ends` names them for every value of the file; None: as the file does.

    Raises BadInput where nothing measures a pair, or nobody says which.
    """
    found: dict[Pair, list[Sample]] = {}
    nameless = 0
    for value in readout.pairs:
        sample = sample_of(value, measured_at_s, fresh_s)
        pair = ends or _ends(value)
        if sample is None:
            continue
        if pair is None:
            nameless += 1
            continue
        found.setdefault(pair, []).append(sample)
    if nameless:
        raise BadInput("--from and --to", "missing", "the file does not say between which nodes it was measured")
    if not found:
        raise BadInput("the file", readout.tool, "it measures no pair one way")
    return {pair: thinned(samples) for pair, samples in found.items()}


def _ends(value: Measurement) -> Pair | None:
    if not value.a.node or not value.b.node:
        return None
    return MeasuredPlace(NODE, value.a.node), MeasuredPlace(NODE, value.b.node)


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """One time an octave, at most TIMES_KEPT around a page, and the narrowest bandwidth. Of one size the slowest."""
    octaves: dict[int, Sample] = {}
    for sample in samples:
        if sample.reach_us <= 0:
            continue
        octave = round(math.log2(sample.size_bytes))
        held = octaves.get(octave)
        if held is None or _rank(sample, octave) < _rank(held, octave):
            octaves[octave] = sample
    page = round(math.log2(DEFAULT_REACH_SIZE_BYTES))
    near = sorted(octaves, key=lambda octave: (abs(octave - page), octave))[:TIMES_RETAINED]
    rates = [sample for sample in samples if sample.bytes_per_us > 0]
    narrowest = min(rates, key=lambda s: (-s.size_bytes, s.bytes_per_us), default=None)
    return [octaves[octave] for octave in sorted(near)] + ([narrowest] if narrowest is not None else [])


def _rank(sample: Sample, octave: int) -> tuple[float, float]:
    return abs(sample.size_bytes - 2.0**octave), -sample.reach_us
