"""Hypothesis strategies: clusters of at most six nodes and gangs of at most three and three, of every awkward kind.

A case is built from one string of bytes, one byte per choice: that draws twenty times faster than a strategy for each
choice, and still shrinks (zeros are the plainest choice everywhere).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

from scheduler.model.request import GangRequest, Partner, PodRequest, ReachBound
from tests.scheduler.clusters import node, partner, pod
from topology.cluster.snapshot import Snapshot, snapshot_of
from topology.labels import ALL_PAIRS, DECODE, HOSTNAME, NVLINK_CLIQUE, PHASES, PREFILL
from topology.objects import Metadata, Node, PodSpec
from topology.resources import Amounts

BOUNDS_US = (1000.0, 15.0, 24.0, 25.0, 100.0, 130.0, 3000.0)
"""Between the steps of the model: inside a node, RDMA in a leaf (24.4), PCIe (25.8), TCP in a leaf (79.2), in a spine
(119), in a zone (159), between zones (2,000)."""

T = TypeVar("T")
Held = list[tuple[str, Amounts]]


class Choices:
    """Answers one question after the other from a string of bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def of(self, options: Sequence[T]) -> T:
        """One of the options; the first for a zero, and for ever when the bytes have run out."""
        byte = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return options[byte % len(options)]

    def rarely(self, one_in: int) -> bool:
        """True once in so many times."""
        return self.of(range(one_in)) == one_in - 1


def _node(choose: Choices, name: str) -> tuple[Node, Held]:
    gpus = choose.of((8, 4, 2, 8, 4, 0))
    labels = {"pool": choose.of("ab")}
    if choose.rarely(8):
        labels[NVLINK_CLIQUE] = choose.of(("c1", "c2"))
    made = node(
        name,
        gpus=gpus,
        zone=choose.of(("z1", "z1", "z2")),
        spine=choose.of(("", "s1", "s2")),
        leaf=choose.of(("", "l1", "l2")),
        rdma=choose.rarely(2),
        nvswitch=choose.rarely(2),
        ready=not choose.rarely(12),
        cpu=choose.of(("96", "4")),
        labels=labels,
    )
    if choose.rarely(20):
        nameless = {k: v for k, v in (made.metadata.labels or {}).items() if k != HOSTNAME}
        made = Node(metadata=Metadata(name=name, labels=nameless), spec=made.spec, status=made.status)
    if gpus and choose.rarely(2):
        return made, [(name, {"nvidia.com/gpu": choose.of(range(gpus + 2)), "cpu": 1000})]
    return made, []


def _snapshot(choose: Choices, limit: int) -> Snapshot:
    nodes, held = [], []
    for i in range(choose.of(range(limit)) + 1):
        made, used = _node(choose, f"n{i}")
        nodes.append(made)
        held += used
    return snapshot_of(nodes, held)


def _gang(choose: Choices, names: Sequence[str], most: int = 3) -> GangRequest:
    members: list[PodRequest] = []
    partners: list[Partner] = []
    minimum: dict[str, int] = {}
    for phase in PHASES:
        equivalent = choose.of((1, 2, 4, 4, 0))
        for i in range(0 if choose.rarely(12) else choose.of(range(1, most + 1))):
            gpus = 2 if choose.rarely(6) else equivalent
            pool = choose.of(("", "", "", "", "a", "b"))
            spec = PodSpec(node_selector={"pool": pool} if pool else None)
            amounts = {r: n for r, n in (("nvidia.com/gpu", gpus), ("cpu", 2000), ("pods", 1)) if n}
            members.append(pod(f"chat-{phase}-{10 + i}", phase, spec=spec, amounts=amounts))
        for i in range(choose.of((0, 0, 0, 0, 1, 2))):
            where = {choose.of(names), *([choose.of(names)] if choose.rarely(5) else [])}
            partners.append(partner(f"chat-{phase}-{i}", phase, *sorted(where)))
        there = sum(1 for m in members if m.phase == phase) + sum(1 for p in partners if p.phase == phase)
        minimum[phase] = there + 1 if choose.rarely(16) else choose.of((1, max(there, 1)))
    return GangRequest(
        namespace="prod",
        name="chat",
        members=tuple(members),
        partners=tuple(partners),
        bound=ReachBound(us=choose.of(BOUNDS_US)),
        min_prefill=minimum[PREFILL],
        min_decode=minimum[DECODE],
    )


def snapshots(limit: int = 6) -> st.SearchStrategy[Snapshot]:
    """Clusters of up to `limit` nodes."""
    return st.binary(min_size=90, max_size=90).map(lambda data: _snapshot(Choices(data), limit))


def cases(limit: int = 6) -> st.SearchStrategy[tuple[GangRequest, Snapshot]]:
    """A gang and a cluster; the partners, if any, stand on its nodes."""

    def build(data: bytes) -> tuple[GangRequest, Snapshot]:
        choose = Choices(data)
        snapshot = _snapshot(choose, limit)
        return _gang(choose, snapshot.table.names), snapshot

    return st.binary(min_size=130, max_size=130).map(build)


def random_case(seed: int, pairing: str = ALL_PAIRS, nodes: int = 8, most: int = 4) -> tuple[GangRequest, Snapshot]:
    """One case by number, larger than the others: a gang of both phases, all members its minimum."""
    random, pods = Random(seed), list[str]()
    while set(pods) != set(PHASES):
        choose = Choices(random.randbytes(400))
        snapshot = _snapshot(choose, nodes)
        gang = _gang(choose, snapshot.table.names, most)
        pods = [pod.phase for pod in gang.members] + [pod.phase for pod in gang.partners if gang.members]
    bound = ReachBound(us=choose.of((1000.0, 1000.0, 3000.0, *BOUNDS_US)))
    return replace(
        gang, pairing=pairing, bound=bound, min_prefill=pods.count(PREFILL), min_decode=pods.count(DECODE)
    ), snapshot


def roomy_case(seed: int, pairing: str = ALL_PAIRS, nodes: int = 8, most: int = 4) -> tuple[GangRequest, Snapshot]:
    """As `random_case`, of what most clusters look like: nodes of 8 GPUs of one make, partly taken, pods of one width
    in each phase. Nearly all have a plan, and many different ones."""
    random = Random(seed)
    made = [
        node(
            f"n{i}",
            zone=random.choice(("z1", "z1", "z1", "z2")),
            spine=random.choice(("s1", "s2")),
            leaf=random.choice(("l1", "l2", "l3")),
            rdma=seed % 3 > 0,
            nvswitch=seed % 3 > 1,
        )
        for i in range(random.randint(2, nodes))
    ]
    held = [(n.metadata.name, {"nvidia.com/gpu": random.choice((0, 0, 1, 2, 4, 4, 5, 6, 7))}) for n in made]
    members = []
    for phase in PHASES:
        gpus = random.choice((1, 1, 2, 2, 4))
        members += [pod(f"chat-{phase}-{i}", phase, gpus) for i in range(random.randint(1, most))]
    phases = [m.phase for m in members]
    gang = GangRequest(
        namespace="prod",
        name="chat",
        members=tuple(members),
        bound=ReachBound(us=random.choice((1000.0, 1000.0, 130.0, 3000.0))),
        pairing=pairing,
        min_prefill=phases.count(PREFILL),
        min_decode=phases.count(DECODE),
    )
    return gang, snapshot_of(made, held)


def enough_pods(gang: GangRequest) -> bool:
    """Enough pods of each phase exist for the minimum."""
    return all(sum(1 for m in gang.members if m.phase == p) >= gang.still_needed(p) for p in (PREFILL, DECODE))
