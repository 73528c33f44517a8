"""What the agents of nodes saw, as far as it may be used: fresh and stale facts count, expired ones are left out.

Each part of the facts by itself: with NVML lost, the network cards still count. It keeps the last word of every agent,
so that facts that expired count again as soon as the agent is heard. It says what a change touches: a node table is
made anew only where something that counted no longer does, or the other way round. No clock: ages come in.
"""

from __future__ import annotations

from collections.abc import Mapping

from topology.cluster.agent_gpus import AgentGpus, agent_gpus
from topology.cluster.agent_links import AgentLinks, agent_links
from topology.facts.age import AgedParts, FactPart, Freshness
from topology.facts.report import NodeFacts
from topology.gpus.roots import gpus_in_use

_NO_LINKS, _NO_GPUS = AgentLinks(), AgentGpus()
_IN_TABLE = (FactPart.GPUS, FactPart.NETWORK)


class AgentsView:
    """By node name. `aged` are the nodes of whose facts a part is not fresh. It and `in_use` are new mappings after a
    change, never altered."""

    def __init__(self) -> None:
        self._links: dict[str, AgentLinks] = {}
        self._gpus: dict[str, AgentGpus] = {}
        self._hardware: dict[str, tuple[object, ...]] = {}  # what the links and cards were made of
        self._devices: dict[str, NodeFacts] = {}  # the same without readings, of which a graph can be made
        self._in_use: dict[str, tuple[str, ...]] = {}
        self._pods: dict[str, tuple[object, object]] = {}  # what the devices in use were read from
        self._counted: Mapping[str, tuple[str, ...]] | None = {}
        self.pods_heard = 0  # changes of what the kubelets say
        self.aged: Mapping[str, AgedParts] = {}

    def hear(self, node: str, facts: NodeFacts) -> bool:
        """One agent's facts; whether they say anything else than before that a node table is made of."""
        self._hear_pods(node, facts)
        now = _hardware(facts)
        if (before := self._hardware.get(node)) is not None and _same(before, now):
            return False  # nothing but readings that move by the second: half a millisecond a report is saved
        self._hardware[node] = now
        self._devices[node] = NodeFacts(state=facts.state, gpus=facts.gpus, pairs=facts.pairs, nics=facts.nics)
        links, gpus = agent_links(facts), agent_gpus(facts)
        if links == self._links.get(node, _NO_LINKS) and gpus == self._gpus.get(node, _NO_GPUS):
            return False
        self._links[node], self._gpus[node] = links, gpus
        return self._expired(node) != set(_IN_TABLE)

    def _hear_pods(self, node: str, facts: NodeFacts) -> None:
        if (before := self._pods.get(node)) is not None and before[0] is facts.pods and before[1] is facts.gpus:
            return
        self._pods[node] = facts.pods, facts.gpus
        in_use = gpus_in_use(facts)
        if in_use == self._in_use.get(node):
            return
        if in_use is None:
            del self._in_use[node]
        else:
            self._in_use[node] = in_use
        self._counted = None
        self.pods_heard += 1

    @property
    def in_use(self) -> Mapping[str, tuple[str, ...]]:
        """UUIDs of the whole GPUs that containers have, by node, without those of which the kubelet's word expired."""
        if self._counted is None:
            expired = {node for node, aged in self.aged.items() if _is_expired(aged, FactPart.PODS)}
            self._counted = {node: in_use for node, in_use in self._in_use.items() if node not in expired}
        return self._counted

    def forget(self, node: str) -> None:
        """The node is gone. How old its agent's facts are stays known: the agent may outlive the Node object."""
        for retained in (self._links, self._hardware, self._pods, self._devices):
            retained.pop(node, None)
        self._gpus.pop(node, None)
        if self._in_use.pop(node, None) is not None:
            self._counted = None

    def knows(self, node: str) -> bool:
        """Whether anything that an agent saw of this node is kept."""
        return node in self._links

    def grow_old(self, changes: Mapping[str, AgedParts]) -> bool:
        """Nodes of whose facts another part is not fresh now, nothing for all fresh again; whether anything came to
        count or no longer does."""
        before = {node: self._expired(node) for node in changes}
        aged = {**self.aged, **changes}
        for node, parts in changes.items():
            if not parts:
                del aged[node]
        self.aged = aged
        self._counted = None
        return any(self.knows(node) and before[node] != self._expired(node) for node in changes)

    @property
    def links(self) -> dict[str, AgentLinks]:
        """Links of every node, without those whose facts expired."""
        return {
            node: links.without(gpus=FactPart.GPUS in old, network=FactPart.NETWORK in old)
            for node, links in self._links.items()
            if (old := self._expired(node)) != set(_IN_TABLE)
        }

    @property
    def last_links(self) -> Mapping[str, AgentLinks]:
        """Links of every node, however old: what is published of a node stays while its agent is silent."""
        return self._links

    @property
    def gpus(self) -> dict[str, AgentGpus]:
        """Cards of every node, without those whose facts expired."""
        return {
            node: gpus.without(gpus=FactPart.GPUS in old, network=FactPart.NETWORK in old)
            for node, gpus in self._gpus.items()
            if (old := self._expired(node)) != set(_IN_TABLE)
        }

    @property
    def devices(self) -> dict[str, NodeFacts]:
        """GPUs, network cards and how far they are apart, of every node of whose facts neither part expired."""
        return {node: facts for node, facts in self._devices.items() if not self._expired(node)}

    def _expired(self, node: str) -> set[FactPart]:
        """The parts that a node table may not use."""
        aged = self.aged.get(node)
        if aged is None:
            return set()
        return {part for part in _IN_TABLE if _is_expired(aged, part)}


def _hardware(facts: NodeFacts) -> tuple[object, ...]:
    """Everything that links and cards are made of; what moves by the second left out."""
    memory = tuple((m.uuid, m.kind, m.total_bytes, m.reserved_bytes) for m in facts.memory)
    return facts.gpus, facts.pairs, facts.nics, (facts.state.gpudirect, memory)


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Of what a change does not name the report has the very same object as before."""
    return all(a is b for a, b in zip(one[:3], other[:3], strict=True)) and one[3] == other[3]


def _is_expired(aged: AgedParts, part: FactPart) -> bool:
    return part in aged and aged[part].freshness is Freshness.EXPIRED
