"""Whether the planner keeps its promise: random gangs come, grow, lose pods and go, and a judge keeps the book.

The simulation stands where the controller and Volcano stand. It asks the planner for places, counts them as assumed,
and then binds the pods late and in any order: two of three where they were planned, the others anywhere in their
isochrone set where GPUs are free, as Volcano may. Whoever finds no room stays released and counts as an unbound
partner. After every plan and every binding `e2e.bench.oracle`, which shares no code with the planner, counts GPUs that
are booked twice and pairs beyond their bound: all pairs of a gang, or with `pairing: nearest` pods without a partner,
once nobody of it is on the way, if they were planned after the last one left.

`GANGS=500` shortens it, `SEEDS=7` chooses other gangs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import numpy as np

from e2e.bench.oracle import Host, Oracle, Stood, hosts
from e2e.bench.report import Figure, Goal
from e2e.bench.sizes import counted
from e2e.stack.build import say
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, Partner, PodRequest, ReachBound
from scheduler.planning.plan import plan
from topology.cluster.isochrone_sets import NodeSet
from topology.cluster.snapshot import Assumed, NodeTable, Snapshot
from topology.labels import DECODE, GPU_PRODUCT, HOSTNAME, LEAF, NEAREST, PHASES, PREFILL, SPINE, TRANSPORT, ZONE
from topology.objects import Metadata, Node, NodeCondition, NodeStatus
from topology.resources import GPU, PODS

BOUNDS_US: Final = (1_000.0, 1_000.0, 3_000.0, 160.0, 100.0, 26.0, 25.0, 15.0)
EVERY: Final = 500
LIVE: Final = 40
"""Gangs at once; more than there is room for, so that some wait and the cluster is nearly full."""


@dataclass(slots=True)
class Gang:
    """One gang: what it asked for, and its pods by where they are on their way."""

    name: str
    bound_us: float
    pairing: str
    gpus: dict[str, int]
    waiting: dict[str, str] = field(default_factory=dict)  # uid to phase: gated
    released: dict[str, tuple[str, str, tuple[str, ...]]] = field(default_factory=dict)  # uid: phase, planned, nodes
    bound: set[str] = field(default_factory=set)
    made: int = 0
    commitments: set[str] = field(default_factory=set)  # planned since somebody last left: they have a partner


class Simulation:
    """The cluster, the gangs, and what was found wrong."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.oracle = Oracle({host.name: host for host in hosts()})
        self.down: set[str] = set()
        self.gangs: dict[str, Gang] = {}
        self.came = self.plans = self.placed = self.joined = self.failed = self.strayed = 0
        self.pairs_beyond = self.booked_twice = 0
        self._tables: dict[frozenset[str], NodeTable] = {}

    def step(self) -> None:
        """One thing happens, and then everybody who waits is looked at."""
        chance = self.random.random()
        if chance < 0.5 or not self.gangs:
            self._arrive()
        elif chance < 0.62:
            self._grow(self._some_gang())
        elif chance < 0.72:
            self._lose_pod()
        elif chance < 0.75:
            self._fail_or_repair()
        while len(self.gangs) > LIVE or (chance >= 0.75 and len(self.gangs) > 2):
            self._depart(self._some_gang())
            chance = 0.0
        for name in self.random.sample(sorted(self.gangs), min(4, len(self.gangs))):
            self._plan(self.gangs[name])
        self._bind()

    # --- what happens --------------------------------------------------------------------------

    def _some_gang(self) -> Gang:
        return self.gangs[self.random.choice(sorted(self.gangs))]

    def _arrive(self) -> None:
        choose = self.random.choice
        gang = Gang(
            name=f"g{self.came}",
            bound_us=choose(BOUNDS_US),
            pairing=choose(("all", "all", "all", NEAREST)),
            gpus={PREFILL: choose((1, 2, 4)), DECODE: choose((1, 1, 2, 4, 8))},
        )
        self.came += 1
        self.gangs[gang.name] = gang
        for phase, most in ((PREFILL, 2), (DECODE, 4)):
            for _ in range(self.random.randint(1, most)):
                self._new_pod(gang, phase)
        self._plan(gang)

    def _new_pod(self, gang: Gang, phase: str) -> None:
        gang.waiting[f"{gang.name}-{phase}-{gang.made}"] = phase
        gang.made += 1

    def _grow(self, gang: Gang) -> None:
        for _ in range(self.random.randint(1, 2)):
            self._new_pod(gang, self.random.choice(PHASES))
        self.joined += 1
        self._plan(gang)

    def _lose_pod(self) -> None:
        """A pod is deleted; its owner makes another."""
        gang = self._some_gang()
        here = sorted(gang.bound | gang.released.keys())
        if here:
            self._gone(gang, self.random.choice(here))

    def _gone(self, gang: Gang, uid: str) -> None:
        phase = self.oracle.pods[uid].phase if uid in gang.bound else gang.released[uid][0]
        gang.bound.discard(uid)
        gang.released.pop(uid, None)
        self.oracle.pods.pop(uid, None)
        gang.commitments.clear()
        self._new_pod(gang, phase)

    def _fail_or_repair(self) -> None:
        if self.down and self.random.random() < 0.5:
            self.down.discard(self.random.choice(sorted(self.down)))
            return
        node = self.random.choice(sorted(self.oracle.hosts))
        self.down.add(node)
        self.failed += 1
        for uid in [uid for uid, pod in self.oracle.pods.items() if pod.node == node]:
            self._gone(self.gangs[self.oracle.pods[uid].gang], uid)

    def _depart(self, gang: Gang) -> None:
        for uid in gang.bound:
            del self.oracle.pods[uid]
        del self.gangs[gang.name]

    # --- planner and scheduler -----------------------------------------------------------------

    def _plan(self, gang: Gang) -> None:
        if not gang.waiting:
            return
        snapshot = self._snapshot()
        asked = self._asked(gang)
        made = plan(asked, snapshot, Policy(improve_budget=60), advise=False)
        self.plans += 1
        if not made.places:
            return
        self.placed += len(made.places)
        gang.commitments |= made.places.keys()
        booked = [(there, self.gangs[g].gpus[phase]) for g, phase, there in self._on_the_way()]
        booked += [(node, gang.gpus[gang.waiting[uid]]) for uid, node in made.places.items()]
        before = self.oracle.booked_twice((there, self.gangs[g].gpus[p]) for g, p, there in self._on_the_way())
        self.booked_twice += max(0, self.oracle.booked_twice(booked) - before)
        for uid, node in made.places.items():
            held_to = made.set_of(uid)
            nodes = (node,) if held_to is None else tuple(self._inside(held_to))
            gang.released[uid] = gang.waiting.pop(uid), node, nodes

    def _asked(self, gang: Gang) -> GangRequest:
        amounts = {phase: {GPU: gpus, PODS: 1} for phase, gpus in gang.gpus.items()}
        partners = [Partner(u, u, self.oracle.pods[u].phase, (self.oracle.pods[u].node,)) for u in sorted(gang.bound)]
        partners += [Partner(u, u, p, nodes, bound=False) for u, (p, _, nodes) in sorted(gang.released.items())]
        return GangRequest(
            namespace="prod",
            name=gang.name,
            members=tuple(PodRequest(u, "prod", u, phase, amounts[phase]) for u, phase in sorted(gang.waiting.items())),
            partners=tuple(partners),
            bound=ReachBound(gang.bound_us),
            pairing=gang.pairing,
        )

    def _on_the_way(self) -> list[tuple[str, str, str]]:
        """(gang, phase, planned node) of pods that were let go and are not bound."""
        return [(g.name, phase, node) for g in self.gangs.values() for phase, node, _ in g.released.values()]

    def _snapshot(self) -> Snapshot:
        key = frozenset(self.down)
        if key not in self._tables:
            self._tables = {key: NodeTable([_node(h, ready=h.name not in key) for h in hosts()])}
        table = self._tables[key]
        used = np.zeros_like(table.allocatable)
        for pod in self.oracle.pods.values():
            used[table.index[pod.node]] += table.vector({GPU: pod.gpus, PODS: 1})[0]
        used.setflags(write=False)
        assumed = {
            uid: Assumed(node, {GPU: gang.gpus[phase], PODS: 1})
            for gang in self.gangs.values()
            for uid, (phase, node, _) in gang.released.items()
        }
        return replace(Snapshot(f"s{self.plans}", 0.0, table, used).with_assumed(assumed))

    def _inside(self, held_to: NodeSet) -> list[str]:
        """What a required node affinity allows, from labels as Kubernetes reads them."""
        return [
            h.name for h in hosts() if (_node(h, ready=True).metadata.labels or {}).get(held_to.key) in held_to.values
        ]

    def _bind(self) -> None:
        """Most of those on the way are bound, in any order."""
        on_the_way = [(g, uid) for g in self.gangs.values() for uid in g.released]
        self.random.shuffle(on_the_way)
        for gang, uid in on_the_way:
            if self.random.random() < 0.3:
                continue
            phase, planned, nodes = gang.released[uid]
            open_to = [n for n in nodes if n not in self.down and self.oracle.free(n) >= gang.gpus[phase]]
            if not open_to:
                continue
            node = planned if planned in open_to and self.random.random() < 2 / 3 else self.random.choice(open_to)
            self.strayed += node != planned
            del gang.released[uid]
            gang.bound.add(uid)
            self.oracle.pods[uid] = Stood(gang.name, phase, node, gang.gpus[phase])
            if gang.pairing != NEAREST:
                self.pairs_beyond += self.oracle.pairs_beyond(gang.name, gang.bound_us)
            elif not gang.released:
                self.pairs_beyond += self.oracle.alone(gang.name, gang.commitments, gang.bound_us)
        self.booked_twice += self.oracle.booked_twice()


def _node(host: Host, *, ready: bool) -> Node:
    labels = {
        HOSTNAME: host.name,
        ZONE: host.zone,
        SPINE: host.spine,
        LEAF: host.leaf,
        TRANSPORT: "rdma" if host.rdma else "tcp",
        GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3" if host.nvswitch else "NVIDIA-L40S",
    }
    return Node(
        metadata=Metadata(name=host.name, labels=labels),
        status=NodeStatus(
            allocatable={GPU: host.gpus, PODS: "110"},
            conditions=(NodeCondition(type="Ready", status="True" if ready else "False"),),
        ),
    )


def measure() -> Iterator[list[Figure]]:
    """Until so many gangs have come."""
    wanted, one = counted("GANGS", 10_000), Simulation(counted("SEEDS", 1))
    reported = 0
    while one.came < wanted:
        one.step()
        if one.came // EVERY > reported:
            reported = one.came // EVERY
            say(f"safety: {one.came} of {wanted} gangs, {one.pairs_beyond} beyond, {one.booked_twice} booked twice")
    source = (
        f"{one.came} gangs, {one.plans} plans, {one.placed} pods placed ({one.strayed} not where planned), "
        f"{one.joined} grew, {one.failed} nodes failed"
    )
    yield [
        Figure("pairs beyond", one.pairs_beyond, "", Goal("<=", 0), source=source),
        Figure("GPUs booked twice", one.booked_twice, "", Goal("<=", 0), source=source),
    ]
