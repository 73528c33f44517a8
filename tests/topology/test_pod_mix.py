"""The mix: what is typical, when it is measured anew, what is forgotten, which models are scarce."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.fragmentation.pod_mix import MOST_SHAPES, NO_MIX, Mix, PodMix
from topology.fragmentation.pod_shape import PodShape, shape_of
from topology.gpus.gpu_request import GpuRequest
from topology.labels import DECODE, GPU_PRODUCT, PREFILL
from topology.objects import PodSpec

ONE, TWO, HALF = PodShape(4000, 1, 1000), PodShape(8000, 2, 1000), PodShape(4000, 1, 500)


def test_the_typical_are_the_fewest_that_cover_95_percent() -> None:
    """60, 35 and 5 of 100: the first two are 95."""
    mix = Mix([(TWO, 5), (ONE, 60), (HALF, 35)])
    assert (mix.shapes[: mix.typical], mix.counts.tolist()) == ((ONE, HALF), [60, 35, 5])


def test_ties_go_to_larger_resources() -> None:
    mix = Mix([(HALF, 1), (ONE, 1), (TWO, 1)])
    assert mix.shapes == (TWO, ONE, HALF)
    assert mix.typical == 3


def test_it_is_measured_anew_after_a_fifth_has_changed() -> None:
    mix = PodMix()
    assert mix.current() is NO_MIX
    for _ in range(10):
        mix.add(ONE)
    first = mix.current()
    assert first.pods == 10
    mix.add(HALF)
    assert mix.current() is first
    mix.remove(ONE)
    assert mix.current().counts.tolist() == [9, 1]


def test_a_pod_that_was_not_counted_takes_nothing_away() -> None:
    mix = PodMix()
    mix.add(ONE)
    mix.remove(HALF)
    mix.remove(ONE)
    mix.remove(ONE)
    assert mix.current().pods == 0


def test_pods_without_gpus_are_not_counted() -> None:
    mix = PodMix()
    mix.add(PodShape(1000))
    assert mix.current().pods == 0


def test_shapes_are_bounded() -> None:
    mix = PodMix()
    for cpu in range(MOST_SHAPES + 10):
        mix.add(PodShape(cpu, 1, 1000))
    assert len(mix.current().shapes) == MOST_SHAPES


def test_cpu_per_gpu_by_hand() -> None:
    """4 cores to a GPU, 8 to two, 4 to a half: 16 cores to 3.5 GPUs."""
    assert Mix([(ONE, 1), (TWO, 1), (HALF, 1)]).on_gpu(0).cpu_per_gpu_milli == pytest.approx(16_000 / 3.5)


def test_scarcity_by_hand() -> None:
    """8 GPUs of A, 2 of B. Half of the demand of 4 GPUs takes B alone: 2 on 2, against 4 on 10."""
    mix = Mix([(PodShape(0, 1, 1000, models=("B",)), 2), (PodShape(0, 2, 1000), 1)])
    assert mix.scarcity(("A", "B"), np.array([8, 2])).tolist() == pytest.approx([0, 2.5])
    assert NO_MIX.scarcity(("A",), np.array([0])).tolist() == [0]


@given(st.lists(st.sampled_from((ONE, TWO, HALF)), min_size=1), st.data())
def test_added_and_removed_is_as_never_seen(shapes: list[PodShape], data: st.DataObject) -> None:
    mix, never = PodMix(), PodMix()
    retained = data.draw(st.lists(st.booleans(), min_size=len(shapes), max_size=len(shapes)))
    for shape, stays in zip(shapes, retained, strict=True):
        mix.add(shape)
        if stays:
            never.add(shape)
    for shape, stays in zip(shapes, retained, strict=True):
        if not stays:
            mix.remove(shape)
    after, alone = mix.current(), never.current()
    assert (after.shapes, after.counts.tolist()) == (alone.shapes, alone.counts.tolist())


@pytest.mark.parametrize(
    ("gpu", "phase", "shape"),
    [
        (None, "", PodShape(2000, 2, 1000)),
        (GpuRequest("nvidia.com/gpu", count=1, whole=True, memory_mib=60_000), DECODE, PodShape(2000, 1, 1000)),
        (GpuRequest("volcano vGPU", count=1, memory_mib=4000), DECODE, PodShape(2000, 1, 0, 4000)),
        (GpuRequest("ours", memory_mib=4000, peak_mib=6000), DECODE, PodShape(2000, 1, 0, 6000)),
        (GpuRequest("ours", memory_mib=4000, peak_mib=6000), PREFILL, PodShape(2000, 1, 0, 4000)),
        (
            GpuRequest("MIG", count=2, profiles=(("2g.20gb.me", 2),)),
            DECODE,
            PodShape(2000, 2, 0, 20480, profile="2g.20gb"),
        ),
        (GpuRequest("qGPU", memory_milli=300, compute_milli=500), DECODE, PodShape(2000, 1, 500)),
    ],
)
def test_requests_as_shapes(gpu: GpuRequest | None, phase: str, shape: PodShape) -> None:
    assert shape_of({"cpu": 2000, "nvidia.com/gpu": 2}, gpu, phase) == shape


def test_a_selector_on_the_product_is_a_choice_of_models() -> None:
    spec = PodSpec(node_selector={GPU_PRODUCT: "NVIDIA-L40S"})
    assert shape_of({"nvidia.com/gpu": 1}, None, DECODE, spec).models == ("NVIDIA-L40S",)
