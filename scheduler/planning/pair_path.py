"""The way between the pods of a pair, hop by hop: GPUs and adapters by what agents saw, switches by file or labels.

It names and decides nothing: a plan is the same with and without it. What is not known is not guessed: a pair has no
hops unless an agent or a topology file knows them, and a side whose GPUs are not known begins at its node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from scheduler.evaluate.gpu_prediction import gpu_pick
from scheduler.model.decision import Decision, PairReach, Plan
from scheduler.model.gpu_pick import GpuPick
from scheduler.model.request import PodRequest
from topology.bad_input import BadInput
from topology.cluster.snapshot import Assumed, NodeTable, Snapshot
from topology.facts.report import NodeFacts
from topology.graph.hops import between_gpus, to_adapter
from topology.graph.network_map import NetworkMap
from topology.graph.of_facts import gpu_names, of_facts
from topology.graph.parts import Topology
from topology.labels import PREFILL
from topology.reach.measured_values import RDMA
from topology.reach.model import NO_DOMAIN

MOST_MACHINES: Final = 8
"""Graphs of machines that one plan may have made, 1.3 ms each; pairs on more of them have no hops."""

_MOST_DEVICES: Final = 64
"""GPUs and network cards of a machine whose graph is made; its links grow with their square."""


_Gpus = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of the GPUs of both pods of a pair, the prefill pod's first."""


def with_paths(plan: Plan, snapshot: Snapshot) -> Plan:
    """The plan with the hops of its worst pair, and of each planned pod's own, where they are known. `snapshot` is the
    one it was made on."""
    paths = _Paths(plan, snapshot)
    worst = paths.along(plan.worst) if plan.worst is not None else None
    decisions: dict[str, Decision] = {}
    for uid, decision in plan.decisions.items():
        pair = decision.partner
        named = paths.along(pair) if pair is not None else None
        decisions[uid] = decision if named is pair else replace(decision, partner=named)
    return replace(plan, worst=worst, decisions=decisions)


@dataclass(frozen=True, slots=True)
class _End:
    """Where a pod is: its node, and for a planned one the uid of the first pod there that requests the same."""

    node: int
    uid: str = ""


def _ends(plan: Plan, table: NodeTable) -> Mapping[str, _End]:
    """Where the pods of a plan are, by name, if that is one node."""
    bound = ((p.name, p.nodes[0]) for p in plan.request.partners if len(p.nodes) == 1)
    ends = {name: _End(table.index[node]) for name, node in bound if node in table.index}
    for member in plan.request.members:
        if (node := plan.places.get(member.uid)) is not None:
            ends[member.name] = _End(table.index[node], plan.equivalents.get(member.uid, member.uid))
    return ends


class _Paths:
    """Hops of pairs of one plan; each machine's graph is made when it is first needed."""

    def __init__(self, plan: Plan, snapshot: Snapshot) -> None:
        self._plan, self._snapshot, self._table = plan, snapshot, snapshot.table
        self._ends = _ends(plan, snapshot.table)
        self._members = {member.uid: member for member in plan.request.members}
        self._machines: dict[int, Topology | None] = {}
        self._picks: dict[_End, tuple[str, ...]] = {}
        self._known: dict[tuple[_End, _End], tuple[str, ...]] = {}

    def along(self, pair: PairReach) -> PairReach:
        """The pair with its hops, from the prefill pod to the decode pod; the same object where they are not known."""
        here, there = self._ends.get(pair.prefill), self._ends.get(pair.decode)
        if here is None or there is None:
            return pair
        if (here, there) not in self._known:
            self._known[here, there] = self._hops(here, there)
        hops = self._known[here, there]
        return replace(pair, hops=hops) if hops else pair

    def _hops(self, here: _End, there: _End) -> tuple[str, ...]:
        reach = self._table.reach
        if self._beyond(here.node) or self._beyond(there.node):
            return ()
        gpus = self._gpus(here), self._gpus(there)
        if here.node == there.node:
            return self._inside(here, there, gpus)
        if reach.zone[here.node] != reach.zone[there.node]:
            return ()  # nothing between zones is known
        if reach.fabric[here.node] == reach.fabric[there.node] != NO_DOMAIN:
            return self._over_nvlink(here, there, gpus)
        return self._over_network(here, there, gpus)

    def _inside(self, here: _End, there: _End, gpus: _Gpus) -> tuple[str, ...]:
        """Between the GPUs of one machine."""
        machine = self._machine(here.node)
        if set(gpus[0]) & set(gpus[1]):  # each decision says what its pod would get with all others there
            gpus = self._in_order(here), self._in_order(there)
        return between_gpus(machine, *gpus) if machine is not None else ()

    def _over_nvlink(self, here: _End, there: _End, gpus: _Gpus) -> tuple[str, ...]:
        """From GPU to GPU through the NVLink domain of both nodes; from a node where its GPUs are not known."""
        if not any(gpus):
            return ()
        start, end = (of[:1] or (self._table.names[at.node],) for of, at in zip(gpus, (here, there), strict=True))
        return (*start, f"NVLink domain {self._table.chains[here.node].fabric}", *end)

    def _over_network(self, here: _End, there: _End, gpus: _Gpus) -> tuple[str, ...]:
        """From GPU to adapter, over the switches of the network, and the same way in."""
        rdma = RDMA in (self._table.reach.transports(here.node, there.node) or ())
        out = [self._out(end, of, rdma=rdma) for end, of in zip((here, there), gpus, strict=True)]
        adapters = tuple(way[-1] if rdma and len(way) == 3 else "" for way in out)
        between = self._switches(here.node, there.node, (adapters[0], adapters[1]), labels=any(gpus))
        return (*out[0], *between, *reversed(out[1])) if between else ()

    def _switches(self, here: int, there: int, adapters: tuple[str, str], *, labels: bool) -> tuple[str, ...]:
        """The way between two nodes as a topology file has it, else, with `labels`, as the nodes' labels say."""
        table, network = self._table, self._table.file.network
        first, last = (table.file.host(table.nodes[node]) or "" for node in (here, there))
        if network is not None and first in network.cables and last in network.cables:
            return network.way(first, last, adapters)
        if not labels:
            return ()
        names = table.names[here], table.names[there]
        chains = {name: table.chains[node] for name, node in zip(names, (here, there), strict=True)}
        return NetworkMap.of_chains(chains).way(*names)

    def _out(self, end: _End, gpus: tuple[str, ...], *, rdma: bool) -> tuple[str, ...]:
        """From the GPU to its adapter; over TCP, or where that is not known, to the node."""
        name, machine = self._table.names[end.node], self._machine(end.node)
        if machine is None or not gpus:
            return (name,)
        way = to_adapter(machine, gpus, _live_adapters(self._table.seen_devices[name])) if rdma else ()
        return way or (gpus[0], name)

    def _gpus(self, end: _End) -> tuple[str, ...]:
        """The names of a planned pod's GPUs, as its decision says, else as they would be picked in order; nothing where
        nobody knows them."""
        if end not in self._picks:
            known = end.uid and self._machine(end.node) is not None
            pick = self._plan.decisions[end.uid].pick if known else None
            self._picks[end] = self._named(end, pick) if pick is not None or not known else self._in_order(end)
        return self._picks[end]

    def _in_order(self, end: _End) -> tuple[str, ...]:
        """The GPUs that a pod gets if the pods of its gang are bound by phase and name: no two get the same."""
        places, name = self._plan.places, self._table.names[end.node]
        there = sorted((m for uid, m in self._members.items() if places.get(uid) == name), key=_order)
        mine = self._members[end.uid]
        before = {m.uid: Assumed(name, m.amounts, m.hold) for m in there if _order(m) < _order(mine)}
        return self._named(end, gpu_pick(self._snapshot.with_assumed(before), mine, end.node))

    def _named(self, end: _End, pick: GpuPick | None) -> tuple[str, ...]:
        if pick is None:
            return ()
        uuids = self._table.gpus.devices[end.node].uuids
        names = gpu_names(self._table.seen_devices[self._table.names[end.node]].gpus)
        return tuple(names[uuids[i]] for i in pick.gpus if i < len(uuids) and uuids[i] in names)

    def _beyond(self, node: int) -> bool:
        """Whether a machine's graph would be one too many."""
        known = node in self._machines or self._table.names[node] not in self._table.seen_devices
        return not known and len(self._machines) >= MOST_MACHINES

    def _machine(self, node: int) -> Topology | None:
        name = self._table.names[node]
        facts = self._table.seen_devices.get(name)
        if facts is None or len(facts.gpus) + len(facts.nics) > _MOST_DEVICES:
            return None
        if node not in self._machines and not self._beyond(node):
            try:
                self._machines[node] = of_facts(name, facts)
            except BadInput:  # an agent's names that no graph can hold cost its own node's paths
                self._machines[node] = None
        return self._machines.get(node)


def _live_adapters(facts: NodeFacts) -> list[str]:
    return [nic.name for nic in facts.nics if nic.rdma and any(port.active for port in nic.ports)]


def _order(member: PodRequest) -> tuple[bool, str, str]:
    """Prefill first, then by name."""
    return member.phase != PREFILL, member.name, member.uid
