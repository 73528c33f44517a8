"""What was measured between places, as it comes in: bounded, the newest stays.

It keeps, it does not decide: no clock (time is an argument), no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topology.reach.measured_values import MAX_SIZES, NODE, MeasuredPlace, Sample

MAX_PAIRS: Final = 20_000
"""Pairs kept: some 10 MB. 5,000 agents that measure eight peers each, both ways, fit."""

Pair = tuple[MeasuredPlace, MeasuredPlace]


class MeasurementStore:
    """Samples by pair of places, each direction apart. `version` rises with every change."""

    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
        self.version = 0
        self.dropped = 0
        self._max_pairs = max_pairs
        self._pairs: dict[Pair, dict[tuple[bool, int, str, bool], Sample]] = {}
        self._merged: dict[Pair, tuple[Sample, ...]] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, a: MeasuredPlace, b: MeasuredPlace, samples: Iterable[Sample]) -> None:
        """Samples from one place to another. Of one size and transport the later measurement stays, whichever came
        first; of more than MAX_SIZES in all the oldest go, and of more than `max_pairs` the pair heard of longest ago.
        """
        pair = (a, b) if a <= b else (b, a)
        held = self._pairs.pop(pair, {})  # put in again at the end: the pair was heard of last
        changed = False
        for sample in samples:
            key = (a <= b, sample.size_bytes, sample.transport, sample.bytes_per_us > 0)
            known = held.get(key)
            if known is None or (sample.measured_at_s, sample.reach_us) > (known.measured_at_s, known.reach_us):
                held[key] = sample
                changed = True
        while len(held) > MAX_SIZES:
            held.pop(min(held, key=lambda key: (held[key].measured_at_s, -key[1])))
        if held:
            self._pairs[pair] = held
        while len(self._pairs) > self._max_pairs:
            self._drop(next(iter(self._pairs)))
            self.dropped += 1
        if changed:
            self._merged.pop(pair, None)
            self.version += 1

    def replace_all(self, given: Mapping[Pair, Iterable[Sample]]) -> None:
        """Everything anew: for what stands in a file."""
        self._pairs.clear()
        self._merged.clear()
        self.version += 1
        for (a, b), samples in given.items():
            self.add(a, b, samples)

    def forget_node(self, name: str) -> None:
        """A node that is no more takes its measurements along: one that comes back under its name is another."""
        place = MeasuredPlace(NODE, name)
        gone = [pair for pair in self._pairs if place in pair]
        for pair in gone:
            self._drop(pair)
        self.version += int(bool(gone))

    def expire(self, now_s: float) -> None:
        """Let go of what no longer counts."""
        for pair, held in list(self._pairs.items()):
            gone = [key for key, sample in held.items() if sample.weight(now_s) <= 0]
            for key in gone:
                del held[key]
            if gone:
                self._merged.pop(pair, None)
            if not held:
                self._drop(pair)

    def both_ways(self) -> dict[Pair, tuple[Sample, ...]]:
        """Pairs (first place <= second) with the samples of both directions. A pair that did not change since the last
        call has the same tuple."""
        for pair in self._pairs.keys() - self._merged.keys():
            self._merged[pair] = tuple(self._pairs[pair].values())
        return dict(self._merged)

    def _drop(self, pair: Pair) -> None:
        self._pairs.pop(pair, None)
        self._merged.pop(pair, None)
