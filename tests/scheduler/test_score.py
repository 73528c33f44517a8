"""Scores: by hand for one node, and the rules that hold for all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.evaluate.score import BOUND_SHARE, FLOOR_US, Scored, reach_share
from scheduler.model.decision import NANO
from scheduler.model.policy import Policy
from tests.scheduler.clusters import node
from tests.scheduler.small_cases import snapshots
from topology.cluster.snapshot import Mask, Snapshot, snapshot_of
from topology.fragmentation.pod_mix import Mix
from topology.fragmentation.pod_shape import PodShape, shape_of
from topology.gpus.capacity import GPU_COUNT
from topology.labels import GPU_PRODUCT
from topology.objects import Metadata, Node, NodeStatus

GPU = "nvidia.com/gpu"


def scored(snapshot: Snapshot, reach: list[float], gpus: int = 4, bound: float = 1000.0) -> Scored:
    size = len(snapshot.table)
    need = snapshot.table.vector({GPU: gpus})[0]
    fits: Mask = np.all(snapshot.free >= need, axis=1)
    shape = shape_of({GPU: gpus} if gpus else {})
    return Scored(snapshot, np.arange(size), shape, np.array(reach[:size]), bound, Policy(), fits)


@pytest.mark.parametrize(
    ("us", "share"),
    [
        (1.0, 1.0),  # below the floor nothing is better
        (FLOOR_US, 1.0),
        (70.7107, 0.6),  # the geometric middle of 5 and 1,000: half of what lies between 1 and 0.2
        (1000.0, BOUND_SHARE),
        (2000.0, 0.2 * 0.5 * 0.999),
    ],
)
def test_the_share_of_a_reach(us: float, share: float) -> None:
    assert reach_share(np.array([us]), 1000.0)[0] == pytest.approx(share, abs=1e-6)


def test_parts_by_hand() -> None:
    snapshot = snapshot_of([node("gpu-001"), node("gpu-002")], [("gpu-002", {GPU: 2})])
    two = scored(snapshot, [70.7107, 1000.0])
    first, second = two.candidate(0, "gpu-001", None), two.candidate(1, "gpu-002", None)
    assert [p.name for p in first.parts] == ["reach", "fragmentation", "balance", "scarcity", "order"]
    # 60 x 0.6 = 35.999 (a hair beyond the middle, cut to thousandths). No pod was seen: nothing is lost anywhere, and
    # fragmentation, balance and scarcity stay where they start. The order is 0.999, and two last steps of 499,999.
    assert [p.points for p in first.parts] == [35.999, 16.0, 6.0, 5.0, 0.999999998]
    # 60 x 0.2 = 12; half of the order, cut to 0.499, and one last step.
    assert [p.points for p in second.parts] == [12.0, 16.0, 6.0, 5.0, 0.499499999]
    assert first.score_nano == 35_999_000_000 + 27_000_000_000 + 999_999_998


def test_a_mix_of_pairs_keeps_pairs() -> None:
    """gpu-001 has two GPUs free, gpu-002 one; of ten pods seen nine want two GPUs, one wants one."""
    snapshot = replace(
        snapshot_of([node("gpu-001"), node("gpu-002")], [("gpu-001", {GPU: 6}), ("gpu-002", {GPU: 7})]),
        mix=Mix([(shape_of({GPU: 2}), 9), (shape_of({GPU: 1}), 1)]),
    )
    two = scored(snapshot, [5.0, 5.0], gpus=1)
    # On gpu-001 the pod leaves one GPU of no use to the pairs, 0.9, where all was of use: 16 - 8 x 0.9 = 8.8.
    # On gpu-002 it takes the one that was of no use to them: 16 + 8 x 0.9 = 23.2.
    assert [part.tolist() for name, part, _ in two.parts if name == "fragmentation"] == [
        [8_800_000_000, 23_200_000_000]
    ]


def test_a_pod_without_gpus_goes_where_cpu_is_over() -> None:
    """The mix asks for 4 cores with a GPU. Of 16 cores beside two GPUs 8 are over, of 8 none."""
    mix = Mix([(shape_of({GPU: 1, "cpu": 4000}), 1)])
    snapshot = replace(snapshot_of([node("a", gpus=2, cpu="16"), node("b", gpus=2, cpu="8")]), mix=mix)
    fits = np.array([True, True])
    two = Scored(snapshot, np.arange(2), shape_of({"cpu": 8000}), np.full(2, 5.0), 1000.0, Policy(), fits)
    # On a, CPU for two GPUs too many becomes none: 5.5 + 1.8 x 2. On b two GPUs lose theirs: 5.5 - 1.8 x 2.
    assert [part.tolist() for name, part, _ in two.parts if name == "balance"] == [[9_100_000_000, 1_900_000_000]]


def test_an_instance_goes_where_the_mix_loses_no_place() -> None:
    """One H100 a node, laid out as a 3g at slice 4 and 1g at 3 to 0. A pod on gpu-001 has the 1g at 3, gpu-002 is
    empty, the card of gpu-003 is not known, gpu-004 has no instances. The other pods of the cluster want a 4g each."""
    offers: dict[str, str | int | float] = {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb": 4}
    nodes = [
        Node(Metadata(name=name, labels={GPU_PRODUCT: product, GPU_COUNT: "1"}), status=NodeStatus(allocatable=have))
        for name, product, have in (
            ("gpu-001", "NVIDIA-H100-80GB-HBM3", offers),
            ("gpu-002", "NVIDIA-H100-80GB-HBM3", offers),
            ("gpu-003", "unheard-of", offers),
            ("gpu-004", "NVIDIA-H100-80GB-HBM3", {}),
        )
    ]
    mix = Mix([(PodShape(0, 1, 0, 40960, profile="4g.40gb"), 3)])
    snapshot = replace(snapshot_of(nodes, [("gpu-001", {"nvidia.com/mig-1g.10gb": 1})]), mix=mix)
    fits = np.array([True, True, True, False])

    def ask(profile: str) -> Scored:
        shape = PodShape(0, 1, 0, 40960, profile=profile)
        return Scored(snapshot, np.arange(4), shape, np.full(4, 5.0), 1000.0, Policy(), fits)

    # 3g: on gpu-001 a 4g has no place as it is, and with slices 4 to 7 gone too little memory anyway: nothing is lost
    # any more that could be had, one card mended. On gpu-002 it takes 4 to 7 and leaves the 4g its place: as before.
    every = ask("3g.40gb")
    assert [name for name, _, _ in every.parts] == ["reach", "mig", "order"]
    assert every.parts[1][1].tolist() == [39_000_000_000, 19_500_000_000, 19_500_000_000, 0]
    assert sum(most for _, _, most in every.parts) == pytest.approx(100)
    # 1g: on gpu-002 the best place is slice 6, which leaves 0 to 3 whole: as before. On gpu-001 nothing can be lost.
    assert ask("1g.10gb").parts[1][1].tolist() == [19_500_000_000, 19_500_000_000, 19_500_000_000, 0]
    for i in range(4):
        candidate = every.candidate(i, "n", None)
        assert candidate.score_nano == every.total_nano[i] == sum(part.points_nano for part in candidate.parts)


def test_a_bound_below_the_floor_divides_by_nothing() -> None:
    shares = reach_share(np.array([0.5, 1.0, 2.0]), 1.0)
    assert np.isfinite(shares).all()
    assert shares[0] == 1.0
    assert shares[2] < BOUND_SHARE


FAR = st.lists(st.floats(0.1, 1e7) | st.just(float("inf")), min_size=6, max_size=6)


@settings(max_examples=300, deadline=None)
@given(snapshots(), FAR, st.integers(0, 8), st.sampled_from((15.0, 100.0, 1000.0)), st.lists(st.integers(1, 8)))
def test_the_rules_of_scores(snapshot: Snapshot, reach: list[float], gpus: int, bound: float, seen: list[int]) -> None:
    mix = Mix(Counter(shape_of({GPU: count, "cpu": 1000 * count}) for count in seen).items())
    every = scored(replace(snapshot, mix=mix), reach, gpus, bound)
    totals = every.total_nano.tolist()
    assert len(set(totals)) == len(totals)
    assert all(0 <= total <= 100 * NANO for total in totals)
    inside = [t for t, within in zip(totals, every.within, strict=True) if within]
    outside = [t for t, within in zip(totals, every.within, strict=True) if not within]
    assert not inside or not outside or min(inside) > max(outside)
    for i in range(len(totals)):
        candidate = every.candidate(i, "n", None)
        assert candidate.score_nano == totals[i]
        assert all(0 <= part.points_nano <= part.of * NANO for part in candidate.parts)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.1, 1e6), st.floats(0.1, 1e6), st.sampled_from((15.0, 100.0, 1000.0)))
def test_nearer_is_never_worse(a: float, b: float, bound: float) -> None:
    near, far = reach_share(np.array(sorted((a, b))), bound)
    assert near >= far
