"""The snapshot: facts at one moment, immutable. The only thing a decision may look at.

Rules of this file. (1) A NodeTable changes only when nodes do and is shared by all snapshots in between; what pods
hold is a small array copied into each snapshot. (2) Arrays are read-only once here. (3) `with_assumed` gives a new
snapshot: a plan counts what was planned before it. (4) The table of GPUs is made when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from topology.cluster.agent_gpus import AgentGpus
from topology.cluster.agent_links import AgentLinks
from topology.cluster.domain_sources import NO_FILE, FilePlaces, Sources
from topology.facts.age import AgedParts, AgentAge, ages_of
from topology.facts.report import NodeFacts
from topology.fragmentation.pod_mix import NO_MIX, Mix
from topology.gpus.allocation_book import AllocationBook
from topology.gpus.allocations import GpuAllocation, NodeAllocations
from topology.gpus.capacity import NodeGpus, lists_whole_gpus_in_vain, node_gpus
from topology.gpus.mig_seen import SeenMig
from topology.gpus.rails import RailCapacity, rail_capacity
from topology.gpus.roots import InUse, RootCapacity, root_capacity
from topology.gpus.table import GpuStatic, GpuTable, table_at
from topology.labels import HOSTNAME
from topology.objects import HyperNode, Node, PodSpec
from topology.reach.domains import membership
from topology.reach.model import ReachModel, links_of
from topology.resources import GPU, Amounts, parse_amounts
from topology.selectors import accepts

Amount2D = NDArray[np.int64]
Mask = NDArray[np.bool_]
_ACCEPT_CACHE_LIMIT = 512
_VECTOR_CACHE_LIMIT = 4096
_NOTHING_SEEN = AgentLinks()


class NodeTable:
    """Nodes by index, sorted by name: names, labels, domains, reach, capacity. Rebuilt when a node changes."""

    # complexity: one column after the other; comprehensions alone
    def __init__(
        self,
        nodes: Iterable[Node],
        hypernodes: Iterable[HyperNode] = (),
        seen: Mapping[str, AgentLinks] | None = None,
        devices: Mapping[str, AgentGpus] | None = None,
        file: FilePlaces = NO_FILE,
        seen_devices: Mapping[str, NodeFacts] | None = None,
    ) -> None:
        self.nodes: tuple[Node, ...] = tuple(sorted(nodes, key=lambda n: n.metadata.name))
        # Copies, one after the other in memory: looking up names that lie among all of their nodes is twice as slow.
        self.names: tuple[str, ...] = tuple(n.metadata.name.encode().decode() for n in self.nodes)
        self.index: dict[str, int] = dict(zip(self.names, list(range(len(self.names))), strict=True))
        reported = membership(self.nodes, hypernodes)
        agents = [(seen or {}).get(name, _NOTHING_SEEN) for name in self.names]
        sources = Sources(seen or {}, file)
        self.chains = tuple(sources.chain(node, reported) for node in self.nodes)
        links = [agent.refine(links_of(node)) for agent, node in zip(agents, self.nodes, strict=True)]
        self.reach: ReachModel = ReachModel(self.chains, links)
        self._agent_gpus = dict(devices or {})
        self.file = file  # for explaining paths, as are the devices that agents saw
        self.seen_devices: Mapping[str, NodeFacts] = seen_devices or {}
        capacities: list[Amounts] = []
        self.unreadable: dict[str, str] = {}
        for node in self.nodes:
            try:
                capacity = parse_amounts(node.status.allocatable, "status.allocatable")
                if self.gpus_are_split(self.index[node.metadata.name]):
                    capacity[GPU] = 0
                capacities.append(capacity)
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
        self._devices: list[GpuStatic] = []
        self._accepts: dict[bytes, Mask] = {}
        self._vectors: dict[tuple[tuple[str, int], ...], tuple[Amount2D, tuple[str, ...]]] = {}
        self._groups: dict[str, tuple[Amount2D, tuple[str, ...]]] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def with_reach(self, reach: ReachModel) -> NodeTable:
        """The same nodes with another reach between them; what was read of their GPUs is shared."""
        other = copy(self)
        other.reach = reach
        return other

    @property
    def gpus(self) -> GpuStatic:
        """The cards of every node, read when first asked for; a copy of the table shares them."""
        if not self._devices:
            self._devices.append(GpuStatic(self.gpus_of(i) for i in range(len(self))))
        return self._devices[0]

    def gpus_of(self, node: int) -> NodeGpus:
        """The cards of one node, as it says itself and as its agent sees them."""
        devices, agent = node_gpus(self.nodes[node]), self._agent_gpus.get(self.names[node])
        return devices if agent is None else agent.refine(devices)

    def mig_of(self, node: int) -> SeenMig | None:
        """Where the MIG instances of one node are, if its agent sees that."""
        agent = self._agent_gpus.get(self.names[node])
        return agent.mig if agent is not None else None

    def gpus_are_split(self, node: int) -> bool:
        """Whether every GPU of the node is in MIG mode."""
        agent = self._agent_gpus.get(self.names[node])
        return lists_whole_gpus_in_vain(self.nodes[node]) or (agent is not None and agent.all_split)

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
        """A request as a row over `resources`, not to be written to, and the resources asked for that no node has."""
        key = tuple(amounts.items())
        if (known := self._vectors.get(key)) is not None:
            return known
        row = np.zeros(len(self.resources), dtype=np.int64)
        missing = []
        for name, amount in amounts.items():
            if (i := self.column.get(name)) is not None:
                row[i] = amount
            elif amount:
                missing.append(name)
        row.setflags(write=False)
        if len(self._vectors) >= _VECTOR_CACHE_LIMIT:
            self._vectors.clear()
        self._vectors[key] = row, tuple(sorted(missing))
        return self._vectors[key]


@dataclass(frozen=True, slots=True)
class Assumed:
    """A pod that was planned or nominated and is not yet bound: where it is counted, and what it will hold.

    `hold` is its part of the node's cards, where amounts do not say it all.
    """

    node: str
    amounts: Amounts
    hold: GpuAllocation | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Facts at one moment. `used` counts bound and assumed pods, shape (N, R), same columns as the table; `holds` those
    of them that have parts of cards, by node name; `mix` is what pods the cluster is asked to run;
    `aged` are nodes with the parts of their agents' facts that are stale or, left out of the table, expired;
    `in_use` are the whole GPUs that the kubelets say containers have, where agents bring their word."""

    id: str
    taken_at_s: float
    table: NodeTable
    used: Amount2D
    assumed: Mapping[str, Assumed] = field(default_factory=dict)
    facts_age_s: float = 0.0
    holds: Mapping[str, NodeAllocations] = field(default_factory=dict)
    mix: Mix = NO_MIX
    aged: Mapping[str, AgedParts] = field(default_factory=dict)
    in_use: InUse = field(default_factory=dict)
    # Not given on: whoever replaces what is used gets a table of its own.
    _gpus: list[GpuTable] = field(default_factory=list, init=False, repr=False, compare=False)
    _rails: list[RailCapacity] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def free(self) -> Amount2D:
        """Allocatable minus used, shape (N, R). Negative where a node is overcommitted."""
        capacity: Amount2D = self.table.allocatable - self.used
        return capacity

    def agent_ages(self, nodes: Iterable[str]) -> tuple[AgentAge, ...]:
        """What is not fresh of these nodes' agents' facts, by name; of one node, equally old parts together."""
        if not self.aged:
            return ()
        old = [node for node in sorted(set(nodes)) if node in self.aged]
        return tuple(age for node in old for age in ages_of(node, self.aged[node], self.taken_at_s))

    @property
    def gpu_column(self) -> int | None:
        """Column of whole GPUs, if any node has them."""
        return self.table.column.get(GPU)

    def root_capacity(self) -> RootCapacity:
        """Free whole GPUs by PCI root, of nodes where they are under several."""
        column, table = self.gpu_column, self.table
        used = np.zeros(len(table), dtype=np.int64) if column is None else self.used[:, column]
        return root_capacity(table.gpus, table.names, used, self.in_use)

    def rail_capacity(self) -> RailCapacity:
        """Free whole GPUs and network rails, of nodes whose agents tell the rails; looked at once."""
        if not self._rails:
            column, table = self.gpu_column, self.table
            used = np.zeros(len(table), dtype=np.int64) if column is None else self.used[:, column]
            self._rails.append(rail_capacity(table.gpus, table.names, used, self.in_use))
        return self._rails[0]

    @property
    def gpus(self) -> GpuTable:
        """Every card of every node at this moment, made when first asked for and then kept."""
        if not self._gpus:
            column = self.gpu_column
            used = np.zeros(len(self.table), dtype=np.int64) if column is None else self.used[:, column]
            table = self.table
            self._gpus.append(table_at(table.gpus, table.names, table.index, used, AllocationBook(self.holds)))
        return self._gpus[0]

    def at(self, taken_at_s: float, facts_age_s: float, table: NodeTable) -> Snapshot:
        """The same facts at a later moment; `table` differs at most in measured reach."""
        same = replace(self, taken_at_s=taken_at_s, facts_age_s=facts_age_s, table=table)
        object.__setattr__(same, "_gpus", self._gpus)
        return same

    def with_assumed(self, pods: Mapping[str, Assumed]) -> Snapshot:
        """A new snapshot in which these pods hold their amounts too; a uid already assumed moves."""
        return self._changed(pods, pods)

    def without_assumed(self, uids: Iterable[str]) -> Snapshot:
        """A new snapshot in which these assumed pods hold nothing. Unknown uids are no error."""
        return self._changed(uids, {})

    def _changed(self, gone: Iterable[str], pods: Mapping[str, Assumed]) -> Snapshot:
        used, merged = self.used.copy(), dict(self.assumed)
        holds: AllocationBook | None = None
        changes = [(uid, pod, -1) for uid in gone if (pod := merged.pop(uid, None)) is not None]
        for uid, pod, sign in (*changes, *((uid, pod, 1) for uid, pod in pods.items())):
            if (i := self.table.index.get(pod.node)) is not None:
                used[i] += sign * self.table.vector(pod.amounts)[0]
            if pod.hold is not None:
                holds = AllocationBook(self.holds) if holds is None else holds
                holds.change(pod.node, uid, pod.hold if sign > 0 else None)
        merged.update(pods)
        used.setflags(write=False)
        return replace(self, used=used, assumed=merged, holds=self.holds if holds is None else holds)


def capacity_for(free: Amount2D, need: Amount2D) -> Amount2D:
    """How many pods of this need fit on each node, shape (N,). A need of nothing fits a thousand times."""
    asked = need > 0
    if not asked.any():
        return np.full(len(free), 1000, dtype=np.int64)
    fits: Amount2D = (np.maximum(free[:, asked], 0) // need[asked]).min(axis=1)
    return fits


def snapshot_of(
    nodes: Sequence[Node],
    holdings: Iterable[tuple[str, Amounts]] = (),
    hypernodes: Iterable[HyperNode] = (),
    holds: Iterable[tuple[str, str, GpuAllocation]] = (),
) -> Snapshot:
    """A snapshot built at once from nodes, (node name, amounts held) and (node name, uid, part of its cards): for
    files, cases and tests."""
    table = NodeTable(nodes, hypernodes)
    used = np.zeros_like(table.allocatable)
    for name, amounts in holdings:
        if name in table.index:
            used[table.index[name]] += table.vector(amounts)[0]
    used.setflags(write=False)
    parts = AllocationBook()
    for name, uid, hold in holds:
        parts.change(name, uid, hold)
    return Snapshot(id="s1", taken_at_s=0.0, table=table, used=used, holds=parts)
