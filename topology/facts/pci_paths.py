"""How far two PCI functions of one machine are from each other, from where the kernel found them.

A path is the chain of names from the root complex (`pci0000:16`) over bridges down to the function. The words are
those of `nvidia-smi topo -m` (its legend is the public definition). A PCIe switch shows as one bridge upstream and one
downstream for each port, so that two functions behind one switch have one bridge each below their common one.
"""

from __future__ import annotations

from collections.abc import Sequence

from topology.facts.report import Distance


def distance(
    a: Sequence[str], b: Sequence[str], a_numa: int | None, b_numa: int | None, numa_nodes: int = 0
) -> Distance | None:
    """None where a path is missing. `numa_nodes` of the machine: with one, an unknown node is that one.

    Two functions of unknown NUMA nodes on a machine with several count as far apart.
    """
    if not a or not b:
        return None
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    if common == 0:
        if numa_nodes == 1 or (a_numa is not None and a_numa == b_numa):
            return Distance.NODE
        return Distance.SYS
    if common == len(a) == len(b):
        return Distance.SAME
    if common == 1:
        return Distance.PHB
    # Bridges below the common one, the functions themselves left out.
    return Distance.PIX if max(len(a), len(b)) - common - 1 <= 1 else Distance.PXB
