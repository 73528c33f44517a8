"""Many gangs at once: no GPU is booked twice, who comes first is settled, and a crowd leaves nobody out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from admission.controller.controller import Controller
from admission.demo.file_cluster import FileCluster
from admission.gangs.gang_view import GangView
from scheduler.model.decision import Plan
from tests.admission.controllers import (
    all_finish,
    bind_released,
    controlling,
    create,
    events,
    explained,
    gated,
    groups,
    known,
    never_overbooked,
    nominations,
    pods_of,
    reasons,
    released,
    versions,
)
from tests.admission.held_pods import held
from tests.admission.pods import Raw
from tests.topology.list_watch_server import until
from topology.clock import monotonic_s


def pair(gang: str, gpus: int = 1, **spec: Any) -> list[Raw]:
    return [held(f"p-{gang}", gang=gang, gpus=gpus, **spec), held(f"d-{gang}", gang=gang, gpus=gpus, **spec)]


async def test_of_two_gangs_for_the_last_room_one_goes_and_one_says_why_not(tmp_path: Path) -> None:
    async with FileCluster([{"name": "n1", "gpus": 4}]) as cluster, controlling(cluster, tmp_path) as controller:
        with never_overbooked(cluster):
            create(cluster, *pair("a", 2), *pair("b", 2))
            await until(lambda: len(groups(cluster)) == 1 and controller.batch.held_gangs() == 1)
        (loser,) = {"a", "b"} - {name.removeprefix("isochrone-") for name in groups(cluster)}
        assert gated(cluster) == {f"p-{loser}", f"d-{loser}"}
        assert nominations(cluster).keys() == released(cluster).keys()
        await until(lambda: reasons(cluster, f"p-{loser}") == reasons(cluster, f"d-{loser}") == ["InsufficientGPU"])
        assert "n1 with 0 free GPUs, 2 short" in events(cluster, f"d-{loser}")[0][1]


async def test_fifty_gangs_at_once(tmp_path: Path) -> None:
    nodes = [{"name": f"n{i:02}", "zone": "a", "leaf": f"l{i // 4}", "gpus": 8} for i in range(25)]
    async with FileCluster(nodes) as cluster, controlling(cluster, tmp_path) as controller:
        began_s = monotonic_s()
        with never_overbooked(cluster):
            create(cluster, *(pod for i in range(50) for pod in pair(f"g{i:02}", 2)))  # 200 of 200 GPUs
            await until(lambda: len(groups(cluster)) == 50)
            assert gated(cluster) == set()
            print(f"fifty gangs in {monotonic_s() - began_s:.2f} s")
        bind_released(cluster)
        await until(lambda: not any(controller.state.is_assumed(p["metadata"]["uid"]) for p in cluster.objects("pods")))
        snapshot = controller.snapshot()
        assert snapshot is not None
        assert snapshot.gpu_column is not None
        assert (snapshot.free[:, snapshot.gpu_column] == 0).all()


async def test_gangs_that_come_and_go_never_overbook(tmp_path: Path) -> None:
    """More gangs than room; each that runs ends at once, and its room is taken by one that waits."""
    async with FileCluster([{"name": "n1", "gpus": 4}, {"name": "n2", "gpus": 2}]) as cluster:
        create(cluster, *(pod for i in range(8) for pod in pair(f"g{i}", 1 + i % 2)))
        async with controlling(cluster, tmp_path):
            await all_finish(cluster, 16)


# --- who comes first ---------------------------------------------------------------------------


async def held_until_room(cluster: FileCluster, folder: Path, gangs: Sequence[tuple[str, str, int]]) -> list[str]:
    """Gangs (name, created, priority) wait in a full cluster; the order in which they go as room appears."""
    for name, created, priority in gangs:
        cluster.store._now = lambda created=created: created  # type: ignore[misc]
        create(cluster, *pair(name, priority=priority))
    async with controlling(cluster, folder) as controller:
        await until(lambda: controller.batch.held_gangs() == len(gangs))
        for turn in range(1, len(gangs) + 1):
            cluster.delete("pods", "elsewhere", f"on-n{turn}")
            await until(lambda turn=turn: len(groups(cluster)) == turn)  # type: ignore[misc]
    return [name.removeprefix("isochrone-") for name in groups(cluster)]  # in the order of creation


async def test_higher_priority_goes_first_then_the_older_then_by_name(tmp_path: Path) -> None:
    full = [{"name": f"n{i}", "gpus": 2, "used": 2} for i in range(1, 6)]
    async with FileCluster(full) as cluster:
        order = await held_until_room(
            cluster,
            tmp_path,
            [
                ("young", "2026-11-02T10:00:09Z", 0),
                ("z-old", "2026-11-02T10:00:01Z", 0),
                ("a-old", "2026-11-02T10:00:01Z", 0),
                ("urgent", "2026-11-02T10:00:30Z", 100),
                ("lowly", "2026-11-02T09:00:00Z", -5),
            ],
        )
    assert order == ["urgent", "a-old", "z-old", "young", "lowly"]


async def test_who_comes_first_does_not_wait_for_who_cannot_go(tmp_path: Path) -> None:
    async with FileCluster([{"name": "n1", "gpus": 4}]) as cluster, controlling(cluster, tmp_path) as controller:
        create(cluster, *pair("huge", 8, priority=1000))
        await until(lambda: controller.batch.held_gangs() == 1)
        create(cluster, *pair("small", 2))
        await until(lambda: list(groups(cluster)) == ["isochrone-small"])


# --- a crowd of held gangs ---------------------------------------------------------------------


async def test_while_room_appears_all_the_time_every_held_gang_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each plan something ends somewhere. The first in rank must not be asked for ever, nor the loop be full."""
    async with FileCluster([{"name": "n1", "gpus": 1}]) as cluster, controlling(cluster, tmp_path) as controller:
        create(cluster, *(pod for name in "abcd" for pod in pair(name, 4)))
        await until(lambda: controller.batch.held_gangs() == 4)
        # What was written on the pods came back: nobody is asked for any other reason than room.
        await until(lambda: all(explained(pod) for pod in pods_of(cluster)) and known(controller) == versions(cluster))
        await until(lambda: all(not gang.enqueued for gang in controller.batch._gangs.values()))
        asked = restless(controller, monkeypatch)
        controller.state.unassume("nobody")
        cluster.change("nodes", "", "n1", {"metadata": {"labels": {"news": "yes"}}})
        await until(lambda: len(asked) >= 8)
        rounds = [asked[i : i + 4] for i in range(0, 8, 4)]
        assert rounds == [["a", "b", "c", "d"]] * 2


def restless(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on every answer to a held gang makes the cluster change; the gangs asked, in order."""
    asked: list[str] = []
    say, state = controller.reporter.held, controller.state

    def value(view: GangView, plan: Plan) -> None:
        say(view, plan)
        asked.append(view.key[1])
        state.assume("stranger", "n1", {"cpu": 1})
        state.unassume("stranger")

    monkeypatch.setattr(controller.reporter, "held", value)
    return asked
