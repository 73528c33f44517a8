"""The GPUs of a gang that belong under one PCI root: one pod of the rarer phase and its share of the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Group(NamedTuple):
    """GPUs that belong under one root, and how many such groups there are."""

    gpus: int
    groups: int


def group_of(prefill_gpus: Sequence[int], decode_gpus: Sequence[int]) -> Group | None:
    """The groups of a gang by the GPUs of each of its pods; None without both phases, or without GPUs."""
    count = min(len(prefill_gpus), len(decode_gpus))
    if not count:
        return None
    gpus = sum(max(each) * -(-len(each) // count) for each in (prefill_gpus, decode_gpus))
    return Group(gpus, count) if gpus else None
