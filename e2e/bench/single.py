"""One gang alone on an idle cluster: from its first pod's creation to its last binding."""

import math
import time
from typing import Final

from e2e.bench.bed import Bed, Side

PAUSE_S: Final = 2
"""At least so long between a gang's last binding and the next gang."""
GOLDEN: Final = (math.sqrt(5) - 1) / 2
LIMIT_S: Final = 60.0


def singles(mine: Bed, count: int, first: int) -> list[tuple[float, float | None]]:
    """Milliseconds of so many gangs, one after the other; `first` numbers the first of them.

    Of each: from its first pod's creation to its last binding; from its last pod's creation to its last release (None
    where pods are not held).

    Volcano looks once a second, so most of the time is waiting for its next look. Each gang comes at another moment
    of that second, spread evenly by the golden ratio and not by chance: a few dozen then give a steady median.
    """
    found = []
    for index in range(first, first + count):
        namespace = mine.namespace()
        posts = mine.side.gang(namespace, "alone")
        timeline = mine.load(namespace, posts, LIMIT_S, releases=mine.side is Side.OURS)
        released_s = timeline.released_s
        found.append((timeline.all_bound_s * 1e3, None if released_s is None else released_s * 1e3))
        # The last binding marks Volcano's clock.
        marked = time.monotonic()
        mine.clear(namespace, posts)
        passed = time.monotonic() - marked
        phase = index * GOLDEN % 1.0
        wait = PAUSE_S + phase
        time.sleep(wait + max(0, math.ceil(passed - wait)) - passed)
    return found
