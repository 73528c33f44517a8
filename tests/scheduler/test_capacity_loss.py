"""What a gang takes from expected pods on shared cards and on MIG cards, by hand, and against every assignment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from scheduler.evaluate.mig_cost import mig_cost
from scheduler.model.decision import Outcome
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest, PodRequest
from scheduler.planning.plan import plan
from scheduler.search.capacity_loss import GpuValue
from tests.scheduler.clusters import READY
from tests.scheduler.test_gpu_fit import CARD, GIB, vgpu, vgpu_node
from topology.cluster.snapshot import Assumed, Snapshot, snapshot_of
from topology.fragmentation.pod_mix import Mix
from topology.fragmentation.pod_shape import PodShape
from topology.gpus.capacity import node_gpus
from topology.gpus.gpu_request import GpuRequest
from topology.gpus.gpu_row import GpuRow, Limits, choose, empty_row, put_all
from topology.labels import DECODE, GPU_PRODUCT, HOSTNAME, PREFILL, TRANSPORT, ZONE
from topology.objects import Metadata, Node, NodeStatus

VGPU = "volcano.sh/vgpu-number"
PLANNED = CARD * 850 // 1000  # 68 GiB
SHARERS = Mix([(PodShape(gpus=1, gpu_mib=34 * GIB), 1), (PodShape(gpus=1, gpu_mib=60 * GIB), 1)])
LIMITS = Limits(850, 850)


def test_what_shared_cards_are_worth_by_hand() -> None:
    # Half of the pods ask for 34 of 68 GiB, half for 60. An empty card of two serves both: 2.0 in all. With 30 GiB on
    # one card 38 are left, 558 thousandths: for the pods of 34 GiB 1 + 0.558, for those of 60 only the other card, 1.
    devices, value = node_gpus(vgpu_node("n1", devices=2)), GpuValue(SHARERS, Policy())
    row = empty_row(devices)
    assert value.of(devices, row) == pytest.approx(2.0)
    row = put_all(devices, row, choose(devices, row, vgpu(30), DECODE, LIMITS) or (), vgpu(30), DECODE)
    assert value.of(devices, row) == pytest.approx(0.5 * 1.558 + 0.5 * 1.0)
    # 10 GiB more on it: 28 of 68 left, which serve nobody.
    row = put_all(devices, row, choose(devices, row, vgpu(10), DECODE, LIMITS) or (), vgpu(10), DECODE)
    assert value.of(devices, row) == pytest.approx(1.0)


def vgpu_gang(*pods: tuple[str, GpuRequest]) -> GangRequest:
    members = tuple(
        PodRequest(f"u{i}", "prod", f"{phase}-{i}", phase, {VGPU: 1, "pods": 1}, gpu=gpu)
        for i, (phase, gpu) in enumerate(pods)
    )
    count = {phase: sum(p == phase for p, _ in pods) for phase in (PREFILL, DECODE)}
    return GangRequest("prod", "chat", members, min_prefill=count[PREFILL], min_decode=count[DECODE])


def test_a_card_that_is_in_use_is_filled_before_one_that_is_whole() -> None:
    # n2 has 34 GiB taken. A pair of 17 GiB takes its other half, and n1 is left for the pods of 60 GiB.
    snapshot = snapshot_of([vgpu_node("n1"), vgpu_node("n2")])
    held = PodRequest("h", "prod", "h", DECODE, {VGPU: 1}, gpu=vgpu(34)).hold
    snapshot = replace(snapshot.with_assumed({"h": Assumed("n2", {VGPU: 1}, held)}), mix=SHARERS)
    made = plan(vgpu_gang((PREFILL, vgpu(17)), (DECODE, vgpu(17))), snapshot)
    assert set(made.places.values()) == {"n2"}
    assert made.terms is not None
    assert made.terms.lost_gpus == pytest.approx(0.25)  # half a card, of use to half of the pods


def cost_of(asked: GangRequest, snapshot: Snapshot, places: Mapping[str, str], lost: float, taken: float) -> float:
    """The formula written out, where all nodes are in one zone and within the bound, so that a set is all of them."""
    of = {p: [places[m.uid] for m in asked.members if m.phase == p] for p in (PREFILL, DECODE)}
    index, size = snapshot.table.index, asked.bound.size_bytes
    us = [snapshot.table.reach.between(index[a], index[b], size).us for a in of[PREFILL] for b in of[DECODE]]
    span = math.log1p(asked.bound.us / 5)
    near = 40 * math.log1p(max(us) / 5) / span + 20 * math.log1p(sum(us) / len(us) / 5) / span
    return near + 12 * lost / max(taken, 1.0) + 10 / len(snapshot.table)


def worth(row: GpuRow) -> float:
    """GPUs of these cards that the pods of `SHARERS` can use."""
    total = 0.0
    for left, peak, users in zip(row.left_mib, row.peak_mib, row.users, strict=True):
        retained = max(0, left - peak - (CARD - PLANNED))
        milli = 1000 if users == 0 else retained * 1000 // PLANNED if users > 0 else 0
        for ask in (34, 60):
            total += 0.5 * milli / 1000 * (milli >= -(-1000 * ask * GIB // PLANNED))
    return total


def lost_on(snapshot: Snapshot, asked: GangRequest, node: str, places: Mapping[str, str]) -> float | None:
    """What the pods of one node take from `SHARERS` as they come by name, or in any order in which they find cards
    within what may be promised; None if there is none."""
    at = snapshot.table.index[node]
    devices, before = snapshot.table.gpus.devices[at], snapshot.gpus.row(at)
    mine = sorted((m for m in asked.members if places[m.uid] == node), key=lambda m: (m.phase, m.name))
    for order in itertools.permutations(mine):
        row = before
        for member in order:
            assert member.gpu is not None
            chosen = choose(devices, row, member.gpu, member.phase, LIMITS)
            if chosen is None:
                break
            row = put_all(devices, row, chosen, member.gpu, member.phase)
        else:
            return worth(before) - worth(row)
    return None


def vgpu_case(random: Random) -> tuple[Snapshot, GangRequest]:
    names = [f"n{i}" for i in range(random.randint(2, 3))]
    snapshot = snapshot_of([vgpu_node(name, devices=random.randint(1, 2)) for name in names])
    held = {}
    for i in range(random.randint(0, 3)):
        gpu = vgpu(random.choice((10, 20, 34)))
        held[f"h{i}"] = Assumed(random.choice(names), {VGPU: 1}, PodRequest("u", "p", "h", DECODE, {}, gpu=gpu).hold)
    pods = [
        (phase, vgpu(random.choice((8, 17, 30)))) for phase in (PREFILL, DECODE) for _ in range(random.randint(1, 2))
    ]
    return replace(snapshot.with_assumed(held), mix=SHARERS), vgpu_gang(*pods)


def test_plans_on_shared_cards_cost_as_little_as_any() -> None:
    gaps = []
    for seed in range(60):
        snapshot, asked = vgpu_case(Random(seed))
        made, best = plan(asked, snapshot, advise=False), math.inf
        taken = sum(-(-1000 * m.gpu.memory_mib // PLANNED) / 1000 for m in asked.members if m.gpu is not None)
        for nodes in itertools.product(snapshot.table.names, repeat=len(asked.members)):
            places = {m.uid: node for m, node in zip(asked.members, nodes, strict=True)}
            lost = [lost_on(snapshot, asked, node, places) for node in set(nodes)]
            if None not in lost:
                all_lost = sum(gpus for gpus in lost if gpus is not None)
                best = min(best, cost_of(asked, snapshot, places, all_lost, taken))
        assert (made.outcome == Outcome.PLANNED) == math.isfinite(best)
        if made.outcome == Outcome.PLANNED:
            gaps.append(made.cost / best - 1)
    assert len(gaps) > 50
    assert min(gaps) > -1e-9
    assert max(gaps) <= 0.1
    assert sum(gaps) / len(gaps) <= 0.02


def mig_node(name: str, offers: Mapping[str, int]) -> Node:
    labels = {HOSTNAME: name, ZONE: "z1", TRANSPORT: "rdma", GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3"}
    amounts: dict[str, str | int | float] = {f"nvidia.com/mig-{profile}": count for profile, count in offers.items()}
    return Node(
        metadata=Metadata(name=name, labels=labels | {"nvidia.com/gpu.count": "1"}),
        status=NodeStatus(allocatable=amounts | {"pods": 110, "cpu": 96}, conditions=READY),
    )


def mig_gang(prefill: int, decode: int) -> GangRequest:
    profile = "1g.10gb"
    gpu = GpuRequest("MIG", count=1, profiles=((profile, 1),))
    members = tuple(
        PodRequest(
            f"u-{phase}-{i}", "prod", f"{phase}-{i}", phase, {f"nvidia.com/mig-{profile}": 1, "pods": 1}, gpu=gpu
        )
        for phase, count in ((PREFILL, prefill), (DECODE, decode))
        for i in range(count)
    )
    return GangRequest("prod", "chat", members, min_prefill=prefill, min_decode=decode)


def test_plans_on_mig_cards_cost_as_little_as_any() -> None:
    mix = Mix([(PodShape(gpus=1, gpu_mib=40 * GIB, profile="3g.40gb"), 3), (PodShape(gpus=1, profile="1g.10gb"), 1)])
    offers = ({"1g.10gb": 7}, {"3g.40gb": 1, "1g.10gb": 4}, {"3g.40gb": 1, "1g.10gb": 3}, {"2g.20gb": 2, "1g.10gb": 3})
    weighed = 0
    for seed in range(30):
        random = Random(seed)
        nodes = [mig_node(f"n{i}", random.choice(offers)) for i in range(3)]
        held = [(n.metadata.name, {"nvidia.com/mig-1g.10gb": random.randint(0, 2)}) for n in nodes]
        snapshot = replace(snapshot_of(nodes, held), mix=mix)
        asked = mig_gang(random.randint(1, 2), random.randint(1, 2))
        taken, costs = len(asked.members) * 145 / 1000, {}  # 10240 of 69632 MiB, a thousandth more or less
        column = snapshot.table.column["nvidia.com/mig-1g.10gb"]
        for where in itertools.product(range(3), repeat=len(asked.members)):
            counts = np.bincount(where, minlength=3)
            if (counts > snapshot.free[:, column]).any():
                continue
            lost = 0.0
            for node, count in enumerate(counts.tolist()):
                used = snapshot.used[[node]].copy()
                for _ in range(count):
                    lost += float(mig_cost(snapshot, np.array([node]), ("1g.10gb",), mix.profiles, used)[0])
                    used[0, column] += 1
            places = {m.uid: snapshot.table.names[n] for m, n in zip(asked.members, where, strict=True)}
            costs[where] = cost_of(asked, snapshot, places, lost, taken)
        made = plan(asked, snapshot, advise=False)
        assert made.cost == pytest.approx(min(costs.values()))
        unweighed = plan(asked, replace(snapshot, mix=Mix()), advise=False)
        weighed += made.places != unweighed.places
    assert weighed > 3  # the places of MIG instances did decide
