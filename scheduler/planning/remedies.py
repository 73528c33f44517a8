"""What would help a held gang, found by trying: a few changes to the snapshot or the bound, each planned again.

Advice that was not tried is a guess, and a guess in an Event costs somebody an afternoon. Only changes of one thing
are tried, and only a few: the nodes that came closest, and the next steps of reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from scheduler.model.decision import Decision, Remedy
from scheduler.model.request import GangRequest, ReachBound
from scheduler.model.verdict import GPU_BYTES, GPUS, VerdictCode
from topology.cluster.snapshot import Amount2D, Snapshot
from topology.resources import GPU, MEMORY

WHAT_IF_SHARE = 100
"""A trial may spend this part of the search budget: enough for what fits, and little for what does not."""

MAX_TRIALS = 3
"""Trials per kind of change."""

_MAX_KINDS = 32
_FREED = {VerdictCode.INSUFFICIENT_GPU: GPU, VerdictCode.INSUFFICIENT_MEMORY: MEMORY}

Fits = Callable[[Snapshot, ReachBound], bool]


def remedies(
    gang: GangRequest, snapshot: Snapshot, decisions: Mapping[str, Decision], own: Amount2D, fits: Fits
) -> tuple[Remedy, ...]:
    """At most one change of each kind that makes the minimum fit: room on one node, then a wider bound.

    `own`, (N, R), is what the gang's pods hold: only what others hold can be freed for it.
    """
    found = (_free_capacity(gang, snapshot, decisions, own, fits), _wider_bound(gang, snapshot, fits))
    return tuple(remedy for remedy in found if remedy is not None)


def _free_capacity(
    gang: GangRequest, snapshot: Snapshot, decisions: Mapping[str, Decision], own: Amount2D, fits: Fits
) -> Remedy | None:
    """The smallest gap of a nearest miss whose closing makes the gang fit."""
    table = snapshot.table
    tries = {
        (miss.need - miss.have, miss.node, miss.unit, _FREED[code])
        for decision in decisions.values()
        for code, miss in decision.nearest.items()
        if code in _FREED and miss.unit not in (GPU_BYTES, GPUS)  # a card is not made emptier by a number
    }
    for gap, node, unit, resource in sorted(tries)[:MAX_TRIALS]:
        at, column = table.index[node], table.column[resource]
        free = int(max(snapshot.free[at, column], 0) + gap)
        if free > table.allocatable[at, column] or gap > snapshot.used[at, column] - own[at, column]:
            continue
        used = snapshot.used.copy()
        used[at, column] = table.allocatable[at, column] - free
        used.setflags(write=False)
        if fits(replace(snapshot, used=used), gang.bound):
            return Remedy(gap, unit, node)
    return None


def _wider_bound(gang: GangRequest, snapshot: Snapshot, fits: Fits) -> Remedy | None:
    """The smallest reach above the bound with which the gang fits, among the next few that occur between nodes."""
    reach, bound = snapshot.table.reach, gang.bound
    kinds = np.unique(reach.kind, return_index=True)[1][:_MAX_KINDS]
    if not len(kinds):
        return None
    occurring = np.unique(np.concatenate([reach.row_us(int(node), bound.size_bytes) for node in kinds]))
    for us in occurring[occurring > bound.us].tolist()[:MAX_TRIALS]:
        if fits(snapshot, replace(bound, us=us)):
            return Remedy(us, "us")
    return None
