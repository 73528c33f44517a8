"""`events`: what it costs the controller to follow 1,000 pod events a second in a cluster of 5,000 nodes.

The process is `isochrone controller` as it is shipped; pods go, come, are bound and run, every tenth one of ours, each
event a line of its own in the watch. NODES, PODS, SECONDS and RATE shorten the run.
"""

from collections.abc import Iterator
from typing import Final

from e2e.bench.crowded import crowded
from e2e.bench.memory import MEGABYTE, NODES, PODS
from e2e.bench.report import Figure, Goal
from e2e.bench.sizes import number
from e2e.stack.build import say

RATE: Final = 1_000
SECONDS: Final = 20
PARTS: Final = 3
GOAL: Final = Goal("<=", 20)


def measure() -> Iterator[list[Figure]]:
    """CPU time of the process while events come, less what it uses while none come."""
    nodes, pods = number("NODES", NODES), number("PODS", PODS)
    rate, seconds = number("RATE", RATE), number("SECONDS", SECONDS)
    say(f"bench events: a controller with {nodes} nodes and {pods} pods, {rate} events/s for {PARTS} x {seconds} s")
    percents, sent = [], 0
    with crowded(nodes, pods) as controller:
        for _ in range(PARTS):
            before = controller.cpu_s()
            reported = controller.churn(rate, seconds)
            controller.rest()
            percents.append(100 * (controller.cpu_s() - before) / seconds)
            sent += reported
        most = controller.memory_bytes("VmHWM") / MEGABYTE
    core = sum(percents) / PARTS
    spread = ", ".join(f"{percent:.1f}" for percent in percents)
    source = f"CPU time of isochrone controller over {PARTS} x {seconds} s ({spread}), {sent} events"
    per_event = core / 100 * seconds * PARTS / sent * 1e6
    yield [
        Figure("core percent", core, "% of a core", GOAL, f"{nodes} nodes, {pods} pods, {rate} events/s", source),
        Figure("per event us", per_event, "us", None, "", "the same, for one event"),
        Figure("peak rss MB", most, "MB", None, "", "VmHWM of the same process after all events"),
    ]
