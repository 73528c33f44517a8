"""MIG instances of whole nodes: which memory slices are taken on each card, and what one instance more does to it.

Where the instances of a card sit is known from its agent alone (topology/gpus/mig_seen.py); what nodes publish are
counts by profile. So without an agent a layout is predicted: all cards of a node alike, the largest instances first,
and pods on the first cards. The measure is that of topology/gpus/mig_placement.py, over the mix of profiles that pods
ask for. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from topology.cluster.snapshot import Snapshot
from topology.gpus.capacity import GPU_COUNT, NodeGpus
from topology.gpus.forms import MIG_PREFIX
from topology.gpus.mig_placement import best_start, fragmentation, layout, taken
from topology.gpus.mig_profiles import MigGpu, base_name, mig_gpu

Counts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class MigNode:
    """One node's cards, and for each the set of slices that pods hold (bit i for slice i). Always a prediction: counts
    do not say which card an instance is on."""

    gpu: MigGpu
    used: tuple[int, ...]


def mig_node(devices: NodeGpus, count: int, offered: Mapping[str, int], held: Mapping[str, int]) -> MigNode | None:
    """A node by counts: `count` cards, instances `offered` and `held` by profile. None where the card is unknown,
    offers no instances, or its counts fit no layout."""
    instances = tuple(sorted((name, n) for name, n in offered.items() if n > 0))
    known = mig_gpu(devices.model, max(devices.memory_mib, default=0))
    if known is None or not instances or count < 1:
        return None
    places = _layouts(known, count, instances)
    if places is None:
        return None
    left = {base_name(name): n for name, n in held.items() if n > 0}
    used = []
    for placed in places:
        mine = []
        for name, start in placed:
            if left.get(base_name(name), 0) > 0:
                left[base_name(name)] -= 1
                mine.append((name, start))
        used.append(taken(known, mine))
    return MigNode(known, tuple(used))


@lru_cache(maxsize=512)
def _layouts(gpu: MigGpu, count: int, instances: Counts) -> tuple[tuple[tuple[str, int], ...], ...] | None:
    """Instances over cards: each card takes the largest that still fit, so nodes of one configuration are alike."""
    todo = [name for name, n in instances for _ in range(n)]
    sizes = {name: profile.size for name in todo if (profile := gpu.profile(name)) is not None}
    todo = sorted((name for name in todo if name in sizes), key=lambda name: (-sizes[name], name))
    each = -(-len(todo) // count)
    on_gpu: list[list[str]] = [[] for _ in range(count)]
    for name in todo:
        order = sorted(range(count), key=lambda i: (len(on_gpu[i]) >= each, len(on_gpu[i]), i))
        for i in order:
            if layout(gpu, [*on_gpu[i], name]) is not None:
                on_gpu[i].append(name)
                break
        else:
            return None
    found = [layout(gpu, names) for names in on_gpu]
    return tuple(placed for placed in found if placed is not None)


def fragmentation_added(node: MigNode, profile: str, mix: Mapping[str, float]) -> float:
    """What one more instance adds to the fragmentation of the node's cards, summed over cards, on the card and at the
    start that harm least. Negative where it fills a gap; infinite where no card has a place."""
    best = np.inf
    for used in set(node.used):
        start = best_start(node.gpu, used, profile, mix)
        if start is None:
            continue
        after = used | taken(node.gpu, [(profile, start)])
        best = min(best, fragmentation(node.gpu, after, mix) - fragmentation(node.gpu, used, mix))
    return float(best)


def mig_cost(
    snapshot: Snapshot,
    nodes: NDArray[np.int64],
    profiles: Sequence[str],
    mix: Mapping[str, float],
    used: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """`fragmentation_added` of a pod's first profile on the nodes asked, (n,); 0 where nothing is known of a node's
    cards, so that an unknown node is neither good nor bad. `used` (n, R) are the amounts held on these nodes, where
    they are not those of the snapshot."""
    table = snapshot.table
    columns = {name.removeprefix(MIG_PREFIX): i for name, i in table.column.items() if name.startswith(MIG_PREFIX)}
    if not profiles or not columns or not len(nodes):
        return np.zeros(len(nodes))
    names, at, weights = tuple(columns), list(columns.values()), tuple(sorted(mix.items()))
    of_count, counts = table.label_groups(GPU_COUNT)
    static, width = table.gpus, len(at)
    size = static.memory_mib[nodes].max(axis=1, initial=0)
    held_there = snapshot.used[nodes] if used is None else used
    rows = np.column_stack(
        [table.allocatable[nodes][:, at], held_there[:, at], static.model_kind[nodes], size, of_count[nodes]]
    )
    # Nodes in one state are alike; a row's bytes are its state.
    text, each, equivalent = rows.tobytes(), rows.itemsize * rows.shape[1], dict[bytes, float]()
    placement_cost = np.zeros(len(nodes))
    for place in range(len(nodes)):
        state = text[place * each : (place + 1) * each]
        node = int(nodes[place])
        if (seen := table.mig_of(node)) is not None:
            held_by = dict(zip(names, rows[place, width : 2 * width].tolist(), strict=True))
            in_use = snapshot.in_use.get(table.names[node], ())
            placement_cost[place] = seen.added(in_use, held_by, profiles[0], weights) or 0.0
            continue
        if state not in equivalent:
            row = rows[place].tolist()
            offered, held, (kind, mib, group) = tuple(row[:width]), tuple(row[width:-3]), row[-3:]
            number = int(counts[group]) if group >= 0 and counts[group].isdigit() else 1
            equivalent[state] = _cost_of(static.models[kind], mib, number, names, offered, held, profiles[0], weights)
        placement_cost[place] = equivalent[state]
    return placement_cost


@lru_cache(maxsize=16384)
def _cost_of(
    model: str,
    mib: int,
    count: int,
    names: tuple[str, ...],
    offered: tuple[int, ...],
    held: tuple[int, ...],
    profile: str,
    mix: tuple[tuple[str, float], ...],
) -> float:
    devices = NodeGpus(model=model, memory_mib=(mib,) if mib else ())
    node = mig_node(devices, count, dict(zip(names, offered, strict=True)), dict(zip(names, held, strict=True)))
    added = fragmentation_added(node, profile, dict(mix)) if node is not None else 0.0
    return added if np.isfinite(added) else 0.0
