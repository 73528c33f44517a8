"""What a GPU with some room left is worth: the price of every remainder, from the mix of pods that share GPUs.

The cutting-stock problem (Gilmore and Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", Operations
Research 9, 1961) asks for the fewest GPUs that hold the sharing pods of the mix. Its dual gives each size a price in
GPUs; what a remainder of g milli is worth is then the best value of the sizes that fit into g together. A free GPU is
worth 1. A remainder worth less than its size is waste in the making: nothing of this mix fills it.

Solved by column generation: prices from a basis of patterns, the best new pattern by a knapsack, until none is worth
more than one GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

WHOLE_MILLI = 1000
"""A whole GPU in thousandths, the unit of sharing."""

_FINEST = 5
"""Sizes are rounded up to this many milli where their common divisor is smaller: 200 steps keep the knapsack short."""

_MOST_SIZES = 32
"""Different sizes that are priced, those that ask for most in sum; a rarer one is worth what the others make of it."""

_MOST_PATTERNS = 200
"""Column generation stops here at the latest; prices are scaled down so that they stay a valid bound."""

_SAME = 1e-9


def remainder_worth(sizes: Mapping[int, int]) -> NDArray[np.float64]:
    """Worth in GPUs of 0 to 1000 milli left on one GPU, shape (1001,), rising; `sizes`: milli asked to pods that ask.

    Sizes of 0 or less and of 1000 or more do not share a GPU and are left out. Without any, only a free GPU is worth
    something.
    """
    table = np.zeros(WHOLE_MILLI + 1)
    table[WHOLE_MILLI] = 1.0
    asked = {size: count for size, count in sizes.items() if 0 < size < WHOLE_MILLI and count > 0}
    if not asked:
        return table
    unit = int(np.gcd.reduce(np.array([*asked, WHOLE_MILLI])))
    if unit < _FINEST:
        unit = _FINEST
    merged: dict[int, int] = {}
    for size, count in asked.items():
        rounded = -(-size // unit)
        merged[rounded] = merged.get(rounded, 0) + count
    if len(merged) > _MOST_SIZES:
        retained = sorted(merged, key=lambda size: (-size * merged[size], -size))[:_MOST_SIZES]
        merged = {size: merged[size] for size in retained}
    steps = np.array(sorted(merged), dtype=np.int64)
    demand = np.array([merged[s] for s in steps.tolist()], dtype=np.float64)
    best = _priced(steps, demand, WHOLE_MILLI // unit)
    table[:] = best[np.arange(WHOLE_MILLI + 1) // unit]
    table[WHOLE_MILLI] = 1.0
    return table


def _priced(steps: NDArray[np.int64], demand: NDArray[np.float64], capacity: int) -> NDArray[np.float64]:
    """The best value, at dual prices, of sizes `steps` (n,) that fit into 0 to `capacity` steps; (capacity + 1,)."""
    # To begin with, every size has GPUs of its own.
    basis = np.diag((capacity // steps).astype(np.float64))
    best = np.zeros(capacity + 1)
    for _ in range(_MOST_PATTERNS):
        inverse = np.linalg.inv(basis)
        prices = np.maximum(inverse.sum(axis=0), 0.0)
        best, taken = _knapsack(steps, prices, capacity)
        if best[capacity] <= 1.0 + _SAME:
            break
        pattern = np.zeros(len(steps))
        left = capacity
        while left > 0:
            if taken[left] < 0:
                left -= 1
            else:
                pattern[taken[left]] += 1.0
                left -= int(steps[taken[left]])
        enters, has = inverse @ pattern, inverse @ demand
        ratio = np.full(len(steps), np.inf)
        np.divide(has, enters, out=ratio, where=enters > _SAME)
        basis[:, int(np.argmin(ratio))] = pattern
    scaled: NDArray[np.float64] = best / max(best[capacity], 1.0)
    return scaled


def _knapsack(
    steps: NDArray[np.int64], prices: NDArray[np.float64], capacity: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Best value for every room 0 to `capacity`, and the size taken last to get it (-1: none, as good as one less)."""
    best = np.zeros(capacity + 1)
    taken = np.full(capacity + 1, -1, dtype=np.int64)
    for spare in range(int(steps[0]), capacity + 1):
        fitting = int(np.searchsorted(steps, spare, side="right"))
        values = best[spare - steps[:fitting]] + prices[:fitting]
        at = int(np.argmax(values))
        if values[at] > best[spare - 1] + _SAME:
            best[spare], taken[spare] = values[at], at
        else:
            best[spare] = best[spare - 1]
    return best, taken
