"""Plans for gangs that share cards: by hand, and against every assignment of small cases."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.explain.events import gang_event
from scheduler.extender.decide import decide
from scheduler.model.decision import Outcome, Plan
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, Partner, PodRequest
from scheduler.planning.plan import plan
from tests.scheduler.clusters import READY
from tests.scheduler.test_gpu_fit import CARD, GIB, vgpu, vgpu_node
from topology.cluster.snapshot import Assumed, Snapshot, snapshot_of
from topology.gpus.allocations import GpuAllocation
from topology.gpus.capacity import node_gpus
from topology.gpus.gpu_request import GpuRequest
from topology.gpus.gpu_row import Limits, choose, empty_row, put_all
from topology.labels import DECODE, GPU_PRODUCT, HOSTNAME, PREFILL, TRANSPORT, ZONE
from topology.objects import Metadata, Node, NodeStatus


def gang(*pods: tuple[str, GpuRequest, int]) -> GangRequest:
    """(phase, what each asks, how many)."""
    members = [
        PodRequest(f"u-{phase}-{k}-{i}", "prod", f"{phase}-{k}-{i}", phase, _amounts(gpu), gpu=gpu)
        for k, (phase, gpu, count) in enumerate(pods)
        for i in range(count)
    ]
    count = {phase: sum(n for p, _, n in pods if p == phase) for phase in (PREFILL, DECODE)}
    return GangRequest("prod", "chat", tuple(members), min_prefill=count[PREFILL], min_decode=count[DECODE])


def _amounts(gpu: GpuRequest) -> dict[str, int]:
    counted = {"Volcano vGPU": "volcano.sh/vgpu-number", "whole GPU": "nvidia.com/gpu"}.get(gpu.form)
    return ({counted: gpu.count} if counted else {}) | {"pods": 1}


def where(made: Plan) -> list[str]:
    return sorted(made.places.values())


def test_both_phases_share_one_card_behind_a_wall() -> None:
    two = snapshot_of([vgpu_node("n1"), vgpu_node("n2")])
    made = plan(gang((PREFILL, vgpu(20, 40), 1), (DECODE, vgpu(28), 1)), two)
    # 20 + 28 asked and 20 of head-room: 68 of 68 GiB. One node is nearer than two.
    assert (made.outcome, where(made)) == (Outcome.PLANNED, ["n1", "n1"])


def test_a_gang_goes_to_two_nodes_where_one_card_is_too_small() -> None:
    two = snapshot_of([vgpu_node("n1"), vgpu_node("n2")])
    made = plan(gang((PREFILL, vgpu(20, 40), 1), (DECODE, vgpu(29), 1)), two)
    assert (made.outcome, where(made)) == (Outcome.PLANNED, ["n1", "n2"])


def test_a_gang_that_no_card_holds_says_how_much_is_missing() -> None:
    made = plan(gang((PREFILL, vgpu(20), 1), (DECODE, vgpu(75), 1)), snapshot_of([vgpu_node("n1"), vgpu_node("n2")]))
    assert made.outcome == Outcome.HELD
    reason, text = gang_event(made)
    assert reason == "InsufficientMemory"
    assert "no GPU of the cluster can give 75.0 GiB (largest: 68.0 GiB) for a decode pod; 2 nodes checked" in text
    assert text.endswith("2 without 75.0 GiB of free GPU memory. Ask for at most 68.0 GiB of GPU memory a decode pod")


def test_more_pods_than_the_cards_of_one_node_hold() -> None:
    # Three decode pods of 30 GiB: two a card, so one node of one card is too small.
    three = gang((PREFILL, vgpu(6), 1), (DECODE, vgpu(30), 3))
    assert plan(three, snapshot_of([vgpu_node("n1")])).outcome == Outcome.HELD
    made = plan(three, snapshot_of([vgpu_node("n1"), vgpu_node("n2")]))
    assert made.outcome == Outcome.PLANNED
    assert set(where(made)) == {"n1", "n2"}
    assert set(where(plan(three, snapshot_of([vgpu_node("n0", devices=2)])))) == {"n0"}


def test_half_separation_needs_two_cards_without_a_wall() -> None:
    kai = GpuRequest("KAI fraction", memory_milli=300, compute_milli=300)

    def node(name: str, devices: int) -> Node:
        labels = {HOSTNAME: name, ZONE: "z1", GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3", TRANSPORT: "rdma"}
        return Node(
            metadata=Metadata(name=name, labels=labels),
            status=NodeStatus(allocatable={"nvidia.com/gpu": devices, "pods": 110}, conditions=READY),
        )

    pair = gang((PREFILL, kai, 1), (DECODE, kai, 1))
    assert plan(pair, snapshot_of([node("n1", 1)])).outcome == Outcome.HELD
    assert where(plan(pair, snapshot_of([node("n1", 1), node("n2", 1)]))) == ["n1", "n2"]
    assert where(plan(pair, snapshot_of([node("n1", 1), node("n2", 2)]))) == ["n2", "n2"]


def test_plain_gpus_and_named_memory_take_cards_from_each_other() -> None:
    labels = {HOSTNAME: "n1", GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB", TRANSPORT: "rdma"}
    node = Node(
        metadata=Metadata(name="n1", labels=labels),
        status=NodeStatus(allocatable={"nvidia.com/gpu": 2, "pods": 110}, conditions=READY),
    )
    plain, named = GpuRequest("whole GPU", whole=True), GpuRequest("whole GPU", whole=True, memory_mib=30 * GIB)
    assert plan(gang((PREFILL, plain, 1), (DECODE, named, 1)), snapshot_of([node])).outcome == Outcome.PLANNED
    assert plan(gang((PREFILL, plain, 2), (DECODE, named, 1)), snapshot_of([node])).outcome == Outcome.HELD


def test_one_bad_request_costs_itself_only() -> None:
    asked = gang((PREFILL, vgpu(10), 1), (DECODE, vgpu(10), 1))
    bad = PodRequest("u-bad", "prod", "bad", DECODE, {"pods": 1}, problem="Volcano vGPU: vgpu-memory is '-5'; no")
    made = plan(GangRequest("prod", "chat", (*asked.members, bad)), snapshot_of([vgpu_node("n1")]))
    assert made.outcome == Outcome.PLANNED
    assert "u-bad" not in made.places
    assert len(made.places) == 2


def test_a_gang_whose_pods_have_two_containers_each() -> None:
    # 10 + 20 GiB a pod: two pods on the 68 GiB of one card, so four pods need both nodes.
    both = GpuRequest("Volcano vGPU", count=2, memory_mib=20 * GIB, parts=(vgpu(10), vgpu(20)))
    asked = gang((PREFILL, both, 2), (DECODE, both, 2))
    assert plan(asked, snapshot_of([vgpu_node("n1")])).outcome == Outcome.HELD
    assert where(plan(asked, snapshot_of([vgpu_node("n1"), vgpu_node("n2")]))) == ["n1", "n1", "n2", "n2"]


# --- against every assignment -------------------------------------------------------------------

SIZES = st.sampled_from([10, 20, 30, 40, 60])


@st.composite
def small_cases(draw: st.DrawFn) -> tuple[Snapshot, GangRequest]:
    names = [f"n{i}" for i in range(draw(st.integers(1, 3)))]
    snapshot = snapshot_of([vgpu_node(name) for name in names])
    one = {"volcano.sh/vgpu-number": 1, "pods": 1}
    held = {
        f"h{i}": Assumed(draw(st.sampled_from(names)), one, _hold(vgpu(draw(SIZES))))
        for i in range(draw(st.integers(0, 2)))
    }
    pods = []
    for phase in (PREFILL, DECODE):
        for _ in range(draw(st.integers(1, 2))):
            gib = draw(SIZES)
            peak = gib + draw(st.sampled_from([0, 20])) if phase == PREFILL else 0
            pods.append((phase, vgpu(gib, peak if peak > gib else 0), draw(st.integers(1, 2))))
    return snapshot.with_assumed(held), gang(*pods)


def _hold(gpu: GpuRequest) -> GpuAllocation | None:
    return PodRequest("u", "prod", "h", DECODE, {}, gpu=gpu).hold


def _any_assignment(snapshot: Snapshot, asked: GangRequest) -> bool:
    """Whether some assignment of pods to nodes, one card each, keeps every card within 68 of 80 GiB."""
    limit = CARD * 850 // 1000
    for nodes in itertools.product(range(len(snapshot.table)), repeat=len(asked.members)):
        fine = True
        for node in range(len(snapshot.table)):
            here = [m for m, n in zip(asked.members, nodes, strict=True) if n == node and m.gpu is not None]
            gpus = [m.gpu for m in here if m.gpu is not None]
            used = CARD - int(snapshot.gpus.left_mib[node, 0]) + sum(g.memory_mib for g in gpus)
            burst = max((max(0, g.peak_mib - g.memory_mib) for g in gpus), default=0)
            fine &= not gpus or used + burst <= limit
        if fine:
            return True
    return False


@settings(max_examples=60, deadline=None)
@given(small_cases())
def test_feasible_exactly_where_some_assignment_is(case: tuple[Snapshot, GangRequest]) -> None:
    snapshot, asked = case
    made = plan(asked, snapshot, advise=False)
    assert (made.outcome == Outcome.PLANNED) == _any_assignment(snapshot, asked)
    if made.outcome != Outcome.PLANNED:
        return
    # Replayed pod by pod, in any order, every pod is accepted where it was planned.
    for order in (asked.members, asked.members[::-1]):
        now = snapshot
        for member in order:
            node = made.places[member.uid]
            other = PREFILL if member.phase == DECODE else DECODE
            partner = Partner("p", "p", other, (node,))
            assert decide(member, now, (node,), [partner]).decision.eligible == 1
            now = now.with_assumed({member.uid: Assumed(node, member.amounts, member.hold)})
        assert now.gpus.overcommitted.tolist() == snapshot.gpus.overcommitted.tolist()


def test_a_search_gives_cards_back() -> None:
    # A node holds one of 60 GiB or two of 30. The 30s are placed first, one on each node perhaps: then the 60 has no
    # place, and only a search that gives cards back finds the way.
    asked = gang((PREFILL, vgpu(30), 2), (DECODE, vgpu(60), 1))
    snapshot = snapshot_of([vgpu_node("n1"), vgpu_node("n2")])
    assert plan(asked, snapshot, Policy(improve_budget=0)).outcome == Outcome.PLANNED


def test_a_card_is_filled_as_its_owner_fills_it() -> None:
    devices = node_gpus(vgpu_node("n1", devices=2))
    row, limits = empty_row(devices), Limits(850, 850)
    for _ in range(2):
        chosen = choose(devices, row, vgpu(30), DECODE, limits)
        assert chosen == (1,)  # Volcano starts at the last card
        row = put_all(devices, row, chosen, vgpu(30), DECODE)
    assert choose(devices, row, vgpu(30), DECODE, limits) == (0,)
