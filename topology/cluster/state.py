"""What the cluster holds right now, kept from watch changes; gives snapshots.

It keeps, it does not decide: nodes, what pods hold on them, which live pods form which gang, and what was planned and
is not yet bound. No I/O and no clock: changes come in as (old, new) pairs, time as an argument.

A pod counts where it is bound; before that, once it is released, where its nomination says, and while it is gated where
it was planned (`assume`). So a successor that only lists sees the same room as the process that planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from topology.cluster.agent_facts import AgentsView
from topology.cluster.domain_sources import NO_FILE, FilePlaces, Sources
from topology.cluster.measured_layer import MeasuredLayer
from topology.cluster.snapshot import Assumed, NodeTable, Snapshot
from topology.facts.age import AgedParts
from topology.facts.report import NodeFacts
from topology.fragmentation.pod_mix import PodMix
from topology.fragmentation.pod_shape import PodShape, shape_of
from topology.gpus.allocation_book import AllocationBook
from topology.gpus.allocations import GpuAllocation, allocation_of
from topology.gpus.devices import REGISTERS
from topology.gpus.pod_demands import InternedDemands
from topology.labels import DECISION, GANG, GATE, PHASE, PHASES
from topology.measured.reach import MeasuredReach
from topology.objects import HyperNode, Node, Pod
from topology.reach.model import ReachModel
from topology.resources import Amounts

GangKey = tuple[str, str]
"""(namespace, gang)."""


def gang_key(pod: Pod) -> GangKey | None:
    """The gang of a pod by its labels, or None for a pod that is none of ours."""
    labels = pod.metadata.labels
    if not labels or not (gang := labels.get(GANG)) or labels.get(PHASE) not in PHASES:
        return None
    return pod.metadata.namespace, gang


def _facts(node: Node) -> tuple[Any, ...]:
    """Everything about a node that a decision depends on; heartbeats change none of it."""
    meta, spec = node.metadata, node.spec
    gpus = [(key, meta.annotation(key)) for key in REGISTERS] if meta.annotations else None
    return meta.labels, gpus, spec.unschedulable, spec.taints, node.status.allocatable, node.ready


class ClusterState:
    """The current truth, as far as it was heard. `capacity_generation` rises whenever capacity may have appeared."""

    def __init__(self) -> None:
        self.version = 0
        self.capacity_generation = 0
        self.unreadable_pods: dict[str, str] = {}
        self.measured = MeasuredLayer()
        self._agents = AgentsView()
        self._nodes: dict[str, Node] = {}
        self._hypernodes: dict[str, HyperNode] = {}
        self._file = NO_FILE
        self._table: NodeTable | None = None
        self._gangs: dict[GangKey, dict[str, Pod]] = {}
        self._gang_of: dict[str, GangKey] = {}  # by pod uid
        self._changed: set[GangKey] = set()  # whose pods, or what is assumed of them, changed
        self._held: dict[str, Assumed] = {}  # by pod uid: bound pods
        self._assumed: dict[str, Assumed] = {}  # by pod uid: planned or nominated, not bound
        self._used = np.zeros((0, 0), dtype=np.int64)
        self._holds = AllocationBook()  # by node name: pods that have parts of cards
        self._snapshot: Snapshot | None = None
        self._mix = PodMix()
        self._demands = InternedDemands()
        self._shapes: dict[str, PodShape] = {}  # by pod uid: pods with GPUs, placed or waiting

    # --- changes in ----------------------------------------------------------------------------

    def apply_nodes(self, changes: Iterable[tuple[Node | None, Node | None]]) -> bool:
        """Nodes that came, changed or went. A change that alters no fact (a heartbeat) is no change: then False."""
        changed = False
        for old, new in changes:
            if new is None:
                self._nodes.pop(_name(old), None)
                self.measured.forget_node(_name(old))
                self._agents.forget(_name(old))
            else:
                known = self._nodes.get(new.metadata.name)
                if known is not None and _facts(known) == _facts(new):
                    continue
                self._nodes[new.metadata.name] = new
            changed = True
        if changed:
            self._table = None
            self._new_version(grew=True)
        return changed

    def apply_hypernodes(self, changes: Iterable[tuple[HyperNode | None, HyperNode | None]]) -> None:
        """HyperNodes that came, changed or went."""
        for old, new in changes:
            if new is None:
                self._hypernodes.pop(_name(old), None)
            else:
                self._hypernodes[new.metadata.name] = new
            self._table = None
        self._new_version(grew=True)

    def apply_file(self, places: FilePlaces) -> int:
        """Where a topology file puts hosts, in place of what the file before said; how many nodes it names."""
        self._file = places
        self._table = None
        self._new_version(grew=True)
        return sum(places.of(node) is not None for node in self._nodes.values())

    def apply_facts(self, node: str, before: NodeFacts | None, now: NodeFacts) -> bool:
        """What a node's agent reports: its links, and what it measured to others since. Whether the links are new."""
        known = set(before.reach) if before is not None else set()
        self.measured.probe(node, [sample for sample in now.reach if sample not in known])
        pods_heard = self._agents.pods_heard
        if changed := self._agents.hear(node, now):
            self._table = None
            self._new_version(grew=True)
        elif pods_heard != self._agents.pods_heard:
            self._new_version(grew=False)
        return changed

    def apply_ages(self, changes: Mapping[str, AgedParts]) -> bool:
        """Nodes of whose agents' facts some parts became stale, expired, or fresh again: all parts that are not fresh
        now. Whether any facts came to count or no longer do: only then the node table is made anew."""
        counts = self._agents.grow_old(changes)
        if counts:
            self._table = None
        if changes:
            self._new_version(grew=counts)
        return counts

    def agent_known(self, node: str) -> bool:
        """Whether anything that an agent saw of this node is kept."""
        return self._agents.knows(node)

    def apply_pods(self, changes: Iterable[tuple[Pod | None, Pod | None]]) -> set[GangKey]:
        """Pods that came, changed or went. Returns the gangs that were touched."""
        enqueue: set[GangKey] = set()
        for old, new in changes:
            key = gang_key(new) if new is not None else None
            for each in (key, gang_key(old) if old is not None else None):
                if each is not None:
                    enqueue.add(each)
            if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
                self._forget(old)
            if new is not None:
                self._learn(new, old, key)
        return enqueue

    def assume(self, uid: str, node: str, amounts: Amounts, hold: GpuAllocation | None = None) -> None:
        """Count a planned pod on a node until it is bound, deleted or let go by `unassume`."""
        if uid not in self._held:
            self._move(self._assumed, uid, Assumed(node, amounts, hold))
            self._changed |= {self._gang_of[uid]} if uid in self._gang_of else set()

    def unassume(self, uid: str) -> None:
        """What was planned for a pod no longer counts; if it was seen released, its nomination does. Unknown uids are
        no error."""
        if uid in self._assumed:
            key = self._gang_of.get(uid)
            pod = self._gangs[key][uid] if key is not None else None
            self._changed |= {key} if key is not None else set()
            self._move(self._assumed, uid, self._commitments(pod) if pod is not None else None)

    def sources(self) -> Sources:
        """What says where nodes stand besides their labels, for publishing: the last word of silent agents too."""
        return Sources(self._agents.last_links, self._file)

    def capacity_freed(self) -> None:
        """Room that others booked beside what is counted here is free again."""
        self.capacity_generation += 1

    # --- truth out -----------------------------------------------------------------------------

    def table(self) -> NodeTable:
        """The node table, rebuilt if a node changed."""
        if self._table is None:
            self._table = NodeTable(
                self._nodes.values(),
                self._hypernodes.values(),
                self._agents.links,
                self._agents.gpus,
                self._file,
                self._agents.devices,
            )
            used = np.zeros_like(self._table.allocatable)
            for holding in (*self._held.values(), *self._assumed.values()):
                if (i := self._table.index.get(holding.node)) is not None:
                    used[i] += self._table.vector(holding.amounts)[0]
            self._used = used
        return self._table

    def table_at(self, now_s: float) -> NodeTable:
        """The node table with the reach that counts at this moment."""
        table = self.table()
        self.renew_measured(now_s)
        reach = self.reach()
        return table.with_reach(reach.at(now_s)) if isinstance(reach, MeasuredReach) else table

    def reach(self) -> ReachModel:
        """The reach that counts, measured where that was done; the same object until another one counts."""
        return self.measured.reach_over(self.table())

    def snapshot(self, now_s: float, facts_age_s: float) -> Snapshot:
        """Facts at this moment. The same object until something changes, but for its age."""
        table = self.table_at(now_s)
        if self._snapshot is None:
            used = self._used.copy()
            used.setflags(write=False)
            self._snapshot = Snapshot(
                id=str(self.version),
                taken_at_s=now_s,
                table=table,
                used=used,
                assumed=dict(self._assumed),
                holds=AllocationBook(self._holds),
                mix=self._mix.current(),
                aged=self._agents.aged,
                in_use=self._agents.in_use,
            )
        return self._snapshot.at(now_s, facts_age_s, table)

    def renew_measured(self, now_s: float) -> bool:
        """Let new measurements count, if it is time; whether any came to count. Snapshots do it by themselves."""
        renewed = self.measured.renew(self.table(), now_s)
        if renewed:
            self._new_version(grew=True)  # what was too far may be near enough now
        return renewed

    def gang_pods(self, namespace: str, gang: str) -> Sequence[Pod]:
        """All live pods of a gang (finished ones left out), by name."""
        pods = self._gangs.get((namespace, gang), {})
        return sorted(pods.values(), key=lambda p: p.metadata.name)

    def gangs(self) -> Mapping[GangKey, Mapping[str, Pod]]:
        """All gangs with live pods: key to pods by uid. Read only."""
        return self._gangs

    def take_changed(self) -> set[GangKey]:
        """Gangs whose pods, or what is assumed of them, changed since this was last asked; some may be gone."""
        changed, self._changed = self._changed, set()
        return changed

    def is_assumed(self, uid: str) -> bool:
        """Whether the pod is planned or nominated and not yet bound."""
        return uid in self._assumed

    # --- inside --------------------------------------------------------------------------------

    # complexity: one case a stage of a pod
    def _learn(self, pod: Pod, old: Pod | None, key: GangKey | None) -> None:
        uid = pod.metadata.uid
        if key is not None:
            self._changed.add(key)
        if self._gang_of.get(uid) != key:
            self._leave_gang(uid)
        if pod.finished:
            self._forget(pod)
            return
        if key is not None:
            self._gangs.setdefault(key, {})[uid] = pod
            self._gang_of[uid] = key
        if old is None or old.metadata.uid != uid:
            self._count(uid, pod)
        if pod.spec.node_name:
            held = self._held.get(uid)
            known = held is not None and held.node == pod.spec.node_name and old is not None and old.spec == pod.spec
            if known and held is not None and (_same_notes(pod, old) or held.hold == allocation_of(pod)):
                return  # its status moved on: nothing that we count
            place = Assumed(pod.spec.node_name, self._amounts(pod), allocation_of(pod))
            planned = self._assumed.get(uid)
            self._move(self._assumed, uid, None, grew=planned != place)
            self._move(self._held, uid, place)
        elif key is None:
            self._move(self._assumed, uid, None)
        elif not pod.has_gate(GATE):
            self._move(self._assumed, uid, self._commitments(pod))

    def _commitments(self, pod: Pod) -> Assumed | None:
        """Where a released pod is to go: its nomination, unless it is leaving."""
        node = pod.status.nominated_node_name
        if not node or not _released(pod) or pod.metadata.deletion_timestamp is not None:
            return None
        return Assumed(node, self._amounts(pod), allocation_of(pod))

    def _forget(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.unreadable_pods.pop(uid, None)
        self._leave_gang(uid)
        self._count(uid, None)
        self._move(self._held, uid, None)
        self._move(self._assumed, uid, None)

    def _count(self, uid: str, pod: Pod | None) -> None:
        """Let a pod count in the mix, or no longer."""
        if (before := self._shapes.pop(uid, None)) is not None:
            self._mix.remove(before)
        if pod is not None and (demand := self._demands.of(pod)).gpu is not None:
            shape = shape_of(demand.amounts, demand.gpu, pod.metadata.label(PHASE), pod.spec)
            self._shapes[uid] = shape
            self._mix.add(shape)

    def _leave_gang(self, uid: str) -> None:
        key = self._gang_of.pop(uid, None)
        if key is not None:
            self._changed.add(key)
            pods = self._gangs[key]
            del pods[uid]
            if not pods:
                del self._gangs[key]

    def _amounts(self, pod: Pod) -> Amounts:
        demand = self._demands.of(pod)
        if demand.problem:
            self.unreadable_pods[pod.metadata.uid] = demand.problem
        return demand.amounts

    def _move(self, book: dict[str, Assumed], uid: str, new: Assumed | None, *, grew: bool = True) -> None:
        """Replace one entry of a book and keep the used amounts right."""
        old = book.pop(uid, None)
        if old is None and new is None:
            return
        if new is not None:
            book[uid] = new
        if old == new:
            return
        for holding, hold in ((old, None), (new, new.hold if new is not None else None)):
            if holding is not None and holding.hold is not None:
                self._holds.change(holding.node, uid, hold)
        if self._table is not None:
            for holding, sign in ((old, -1), (new, 1)):
                if holding is not None and (i := self._table.index.get(holding.node)) is not None:
                    self._used[i] += sign * self._table.vector(holding.amounts)[0]
        self._new_version(grew=grew and old is not None)

    def _new_version(self, *, grew: bool) -> None:
        self.version += 1
        self.capacity_generation += int(grew)
        self._snapshot = None


def _name(obj: Node | HyperNode | None) -> str:
    return obj.metadata.name if obj is not None else ""


def _same_notes(pod: Pod, old: Pod | None) -> bool:
    """No annotation changed: one may say which cards the pod was given."""
    return old is not None and old.metadata.annotations == pod.metadata.annotations


def _released(pod: Pod) -> bool:
    """Let go by a plan of ours, not by hand."""
    return not pod.has_gate(GATE) and bool(pod.metadata.annotation(DECISION))
