"""How far apart two devices of one PCI tree are, in nvidia-smi's words, from what stands above each of them.

Rule (legend of `nvidia-smi topo -m`; the same in NVIDIA/nccl src/graph/paths.cc): one bridge between them is PIX,
several PXB, only the processor in common PHB, different processors SYS. A tree that a virtual machine made up says
nothing: with an unknown NUMA node and no bridge anywhere the answer is `unknown`, not the nearest word.
"""

from __future__ import annotations

from collections.abc import Sequence

from topology.graph.link_words import PHB, PIX, PXB, SYS, UNKNOWN


def distance(above_a: Sequence[str], above_b: Sequence[str], *, trusted: bool = True) -> str:
    """The word for two devices; each sequence is what is above one, its processor first, then bridges downwards.

    `trusted` is False where the processor's NUMA node is not known.
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
