"""Nodes within a bound of each other and of nobody else, as in a tree of switches: a gang is in one such clique."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from topology.cluster.snapshot import NodeTable

MOST_KINDS = 2_048
"""Kinds of nodes in the reach model above which comparing them all costs too much."""


def kinds_within(
    table: NodeTable, limit_us: float, size_bytes: int, kinds: NDArray[np.integer] | None = None
) -> NDArray[np.bool_]:
    """Whether a node of one kind is within the limit of another node of each kind, (kinds, kinds); of all kinds, or of
    these."""
    row = partial(table.reach.kind_row_us, size_bytes=size_bytes)
    asked = np.arange(len(table.reach.first)) if kinds is None else kinds
    near = np.array([row(kind)[asked] <= limit_us for kind in asked.tolist()], dtype=bool)
    return near.reshape(len(asked), len(asked))


def clique_numbers(table: NodeTable, within: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """A number for each node, (N,), equal for those within the limit of each other; None where nodes are near to the
    same others without being near to each other, so that there are no such cliques. `within` is `kinds_within`."""
    reach = table.reach
    if not len(table):
        return None
    rows, row_of = np.unique(within, axis=0, return_inverse=True)
    row_of, near = row_of.reshape(-1), np.diagonal(within)
    # Each kind is in exactly one row's clique: its own. A kind that is not even near its twins is near nobody.
    if (rows.sum(axis=0) != near).any() or not rows[row_of[near], np.flatnonzero(near)].all():
        return None
    numbers: NDArray[np.int64] = np.where(
        near[reach.kind], row_of[reach.kind], len(rows) + np.arange(len(table))
    ).astype(np.int64)
    return numbers
