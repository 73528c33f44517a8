"""The FGD measure: by hand, and against the slow one for any room and mix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.slow_fragmentation import fragmented
from topology.fragmentation.pod_mix import NO_MIX, Mix
from topology.fragmentation.pod_shape import PodShape, left_share
from topology.fragmentation.unusable import FreeCapacity, fragmented_gpus

MODELS = ("A", "B")


def capacity(*nodes: tuple[int, list[int]], model: int = 0, gpu_mib: int = 0) -> FreeCapacity:
    """Nodes as (cpu milli, milli left of its GPUs)."""
    return FreeCapacity(
        np.array([cpu for cpu, _ in nodes]),
        np.array([devices for _, devices in nodes]),
        np.full(len(nodes), model),
        MODELS,
        np.full(len(nodes), gpu_mib),
    )


def test_by_hand() -> None:
    """Half the pods share 600 of a GPU with 4 cores, half take two GPUs with 8 cores."""
    mix = Mix([(PodShape(4000, 1, 600), 1), (PodShape(8000, 2, 1000), 1)])
    found = fragmented_gpus(
        capacity((8000, [1000, 1000, 400]), (8000, [1000, 500, -1]), (4000, [1000, 1000, 0]), (0, [1000, 0, 0])), mix
    )
    # 1: both run, 400 is too small for either: 0.4. 2: the small one runs but for 500, the pair does not:
    # (0.5 + 1.5) / 2. 3: the pair lacks CPU: (0 + 2) / 2. 4: nobody runs: 1.
    assert found.tolist() == [0.4, 1.0, 1.0, 1.0]


def test_a_pod_without_gpus_uses_none_of_them() -> None:
    assert fragmented_gpus(capacity((8000, [1000, 500])), Mix([(PodShape(1000), 3)])).tolist() == [1.5]


def test_a_model_that_is_not_accepted_is_of_no_use() -> None:
    mix = Mix([(PodShape(0, 1, 500, models=("A",)), 3), (PodShape(0, 1, 500), 1)])
    assert fragmented_gpus(capacity((8000, [1000]), model=1), mix).tolist() == [0.75]
    assert fragmented_gpus(capacity((8000, [1000]), model=0), mix).tolist() == [0.0]


def test_memory_in_place_of_milli() -> None:
    """20,000 MiB are half of a card of 40,000 and a quarter of one of 80,000: 300 milli left are enough there only."""
    mix = Mix([(PodShape(0, 1, 0, gpu_mib=20_000), 1)])
    assert fragmented_gpus(capacity((0, [300]), gpu_mib=40_000), mix).tolist() == [0.3]
    assert fragmented_gpus(capacity((0, [300]), gpu_mib=80_000), mix).tolist() == [0.0]


def test_the_binding_share_is_the_smaller_one() -> None:
    left = left_share(np.array([[500, 1000, -1]]), np.array([[30_000, 10_000, 0]]), np.array([40_000]))
    assert left.tolist() == [[500, 250, -1]]


def test_no_pod_no_fragmentation() -> None:
    assert fragmented_gpus(capacity((0, [1000, 300])), NO_MIX).tolist() == [0.0]
    assert fragmented_gpus(capacity((0, [1000])).take(np.zeros(0, dtype=np.int64)), NO_MIX).tolist() == []


SHAPES = st.builds(
    PodShape,
    cpu_milli=st.sampled_from((0, 1000, 8000)),
    gpus=st.integers(0, 3),
    milli=st.sampled_from((0, 100, 300, 500, 1000)),
    gpu_mib=st.sampled_from((0, 10_000, 30_000)),
    models=st.sampled_from(((), ("A",), ("B", "A"), ("C",))),
)
NODES = st.tuples(
    st.sampled_from((0, 999, 1000, 4000, 64_000)),
    st.lists(st.sampled_from((-1, 0, 99, 100, 400, 500, 1000)), min_size=4, max_size=4),
    st.integers(0, 1),
    st.sampled_from((0, 16_000, 80_000)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(SHAPES, st.integers(1, 9)), max_size=6), st.lists(NODES, min_size=1, max_size=6))
def test_the_same_as_one_by_one(
    counted: list[tuple[PodShape, int]], nodes: list[tuple[int, list[int], int, int]]
) -> None:
    mix = Mix(dict(counted).items())
    cpu, devices, model, size = (np.array(column) for column in zip(*nodes, strict=True))
    found = fragmented_gpus(FreeCapacity(cpu, devices, model, MODELS, size), mix)
    slow = [fragmented(c, k, MODELS[m], s, mix) for c, k, m, s in nodes]
    assert found.tolist() == pytest.approx(slow)
