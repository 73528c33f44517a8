"""The words people already read for how two devices of one machine are joined: those of `nvidia-smi topo -m`.

It decides which words exist, which of two is the farther one, and what a spelling of another driver generation means.
It invents no word but `unknown`: a source that cannot say is never read as "no link".

Source of words and order: legend of `nvidia-smi topo -m` (driver documentation); the order of NCCL's path types, best
to worst (NVIDIA/nccl src/graph/topo.h), agrees with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

SELF: Final = "X"
C2C: Final = "C2C"
PIX: Final = "PIX"
PXB: Final = "PXB"
PHB: Final = "PHB"
NODE: Final = "NODE"
SYS: Final = "SYS"
UNKNOWN: Final = "unknown"
HOP: Final = "hop"
"""Between machines: one cable of the network, machine to switch or switch to switch."""

PCIE_TYPES: Final = (PIX, PXB, PHB, NODE, SYS)
"""Best to worst: one PCIe switch, several, a host bridge, several host bridges of one NUMA node, across sockets."""

MAX_NVLINKS: Final = 64
"""More than any GPU has: NVML_NVLINK_MAX_LINKS is 36 (nvml.h)."""

ALLOWED: Final = f"a cell is X, NV1 to NV{MAX_NVLINKS}, C2C, PIX, PXB, PHB, NODE, SYS or N/A"

_NVLINK = re.compile(r"NV(\d{1,3})", re.ASCII)
_SAME = {"SOC": SYS, "N/A": UNKNOWN, "?": UNKNOWN}  # SOC: drivers before 2017 call SYS so
_RANK = {SELF: 0, C2C: 2, PIX: 3, PXB: 4, PHB: 5, NODE: 6, SYS: 7, UNKNOWN: 8}


def nvlink(count: int) -> str:
    """The word for a bond of `count` NVLinks."""
    return f"NV{count}"


def nvlinks(word: str) -> int:
    """How many NVLinks a word stands for; 0 for every other word."""
    match = _NVLINK.fullmatch(word)
    return int(match[1]) if match else 0


def word_of(cell: str) -> str | None:
    """The word that a cell of a matrix means, or None if it is none. NV0 is none: no link has words of its own."""
    cell = _SAME.get(cell, cell)
    if cell in _RANK:
        return cell
    return cell if 0 < nvlinks(cell) <= MAX_NVLINKS else None


def rank(word: str) -> int:
    """0 for oneself, 1 for NVLink, then worse by one a step up to 8 for `unknown`; 9 for the network."""
    return 1 if nvlinks(word) else _RANK.get(word, 9)


def agreed(one: str, other: str) -> str | None:
    """What two statements about one pair come to, None if they contradict each other.

    A statement beats `unknown`; of two bonds of NVLinks the smaller counts, since a pair is as fast as its slower
    direction.
    """
    if one == other or other == UNKNOWN:
        return one
    if one == UNKNOWN:
        return other
    if nvlinks(one) and nvlinks(other):
        return nvlink(min(nvlinks(one), nvlinks(other)))
    return None


def pcie_word(above_a: Sequence[str], above_b: Sequence[str], *, trusted: bool = True) -> str:
    """The word for two devices of one PCI tree; each sequence is what is above one, its processor first, then bridges
    downwards.

    Rule (the legend, and NVIDIA/nccl src/graph/paths.cc): one bridge between them is PIX, several PXB, only the
    processor in common PHB, different processors SYS. A tree that a virtual machine made up says nothing: with an
    unknown NUMA node and no bridge anywhere the answer is `unknown`, not the nearest word. `trusted` is False where
    the processor's NUMA node is not known.
    """
    if not above_a or not above_b:
        return UNKNOWN
    if above_a[0] != above_b[0]:
        return SYS if trusted else UNKNOWN
    common = 0
    for a, b in zip(above_a, above_b, strict=False):
        if a != b:
            break
        common += 1
    if common == 1:
        return PHB if trusted else UNKNOWN
    bridges = (len(above_a) - common) + (len(above_b) - common) + 1
    return PIX if bridges == 1 else PXB
