"""Prefill and decode under one PCI root: how many groups of a gang a node has that room for.

A group is one pod of the rarer phase and its share of the other: of 2 prefill and 4 decode pods two groups of one and
two. With both prefill pods under one root their pages all leave through it, at about half the throughput
(ai-dynamo/dynamo#10171). Which GPU a pod gets is the device plugin's choice and cannot be steered, so a node with such
room is preferred, and one with lopsided room is said to be that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.model.gang_group import Group, group_of
from topology.gpus.roots import RootCapacity
from topology.labels import DECODE, PREFILL

Ints = NDArray[np.int64]


class RootFit(NamedTuple):
    """By node of the table: groups that fit under one root each (N,), and that would if all free GPUs were under one
    (N,); 0 and 0 where nobody knows the roots."""

    fit: Ints
    wanted: Ints

    def lost(self, nodes: Ints) -> NDArray[np.float64]:
        """Share of the groups that would be torn, of each of these nodes."""
        wanted = self.wanted[nodes]
        share: NDArray[np.float64] = 1.0 - self.fit[nodes] / np.maximum(wanted, 1)
        return np.where(wanted > 0, share, 0.0)

    def of(self, node: int) -> tuple[int, int] | None:
        """(fit, wanted) of one node; None where the roots are not known or nothing would fit anyway."""
        return (int(self.fit[node]), int(self.wanted[node])) if self.wanted[node] else None


def root_fit(capacity: RootCapacity, size: int, group: Group) -> RootFit:
    """For a table of `size` nodes."""
    fit, wanted = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    whole = np.minimum(capacity.free.sum(axis=1) // group.gpus, group.groups)
    wanted[capacity.nodes] = whole
    fit[capacity.nodes] = np.minimum((capacity.free // group.gpus).sum(axis=1), whole)
    return RootFit(fit, wanted)


def split_share(capacity: RootCapacity, gpus_at: Mapping[int, Mapping[str, Sequence[int]]], groups: int) -> float:
    """Share of a gang's groups that a placement tears apart: `gpus_at` are the GPUs of its pods, by node and phase."""
    split_groups = 0
    for node, by_phase in gpus_at.items():
        at = int(np.searchsorted(capacity.nodes, node))
        group = group_of(by_phase.get(PREFILL, ()), by_phase.get(DECODE, ()))
        if group is None or at >= len(capacity.nodes) or capacity.nodes[at] != node:
            continue
        split_groups += max(0, group.groups - int((capacity.free[at] // group.gpus).sum()))
    return split_groups / max(groups, 1)
