"""The GPUs of all nodes as arrays: what scorers and planners look at.

Shapes: N nodes in the order of the node table, G cards (the most that any node has), column g is card index g. Cards of
nodes that count whole GPUs alone are predicted: the lowest indices are taken first. Arrays are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topology.gpus.allocation_book import AllocationBook
from topology.gpus.allocations import NodeAllocations, held_row
from topology.gpus.capacity import NodeGpus
from topology.gpus.forms import WHOLE
from topology.gpus.gpu_row import WHOLE_MILLI, GpuRow, left_milli
from topology.gpus.sets import GpuLinks

Int2D = NDArray[np.int64]
AllocationRows = Callable[[int], NodeAllocations | None]
"""What pods hold of a node's cards, by node index; None where amounts say everything."""


_MOST_SHARES: Final = 8


def _names_rails(devices: NodeGpus) -> bool:
    whole = devices.kind == WHOLE.name and devices.replicas <= 1
    return whole and devices.links is not None and devices.links.rails_known and bool(devices.links.rails)


class GpuStatic:
    """What does not change with pods: the cards of every node. Built once a node table."""

    # complexity: one array after the other; comprehensions alone
    def __init__(self, each: Iterable[NodeGpus]) -> None:
        self.devices: tuple[NodeGpus, ...] = tuple(each)
        count = len(self.devices)
        self.width = max((len(c.memory_mib) for c in self.devices), default=0)
        self.memory_mib: Int2D = np.zeros((count, self.width), dtype=np.int64)
        self.healthy: NDArray[np.bool_] = np.zeros((count, self.width), dtype=bool)
        for i, devices in enumerate(self.devices):
            size = len(devices.memory_mib)
            self.memory_mib[i, :size] = devices.memory_mib
            self.healthy[i, :size] = devices.healthy
        self.largest_mib: NDArray[np.int64] = self.memory_mib.max(axis=1, initial=0)
        """Memory of each node's largest card, (N,)."""
        self.count = np.array([len(c.memory_mib) for c in self.devices], dtype=np.int64)
        self.model = np.array([c.model for c in self.devices], dtype=object)
        kinds, form = np.unique(np.array([c.kind for c in self.devices], dtype=str), return_inverse=True)
        self.kinds: tuple[str, ...] = tuple(kinds.tolist())
        self.kind: NDArray[np.int64] = form.reshape(-1).astype(np.int64)  # (N,), counts into `kinds`
        models, kind = np.unique(np.array([c.model for c in self.devices], dtype=str), return_inverse=True)
        self.models: tuple[str, ...] = tuple(models.tolist())
        self.model_kind: NDArray[np.int64] = kind.reshape(-1).astype(np.int64)  # (N,), counts into `models`
        self.model_gpus: NDArray[np.int64] = np.bincount(
            self.model_kind, weights=self.count, minlength=len(self.models)
        ).astype(np.int64)
        self.isolates = np.array([c.isolates for c in self.devices], dtype=bool)
        self.listed = np.array([c.listed for c in self.devices], dtype=bool)
        self.replicas = np.array([c.replicas for c in self.devices], dtype=np.int64)
        self.plain = bool((self.replicas <= 1).all() and not self.listed.any())
        """Every card is counted once, the lowest free index taken first, but by pods that have parts of cards."""
        self.last: tuple[NDArray[np.int64], AllocationBook, GpuTable] | None = None
        """The last table made of these cards, and what it was made of: the next one differs on few nodes."""
        rooted = [i for i, c in enumerate(self.devices) if c.links is not None and c.links.roots]
        self.rooted = np.array(rooted, dtype=np.int64)
        """Nodes whose GPUs are under several PCI roots, as an agent sees them (topology/gpus/roots.py)."""
        self.last_roots: tuple[NDArray[np.int64], Mapping[str, Collection[str]], Int2D] | None = None
        """The last room by root, and what it was counted from."""
        railed = [i for i, c in enumerate(self.devices) if _names_rails(c)]
        self.railed = np.array(railed, dtype=np.int64)
        """Nodes that give out whole GPUs and whose network rails an agent tells (topology/gpus/rails.py)."""
        joined: dict[GpuLinks, int] = {}
        of = [joined.setdefault(links, len(joined)) for i in railed if (links := self.devices[i].links) is not None]
        self.rail_links: tuple[GpuLinks, ...] = tuple(joined)
        self.rail_kind = np.array(of, dtype=np.int64)
        self.last_rails: tuple[NDArray[np.int64], Mapping[str, Collection[str]], Int2D] | None = None
        self._shares: dict[int, Int2D] = {}
        for array in (self.memory_mib, self.healthy, self.count, self.isolates, self.listed, self.replicas):
            array.setflags(write=False)

    def share_mib(self, milli: int) -> Int2D:
        """So many thousandths of the memory of every card, MiB rounded down, (N, G). Divided once: it is what takes
        long, and what asks has few shares."""
        found = self._shares.get(milli)
        if found is None:
            if len(self._shares) >= _MOST_SHARES:
                self._shares.clear()
            found = self._shares[milli] = self.memory_mib * milli // WHOLE_MILLI
            found.setflags(write=False)
        return found


@dataclass(frozen=True, slots=True)
class GpuTable:
    """Every card at one moment.

    `memory_mib` (N, G): capacity, 0 where there is no card, it is broken, or nobody tells its memory.
    `left_milli` (N, G): free share in thousandths, 1000 for a card that nobody uses, 0 where there is none.
    `left_mib` (N, G): memory that nobody was promised, never negative. `prefill_peak_mib` (N, G): kept free for prefill
    peaks, once a card. `left_compute` (N, G): thousandths of the compute that no form has claimed. `phases` (N, G):
    bits 1 prefill, 2 decode. `users` (N, G): pods on the card, -1 once a pod has it whole or where there is none.
    `model` (N,): product names. `isolates` (N,): pods on one card cannot take each other's memory.
    `predicted` (N,): which card a pod has is a prediction. `overcommitted` (N,): more is held than there is.
    `doubts`: node index to why the node is partly unknown. `used_gpus` (N,) and `holds` are what it was made of.
    """

    static: GpuStatic
    memory_mib: Int2D
    left_milli: Int2D
    left_mib: Int2D
    prefill_peak_mib: Int2D
    left_compute: Int2D
    phases: Int2D
    users: Int2D
    model: NDArray[np.object_]
    isolates: NDArray[np.bool_]
    predicted: NDArray[np.bool_]
    overcommitted: NDArray[np.bool_]
    doubts: Mapping[int, tuple[str, ...]]
    used_gpus: NDArray[np.int64]
    holds: AllocationRows

    def row(self, node: int) -> GpuRow:
        """One node's cards as a row to plan on."""
        devices, held, units = self.static.devices[node], self.holds(node), int(self.used_gpus[node])
        if held is not None:
            return held.row(devices, units)
        if devices.replicas > 1 or (devices.listed and units):
            return held_row(devices, {}, units)
        size = len(devices.memory_mib)
        return GpuRow(
            left_mib=tuple(self.left_mib[node, :size].tolist()),
            left_compute=tuple(self.left_compute[node, :size].tolist()),
            peak_mib=(0,) * size,
            users=tuple(self.users[node, :size].tolist()),
            phases=(0,) * size,
        )


def table_at(
    static: GpuStatic,
    names: Sequence[str],
    index: Mapping[str, int],
    used_gpus: NDArray[np.int64],
    holds: AllocationBook,
) -> GpuTable:
    """The table of a moment, made from the last one of these cards: only nodes that differ from it are looked at,
    whichever way they came to differ. `names` (N,) and `index` are the nodes; the rest is as in `gpu_table`, but holds
    by node name. Neither may be changed afterwards."""

    def held(node: int) -> NodeAllocations | None:
        return holds.get(names[node])

    if static.last is None:
        made = _filled(static, used_gpus, held, np.arange(len(names)))
    else:
        before_used, before, table = static.last
        nodes = set(np.flatnonzero(before_used != used_gpus).tolist())
        # What a node holds is never changed in place, so other holds are another object.
        nodes.update(index[name] for name in holds.differing(before) if name in index)
        made = _changed(table, used_gpus, held, nodes)
    static.last = used_gpus, holds, made
    return made


def _changed(before: GpuTable, used_gpus: NDArray[np.int64], holds: AllocationRows, nodes: Iterable[int]) -> GpuTable:
    """The table after something changed on these nodes alone: the others are taken from `before`."""
    at = np.array(sorted(nodes), dtype=np.int64)
    if not len(at):
        return before
    part = _filled(before.static, used_gpus, holds, at)
    arrays = {}
    for name in _BY_NODE:
        whole, now = getattr(before, name), getattr(part, name)
        if (whole.take(at, axis=0) != now).any():
            arrays[name] = whole = whole.copy()
            whole[at] = now
            whole.setflags(write=False)
    doubts = before.doubts
    if doubts or part.doubts:
        gone = set(at.tolist())
        doubts = {node: why for node, why in doubts.items() if node not in gone} | dict(part.doubts)
    return replace(before, doubts=doubts, used_gpus=used_gpus, holds=holds, **arrays)


def gpu_table(
    static: GpuStatic, used_gpus: NDArray[np.int64], holds: Mapping[int, NodeAllocations] | None = None
) -> GpuTable:
    """The table of a moment. `used_gpus` (N,) is what amounts count as taken of nvidia.com/gpu; `holds` are the pods
    that ask for parts of cards, by node index."""
    return _filled(static, used_gpus, (holds or {}).get, np.arange(len(static.devices)))


_BY_NODE: Final = (
    "left_milli",
    "left_mib",
    "prefill_peak_mib",
    "left_compute",
    "phases",
    "users",
    "overcommitted",
)
"""Arrays that change with pods."""


def _filled(static: GpuStatic, used_gpus: NDArray[np.int64], holds: AllocationRows, at: NDArray[np.int64]) -> GpuTable:
    """The table of the nodes `at` alone: arrays in their order, doubts by node index."""
    units_of = used_gpus[at]
    taken = np.arange(static.width)[None, :] < units_of[:, None]
    free = static.healthy[at] & ~taken
    shares = np.where(free, WHOLE_MILLI, 0)
    left = np.where(free, static.memory_mib[at], 0)
    compute = shares.copy()
    peaks, phases = np.zeros_like(left), np.zeros_like(left)
    users = np.where(free, 0, -1)
    over = units_of > static.count[at] * static.replicas[at]
    doubts: dict[int, tuple[str, ...]] = {}
    # Where a card is counted several times, or by a plugin's own list, the lowest index is not the rule.
    special = (static.replicas[at] > 1) | (static.listed[at] & (units_of > 0))
    for i, (node, units, odd) in enumerate(zip(at.tolist(), units_of.tolist(), special.tolist(), strict=True)):
        held = holds(node)
        if held is None and not odd:
            continue
        devices = static.devices[node]
        row = held.row(devices, units) if held is not None else held_row(devices, {}, units)
        size = len(devices.memory_mib)
        shares[i, :size] = left_milli(devices, row)
        left[i, :size] = np.maximum(row.left_mib, 0)
        compute[i, :size] = row.left_compute
        peaks[i, :size] = row.peak_mib
        users[i, :size] = row.users
        phases[i, :size] = row.phases
        over[i] |= any(mib < 0 for mib in row.left_mib)
        if held is not None and (why := held.doubts()):
            doubts[node] = why
    for array in (shares, left, compute, peaks, users, phases, over):
        array.setflags(write=False)
    return GpuTable(
        static=static,
        memory_mib=static.memory_mib,
        left_milli=shares,
        left_mib=left,
        prefill_peak_mib=peaks,
        left_compute=compute,
        phases=phases,
        users=users,
        model=static.model,
        isolates=static.isolates,
        predicted=~static.listed,
        overcommitted=over,
        doubts=doubts,
        used_gpus=used_gpus,
        holds=holds,
    )
