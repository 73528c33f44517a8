"""The worth of remainders: by hand, and against the cutting-stock problem solved by trying everything."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.fragmentation.remainder import WHOLE_MILLI, remainder_worth


def fewest_gpus(sizes: dict[int, int]) -> float:
    """The linear problem's optimum: the best of all its corners, each as many patterns as there are sizes."""
    kinds = sorted(sizes)
    fill = [range(WHOLE_MILLI // size + 1) for size in kinds]
    patterns = [p for p in product(*fill) if any(p) and np.dot(p, kinds) <= WHOLE_MILLI]
    demand = np.array([sizes[size] for size in kinds], dtype=float)
    best = float("inf")
    for corner in combinations(patterns, len(kinds)):
        matrix = np.array(corner, dtype=float).T
        if abs(np.linalg.det(matrix)) > 1e-9:
            used = np.linalg.solve(matrix, demand)
            if (used >= -1e-9).all():
                best = min(best, float(used.sum()))
    return best


def test_halves_by_hand() -> None:
    """Pods of 500 alone: a half GPU is worth a half, less is worth nothing, more is worth no more."""
    worth = remainder_worth({500: 7})
    assert [worth[g] for g in (0, 499, 500, 999, 1000)] == [0, 0, 0.5, 0.5, 1]


def test_a_large_pod_leaves_waste_by_hand() -> None:
    """810 costs a whole GPU; 190 pods are rarer than the holes that 810 leaves, so they cost nothing."""
    worth = remainder_worth({810: 10, 190: 4})
    assert [worth[g] for g in (190, 809, 810, 1000)] == [0, 0, 1, 1]


def test_more_small_pods_than_holes_by_hand() -> None:
    """With 100 pods of 190 a GPU holds five of them: 0.2 each, and an 810 costs what is left of its GPU, 0.8."""
    worth = remainder_worth({810: 10, 190: 100})
    assert [round(worth[g], 9) for g in (190, 380, 809, 810, 1000)] == [0.2, 0.4, 0.8, 0.8, 1]


@pytest.mark.parametrize("sizes", [{}, {1000: 5}, {0: 3, 1200: 2}, {300: 0}])
def test_without_sharing_only_a_free_gpu_is_worth_something(sizes: dict[int, int]) -> None:
    worth = remainder_worth(sizes)
    assert worth[:WHOLE_MILLI].sum() == 0
    assert worth[WHOLE_MILLI] == 1


def test_odd_and_many_sizes_stay_bounded() -> None:
    worth = remainder_worth({size: 1 + size % 7 for size in range(3, 1000, 7)})
    assert (np.diff(worth) >= -1e-9).all()
    assert worth[WHOLE_MILLI] == 1


SIZES = st.dictionaries(st.sampled_from(range(250, 1000, 50)), st.integers(1, 50), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_worth_is_the_dual_of_the_cutting_stock_problem(sizes: dict[int, int]) -> None:
    worth = remainder_worth(sizes)
    assert sum(count * worth[size] for size, count in sizes.items()) == pytest.approx(fewest_gpus(sizes))
    assert (np.diff(worth) >= -1e-9).all()
    # Every remainder is worth the best of what fits, at the worth of each size alone.
    for capacity in (0, 333, 500, 777, 1000):
        fits = [p for p in product(*(range(capacity // s + 1) for s in sizes)) if np.dot(p, list(sizes)) <= capacity]
        best = max(np.dot(p, [worth[s] for s in sizes]) for p in fits)
        assert worth[capacity] >= best - 1e-9
        assert capacity == WHOLE_MILLI or worth[capacity] == pytest.approx(best)
