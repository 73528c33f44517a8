"""Losses of a placement: by hand, and against every node on its own with the slow measure."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.evaluate import capacity_score as room_score
from scheduler.evaluate.capacity_score import CAPACITY_PARTS, QUANTUM, capacity_points, order_points, weights_for
from scheduler.evaluate.placement_cost import placement_cost
from scheduler.model.policy import Policy
from tests.topology.slow_fragmentation import fragmented
from tests.topology.test_fragmentation import MODELS, NODES, SHAPES, capacity
from topology.fragmentation.pod_mix import Mix
from topology.fragmentation.pod_shape import PodShape
from topology.fragmentation.unusable import FreeCapacity

PAIRS = Mix([(PodShape(4000, 1, 810), 10), (PodShape(4000, 1, 190), 4)])
"""On a GPU with 810 taken the 190 that is left is worth nothing: there are more such holes than pods for them."""


def test_the_gpu_that_loses_least_is_taken_by_hand() -> None:
    """One GPU has 190 left, one is free. A pod of 190 fills the one, which was waste; on the other it leaves 810."""
    found = placement_cost(capacity((99_000, [190, 1000])), PodShape(4000, 1, 190), PAIRS)
    # Waste is what is left less its worth: 0.19 before on the first, 0 after. On the second 0 before, 0.81 - 1 after.
    assert dict(zip(found.gpu_left.tolist(), found.remainder.tolist(), strict=True)) == pytest.approx(
        {190: -0.19, 1000: -0.19}
    )


def test_balance_by_hand() -> None:
    """The mix asks for 4 cores to a GPU. Two GPUs and 8 cores are in balance; a pod of 8 cores and one GPU leaves a GPU
    without CPU; a pod of one GPU alone leaves 8 cores for one GPU, of which 4 are over, those of a GPU."""
    mix = Mix([(PodShape(4000, 1, 1000), 1)])
    both = capacity((8000, [1000, 1000]))
    assert placement_cost(both, PodShape(8000, 1, 1000), mix).balance.tolist() == [1.0]
    assert placement_cost(both, PodShape(0, 1, 1000), mix).balance.tolist() == [1.0]


def test_several_gpus_are_taken_from_the_fullest_that_have_room() -> None:
    mix = Mix([(PodShape(0, 1, 500), 1)])
    found = placement_cost(capacity((0, [1000, 500, 600, 400])), PodShape(0, 2, 500), mix)
    # 500 and 600 are taken: 1000, 0, 100 and 400 stay. Before, only 400 was of no use; now 100 and 400 are.
    assert found.fragmentation.tolist() == pytest.approx([0.1])


def test_scarce_models_cost() -> None:
    mix = Mix([(PodShape(0, 1, 1000, models=("B",)), 1)])
    two = FreeCapacity(np.array([0, 0]), np.array([[1000], [1000]]), np.array([0, 1]), MODELS, np.array([0, 0]))
    # All demand is for B, half of the GPUs: twice as wanted as the average.
    assert placement_cost(two, PodShape(0, 1, 500), mix, np.array([1, 1])).scarcity.tolist() == [0.0, 1.0]


def test_a_narrow_host_costs_a_pod_that_shares() -> None:
    """The first host has eight GPUs, the second two: six less, 1.8 points."""
    devices = np.array([[1000] * 8, [1000] * 2 + [-1] * 6])
    two = FreeCapacity(np.array([0, 0]), devices, np.array([0, 0]), MODELS, np.array([0, 0]))
    pod, mix = PodShape(0, 1, 500), Mix([(PodShape(0, 1, 500), 1)])
    assert placement_cost(two, pod, mix).width.tolist() == [0.0, 6.0]
    assert capacity_points(two, pod, mix, weights_for(pod, Policy())).parts["width"].tolist() == [1_800_000_000, 0]


COUNTED = st.lists(st.tuples(SHAPES, st.integers(1, 9)), max_size=5)


@settings(max_examples=150, deadline=None)
@given(COUNTED, st.lists(NODES, min_size=1, max_size=6), SHAPES)
def test_every_row_is_what_the_slow_measure_says(
    counted: list[tuple[PodShape, int]], nodes: list[tuple[int, list[int], int, int]], pod: PodShape
) -> None:
    mix = Mix(dict(counted).items())
    cpu, devices, model, size = (np.array(column) for column in zip(*nodes, strict=True))
    found = placement_cost(FreeCapacity(cpu, devices, model, MODELS, size), pod, mix)
    rows = list(zip(found.node.tolist(), found.gpu_left.tolist(), found.fragmentation.tolist(), strict=True))
    expected = []
    for i, (cores, left, kind, gpu_mib) in enumerate(nodes):
        ask = pod.share_of(gpu_mib)
        fitting = sorted((c for c in left if c >= ask), key=lambda c: c)
        if pod.gpus and len(fitting) < pod.gpus:
            continue
        shared = pod.gpus == 1 and ask < 1000
        before = fragmented(cores, left, MODELS[kind], gpu_mib, mix)
        for taken in [[c] for c in sorted(set(fitting))] if shared else [fitting[: pod.gpus]]:
            after = list(left)
            for gpu in taken:
                after[after.index(gpu)] = gpu - ask
            lost = fragmented(cores - pod.cpu_milli, after, MODELS[kind], gpu_mib, mix) - before
            expected.append((i, taken[0] if shared else -1, pytest.approx(lost)))
    assert sorted(rows) == sorted(expected, key=lambda row: row[:2])


@settings(max_examples=100, deadline=None)
@given(COUNTED, st.lists(NODES, min_size=1, max_size=8), SHAPES, st.randoms(use_true_random=False))
def test_the_order_of_nodes_changes_no_points(
    counted: list[tuple[PodShape, int]],
    nodes: list[tuple[int, list[int], int, int]],
    pod: PodShape,
    chance: Random,
) -> None:
    weights = weights_for(pod, Policy())
    order = list(range(len(nodes)))
    chance.shuffle(order)
    cpu, devices, model, size = (np.array(column) for column in zip(*nodes, strict=True))
    every = FreeCapacity(cpu, devices, model, MODELS, size)
    # A mix remembers what it was asked: each has one of its own.
    points, turned = (
        capacity_points(r, pod, Mix(dict(counted).items()), weights).parts for r in (every, every.take(np.array(order)))
    )
    for name, part in points.items():
        assert part[order].tolist() == turned[name].tolist()
        assert (part % QUANTUM == 0).all()
        of = getattr(weights, name).of
        assert (part >= 0).all()
        assert (part <= of * 1e9 + 1).all()


@settings(max_examples=100, deadline=None)
@given(COUNTED, st.lists(NODES, min_size=1, max_size=8), st.lists(SHAPES, min_size=1, max_size=3), st.integers(1, 6))
def test_what_is_remembered_is_what_is_worked_out(
    counted: list[tuple[PodShape, int]], nodes: list[tuple[int, list[int], int, int]], pods: list[PodShape], most: int
) -> None:
    """One node more in every call, with room in memory for a few states."""
    mix = Mix(dict(counted).items())
    cpu, devices, model, size = (np.array(column) for column in zip(*nodes, strict=True))
    every = FreeCapacity(cpu, devices, model, MODELS, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room_score, "MOST_STATES", most)
        for count in range(1, len(nodes) + 1):
            some = every.take(np.arange(count)[::-1])
            for pod in pods:
                weights = weights_for(pod, Policy())
                remembered = capacity_points(some, pod, mix, weights)
                fresh = capacity_points(some, pod, Mix(dict(counted).items()), weights)
                assert remembered.gpu_left.tolist() == fresh.gpu_left.tolist()
                for name, part in fresh.parts.items():
                    assert remembered.parts[name].tolist() == part.tolist()


@given(st.integers(1, 50), st.sampled_from((0.2, 1.0)))
def test_the_order_is_distinct_and_falls(count: int, of: float) -> None:
    points = order_points(np.arange(count), count, of)
    assert (np.diff(points) < 0).all()
    assert points[0] <= of * 1e9
    assert points[-1] > 0


def test_the_points_of_every_kind_add_up_to_forty() -> None:
    for weights in (Policy().sharing, Policy().whole, Policy().without_gpu, Policy().instances):
        losses = sum(getattr(weights, name).of for name in (*CAPACITY_PARTS, "mig"))
        assert losses + weights.order == pytest.approx(100 - Policy().reach_points)
