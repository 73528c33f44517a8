"""What the hub knows of every node with an agent: the last facts, when they came, what is to be answered.

Decides whether a report fits what is known, and how old facts are. Pure: time comes in as an argument (monotonic
seconds), messages come in decoded. It must never know how they travelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from topology.bad_input import BadInput
from topology.facts import agent_pb2 as wire
from topology.facts import delta as facts_delta
from topology.facts import wire as facts_wire
from topology.facts.age import AgeLimits, FactPart, Freshness, PartAges, part_ages
from topology.facts.report import NodeFacts, ReachSample

PROTOCOL: Final = 1
MOST_AGENTS: Final = 20_000
FORGET_S: Final = 3600.0  # after this long the facts of a silent node are dropped altogether


@dataclass(frozen=True, slots=True)
class Known:
    """The newest facts of one node. `stream` counts the streams of this node, so that an old one cannot write."""

    node: str
    boot_id: str
    stream: int
    sequence: int
    heard_s: float
    facts: NodeFacts | None = None
    agent_version: str = ""
    probe_address: str | None = None


Changed = Callable[[str, NodeFacts | None, NodeFacts], None]
"""node, facts before, facts now"""


class HubState:
    """For one event loop or one thread."""

    def __init__(self, limits: AgeLimits | None = None, *, on_change: Changed | None = None) -> None:
        self.limits = limits or AgeLimits()
        self._known: dict[str, Known] = {}
        self._streams = 0
        self._on_change = on_change
        self.reports = {"full": 0, "delta": 0, "refused": 0}
        self.full_wanted = 0

    # --- what streams say ----------------------------------------------------------------------------

    def hello(self, sequence: int, hello: wire.Hello, now_s: float) -> int:
        """The number of this node's new stream; streams of it before this one may not write any more.

        Facts of the same boot stay until the full report that follows. Raises BadInput.
        """
        if hello.protocol != PROTOCOL:
            raise BadInput("protocol", hello.protocol, f"this hub speaks {PROTOCOL}")
        if not hello.node or len(hello.node) > 253:
            raise BadInput("node", hello.node, "name the Kubernetes node")
        if sequence != 1:
            raise BadInput("sequence", sequence, "a stream starts with 1")
        before = self._known.get(hello.node)
        if before is None and len(self._known) >= MOST_AGENTS:
            raise BadInput("node", hello.node, f"{MOST_AGENTS} agents report already, which is the most")
        self._streams += 1
        same_boot = before is not None and before.boot_id == hello.boot_id
        self._known[hello.node] = Known(
            node=hello.node,
            boot_id=hello.boot_id[:64],
            stream=self._streams,
            sequence=1,
            heard_s=before.heard_s if before is not None and same_boot else now_s,
            facts=before.facts if before is not None and same_boot else None,
            agent_version=hello.agent_version[:64],
            probe_address=hello.probe_address[:300] if hello.HasField("probe_address") else None,
        )
        return self._streams

    def report(self, node: str, stream: int, message: wire.AgentMessage, now_s: float) -> wire.HubMessage:
        """Takes a report over, or asks for a full one. Raises BadInput for one that nobody can use, and Superseded."""
        known = self._known.get(node)
        if known is None or known.stream != stream:
            raise Superseded(node)
        full = message.HasField("full")
        if not full and not message.HasField("delta"):
            self.reports["refused"] += 1
            raise BadInput("body", message.WhichOneof("body"), "after the Hello come full reports and changes")
        gap = message.sequence != known.sequence + 1
        if not full and (gap or known.facts is None):
            why = f"expected message {known.sequence + 1}, got {message.sequence}" if gap else "no full report yet"
            return self._want_full(known, message.sequence, why)
        try:
            if full:
                facts = facts_wire.read_full(message.full)
            else:
                assert known.facts is not None, "asked for above"
                facts = facts_delta.apply(known.facts, message.delta)
        except BadInput as bad:
            self.reports["refused"] += 1
            if full:
                raise
            return self._want_full(known, message.sequence, str(bad))
        self.reports["full" if full else "delta"] += 1
        self._known[node] = replace(known, sequence=message.sequence, heard_s=now_s, facts=facts)
        if self._on_change is not None:
            self._on_change(node, known.facts, facts)
        return wire.HubMessage(ack=wire.Ack(sequence=message.sequence))

    def _want_full(self, known: Known, sequence: int, why: str) -> wire.HubMessage:
        self.full_wanted += 1
        self._known[known.node] = replace(known, sequence=sequence)
        return wire.HubMessage(full_wanted=wire.FullWanted(why=why))

    def forget_silent(self, now_s: float) -> list[str]:
        """Drops nodes that were silent for an hour, or for as long as facts may be old; gives their names."""
        limit_s = max(FORGET_S, self.limits.expired_s)
        gone = [name for name, known in self._known.items() if now_s - known.heard_s > limit_s]
        for name in gone:
            del self._known[name]
        return gone

    # --- what others ask -----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._known)

    def nodes(self) -> list[str]:
        """Names of all nodes that have an agent, sorted."""
        return sorted(self._known)

    def known(self, node: str) -> Known | None:
        """All that is known of a node."""
        return self._known.get(node)

    def facts(self, node: str, now_s: float) -> tuple[NodeFacts, PartAges] | None:
        """A node's facts and how old each part of them is; None without an agent.

        Expired facts are given too, so that they can be shown; whoever decides leaves them out.
        """
        known = self._known.get(node)
        if known is None or known.facts is None:
            return None
        return known.facts, part_ages(known.facts, known.heard_s, now_s, self.limits)

    def ages(self, now_s: float) -> Iterator[tuple[str, PartAges]]:
        """Every node with facts, and how old each part of them is."""
        for name in self._known:
            if (found := self.facts(name, now_s)) is not None:
                yield name, found[1]

    def count(self, now_s: float) -> dict[FactPart, dict[Freshness, int]]:
        """Nodes by part and freshness."""
        found = {part: dict.fromkeys(Freshness, 0) for part in FactPart}
        for _, ages in self.ages(now_s):
            for part, age in ages.items():
                found[part][age.freshness] += 1
        return found

    def oldest(self, now_s: float) -> dict[FactPart, float]:
        """The age in seconds of the oldest facts of each part; nothing without an agent."""
        found: dict[FactPart, float] = {}
        for _, ages in self.ages(now_s):
            for part, age in ages.items():
                found[part] = max(found.get(part, 0.0), age.age_s)
        return found

    def measured(self) -> Iterator[tuple[str, ReachSample]]:
        """Every measurement known: (from which node, sample), sorted by node, peer, size."""
        for name in sorted(self._known):
            facts = self._known[name].facts
            for sample in facts.reach if facts else ():
                yield name, sample


class Superseded(Exception):  # noqa: N818  # says what happened
    """The node has a newer stream; this one must end."""
