"""The pair of a running pod that counts against its bound, as things are now. Pure."""

from __future__ import annotations

from admission.gangs.gang_view import GangView
from scheduler.model.decision import PairReach
from topology.cluster.snapshot import NodeTable
from topology.labels import NEAREST, PHASE, PREFILL
from topology.objects import Pod


def worst_pair(pod: Pod, view: GangView, table: NodeTable) -> PairReach | None:
    """The bound partner of the other phase that decides: the farthest, or the nearest of all. None without one, or
    where the pod's own node is not known; ties by name."""
    here, phase, size = table.index.get(pod.spec.node_name), pod.metadata.label(PHASE), view.settings.reach_size_bytes
    if here is None:
        return None
    row_us = table.reach.row_us(here, size)
    partners = [
        (float(row_us[there]), other.metadata.name, there)
        for other in view.bound
        if other.metadata.label(PHASE) != phase and (there := table.index.get(other.spec.node_name)) is not None
    ]
    if not partners:
        return None
    _, name, there = (min if view.settings.pairing == NEAREST else max)(partners)
    prefill, decode = (pod.metadata.name, name) if phase == PREFILL else (name, pod.metadata.name)
    return PairReach(prefill, decode, table.reach.between(here, there, size))
