"""The cards a pod will get on its node: what an agent sees, what the plugin takes from it, and what is said of it."""

from __future__ import annotations

import itertools

from scheduler.evaluate.gpu_prediction import gpu_pick, partner_rails
from scheduler.explain.annotation import placement_block
from scheduler.extender.decide import decide
from scheduler.model.gpu_pick import GpuPick
from scheduler.model.request import GangRequest, PodRequest
from scheduler.model.verdict import VerdictCode
from scheduler.planning.plan import plan
from tests.scheduler.clusters import READY
from tests.scheduler.test_gpu_fit import vgpu, vgpu_node
from topology.cluster.agent_gpus import agent_gpus
from topology.cluster.snapshot import snapshot_of
from topology.cluster.state import ClusterState
from topology.facts.report import (
    Distance,
    Gpu,
    GpuPair,
    Health,
    Memory,
    Mig,
    Nic,
    NicPort,
    NodeFacts,
    NodeState,
    NvLink,
    NvmlState,
    Remote,
)
from topology.gpus.gpu_request import whole_gpus
from topology.labels import DECODE, GPU_PRODUCT, HOSTNAME, PREFILL, TRANSPORT
from topology.objects import Metadata, Node, NodeStatus

MIB = 2**20
PAIRS = {(0, 1): Distance.PIX, (2, 3): Distance.PIX}


def facts(
    count: int = 4, *, split: tuple[int, ...] = (), nvswitch: bool = False, lost: int | None = None, kept_mib: int = 450
) -> NodeFacts:
    links = (NvLink(link=0, active=True, remote=Remote.SWITCH), NvLink(link=1, active=False, remote=Remote.SWITCH))
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{i}",
            index=i,
            numa_node=i // 2,
            mig=Mig(enabled=i in split),
            nvlinks=links if nvswitch else (),
            health=Health.LOST if i == lost else Health.HEALTHY,
        )
        for i in range(count)
    )
    pairs = tuple(
        GpuPair(a=f"GPU-{a}", b=f"GPU-{b}", distance=PAIRS.get((a, b), Distance.SYS))
        for a, b in itertools.combinations(range(count), 2)
    )
    nics = tuple(
        Nic(
            name=f"mlx5_{i}",
            rdma=True,
            ports=(NicPort(port=1, active=i < 2),),
            gpus=tuple((f"GPU-{g}", Distance.PIX if g == i else Distance.SYS) for g in range(count)),
        )
        for i in range(count)
    )
    return NodeFacts(
        state=NodeState(collected_at_s=0.0, topology_generation=1, nvml=NvmlState.OK),
        gpus=gpus,
        memory=tuple(
            Memory(uuid=g.uuid, total_bytes=16384 * MIB, reserved_bytes=kept_mib * MIB, used_bytes=0) for g in gpus
        ),
        pairs=pairs,
        nics=nics,
    )


def gpu_node(count: int = 4) -> Node:
    return Node(
        metadata=Metadata(name="n1", labels={HOSTNAME: "n1", GPU_PRODUCT: "Tesla-T4", TRANSPORT: "rdma"}),
        status=NodeStatus(allocatable={"nvidia.com/gpu": count, "pods": 110}, conditions=READY),
    )


def state_of(reported: NodeFacts) -> ClusterState:
    state = ClusterState()
    state.apply_nodes([(None, gpu_node())])
    state.apply_facts("n1", None, reported)
    return state


def wanting(gpus: int, name: str = "d", phase: str = DECODE) -> PodRequest:
    return PodRequest(f"u-{name}", "prod", name, phase, {"nvidia.com/gpu": gpus, "pods": 1}, gpu=whole_gpus(gpus))


def test_what_an_agent_sees_of_cards() -> None:
    seen = agent_gpus(facts())
    # 16,384 MiB less the driver's 450, rounded up to 512.
    assert seen.usable_mib == (15872,) * 4
    assert seen.links is not None
    assert seen.links.link_types[0] == ("X", "PIX", "SYS", "SYS")
    assert (seen.links.rails, seen.links.rails_known) == ((0, 1, None, None), True)  # two network cards are down
    switched = agent_gpus(facts(nvswitch=True)).links
    assert switched is not None
    assert switched.link_types[0] == ("X", "NV1", "NV1", "NV1")  # one of the two links is up


def test_a_reading_that_moves_a_little_changes_no_table() -> None:
    state = state_of(facts(kept_mib=450))
    before = state.table()
    state.apply_facts("n1", None, facts(kept_mib=455))
    assert state.table() is before
    state.apply_facts("n1", None, facts(kept_mib=600))
    assert state.table() is not before


def test_memory_is_what_the_driver_leaves() -> None:
    assert state_of(facts()).snapshot(0, 0).gpus.memory_mib.tolist() == [[15872] * 4]
    # Half of the node is split: four whole GPUs are listed and two are seen, so the list stands until they agree.
    assert state_of(facts(split=(0, 1))).snapshot(0, 0).gpus.memory_mib.tolist() == [[15360] * 4]


def test_cards_in_mig_mode_are_no_whole_gpus() -> None:
    snapshot = state_of(facts(split=(0, 1, 2, 3))).snapshot(0, 0)
    decision = decide(wanting(1), snapshot, ("n1",)).decision
    miss = decision.nearest[VerdictCode.RESOURCE_MISSING]
    assert miss.unit == "whole nvidia.com/gpu, since the cards are in MIG mode"


def test_the_pick_is_what_the_plugin_would_take() -> None:
    state = state_of(facts())
    snapshot = state.snapshot(0, 0)
    assert gpu_pick(snapshot, wanting(2), 0) == GpuPick((0, 1), joined="PIX")
    assert gpu_pick(snapshot, wanting(1), 0) == GpuPick((0,))
    three = gpu_pick(snapshot, wanting(3), 0)
    assert three is not None
    assert three.show() == "0,1,2 (SYS)"
    state.assume("other", "n1", {"nvidia.com/gpu": 1})
    # One is taken, by prediction the first: 2 and 3 are the pair behind one switch.
    assert gpu_pick(state.snapshot(0, 0), wanting(2), 0) == GpuPick((2, 3), joined="PIX")
    assert gpu_pick(state.snapshot(0, 0), wanting(4), 0) is None


def test_rails_of_the_partner() -> None:
    """The network cards beside GPUs 0 and 1 are rails 0 and 1, those of 2 and 3 are down. On n2 one GPU is in use, by
    prediction the first, on rail 0: of GPUs 0 and 1 of n1 only the first is on it."""
    state = state_of(facts())
    other = gpu_node()
    state.apply_nodes([(None, Node(metadata=Metadata(name="n2", labels=other.metadata.labels), status=other.status))])
    state.assume("partner", "n2", {"nvidia.com/gpu": 1})
    assert partner_rails(state.snapshot(0, 0), 1) == frozenset()  # no agent there
    unseen = gpu_pick(state.snapshot(0, 0), wanting(2), 0, 1)
    assert unseen is not None
    assert unseen.show() == "0,1 (PIX)"
    apart = gpu_pick(state.snapshot(0, 0), wanting(3), 0, 1)
    assert apart is not None
    assert apart.show() == "0,1,2 (SYS; 2 of 3 beside a network card)"
    state.apply_facts("n2", None, facts())
    snapshot = state.snapshot(0, 0)
    assert partner_rails(snapshot, 1) == {0}
    pick = gpu_pick(snapshot, wanting(2), 0, 1)
    assert pick is not None
    assert pick.show() == "0,1 (PIX; 1 of 2 on the partner's rails)"
    alone = gpu_pick(snapshot, wanting(1), 0, 1)
    assert alone is not None
    assert alone.show() == "0 (1 of 1 on the partner's rails)"
    assert gpu_pick(snapshot, wanting(2), 0, 0) == GpuPick((0, 1), joined="PIX")  # the same node: no network


def test_nothing_is_said_of_cards_that_nobody_saw() -> None:
    assert gpu_pick(snapshot_of([gpu_node()]), wanting(2), 0) is None


def test_a_shared_card_is_named_and_a_pinned_one_is_no_prediction() -> None:
    snapshot = snapshot_of([vgpu_node("n1", devices=2)])
    loose = PodRequest("u", "prod", "d", DECODE, {"volcano.sh/vgpu-number": 1}, gpu=vgpu(20))
    pinned = PodRequest("u", "prod", "d", DECODE, {"volcano.sh/vgpu-number": 1}, gpu=vgpu(20, pinned=("n1-0",)))
    assert gpu_pick(snapshot, loose, 0) == GpuPick((1,))
    assert gpu_pick(snapshot, pinned, 0) == GpuPick((0,), predicted=False)


def test_the_block_names_the_predicted_cards() -> None:
    gang = GangRequest("prod", "chat", (wanting(2, "p", PREFILL), wanting(2, "d")))
    made = plan(gang, state_of(facts()).snapshot(0, 0))
    block = placement_block(made.decisions["u-d"], made)
    assert "GPUs predicted: 2,3 (PIX); the device plugin picks the cards" in block
