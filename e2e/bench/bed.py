"""A fresh cluster for one side of a comparison, and what the benchmarks do on it."""

import asyncio
import contextlib
import os
import pstats
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from e2e.bench.bodies import POD_GROUPS, PODS, Post, many, our_gang, plain_gang
from e2e.bench.cpu import Meter, Usage
from e2e.bench.loadgen import Timeline, client
from e2e.bench.report import FOLDER
from e2e.stack import isochrone as product
from e2e.stack.build import say
from e2e.stack.cluster import Cluster
from e2e.stack.nodes import grid

PROFILE_LINES = 45


class Side(StrEnum):
    """What is installed, and whose gangs are created."""

    PLAIN = "plain"
    OURS = "isochrone"
    FOREIGN = "foreign"
    """Isochrone is installed, the gangs are Volcano's own."""

    def gang(self, namespace: str, name: str) -> list[Post]:
        """A gang of 8 one-GPU pods as this side's user writes it."""
        return our_gang(namespace, name) if self is Side.OURS else plain_gang(namespace, name)


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one side."""

    timeline: Timeline
    usage: Usage


class Bed:
    """A running cluster of one side."""

    def __init__(self, cluster: Cluster, side: Side) -> None:
        self.cluster, self.side = cluster, side
        self._namespaces = 0

    def namespace(self) -> str:
        """A new one."""
        self._namespaces += 1
        return self.cluster.create_namespace(f"bench-{self._namespaces}")

    def bulk(self, gangs: int, limit_s: float) -> Run:
        """So many gangs at once in a namespace of their own."""
        namespace = self.namespace()
        posts = many(self.side.gang(namespace, f"gang-{index:04d}") for index in range(gangs))
        return self.load(namespace, posts, limit_s)

    def load(self, namespace: str, posts: Sequence[Post], limit_s: float) -> Run:
        """Creates these, and waits until every pod has a node."""

        async def measured() -> Run:
            async with client(self.cluster) as loader:
                meter = Meter(self.cluster.pids())
                timeline = await loader.run(namespace, posts, limit_s)
                return Run(timeline, meter.read())

        return asyncio.run(measured())

    def create(self, posts: Sequence[Post], limit_s: float) -> None:
        """Creates these and waits for nothing else."""

        async def created() -> None:
            async with client(self.cluster) as loader:
                await loader.create(posts, limit_s)

        asyncio.run(created())

    def clear(self, namespace: str, limit_s: float) -> None:
        """Deletes all pods and PodGroups of a namespace and waits until they are gone."""
        pods, groups = PODS.format(namespace=namespace), POD_GROUPS.format(namespace=namespace)
        self.cluster.api("DELETE", f"{pods}?gracePeriodSeconds=0")
        self.cluster.api("DELETE", groups)
        self.cluster.wait_for(
            lambda: not self.cluster.api("GET", f"{pods}?limit=1")["items"], limit_s, f"pods of {namespace} gone"
        )

    def warm(self, limit_s: float = 60.0) -> None:
        """One gang that is not counted: connections, caches and imports are paid for."""
        namespace = self.namespace()
        self.load(namespace, self.side.gang(namespace, "warm"), limit_s)
        self.clear(namespace, limit_s)


@contextlib.contextmanager
def bed(side: Side, nodes: int) -> Iterator[Bed]:
    """A cluster of this side with its nodes Ready, warmed up; with PROFILE=1 our services run under cProfile."""
    with Cluster(grid(nodes), name=f"bench-{side}-{nodes}") as cluster:
        if side is Side.PLAIN:
            mine = Bed(cluster, side)
            mine.warm()
            yield mine
            return
        with contextlib.ExitStack() as stack:
            if os.environ.get("PROFILE") == "1":
                stack.enter_context(_profiled(cluster, f"{side}-{nodes}"))
            product.install(cluster)
            mine = Bed(cluster, side)
            mine.warm()
            yield mine


@contextlib.contextmanager
def _profiled(cluster: Cluster, label: str) -> Iterator[None]:
    """Our services are started under cProfile; at the end they are stopped and their hottest lines kept."""
    folder = Path(tempfile.mkdtemp(prefix="isochrone-profile-"))
    program = (sys.executable, "-m", "e2e.bench.profiled", str(folder))
    with patch.object(product, "PROGRAM", program):
        yield
    for name in (product.WEBHOOK, product.CONTROLLER):
        cluster.stop(name, 20)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.pstats")):
        target = FOLDER / f"profile-{label}-{path.stem}"
        for order in ("tottime", "cumtime"):
            text = StringIO()
            pstats.Stats(str(path), stream=text).strip_dirs().sort_stats(order).print_stats(PROFILE_LINES)
            target.with_suffix(f".{order}.txt").write_text(text.getvalue())
        path.replace(target.with_suffix(".pstats"))
        say(f"profile: {target}.*")
