"""A fresh cluster for one side of a comparison, and what the benchmarks do on it."""

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from e2e.bench.bare import BareRelease
from e2e.bench.bodies import POD_GROUPS, PODS, Post, many, our_gang, plain_gang
from e2e.bench.cpu import Meter, Usage, wait_quiet
from e2e.bench.loadgen import Client, Timeline, client
from e2e.bench.profiled import profiled
from e2e.bench.requests import answered
from e2e.stack import isochrone as product
from e2e.stack.cluster import Cluster
from e2e.stack.nodes import grid

WARM_GANGS: Final = 50
WARM_LIMIT_S: Final = 300.0
CLEAR_LIMIT_S: Final = 120.0
SETTLE_LIMIT_S: Final = 120.0
QUIET_LIMIT_S: Final = 90.0
"""How long a measurement waits for a busy machine before it goes on all the same."""
QUIET_WRITES: Final = 3
"""At most so many writes in a second: the cluster has settled."""
QUIET_SECONDS: Final = 3


class Side(StrEnum):
    """What is installed, and whose gangs are created."""

    PLAIN = "plain"
    OURS = "isochrone"
    BARE = "bare"
    """The webhook alone is installed; the client itself nominates and releases, and decides nothing."""
    FOREIGN = "foreign"
    """Isochrone is installed, the gangs are Volcano's own."""

    def gang(self, namespace: str, name: str) -> list[Post]:
        """A gang of 8 one-GPU pods as this side's user writes it."""
        return our_gang(namespace, name) if self in (Side.OURS, Side.BARE) else plain_gang(namespace, name)


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one side."""

    timeline: Timeline
    usage: Usage
    requests: Counter[str]


class Bed:
    """A running cluster of one side, and a client with open connections."""

    def __init__(
        self, cluster: Cluster, side: Side, nodes: Sequence[str], loop: asyncio.Runner, loader: Client
    ) -> None:
        self.cluster, self.side, self._nodes = cluster, side, nodes
        self._loop, self._loader = loop, loader
        self._namespaces = 0

    def namespace(self) -> str:
        """A new one."""
        self._namespaces += 1
        return self.cluster.create_namespace(f"bench-{self._namespaces}")

    def bulk(self, gangs: int, limit_s: float) -> Run:
        """So many gangs at once in a namespace of their own."""
        namespace = self.namespace()
        posts = many(self.side.gang(namespace, f"gang-{index:04d}") for index in range(gangs))
        wait_quiet(self.cluster.pids(), QUIET_LIMIT_S)
        before, meter = answered(self.cluster), Meter(self.cluster.pids())
        timeline = self.load(namespace, posts, limit_s)
        usage = meter.read()
        return Run(timeline, usage, answered(self.cluster) - before)

    def load(self, namespace: str, posts: Sequence[Post], limit_s: float, *, releases: bool = False) -> Timeline:
        """Creates these, and waits until every pod has a node."""
        bare = BareRelease(self._loader.send, self._nodes) if self.side is Side.BARE else None
        return self._loop.run(self._loader.run(namespace, posts, limit_s, releases=releases, bare=bare))

    def create(self, posts: Sequence[Post], limit_s: float) -> None:
        """Creates these and waits for nothing else."""
        self._loop.run(self._loader.create(posts, limit_s))

    def clear(self, namespace: str, posts: Sequence[Post]) -> None:
        """Deletes these and the PodGroups of their namespace; returns when the pods are gone."""
        self._loop.run(self._loader.remove(posts, CLEAR_LIMIT_S))
        self.cluster.api("DELETE", POD_GROUPS.format(namespace=namespace))
        pods = f"{PODS.format(namespace=namespace)}?limit=1"
        gone = f"pods of {namespace} are gone"
        self.cluster.wait_for(lambda: not self.cluster.api("GET", pods)["items"], CLEAR_LIMIT_S, gone)

    def settle(self, limit_s: float) -> None:
        """Waits until hardly anything is written any more, Events and annotations included."""
        until, calm, before = time.monotonic() + limit_s, 0, self._revision()
        while calm < QUIET_SECONDS:
            if time.monotonic() > until:
                raise TimeoutError(f"the cluster still writes after {limit_s:g} s")
            time.sleep(1)
            self.cluster.check()
            now = self._revision()
            calm = calm + 1 if now - before <= QUIET_WRITES else 0
            before = now

    def _revision(self) -> int:
        # The version of a consistent list is the store's newest revision, whatever was written.
        found = self.cluster.api("GET", "/api/v1/namespaces/kube-system/configmaps?limit=1")
        return int(found["metadata"]["resourceVersion"])

    def warm(self, gangs: int) -> None:
        """So many gangs that are not counted: connections, imports and caches are paid for, and watches get room.

        An API server gives a watch room for as many events as its cache held per second of its last 75, and for ten
        at least. A server started seconds ago cuts its watchers off dozens of times under load, they go on from the
        past, and everybody's work doubles; one that has seen a few thousand events does not.
        """
        namespace = self.namespace()
        posts = many(self.side.gang(namespace, f"warm-{index:03d}") for index in range(gangs))
        self.load(namespace, posts, WARM_LIMIT_S)
        self.clear(namespace, posts)
        self.settle(SETTLE_LIMIT_S)


@contextlib.contextmanager
def bed(side: Side, nodes: int, scheduler_flags: Sequence[str] = ()) -> Iterator[Bed]:
    """A warmed-up cluster of this side with its nodes Ready; with PROFILE=1 our services run under cProfile."""
    with contextlib.ExitStack() as stack:
        items = grid(nodes)
        cluster = stack.enter_context(Cluster(items, name=f"bench-{side}-{nodes}", scheduler_flags=scheduler_flags))
        if side is not Side.PLAIN:
            if os.environ.get("PROFILE") == "1":
                stack.enter_context(profiled(cluster, f"{side}-{nodes}"))
            product.install(cluster)
        if side is Side.BARE:
            cluster.stop(product.CONTROLLER)
        loop = stack.enter_context(asyncio.Runner())
        opened = client(cluster)
        names = [item["metadata"]["name"] for item in items]
        mine = Bed(cluster, side, names, loop, loop.run(opened.__aenter__()))
        stack.callback(lambda: loop.run(opened.__aexit__(None, None, None)))
        mine.warm(min(nodes, WARM_GANGS))
        yield mine
