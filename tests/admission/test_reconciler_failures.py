"""Writes fail, answers are lost, pods vanish, code has bugs: nothing is half let go, booked twice or forgotten."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from admission.controller.controller import Controller
from admission.demo.file_cluster import FileCluster
from admission.release.pod_writer import PodRelease, PodWriter
from admission.release.release_patch import release_patch
from scheduler.model.decision import Plan
from scheduler.model.request import GangRequest
from scheduler.planning.plan import plan
from tests.admission.controllers import (
    SHORT_PAUSES_S,
    annotation,
    controlling,
    create,
    gated,
    groups,
    kinds,
    never_overbooked,
    nominations,
    pods_of,
    released,
    writes,
)
from tests.admission.held_pods import CHAT, NAMESPACE, held
from tests.topology.list_watch_server import until
from topology.clock import monotonic_s
from topology.kube.api import KubeApi
from topology.labels import DECISION

ROOM = [{"name": "n1", "gpus": 2}]
"""For one gang of two and no more."""


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster(ROOM) as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admission.release.pod_writer._PAUSES_S", SHORT_PAUSES_S)


def used(controller: Controller) -> int:
    """GPUs that count as taken on all nodes."""
    snapshot = controller.state.snapshot(0.0, 0.0)
    column = snapshot.gpu_column
    return 0 if column is None else int(snapshot.used[:, column].sum())


class Interrupted(PodWriter):
    """A gatekeeper during whose work something else happens: `after` the nominations, or `before` the releases."""

    def __init__(self, api: KubeApi) -> None:
        super().__init__(api)
        self.after: Callable[[], Any] | None = None
        self.before: Callable[[], Any] | None = None

    async def nominate(self, releases: Sequence[PodRelease]) -> set[str]:
        done = await super().nominate(releases)
        if self.after is not None:
            await self.after()
        return done

    async def release(self, releases: Sequence[PodRelease]) -> tuple[set[str], set[str]]:
        if self.before is not None:
            await self.before()
        return await super().release(releases)


def interrupted(controller: Controller) -> Interrupted:
    keeper = Interrupted(controller.batch._workflow.pod_writer._api)
    controller.batch._workflow.pod_writer = keeper
    return keeper


# --- nominations -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 409, 422, 403])
async def test_below_its_minimum_nobody_is_released(cluster: FileCluster, tmp_path: Path, status: int) -> None:
    cluster.fail_next("PATCH", "/pods/d0/status$", status)
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert used(controller) == 2
    value = writes(cluster)
    assert value.count(("nominate", "d0")) == 2  # refused, then again
    assert kinds(value) == ["nominate", "pod", "group"]
    assert gated(cluster) == set()


async def test_a_pod_that_is_gone_before_its_release_holds_back_the_others(
    cluster: FileCluster, tmp_path: Path
) -> None:
    async with controlling(cluster, tmp_path) as controller:

        async def gone() -> None:
            cluster.delete("pods", NAMESPACE, "d0")
            await until(lambda: len(controller.state.gang_pods(*CHAT)) == 1)

        interrupted(controller).after = gone
        create(cluster, held("p0"), held("d0"))
        await until(lambda: controller.batch.plans >= 2)  # the rest is asked again, and waits for its partner
        assert used(controller) == 0
        assert gated(cluster) == {"p0"}
        interrupted(controller)
        create(cluster, held("d1"))
        await until(lambda: "isochrone-chat" in groups(cluster))
    assert kinds(writes(cluster)) == ["nominate", "pod", "group"]


async def test_beyond_the_minimum_one_that_fails_stops_nobody(tmp_path: Path) -> None:
    async with FileCluster([{"name": "n1", "gpus": 3}]) as cluster, controlling(cluster, tmp_path) as controller:
        cluster.fail_next("PATCH", "/pods/d1/status$", 404)
        create(cluster, held("p0"), held("d0"), held("d1"))
        await until(lambda: len(released(cluster)) == 3)
        await until(lambda: used(controller) == 3)
        value = writes(cluster)
        assert value.index(("group", "isochrone-chat")) < value.index(("pod", "d1"))


# --- releases ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "after", "times"),
    [
        (422, False, 1),  # somebody changed the gates
        (403, False, 1),
        (404, False, 1),
        (409, False, 1),
        (500, False, 1),
        (500, False, 4),  # more than are tried at once
        (0, False, 1),
        (500, True, 1),
        (0, True, 1),
        (0, True, 4),
    ],
)
@pytest.mark.parametrize("victims", ["d0", "p0|d0"])
async def test_a_release_that_fails_or_whose_answer_is_lost_books_nothing_twice(
    cluster: FileCluster, tmp_path: Path, status: int, after: bool, times: int, victims: str
) -> None:
    for _ in range(times * len(victims.split("|"))):
        cluster.fail_next("PATCH", f"/pods/({victims})$", status, after=after)
    async with controlling(cluster, tmp_path) as controller:
        with never_overbooked(cluster):
            create(cluster, held("p0"), held("d0"), held("p1", gang="code"), held("d1", gang="code"))
            await until(lambda: "isochrone-chat" in groups(cluster) and not gated(cluster) & {"p0", "d0"})
            await until(lambda: controller.batch.held_gangs() == 1 and not controller.batch.busy)
            assert used(controller) == 2
        assert released(cluster) == {"p0": "n1", "d0": "n1"}
        assert all(annotation(cluster, name, DECISION) for name in ("p0", "d0"))
        assert list(groups(cluster)) == ["isochrone-chat"]
        assert gated(cluster) == {"p1", "d1"}


async def test_while_nobody_can_say_whether_it_was_released_a_pod_keeps_its_room(
    cluster: FileCluster, tmp_path: Path
) -> None:
    """The watch is behind, so that only the answers could tell; and the other gang has its eye on the room."""
    async with controlling(cluster, tmp_path, retry_s=0.3) as controller:

        async def behind() -> None:
            for _ in range(9):
                cluster.fail_next("PATCH", "/pods/(p0|d0)$", 0, after=True)
            for _ in range(3):
                cluster.fail_next("WATCH", "/api/v1/pods$", 500)
            cluster.cut_watches()

        keeper = interrupted(controller)
        keeper.before = behind
        with never_overbooked(cluster):
            create(cluster, held("p0"), held("d0"), held("p1", gang="code"), held("d1", gang="code"))
            await until(lambda: not gated(cluster) & {"p0", "d0"})
            keeper.before = None
            cluster.change("nodes", "", "n1", {"metadata": {"labels": {"news": "yes"}}})
            await until(lambda: "isochrone-chat" in groups(cluster))
        assert gated(cluster) == {"p1", "d1"}
        assert used(controller) == 2


async def test_a_pod_that_was_replaced_meanwhile_is_not_taken_for_the_first(
    cluster: FileCluster, tmp_path: Path
) -> None:
    async with controlling(cluster, tmp_path) as controller:
        keeper = interrupted(controller)

        async def replaced() -> None:
            keeper.before = None
            cluster.delete("pods", NAMESPACE, "d0")
            create(cluster, held("d0"))

        keeper.before = replaced
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster) and not gated(cluster))
        assert used(controller) == 2
        assert nominations(cluster) == {"p0": "n1", "d0": "n1"}
        uid = cluster.pod(NAMESPACE, "d0")["metadata"]["uid"]
        assert controller.state.is_assumed(uid)


# --- the PodGroup ------------------------------------------------------------------------------


async def test_a_pod_group_that_cannot_be_made_is_tried_again(cluster: FileCluster, tmp_path: Path) -> None:
    for status in (500, 500, 500, 403):  # three in one call of the client, one more by the gang's own retry
        cluster.fail_next("PATCH", "/podgroups/isochrone-chat$", status)
    async with controlling(cluster, tmp_path):
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
    value = writes(cluster)
    assert value.count(("group", "isochrone-chat")) == 5
    assert [w for w in value if w[0] == "pod"] == value[2:4]


# --- pods that vanish --------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["after", "before"])
async def test_a_gang_that_vanishes_while_it_is_let_go_leaves_nothing(
    cluster: FileCluster, tmp_path: Path, moment: str
) -> None:
    async with controlling(cluster, tmp_path) as controller:
        keeper = interrupted(controller)

        async def vanish() -> None:
            for pod in pods_of(cluster):
                cluster.delete("pods", NAMESPACE, pod["metadata"]["name"])
            setattr(keeper, moment, None)

        setattr(keeper, moment, vanish)
        create(cluster, held("p0"), held("d0"))
        await until(lambda: controller.batch.plans >= 1 and not pods_of(cluster) and not controller.batch.busy)
        await until(lambda: not controller.state.gangs())
        assert used(controller) == 0
        assert groups(cluster) == {}
        assert controller.batch.held_gangs() == 0
        create(cluster, held("p1", gang="code"), held("d1", gang="code"))
        await until(lambda: "isochrone-code" in groups(cluster))


# --- bugs --------------------------------------------------------------------------------------


async def test_a_bug_in_planning_costs_only_its_gang_and_is_tried_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def broken(gang: GangRequest, *rest: Any, **more: Any) -> Plan:
        if gang.name == "chat" and len(gang.members) == 2 and len(tries) < 3:
            tries.append(monotonic_s())
            raise ZeroDivisionError("a bug")
        return plan(gang, *rest)

    monkeypatch.setattr("admission.reconcile.gang_planner.plan", broken)
    async with FileCluster([{"name": "n1", "gpus": 4}]) as cluster, controlling(cluster, tmp_path):
        create(cluster, held("p0"), held("d0"), held("p1", gang="code"), held("d1", gang="code"))
        await until(lambda: "isochrone-code" in groups(cluster))
        assert gated(cluster) == {"p0", "d0"}
        await until(lambda: "isochrone-chat" in groups(cluster))
        pauses = [after - before for before, after in zip(tries, [*tries[1:], monotonic_s()], strict=True)]
        assert all(pause > 0.9 * least for pause, least in zip(pauses, (0.1, 0.2, 0.4), strict=True)), pauses


async def test_a_bug_in_letting_go_gives_the_room_back(
    cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = True

    def patch(*given: Any) -> Any:
        if broken and given[0].metadata.label("isochrone.dev/gang") == "chat":
            raise TypeError("a bug")
        return release_patch(*given)

    monkeypatch.setattr("admission.release.pod_writer.release_patch", patch)
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), held("d0"))
        await until(lambda: len(nominations(cluster)) == 2 and used(controller) == 0)
        create(cluster, held("p1", gang="code"), held("d1", gang="code"))
        await until(lambda: "isochrone-code" in groups(cluster))
        assert gated(cluster) == {"p0", "d0"}
        broken = False
        for name in ("p1", "d1"):
            cluster.delete("pods", NAMESPACE, name)
        await until(lambda: "isochrone-chat" in groups(cluster))


async def test_a_bug_in_the_words_costs_the_words(
    cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speechless(*_: Any, **__: Any) -> str:
        raise KeyError("a bug")

    monkeypatch.setattr("admission.report.reporter.placement_block", speechless)
    monkeypatch.setattr("admission.report.reporter.gang_block", speechless)
    async with controlling(cluster, tmp_path):
        create(cluster, held("p0"), held("d0"))
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert annotation(cluster, "p0", DECISION)
        assert not annotation(cluster, "p0")
