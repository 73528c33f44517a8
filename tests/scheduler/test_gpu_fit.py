"""Memory of cards between the phases: amounts by hand, and thousands of nodes at once against one card at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.evaluate.gpu_fit import gpu_fit, gpu_need, gpu_slots, limits_of, plannable_phrase, usable_mib
from scheduler.explain.wording import counts, gap_of
from scheduler.extender.decide import decide
from scheduler.model.decision import Decision
from scheduler.model.policy import Policy
from scheduler.model.request import Partner, PodRequest
from scheduler.model.verdict import VerdictCode
from tests.scheduler.clusters import READY
from topology.cluster.snapshot import Assumed, Snapshot, snapshot_of
from topology.gpus.allocations import GpuAllocation
from topology.gpus.devices import HAMI_REGISTER, VOLCANO_REGISTER
from topology.gpus.gpu_request import GpuRequest
from topology.gpus.gpu_row import Limits, able_gpus, choose, fits, put_all
from topology.labels import DECODE, GPU_PRODUCT, HOSTNAME, PHASES, PREFILL, TRANSPORT, ZONE
from topology.objects import Metadata, Node, NodeStatus

CARD = 81920  # 80 GiB in MiB; 85 % of it is 69632 MiB, 68 GiB
GIB = 1024


def vgpu_node(name: str, devices: int = 1, memory_mib: int = CARD, register: str = VOLCANO_REGISTER) -> Node:
    device = (
        "{0}-{1},10,{2},H100,true,hami-core:" if register == VOLCANO_REGISTER else "{0}-{1},10,{2},100,H100,0,true:"
    )
    text = "".join(device.format(name, i, memory_mib) for i in range(devices))
    counted = "volcano.sh/vgpu-number" if register == VOLCANO_REGISTER else "nvidia.com/gpu"
    return Node(
        metadata=Metadata(
            name=name, labels={HOSTNAME: name, ZONE: "z1", TRANSPORT: "rdma"}, annotations={register: text}
        ),
        status=NodeStatus(allocatable={"cpu": 96, "pods": 110, counted: 10 * devices}, conditions=READY),
    )


def vgpu(gib: float = 0, peak_gib: float = 0, pinned: tuple[str, ...] = ()) -> GpuRequest:
    return GpuRequest("Volcano vGPU", memory_mib=int(gib * GIB), peak_mib=int(peak_gib * GIB), pinned=pinned)


def wanting(gpu: GpuRequest, phase: str = DECODE, name: str = "new") -> PodRequest:
    return PodRequest(f"uid-{name}", "prod", name, phase, {"volcano.sh/vgpu-number": gpu.count, "pods": 1}, gpu=gpu)


def with_pods(snapshot: Snapshot, *pods: tuple[str, GpuRequest, str]) -> Snapshot:
    held = {
        f"u{i}": Assumed(node, {"volcano.sh/vgpu-number": gpu.count}, GpuAllocation(gpu, phase))
        for i, (node, gpu, phase) in enumerate(pods)
    }
    return snapshot.with_assumed(held)


def evaluated(snapshot: Snapshot, request: PodRequest, policy: Policy | None = None) -> Decision:
    """Against all nodes, with a partner on the first one, so that reach is no matter."""
    partner = Partner("up", "p", PREFILL if request.phase == DECODE else DECODE, (snapshot.table.names[0],))
    return decide(request, snapshot, snapshot.table.names, [partner], policy=policy).decision


def verdict_of(snapshot: Snapshot, gpu: GpuRequest, phase: str = DECODE) -> VerdictCode:
    decision = evaluated(snapshot, wanting(gpu, phase))
    return VerdictCode.ELIGIBLE if decision.eligible else next(iter(decision.ruled_out))


# --- by hand -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "asked", "phase", "fits_here"),
    [
        # Decode is guaranteed, up to 68 GiB of 80.
        ([], vgpu(68), DECODE, True),
        ([], vgpu(69), DECODE, False),
        ([(vgpu(40), DECODE)], vgpu(28), DECODE, True),
        ([(vgpu(40), DECODE)], vgpu(29), DECODE, False),
        # A decode pod counts with its peak.
        ([], vgpu(20, 69), DECODE, False),
        ([(vgpu(20, 60), DECODE)], vgpu(9), DECODE, False),
        # Prefill peaks share one head-room: 20 + 20 asked, and 28 above one of them: 68.
        ([(vgpu(20, 48), PREFILL)], vgpu(20, 48), PREFILL, True),
        ([(vgpu(20, 48), PREFILL)], vgpu(20, 49), PREFILL, False),
        # Were the peaks added up (48 + 48), nothing of this would fit; two decode pods of 48 do not.
        ([(vgpu(48), DECODE)], vgpu(48), DECODE, False),
        # A decode pod leaves the head-room of prefill alone: 20 + 28 head-room + 20 = 68.
        ([(vgpu(20, 48), PREFILL)], vgpu(20), DECODE, True),
        ([(vgpu(20, 48), PREFILL)], vgpu(21), DECODE, False),
        # A smaller burst finds its place in the head-room that is kept already.
        ([(vgpu(20, 48), PREFILL)], vgpu(20, 30), PREFILL, True),
    ],
)
def test_the_phases_share_a_card(
    held: list[tuple[GpuRequest, str]], asked: GpuRequest, phase: str, fits_here: bool
) -> None:
    snapshot = with_pods(snapshot_of([vgpu_node("n1")]), *(("n1", gpu, who) for gpu, who in held))
    assert (verdict_of(snapshot, asked, phase) is VerdictCode.ELIGIBLE) == fits_here


def test_the_shortage_is_said_in_gib_of_gpu_memory() -> None:
    # 68 GiB may be promised, 40 are: 28 GiB left, 35 wanted.
    snapshot = with_pods(
        snapshot_of([vgpu_node("n1"), vgpu_node("n2")]), ("n1", vgpu(40), DECODE), ("n2", vgpu(50), DECODE)
    )
    decision = evaluated(snapshot, wanting(vgpu(35)))
    miss = decision.nearest[VerdictCode.INSUFFICIENT_MEMORY]
    assert (miss.node, miss.need, miss.have, miss.unit) == ("n1", 35 * 2**30, 28 * 2**30, "gpu-bytes")
    assert gap_of(miss) == "7.0 GiB short"
    assert counts(decision) == "2 nodes checked, 2 without 35.0 GiB of free GPU memory"
    assert miss.suffices


def test_a_card_that_never_has_so_much_is_no_remedy() -> None:
    decision = evaluated(snapshot_of([vgpu_node("n1")]), wanting(vgpu(70)))
    miss = decision.nearest[VerdictCode.INSUFFICIENT_MEMORY]
    assert (miss.have / 2**30, miss.suffices) == (68.0, False)


def test_both_limits_are_settings() -> None:
    limits = limits_of(Policy(memory_reserve=0.1, peak_limit=0.95))
    assert limits == Limits(planned_milli=900, peak_milli=900)  # peaks never reach into the reserve
    assert limits_of(Policy()) == Limits(850, 850)
    snapshot = snapshot_of([vgpu_node("n1")])
    tight = Policy(memory_reserve=0.1, peak_limit=0.5)
    for gpu, phase, eligible in ((vgpu(72), DECODE, 1), (vgpu(10, 41), PREFILL, 0), (vgpu(10, 40), PREFILL, 1)):
        assert evaluated(snapshot, wanting(gpu, phase), tight).eligible == eligible


def test_driver_memory_is_subtracted_first() -> None:
    # T4: 16384 MiB, 450 kept by the driver: 15934, of which 85 % is 13543. Three pods of 4096 MiB fit, not four.
    usable = usable_mib(16384, 450)
    assert usable == 15934
    assert plannable_phrase(16384, 450, Limits(850, 850)) == (
        "13543 MiB of 16384 MiB (450 MiB kept by the driver, 15 % reserve)"
    )
    assert plannable_phrase(16384, None, Limits(850, 850)) == "13926 MiB of 16384 MiB (15 % reserve)"
    snapshot = snapshot_of([vgpu_node("n1", memory_mib=usable)])
    need = gpu_need(vgpu(4), DECODE, Policy())
    assert need is not None
    assert gpu_slots(snapshot.gpus, need).tolist() == [3]


def test_whole_gpus_with_named_memory_look_at_the_size_of_the_card() -> None:
    node = Node(
        metadata=Metadata(name="n1", labels={HOSTNAME: "n1", GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB", TRANSPORT: "rdma"}),
        status=NodeStatus(allocatable={"nvidia.com/gpu": 8, "pods": 110}, conditions=READY),
    )
    snapshot = snapshot_of([node])
    for gib, eligible in ((34, 1), (35, 0)):  # 85 % of 40 GiB
        gpu = GpuRequest("whole GPU", whole=True, memory_mib=gib * GIB)
        request = PodRequest("u", "prod", "d", DECODE, {"nvidia.com/gpu": 1, "pods": 1}, gpu=gpu)
        assert evaluated(snapshot, request).eligible == eligible


def test_mig_instances_keep_their_reserve_too() -> None:
    node = Node(
        metadata=Metadata(
            name="n1", labels={HOSTNAME: "n1", TRANSPORT: "rdma", "nvidia.com/mig-3g.40gb.memory": "40448"}
        ),
        status=NodeStatus(allocatable={"nvidia.com/mig-3g.40gb": 2, "pods": 110}, conditions=READY),
    )
    amounts = {"nvidia.com/mig-3g.40gb": 1, "pods": 1}
    for mib, code in ((34380, VerdictCode.ELIGIBLE), (34381, VerdictCode.INSUFFICIENT_MEMORY)):  # 85 % of 40448
        gpu = GpuRequest("MIG", memory_mib=mib, profiles=(("3g.40gb", 1),))
        request = PodRequest("u", "prod", "d", DECODE, amounts, gpu=gpu)
        decision = evaluated(snapshot_of([node]), request)
        assert (VerdictCode.ELIGIBLE if decision.eligible else next(iter(decision.ruled_out))) is code


def test_phases_share_a_card_only_behind_a_wall() -> None:
    # KAI fractions do not keep memory apart: decode goes to the other card, or nowhere.
    kai = GpuRequest("KAI fraction", memory_milli=300, compute_milli=300)
    for devices, eligible in ((1, 0), (2, 1)):
        node = Node(
            metadata=Metadata(name="n1", labels={HOSTNAME: "n1", GPU_PRODUCT: "H100-80GB", TRANSPORT: "rdma"}),
            status=NodeStatus(allocatable={"nvidia.com/gpu": devices, "pods": 110}, conditions=READY),
        )
        mixed, equivalent = (
            snapshot_of([node], holds=[("n1", "p", GpuAllocation(kai, who))]) for who in (PREFILL, DECODE)
        )
        request = PodRequest("u", "prod", "d", DECODE, {"pods": 1}, gpu=kai)
        assert evaluated(mixed, request).eligible == eligible
        assert evaluated(equivalent, request).eligible == 1
    # Behind one, both live on one card.
    assert (
        verdict_of(with_pods(snapshot_of([vgpu_node("n1")]), ("n1", vgpu(20), PREFILL)), vgpu(20))
        is VerdictCode.ELIGIBLE
    )


def test_a_request_that_cannot_be_read_finds_no_node_and_says_why() -> None:
    value = "Volcano vGPU: containers[0].resources.limits[volcano.sh/vgpu-memory] is '-5'; use a whole number"
    request = PodRequest("u", "prod", "d", DECODE, {"pods": 1}, problem=value)
    decision = evaluated(snapshot_of([vgpu_node("n1")]), request)
    assert decision.ruled_out == {VerdictCode.RESOURCE_MISSING: 1}
    assert counts(decision) == f"1 node checked, 1 not looked at, since {value}"


def test_pinned_cards() -> None:
    empty = snapshot_of([vgpu_node("n1", devices=2)])
    snapshot = with_pods(empty, ("n1", vgpu(60, pinned=("n1-1",)), DECODE))
    assert snapshot.gpus.left_mib.tolist() == [[CARD, CARD - 60 * GIB]]
    assert verdict_of(snapshot, vgpu(20, pinned=("n1-0",))) is VerdictCode.ELIGIBLE
    assert verdict_of(snapshot, vgpu(20, pinned=("n1-1",))) is VerdictCode.INSUFFICIENT_MEMORY


# --- many at once against one at a time ---------------------------------------------------------

PHASE = st.sampled_from(PHASES)
FORMS = st.sampled_from(["Volcano vGPU", "HAMi", "KAI fraction", "qGPU", "whole GPU", "Isochrone memory"])


@st.composite
def requests(draw: st.DrawFn) -> GpuRequest:
    form = draw(FORMS)
    whole = form == "whole GPU" or (form in ("Volcano vGPU", "HAMi") and draw(st.booleans()))
    mib = draw(st.sampled_from([0, 1, 8192, 20000, 40000, 70000]))
    milli = draw(st.sampled_from([0, 125, 500])) if not mib and not whole else 0
    if not whole and not mib and not milli:
        mib = 5000
    asked = mib or CARD * milli // 1000
    peak = draw(st.sampled_from([0, asked + 1, asked + 10000]))
    compute = draw(st.sampled_from([0, 0, 300, 1000])) if form != "whole GPU" else 0
    return GpuRequest(form, draw(st.integers(1, 3)), mib, milli, compute, peak, whole=whole)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    register = draw(st.sampled_from([VOLCANO_REGISTER, HAMI_REGISTER, ""]))
    if register:
        return vgpu_node("n1", draw(st.integers(0, 3)), draw(st.sampled_from([CARD, 16384])), register)
    labels = {HOSTNAME: "n1", GPU_PRODUCT: draw(st.sampled_from(["H100-80GB", "X"])), TRANSPORT: "rdma"}
    replicas = draw(st.sampled_from(["1", "4"]))
    return Node(
        metadata=Metadata(name="n1", labels=labels | {"nvidia.com/gpu.replicas": replicas}),
        status=NodeStatus(allocatable={"nvidia.com/gpu": draw(st.integers(0, 8)), "pods": 110}, conditions=READY),
    )


@settings(max_examples=150, deadline=None)
@given(
    nodes(), st.lists(st.tuples(requests(), st.sampled_from(PHASES)), max_size=4), requests(), st.sampled_from(PHASES)
)
@example(
    Node(
        metadata=Metadata(name="n1", labels={HOSTNAME: "n1", GPU_PRODUCT: "H100-80GB", "nvidia.com/gpu.replicas": "4"}),
        status=NodeStatus(allocatable={"nvidia.com/gpu": 8, "pods": 110}, conditions=READY),
    ),
    [(GpuRequest("KAI fraction", 3, 1), PREFILL), (GpuRequest("Volcano vGPU", 1, whole=True), PREFILL)],
    GpuRequest("Volcano vGPU", 2, compute_milli=1000, whole=True),
    PREFILL,
)
def test_all_nodes_at_once_agree_with_one_card_at_a_time(
    node: Node, held: list[tuple[GpuRequest, str]], asked: GpuRequest, phase: str
) -> None:
    holds = [("n1", f"u{i}", GpuAllocation(gpu, who)) for i, (gpu, who) in enumerate(held)]
    snapshot = snapshot_of([node], holds=holds)
    policy = Policy()
    need = gpu_need(asked, phase, policy)
    if need is None:
        return
    table, limits = snapshot.gpus, limits_of(policy)
    devices, row = table.static.devices[0], table.row(0)
    fit = gpu_fit(table, need)
    one_by_one = [fits(devices, row, i, asked, phase, limits) for i in range(len(devices.memory_mib))]
    assert fit.able[0].tolist() == one_by_one
    assert able_gpus(devices, row, asked, phase, limits) == np.flatnonzero(one_by_one).tolist()
    # Placing pods one after the other, as their owner would, until no more fit: as many as counted at once.
    placed = 0
    while (chosen := choose(devices, row, asked, phase, limits)) is not None and placed < 50:
        row, placed = put_all(devices, row, chosen, asked, phase), placed + 1
    counted = int(gpu_slots(table, need)[0])
    assert bool(counted) == bool(placed)
    assert placed <= counted if asked.count > 1 else min(counted, 50) == placed or asked.form == "Volcano vGPU"
    assert np.all(table.left_milli <= 1000)
    assert np.all(table.left_mib >= 0)


@settings(max_examples=60, deadline=None)
@given(nodes(), st.lists(requests(), min_size=2, max_size=3), st.lists(requests(), max_size=2), PHASE)
def test_pods_with_several_containers_are_counted_as_their_owner_places_them(
    node: Node, parts: list[GpuRequest], held: list[GpuRequest], phase: str
) -> None:
    parts = [replace(part, form="Volcano vGPU", peak_mib=0) for part in parts]
    asked = GpuRequest("Volcano vGPU", count=sum(p.count for p in parts), parts=tuple(parts))
    holds = [("n1", f"u{i}", GpuAllocation(gpu, DECODE)) for i, gpu in enumerate([*held, asked])]
    for pods in (holds[:-1], holds):
        snapshot = snapshot_of([node], holds=pods)
        need = gpu_need(asked, phase, Policy())
        assert need is not None
        devices, row, placed = snapshot.table.gpus.devices[0], snapshot.gpus.row(0), 0
        while (chosen := choose(devices, row, asked, phase, need.limits)) is not None and placed < 50:
            row, placed = put_all(devices, row, chosen, asked, phase), placed + 1
        assert gpu_fit(snapshot.gpus, need).fits.tolist() == [placed > 0]
        assert min(int(gpu_slots(snapshot.gpus, need)[0]), 50) == placed
