"""Hypothesis strategies: clusters of at most six nodes and gangs of at most three and three, of every awkward kind."""

from __future__ import annotations

from hypothesis import strategies as st

from scheduler.request import GangRequest, Partner, PodRequest, ReachBound
from tests.scheduler.clusters import node, partner, pod
from topology.labels import DECODE, HOSTNAME, NVLINK_CLIQUE, PHASES, PREFILL
from topology.objects import Metadata, Node, PodSpec
from topology.resources import Amounts
from topology.snapshot import Snapshot, snapshot_of

BOUNDS_US = (15.0, 24.0, 25.0, 100.0, 130.0, 1000.0, 3000.0)
"""Between the steps of the model: inside a node, RDMA in a leaf (24.4), PCIe (25.8), TCP in a leaf (79.2), in a spine
(119), in a zone (159), between zones (2,000)."""

Held = list[tuple[str, Amounts]]


@st.composite
def nodes(draw: st.DrawFn, limit: int = 6) -> tuple[list[Node], Held]:
    """Nodes and what is held on them."""
    made, held = [], []
    for i in range(draw(st.integers(1, limit))):
        gpus = draw(st.sampled_from((0, 2, 4, 8)))
        labels = {"pool": draw(st.sampled_from("ab"))}
        if draw(st.integers(0, 7)) == 0:
            labels[NVLINK_CLIQUE] = draw(st.sampled_from(("c1", "c2")))
        name = f"n{i}"
        one = node(
            name,
            gpus=gpus,
            zone=draw(st.sampled_from(("z1", "z1", "z2"))),
            spine=draw(st.sampled_from(("", "s1", "s2"))),
            leaf=draw(st.sampled_from(("", "l1", "l2"))),
            rdma=draw(st.booleans()),
            nvswitch=draw(st.booleans()),
            ready=draw(st.integers(0, 9)) > 0,
            cpu=draw(st.sampled_from(("4", "96"))),
            labels=labels,
        )
        if draw(st.integers(0, 14)) == 0:
            unnamed = {k: v for k, v in (one.metadata.labels or {}).items() if k != HOSTNAME}
            one = Node(metadata=Metadata(name=name, labels=unnamed), spec=one.spec, status=one.status)
        made.append(one)
        if gpus and draw(st.booleans()):
            held.append((name, {"nvidia.com/gpu": draw(st.integers(0, gpus + 1)), "cpu": 1000}))
    return made, held


@st.composite
def snapshots(draw: st.DrawFn, limit: int = 6) -> Snapshot:
    return snapshot_of(*draw(nodes(limit)))


@st.composite
def pods(draw: st.DrawFn, phase: str, number: int, amounts: Amounts) -> PodRequest:
    pool = draw(st.sampled_from((None, None, None, "a", "b")))
    spec = PodSpec(node_selector={"pool": pool} if pool else None)
    return pod(f"chat-{phase}-{number}", phase, spec=spec, amounts=amounts)


@st.composite
def gangs(draw: st.DrawFn, snapshot: Snapshot) -> GangRequest:
    """A gang for a cluster; its partners stand on nodes of it."""
    members: list[PodRequest] = []
    partners: list[Partner] = []
    for phase in PHASES:
        alike = {"nvidia.com/gpu": draw(st.sampled_from((0, 1, 2, 4))), "cpu": 2000, "pods": 1}
        for i in range(draw(st.sampled_from((0, 1, 1, 2, 3)))):
            amounts = alike
            if draw(st.integers(0, 5)) == 0:
                amounts = alike | {"nvidia.com/gpu": 2}
            members.append(draw(pods(phase, 10 + i, {r: n for r, n in amounts.items() if n})))
        for i in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
            where = draw(st.lists(st.sampled_from(snapshot.table.names), min_size=1, max_size=2, unique=True))
            partners.append(partner(f"chat-{phase}-{i}", phase, *where))
    return GangRequest(
        namespace="prod",
        name="chat",
        members=tuple(members),
        partners=tuple(partners),
        bound=ReachBound(us=draw(st.sampled_from(BOUNDS_US))),
        min_prefill=draw(st.sampled_from((1, 1, 1, 2, 3))),
        min_decode=draw(st.sampled_from((1, 1, 1, 2))),
    )


@st.composite
def cases(draw: st.DrawFn, limit: int = 6) -> tuple[GangRequest, Snapshot]:
    snapshot = draw(snapshots(limit))
    return draw(gangs(snapshot)), snapshot


def both_phases(gang: GangRequest) -> bool:
    """Enough pods of each phase exist for the minimum."""
    return all(sum(1 for m in gang.members if m.phase == p) >= gang.still_needed(p) for p in (PREFILL, DECODE))
