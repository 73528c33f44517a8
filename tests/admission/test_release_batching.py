"""Gangs that come together go together, a gang alone goes at once, and writes that hang keep nobody for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from admission.demo.file_cluster import FileCluster
from admission.reconcile.release_batching import ReleaseBatch
from tests.admission.controllers import controlling, create, groups, writes
from tests.admission.held_pods import held
from tests.admission.pods import Raw
from tests.topology.list_watch_server import until

NODES = [{"name": "n1", "gpus": 8}]


def test_nobody_waits_while_nobody_goes() -> None:
    batch = ReleaseBatch(1.0, 0.0)
    batch.close(5.0)  # a look at gangs of which none could go
    assert batch.wait_s(5.0) == 0.0


def test_whoever_is_ready_before_a_lot_is_closed_belongs_to_it() -> None:
    batch = ReleaseBatch(1.0, 0.0)
    batch.went("a")
    assert batch.wait_s(5.0) == 0.0
    batch.went("b")
    batch.close(5.0)
    assert batch.wait_s(5.25) == 0.75


def test_the_next_lot_begins_when_the_last_gang_of_this_one_is_done() -> None:
    batch = ReleaseBatch(1.0, 0.0)
    batch.went("a")
    batch.went("b")
    batch.close(5.0)
    batch.done("a")
    assert batch.wait_s(5.5) == 0.5
    batch.done("b")
    assert batch.wait_s(5.5) == 0.0
    batch.went("c")
    assert batch.wait_s(5.5) == 0.0, "open again"


def test_a_lot_is_closed_once() -> None:
    batch = ReleaseBatch(1.0, 0.0)
    batch.went("a")
    batch.close(5.0)
    batch.close(5.5)
    assert batch.wait_s(5.5) == 0.5


def test_after_the_limit_writes_under_way_are_of_no_lot() -> None:
    batch = ReleaseBatch(1.0, 0.0)
    batch.went("stuck")
    batch.close(5.0)
    assert batch.wait_s(6.0) == 0.0
    batch.close(6.0)
    assert batch.wait_s(6.0) == 0.0, "the stuck one is not waited for a second time"
    batch.went("next")
    batch.close(6.0)
    batch.done("stuck")
    assert batch.wait_s(6.25) == 0.75
    batch.done("next")
    assert batch.wait_s(6.25) == 0.0


def test_after_a_lot_pods_that_keep_coming_are_waited_for_within_the_limit() -> None:
    batch = ReleaseBatch(1.0, 0.25)
    batch.came(4.0)
    batch.went("a")
    batch.close(4.0)
    batch.came(4.25)
    batch.done("a")
    assert batch.wait_s(4.25) == 0.25
    batch.came(4.375)
    assert batch.wait_s(4.5) == 0.125
    batch.came(4.875)
    assert batch.wait_s(4.875) == 0.125, "the limit ends at 5.0"
    assert batch.wait_s(5.0) == 0.0


def test_pods_that_come_keep_a_gang_alone_waiting_for_nothing() -> None:
    batch = ReleaseBatch(1.0, 0.25)
    batch.came(4.0)
    assert batch.wait_s(4.0) == 0.0


def pair(gang: str) -> list[Raw]:
    return [held(f"p-{gang}", gang=gang), held(f"d-{gang}", gang=gang)]


@pytest.mark.parametrize(("limit_s", "first"), [(60.0, "a"), (0.01, "b")])
async def test_a_gang_that_comes_while_another_is_let_go_waits_for_it(
    tmp_path: Path, limit_s: float, first: str
) -> None:
    async with FileCluster(NODES) as cluster, controlling(cluster, tmp_path) as controller:
        controller.batch._batch = ReleaseBatch(limit_s, 0.0)
        cluster.fail_next("PATCH", "/pods/p-a/status$", 429)  # the server asks for a pause of a second
        create(cluster, *pair("a"))
        await until(lambda: ("nominate", "p-a") in writes(cluster))
        create(cluster, *pair("b"))
        await until(lambda: len(groups(cluster)) == 2)
    made = [name for what, name in writes(cluster) if what == "group"]
    assert made[0] == f"isochrone-{first}"
    nominated = [name.removeprefix("p-") for what, name in writes(cluster) if what == "nominate" and name[0] == "p"]
    assert nominated == (["a", "a", "b"] if first == "a" else ["a", "b", "a"])
