"""How often an address may ask: a bucket of tokens for each address seen lately. Time comes in as an argument."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from topology.token_bucket import TokenBucket

MOST_ADDRESSES: Final = 20_000


class AskingRate:
    """`burst` at once, then `per_s` a second, for each address. Refused asks cost nothing."""

    def __init__(self, per_s: float, burst: float, most: int = MOST_ADDRESSES) -> None:
        self._per_s, self._burst, self._most = per_s, burst, most
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()  # the address seen last is the last

    def __len__(self) -> int:
        return len(self._buckets)

    def may(self, address: str, now_s: float) -> bool:
        """Whether the address may ask now, which is then counted."""
        bucket = self._buckets.setdefault(address, TokenBucket(self._per_s, self._burst, now_s))
        self._buckets.move_to_end(address)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return bucket.try_take(now_s)
