"""Free whole GPUs of every node whose network rails an agent tells, and the rail beside each GPU.

Rules of this file. (1) Only nodes that an agent sees and that give out whole GPUs are looked at. (2) Which GPUs are in
use is what topology/gpus/roots.py says. (3) Nodes that did not change are not counted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topology.gpus.roots import InUse, changed_nodes, whole_in_use
from topology.gpus.sets import GpuLinks, plugin_set
from topology.gpus.table import GpuStatic

Ints = NDArray[np.int64]

_FEW = 8


class RailCapacity(NamedTuple):
    """Nodes whose rails are known (n,), ascending indices into the node table; their free and their taken GPUs as bits
    (n,); and which of `links` each has (n,)."""

    nodes: Ints
    free: Ints
    taken: Ints
    kind: Ints
    links: tuple[GpuLinks, ...]

    def at(self, node: int) -> int:
        """Where a node of the table is in these arrays; -1 where its rails are not known."""
        at = int(np.searchsorted(self.nodes, node))
        return at if at < len(self.nodes) and self.nodes[at] == node else -1


def rail_capacity(static: GpuStatic, names: Sequence[str], used_gpus: Ints, in_use: InUse) -> RailCapacity:
    """The rails and free GPUs at one moment: `used_gpus` (N,) as amounts count it."""
    nodes = static.railed
    if static.last_rails is None:
        changed, bits = nodes.tolist(), np.zeros((2, len(nodes)), dtype=np.int64)
    else:
        used_before, before, bits = static.last_rails
        changed = changed_nodes(nodes, names, (used_gpus, in_use), (used_before, before)).tolist()
        bits = bits.copy() if changed else bits
    if len(changed) > _FEW and not in_use:  # nobody tells which are in use: the lowest of those that are healthy
        at = np.searchsorted(nodes, changed)
        equivalent = static.healthy[changed].sum(axis=1) == static.count[changed]
        every, taken_bits = (1 << static.count[changed]) - 1, (1 << used_gpus[changed]) - 1
        bits[0, at], bits[1, at] = every & ~taken_bits, every & taken_bits
        changed = [node for node, simple in zip(changed, equivalent.tolist(), strict=True) if not simple]
    for node in changed:
        devices = static.devices[node]
        taken = whole_in_use(devices, int(used_gpus[node]), in_use.get(names[node], ()))
        at = np.searchsorted(nodes, node)
        bits[0, at] = sum(1 << i for i, busy in enumerate(taken) if devices.healthy[i] and not busy)
        bits[1, at] = sum(1 << i for i, busy in enumerate(taken) if devices.healthy[i] and busy)
    bits.setflags(write=False)
    static.last_rails = used_gpus, in_use, bits
    return RailCapacity(nodes, bits[0], bits[1], static.rail_kind, static.rail_links)


@lru_cache(maxsize=65_536)
def picked(links: GpuLinks, free: int, count: int) -> tuple[int, ...] | None:
    """The GPUs that NVIDIA's plugin would give a pod of those that are free, as bits; None where too few are."""
    return plugin_set(links, [bool(free >> gpu & 1) for gpu in range(len(links.link_types))], count)


def rails_of(links: GpuLinks, bits: int) -> frozenset[int]:
    """The rails beside these GPUs; a GPU without a live network card has none."""
    return frozenset(rail for gpu, rail in enumerate(links.rails) if rail is not None and bits >> gpu & 1)
