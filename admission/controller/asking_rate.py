"""How often an address may ask: a bucket of tokens for each address seen lately. Time comes in as an argument."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MOST_ADDRESSES: Final = 20_000


class AskingRate:
    """`burst` at once, then `per_s` a second, for each address. Refused asks cost nothing."""

    def __init__(self, per_s: float, burst: float, most: int = MOST_ADDRESSES) -> None:
        self._per_s, self._burst, self._most = per_s, burst, most
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def __len__(self) -> int:
        return len(self._left)

    def may(self, address: str, now_s: float) -> bool:
        """Whether the address may ask now, which is then counted."""
        left, then_s = self._left.pop(address, (self._burst, now_s))
        left = min(self._burst, left + max(0.0, now_s - then_s) * self._per_s)
        allowed = left >= 1.0
        self._left[address] = left - allowed, now_s
        if len(self._left) > self._most:
            self._left.popitem(last=False)
        return allowed
