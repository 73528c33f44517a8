"""Everything at once, by seed: gangs come and go, writes fail, watches break, the controller dies. Nothing is booked
twice at any moment, and in the end whoever can go has gone."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from admission.controller.controller import Controller
from admission.demo.file_cluster import FileCluster
from admission.gangs.gang_view import request_of, view_of
from scheduler.planning.plan import plan
from tests.admission.controllers import (
    SHORT_PAUSES_S,
    bind_released,
    controlling,
    gated,
    groups,
    known,
    never_overbooked,
    pods_of,
    versions,
)
from tests.admission.held_pods import NAMESPACE, held
from tests.topology.list_watch_server import until
from topology.cluster.state import ClusterState
from topology.labels import GROUP_NAME

GANGS = ("a", "b", "c", "d")
NODES = [
    {"name": "n1", "zone": "a", "leaf": "l1", "gpus": 4},
    {"name": "n2", "zone": "a", "leaf": "l1", "gpus": 3},
    {"name": "n3", "zone": "b", "leaf": "m1", "gpus": 4},
]
STEPS = 60


class Chaos:
    """What may happen to a cluster, drawn one thing at a time."""

    def __init__(self, cluster: FileCluster, seed: int) -> None:
        self.cluster, self.rng, self.born = cluster, random.Random(seed), 0

    def step(self) -> bool:
        """One thing happens; whether it was that the controller dies."""
        things: list[tuple[int, Callable[[], object]]] = [
            (10, self.comes),
            (4, self.goes),
            (6, lambda: bind_released(self.cluster)),
            (3, self.ends),
            (5, self.fails),
            (1, self.cluster.cut_watches),
            (1, self.cluster.forget_history),
            (1, self.group_goes),
        ]
        chosen = self.rng.choices([what for _, what in things], [weight for weight, _ in things])[0]
        chosen()
        return self.rng.random() < 0.04

    def comes(self) -> None:
        self.born += 1
        gang, phase = self.rng.choice(GANGS), self.rng.choice(("prefill", "decode"))
        self.cluster.create_pod(held(f"{gang}-{self.born}", phase, gang, gpus=self.rng.choice((1, 1, 2))))

    def goes(self) -> None:
        if pods := pods_of(self.cluster):
            self.cluster.delete("pods", NAMESPACE, self.rng.choice(pods)["metadata"]["name"])

    def ends(self) -> None:
        if on := [pod for pod in pods_of(self.cluster) if "nodeName" in pod["spec"]]:
            name = self.rng.choice(on)["metadata"]["name"]
            self.cluster.change("pods", NAMESPACE, name, {"status": {"phase": "Succeeded"}})

    def fails(self) -> None:
        what = self.rng.choice(("/pods/[^/]*$", "/pods/[^/]*/status$", "/podgroups/", "/api/v1/pods$"))
        method = "WATCH" if what.startswith("/api") else "PATCH"
        # A server that says no has done nothing; one that fails, or cannot be heard, may have.
        after = method == "PATCH" and self.rng.random() < 0.5
        status = self.rng.choice((0, 500) if after else (0, 500, 422, 404, 409))
        for _ in range(self.rng.choice((1, 1, 3))):
            self.cluster.fail_next(method, what, status, after=after)

    def group_goes(self) -> None:
        if there := sorted(groups(self.cluster)):
            self.cluster.delete("podgroups", NAMESPACE, self.rng.choice(there))


def settled(cluster: FileCluster, controller: Controller) -> bool:
    """Nothing is under way, every released gang has its PodGroup, and the planner finds no place for anybody held."""
    bind_released(cluster)
    if controller.batch.busy or versions(cluster) != known(controller):
        return False
    waiting = [pod["metadata"]["uid"] for pod in pods_of(cluster) if pod["metadata"]["name"] in gated(cluster)]
    if any(controller.state.is_assumed(uid) for uid in waiting):
        return False  # about to go, or in doubt
    live = [pod for pod in pods_of(cluster) if pod["status"].get("phase") != "Succeeded"]
    names = {
        pod["metadata"]["annotations"][GROUP_NAME] for pod in live if pod["metadata"]["name"] not in gated(cluster)
    }
    if not names <= set(groups(cluster)):
        return False
    snapshot = controller.snapshot()
    assert snapshot is not None
    views = [view_of(key, controller.state.gang_pods(*key)) for key in controller.state.gangs()]
    return not any(plan(request_of(v, snapshot.table), snapshot).places for v in views if v.members)


@pytest.mark.parametrize("seed", [34, 44, 48, 53])
async def test_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("admission.release.pod_writer._PAUSES_S", SHORT_PAUSES_S)
    async with FileCluster(NODES) as cluster:
        chaos, steps = Chaos(cluster, seed), 0
        with never_overbooked(cluster):
            while steps < STEPS:
                async with controlling(cluster, tmp_path, settle="5ms", retry_s=0.02) as controller:
                    dies = False
                    while steps < STEPS and not dies:
                        dies, steps = chaos.step(), steps + 1
                        asked = len(cluster.requests)
                        with contextlib.suppress(TimeoutError):
                            await until(lambda asked=asked: len(cluster.requests) > asked, 0.02)  # type: ignore[misc]
                    if steps == STEPS:
                        # No fresh start at the end, which would hide whatever this one has forgotten.
                        cluster._failures.clear()
                        await until(lambda c=controller: settled(cluster, c))  # type: ignore[misc]
                        nothing_is_leaked(cluster, controller)


def nothing_is_leaked(cluster: FileCluster, controller: Controller) -> None:
    """What it counts is what somebody who only lists would count."""
    fresh = ClusterState()
    fresh.apply_nodes((None, node) for node in controller.nodes.objects.values())
    fresh.apply_pods((None, pod) for pod in controller.pods.objects.values())
    seen, listed = controller.state.snapshot(0.0, 0.0), fresh.snapshot(0.0, 0.0)
    assert seen.used.tolist() == listed.used.tolist()
    assert seen.gpu_column is not None
    assert (seen.free[:, seen.gpu_column] >= 0).all()
