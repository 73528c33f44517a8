"""Free whole GPUs of every node by PCI root, for nodes whose GPUs are under several of them.

Rules of this file. (1) Only nodes that an agent sees and that give out whole GPUs are looked at; GPUs that NVLink joins
are under one root whatever PCIe says. (2) Which GPUs are in use is the kubelet's word where an agent brings it; pods
that it does not know yet have the lowest indices that remain, as NVIDIA's plugin gives single GPUs out. (3) Nodes that
did not change are not counted again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topology.facts.report import NodeFacts
from topology.gpus.capacity import NodeGpus
from topology.gpus.forms import MIG_PREFIX, WHOLE
from topology.gpus.table import GpuStatic

Ints = NDArray[np.int64]

InUse = Mapping[str, Collection[str]]
"""By node name: UUIDs of the whole GPUs and MIG instances that the kubelet gave to containers."""


class RootCapacity(NamedTuple):
    """Nodes with several roots (n,), ascending indices into the node table, and the free GPUs under each (n, S)."""

    nodes: Ints
    free: Ints


def gpus_in_use(facts: NodeFacts) -> tuple[str, ...] | None:
    """UUIDs of whole GPUs and MIG instances that containers of a node have, sorted; None where the kubelet says
    nothing. A device is named by UUID, or by index where the plugin is set so (NVIDIA/k8s-device-plugin,
    `--device-id-strategy`)."""
    if facts.pods is None:
        return None
    by_index = {str(gpu.index): gpu.uuid for gpu in facts.gpus if gpu.index is not None}
    known = {gpu.uuid for gpu in facts.gpus}
    known |= {each.uuid for gpu in facts.gpus if gpu.mig for each in gpu.mig.instances if each.uuid}
    found: set[str] = set()
    for held in facts.pods.holdings:
        if held.resource == WHOLE.count or held.resource.startswith(MIG_PREFIX):
            found.update(by_index.get(device, device) for device in held.device_ids)
    return tuple(sorted(found & known))


def whole_in_use(devices: NodeGpus, units: int, in_use: Collection[str]) -> tuple[bool, ...]:
    """Which cards are taken when pods hold `units` of them: those the kubelet names, then the lowest that remain."""
    named = [i for i, uuid in enumerate(devices.uuids) if uuid and uuid in in_use][:units]
    rest = [i for i, healthy in enumerate(devices.healthy) if healthy and i not in named]
    taken = {*named, *rest[: units - len(named)]}
    return tuple(i in taken for i in range(len(devices.healthy)))


def changed_nodes(nodes: Ints, names: Sequence[str], now: tuple[Ints, InUse], before: tuple[Ints, InUse]) -> Ints:
    """Those of `nodes` of which other amounts (N,) are used, or other GPUs in use, than before."""
    (used, in_use), (used_before, in_use_before) = now, before
    differ = used_before[nodes] != used[nodes]
    if in_use_before is not in_use:
        each = (in_use.get(names[node]) is not in_use_before.get(names[node]) for node in nodes.tolist())
        differ |= np.fromiter(each, dtype=bool, count=len(nodes))
    changed: Ints = nodes[differ]
    return changed


def root_capacity(static: GpuStatic, names: Sequence[str], used_gpus: Ints, in_use: InUse) -> RootCapacity:
    """The room by root at one moment: `used_gpus` (N,) as amounts count it."""
    nodes = static.rooted
    if not len(nodes):
        return RootCapacity(nodes, np.zeros((0, 0), dtype=np.int64))
    if static.last_roots is None:
        changed, free = nodes, np.zeros((len(nodes), static.width), dtype=np.int64)
    else:
        used_before, before, free = static.last_roots
        changed = changed_nodes(nodes, names, (used_gpus, in_use), (used_before, before))
        free = free.copy()
    for node in changed.tolist():
        devices = static.devices[node]
        assert devices.links is not None, "it is in `rooted`"
        taken = whole_in_use(devices, int(used_gpus[node]), in_use.get(names[node], ()))
        row = np.zeros(static.width, dtype=np.int64)
        for root, busy, healthy in zip(devices.links.roots, taken, devices.healthy, strict=True):
            row[root] += healthy and not busy
        free[np.searchsorted(nodes, node)] = row
    free.setflags(write=False)
    static.last_roots = used_gpus, in_use, free
    return RootCapacity(nodes, free)
