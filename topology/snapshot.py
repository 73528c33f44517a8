"""The snapshot: facts at one moment, immutable. The only thing a decision may look at.

Rules of this file. (1) A NodeTable changes only when nodes do and is shared by all snapshots in between; what pods
hold is a small array copied into each snapshot. (2) Arrays are read-only once here. (3) `with_assumed` gives a new
snapshot: a plan counts what was planned before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from topology.domains import chain_of, membership
from topology.labels import HOSTNAME
from topology.objects import HyperNode, Node, PodSpec
from topology.reach import ReachModel, links_of
from topology.resources import GPU, Amounts, parse_amounts
from topology.selectors import accepts

Amount2D = NDArray[np.int64]
Mask = NDArray[np.bool_]
_ACCEPT_CACHE_LIMIT = 512


class NodeTable:
    """Nodes by index, sorted by name: names, labels, domains, reach, capacity. Rebuilt when a node changes."""

    def __init__(self, nodes: Iterable[Node], hypernodes: Iterable[HyperNode] = ()) -> None:
        self.nodes: tuple[Node, ...] = tuple(sorted(nodes, key=lambda n: n.metadata.name))
        self.names: tuple[str, ...] = tuple(n.metadata.name for n in self.nodes)
        self.index: dict[str, int] = {name: i for i, name in enumerate(self.names)}
        told = membership(self.nodes, hypernodes)
        self.chains = tuple(chain_of(n, told) for n in self.nodes)
        self.reach = ReachModel(self.chains, [links_of(n) for n in self.nodes])
        capacities: list[Amounts] = []
        self.unreadable: dict[str, str] = {}
        for node in self.nodes:
            try:
                capacities.append(parse_amounts(node.status.allocatable, "status.allocatable"))
            except ValueError as bad:
                # One node with a broken quantity costs only itself: it has no room and says why.
                self.unreadable[node.metadata.name] = str(bad)
                capacities.append({})
        self.resources: tuple[str, ...] = tuple(sorted({name for c in capacities for name in c}))
        self.column: dict[str, int] = {name: i for i, name in enumerate(self.resources)}
        self.allocatable: Amount2D = np.array(
            [[c.get(name, 0) for name in self.resources] for c in capacities], dtype=np.int64
        ).reshape(len(self.nodes), len(self.resources))
        self.allocatable.setflags(write=False)
        self.hostnames: tuple[str, ...] = tuple(n.metadata.label(HOSTNAME) for n in self.nodes)
        self.named: Mask = np.array([bool(h) for h in self.hostnames], dtype=bool)
        self._accepts: dict[bytes, Mask] = {}
        self._groups: dict[str, tuple[Amount2D, tuple[str, ...]]] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def accept_mask(self, spec: PodSpec) -> Mask:
        """Nodes that are up and that the pod's selector, affinity and tolerations accept, shape (N,). Cached."""
        key = msgspec.json.encode((spec.node_selector, spec.affinity, spec.tolerations), order="sorted")
        mask = self._accepts.get(key)
        if mask is None:
            mask = np.fromiter((accepts(spec, n) for n in self.nodes), dtype=bool, count=len(self.nodes))
            mask.setflags(write=False)
            if len(self._accepts) >= _ACCEPT_CACHE_LIMIT:
                self._accepts.clear()
            self._accepts[key] = mask
        return mask

    def label_groups(self, key: str) -> tuple[Amount2D, tuple[str, ...]]:
        """Nodes grouped by a label: a group number per node, shape (N,), -1 without the label; and the values."""
        if key not in self._groups:
            values = sorted({v for n in self.nodes if (v := n.metadata.label(key))})
            number = {v: i for i, v in enumerate(values)}
            codes = np.array([number.get(n.metadata.label(key), -1) for n in self.nodes], dtype=np.int64)
            self._groups[key] = codes, tuple(values)
        return self._groups[key]

    def mask_of(self, names: Iterable[str]) -> Mask:
        """The named nodes as a mask; names that are not here are left out."""
        mask = np.zeros(len(self), dtype=bool)
        mask[[self.index[n] for n in names if n in self.index]] = True
        return mask

    def vector(self, amounts: Mapping[str, int]) -> tuple[Amount2D, tuple[str, ...]]:
        """A request as a row over `resources`, and the resources asked for that no node has."""
        row = np.zeros(len(self.resources), dtype=np.int64)
        missing = []
        for name, amount in amounts.items():
            if (i := self.column.get(name)) is not None:
                row[i] = amount
            elif amount:
                missing.append(name)
        return row, tuple(sorted(missing))


@dataclass(frozen=True, slots=True)
class Assumed:
    """A pod that was planned or nominated and is not yet bound: where it is counted, and what it will hold."""

    node: str
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Facts at one moment. `used` counts bound and assumed pods, shape (N, R), same columns as the table."""

    id: str
    taken_at_s: float
    table: NodeTable
    used: Amount2D
    assumed: Mapping[str, Assumed] = field(default_factory=dict)
    facts_age_s: float = 0.0

    @property
    def free(self) -> Amount2D:
        """Allocatable minus used, shape (N, R). Negative where a node is overcommitted."""
        room: Amount2D = self.table.allocatable - self.used
        return room

    @property
    def gpu_column(self) -> int | None:
        """Column of whole GPUs, if any node has them."""
        return self.table.column.get(GPU)

    def with_assumed(self, pods: Mapping[str, Assumed]) -> Snapshot:
        """A new snapshot in which these pods hold their amounts too; a uid already assumed moves."""
        used = self.used.copy()
        merged = dict(self.assumed)
        for uid, pod in pods.items():
            if (before := merged.get(uid)) is not None and before.node in self.table.index:
                used[self.table.index[before.node]] -= self.table.vector(before.amounts)[0]
            if pod.node in self.table.index:
                used[self.table.index[pod.node]] += self.table.vector(pod.amounts)[0]
            merged[uid] = pod
        used.setflags(write=False)
        return replace(self, used=used, assumed=merged)

    def without_assumed(self, uids: Iterable[str]) -> Snapshot:
        """A new snapshot in which these assumed pods hold nothing. Unknown uids are no error."""
        used = self.used.copy()
        merged = dict(self.assumed)
        for uid in uids:
            pod = merged.pop(uid, None)
            if pod is not None and pod.node in self.table.index:
                used[self.table.index[pod.node]] -= self.table.vector(pod.amounts)[0]
        used.setflags(write=False)
        return replace(self, used=used, assumed=merged)


def room_for(free: Amount2D, need: Amount2D) -> Amount2D:
    """How many pods of this need fit on each node, shape (N,). A need of nothing fits a thousand times."""
    asked = need > 0
    if not asked.any():
        return np.full(len(free), 1000, dtype=np.int64)
    fits: Amount2D = (np.maximum(free[:, asked], 0) // need[asked]).min(axis=1)
    return fits


def snapshot_of(
    nodes: Sequence[Node], holdings: Iterable[tuple[str, Amounts]] = (), hypernodes: Iterable[HyperNode] = ()
) -> Snapshot:
    """A snapshot built at once from nodes and (node name, amounts held): for files, cases and tests."""
    table = NodeTable(nodes, hypernodes)
    used = np.zeros_like(table.allocatable)
    for name, amounts in holdings:
        if name in table.index:
            used[table.index[name]] += table.vector(amounts)[0]
    used.setflags(write=False)
    return Snapshot(id="s1", taken_at_s=0.0, table=table, used=used)
