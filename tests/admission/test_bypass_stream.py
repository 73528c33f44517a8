"""An endless stream of small gangs against one that wants everything: it is passed as often as is allowed, and goes.

By seed: what is short (nodes, a queue, a queue above two), how often passing is allowed, whether the controller dies.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from admission.demo.file_cluster import FileCluster
from tests.admission.controllers import bind_released, controlling, groups, reasons, released
from tests.admission.held_pods import NAMESPACE, held
from tests.admission.pods import Raw
from tests.topology.list_watch_server import until
from topology.labels import NVIDIA_GPU, QUEUE_NAME

GPUS = 8
SHORT = {"nodes": ("default", "default"), "queue": ("q", "q"), "tree": ("a", "b"), "half a tree": ("a", "b")}
"""What is short, and the queues of the old gang and of the small ones."""


class Stream:
    """The cluster: 8 GPUs of nodes or of quota; of the small gangs that run one ends now and then."""

    def __init__(self, cluster: FileCluster, rng: random.Random, short: str) -> None:
        self.cluster, self.rng, self.born = cluster, rng, 0
        self.old_queue, self.queue = SHORT[short]
        self.limited = {"queue": "q", "tree": "top", "half a tree": "top"}.get(short, "")
        self.went: set[str] = set()  # small gangs that were ever let go
        for name in {"default", self.limited, self.old_queue, self.queue} - {""}:
            spec: Raw = {"capability": {NVIDIA_GPU: str(GPUS)}} if name == self.limited else {}
            if self.limited == "top" and name in "ab":
                spec["parent"] = "top"
            if short == "half a tree" and name == "a":
                spec["capability"] = {NVIDIA_GPU: str(GPUS)}
            cluster.create("queues", {"metadata": {"name": name}, "spec": spec, "status": {"state": "Open"}})

    def make(self, gang: str, gpus: int, queue: str, priority: int = 0) -> None:
        notes = {QUEUE_NAME: queue}
        for half in "pd":
            self.cluster.create_pod(held(f"{half}-{gang}", gang=gang, gpus=gpus, annotations=notes, priority=priority))

    def goes_on(self) -> None:
        """Volcano binds, and writes what the limited queue holds."""
        bind_released(self.cluster)
        held_gpus = sum(
            int(pod["spec"]["containers"][0]["resources"]["requests"][NVIDIA_GPU])
            for pod in self.cluster.objects("pods")
            if "nodeName" in pod["spec"]
        )
        if self.limited:
            held_now = {"status": {"allocated": {NVIDIA_GPU: str(held_gpus)}}}
            self.cluster.change("queues", "", self.limited, held_now)

    def running(self) -> list[str]:
        """Small gangs that were let go and did not end."""
        out = sorted({name.partition("-")[2] for name in released(self.cluster)} - {"old"})
        self.went |= set(out)
        return out

    def ends(self) -> None:
        gang = self.rng.choice(self.running())
        for half in "pd":
            self.cluster.delete("pods", NAMESPACE, f"{half}-{gang}")
        self.goes_on()


async def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int) -> None:
    """The old gang's pods are made first and are never changed; `s` sorts behind `old` within one second."""
    monkeypatch.setattr("admission.reconcile.gang_planner.QUEUE_LAG_S", 0.05)
    monkeypatch.setattr("admission.fairness.queue_commitments.QUEUE_LAG_S", 0.05)
    rng = random.Random(seed)
    short, limit = rng.choice(sorted(SHORT)), rng.choice((0, 1, 3))
    nodes = [{"name": "n1", "gpus": GPUS if short == "nodes" else 4 * GPUS}]
    async with FileCluster(nodes) as cluster:
        stream, starts = Stream(cluster, rng, short), 0
        left = rounds
        while left:
            starts += 1
            async with controlling(cluster, tmp_path, bypass_limit=str(limit), settle="5ms") as controller:
                if starts == 1:
                    stream.make("first", 1, stream.queue)
                    await until(lambda: "isochrone-first" in groups(cluster))
                    stream.goes_on()
                    stream.make("old", GPUS // 2, stream.old_queue)
                await until(lambda c=controller: c.batch.held_gangs() > 0)  # type: ignore[misc]
                await until(lambda: bool(reasons(cluster, "p-old")))
                dies = False
                while left and not dies:
                    left, dies = left - 1, rng.random() < 0.1
                    stream.born += 1
                    gang = f"s{stream.born:03}"
                    stream.make(gang, 1, stream.queue)
                    await until(lambda g=gang: f"isochrone-{g}" in groups(cluster) or bool(reasons(cluster, f"p-{g}")))  # type: ignore[misc]
                    stream.goes_on()
                    passes = len({*stream.running(), *stream.went} - {"first"})
                    assert passes <= limit * starts, f"{short}: passed {passes} times, allowed {limit}, {starts} starts"
                    if len(stream.running()) > 1 and rng.random() < 0.5:
                        stream.ends()
                if not left:
                    await until(lambda s=stream: all_end(s))  # type: ignore[misc]
                    assert {"p-old", "d-old"} <= released(cluster).keys()
                    passes = len(stream.went - {"first"})
                    assert passes <= limit * starts, f"{short}: passed {passes} times, allowed {limit}, {starts} starts"


def all_end(stream: Stream) -> bool:
    """Whether the old gang went; else the small ones end, those that went meanwhile too."""
    if "isochrone-old" in groups(stream.cluster):
        return True
    while stream.running():
        stream.ends()
    return False


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
async def test_an_old_gang_is_passed_so_often_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    await play(tmp_path, monkeypatch, seed, 8)
