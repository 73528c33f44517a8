"""`memory`: what the controller's process takes while it holds 5,000 nodes and 50,000 pods.

The process is `isochrone controller` as it is shipped, extender and all; it lists from an API server of that size and
watches it. NODES and PODS shorten the run.
"""

from collections.abc import Iterator
from typing import Final

from e2e.bench.crowded import crowded
from e2e.bench.report import Figure, Goal
from e2e.bench.sizes import number
from e2e.stack.build import say

NODES: Final = 5_000
PODS: Final = 50_000
GOAL: Final = Goal("<=", 300)
MEGABYTE: Final = 1e6


def measure() -> Iterator[list[Figure]]:
    """Resident memory of an empty controller and of a full one."""
    nodes, pods = number("NODES", NODES), number("PODS", PODS)
    say("bench memory: a controller with nothing")
    with crowded(1, 0) as empty:
        nothing = empty.memory_bytes() / MEGABYTE
    say(f"bench memory: a controller with {nodes} nodes and {pods} pods")
    with crowded(nodes, pods) as full:
        now, most = full.memory_bytes() / MEGABYTE, full.memory_bytes("VmHWM") / MEGABYTE
    what = f"isochrone controller, {nodes} nodes, {pods} pods, every tenth one ours"
    yield [
        Figure("rss MB", now, "MB", GOAL, f"an empty controller: {nothing:.0f}", f"VmRSS of {what}, lists complete"),
        Figure("peak rss MB", most, "MB", None, "", "VmHWM of the same process, while listing"),
    ]
