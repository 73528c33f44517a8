"""The writes that let pods go: what counts as done, as refused, and as not known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admission.demo.file_cluster import FileCluster
from admission.release.pod_writer import PodRelease, PodWriter
from tests.admission.controllers import SHORT_PAUSES_S, Impatient, annotation, gated, nominations, writes
from tests.admission.held_pods import NAMESPACE, held
from tests.admission.pods import Raw
from topology.cluster.isochrone_sets import NodeSet
from topology.kube.api import KubeApi
from topology.labels import DECISION, GATE, HOSTNAME, PLACEMENT
from topology.objects import Pod

NODES = [{"name": "n1"}, {"name": "n2"}]
SET = NodeSet(HOSTNAME, ("n1", "n2"), 2)


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster(NODES) as made:
        yield made


@pytest.fixture
async def api(cluster: FileCluster, tmp_path: Path) -> AsyncGenerator[KubeApi]:
    async with await KubeApi.connect(cluster.kubeconfig(tmp_path / "kubeconfig"), rng=Impatient()) as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admission.release.pod_writer._PAUSES_S", SHORT_PAUSES_S)


@pytest.fixture
def keeper(api: KubeApi) -> PodWriter:
    return PodWriter(api)


def now(cluster: FileCluster, name: str) -> Pod:
    return msgspec.convert(cluster.pod(NAMESPACE, name), Pod)


def releases(cluster: FileCluster, *names: str, node: str = "n1") -> list[PodRelease]:
    return [PodRelease(now(cluster, name), node, SET, {DECISION: "abc", PLACEMENT: "planned"}) for name in names]


def uids(cluster: FileCluster, *names: str) -> set[str]:
    return {now(cluster, name).metadata.uid for name in names}


def make(cluster: FileCluster, *pods: Raw) -> None:
    for pod in pods:
        cluster.create_pod(pod)


# --- nominate ----------------------------------------------------------------------------------


async def test_nominations_are_written_once(cluster: FileCluster, keeper: PodWriter) -> None:
    make(cluster, held("p0"), held("d0"))
    assert await keeper.nominate(releases(cluster, "p0", "d0")) == uids(cluster, "p0", "d0")
    assert nominations(cluster) == {"p0": "n1", "d0": "n1"}
    assert await keeper.nominate(releases(cluster, "p0", "d0")) == uids(cluster, "p0", "d0")
    assert len(writes(cluster)) == 2
    await keeper.nominate(releases(cluster, "p0", node="n2"))
    assert nominations(cluster)["p0"] == "n2"
    assert (keeper.nominated, keeper.failed) == (5, 0)


async def test_a_pod_that_was_replaced_is_not_nominated(cluster: FileCluster, keeper: PodWriter) -> None:
    make(cluster, held("p0"), held("d0"))
    old = releases(cluster, "p0", "d0")
    cluster.delete("pods", NAMESPACE, "d0")
    make(cluster, held("d0"))
    assert await keeper.nominate(old) == uids(cluster, "p0")
    assert nominations(cluster) == {"p0": "n1"}
    assert keeper.failed == 1


async def test_a_nomination_whose_answer_is_lost_is_written_again(cluster: FileCluster, keeper: PodWriter) -> None:
    make(cluster, held("p0"))
    cluster.fail_next("PATCH", "/status$", 0, after=True)
    assert await keeper.nominate(releases(cluster, "p0")) == uids(cluster, "p0")
    assert len(writes(cluster)) == 2


# --- release -----------------------------------------------------------------------------------


async def test_a_release_opens_the_gate_and_carries_its_words(cluster: FileCluster, keeper: PodWriter) -> None:
    make(cluster, held("p0"), held("d0"))
    assert await keeper.release(releases(cluster, "p0", "d0")) == (uids(cluster, "p0", "d0"), set())
    assert gated(cluster) == set()
    assert annotation(cluster, "d0") == "planned"
    assert (keeper.released, keeper.failed) == (2, 0)


@pytest.mark.parametrize(
    ("failures", "open_", "done", "unconfirmed"),
    [
        ([(422, False)], False, False, False),
        ([(403, False)], False, False, False),
        ([(404, False)], False, False, False),
        ([(500, False)], True, True, False),
        ([(500, False), (500, False)], True, True, False),
        ([(500, False)] * 3, False, False, True),
        ([(0, False)] * 3, False, False, True),
        ([(500, True)], True, True, False),
        ([(0, True)], True, True, False),
        ([(0, True), (0, False), (500, False)], True, False, True),
        ([(0, True), (422, False)], True, True, False),
        ([(500, False), (422, False)], False, False, False),
    ],
)
async def test_what_is_known_of_a_release(
    cluster: FileCluster,
    keeper: PodWriter,
    failures: Sequence[tuple[int, bool]],
    open_: bool,
    done: bool,
    unconfirmed: bool,
) -> None:
    make(cluster, held("p0"))
    for status, after in failures:
        cluster.fail_next("PATCH", "/pods/p0$", status, after=after)
    everybody = uids(cluster, "p0")
    value = await keeper.release(releases(cluster, "p0"))
    assert value == (everybody if done else set(), everybody if unconfirmed else set())
    assert (gated(cluster) == set()) is open_
    assert (keeper.released, keeper.failed) == (int(done), int(not done))


@pytest.mark.parametrize("was_done", [True, False])
async def test_asking_again_settles_the_doubt(cluster: FileCluster, keeper: PodWriter, was_done: bool) -> None:
    make(cluster, held("p0"))
    for after in (was_done, False, False):
        cluster.fail_next("PATCH", "/pods/p0$", 0, after=after)
    old, everybody = releases(cluster, "p0"), uids(cluster, "p0")
    assert await keeper.release(old) == (set(), everybody)
    assert await keeper.release(old) == (everybody, set())
    assert gated(cluster) == set()


@pytest.mark.parametrize("status", [500, 0])
async def test_a_doubt_that_cannot_be_looked_into_stays_one(
    cluster: FileCluster, keeper: PodWriter, status: int
) -> None:
    make(cluster, held("p0"))
    old = releases(cluster, "p0")
    await keeper.release(old)
    for _ in range(9):  # the client asks three times, and its library once more where a connection was cut
        cluster.fail_next("GET", "/pods/p0$", status)
    assert await keeper.release(old) == (set(), uids(cluster, "p0"))


async def test_a_replaced_pod_is_neither_released_nor_in_doubt(cluster: FileCluster, keeper: PodWriter) -> None:
    make(cluster, held("p0"))
    old = releases(cluster, "p0")
    cluster.delete("pods", NAMESPACE, "p0")
    assert await keeper.release(old) == (set(), set())
    make(cluster, held("p0"))
    assert await keeper.release(old) == (set(), set())
    assert gated(cluster) == {"p0"}
    unheld = held("p0")
    del unheld["spec"]["schedulingGates"]
    cluster.delete("pods", NAMESPACE, "p0")
    make(cluster, unheld)  # open, and another one
    assert await keeper.release(old) == (set(), set())


async def test_nobody_answers(cluster: FileCluster, keeper: PodWriter) -> None:
    make(cluster, held("p0"))
    old = releases(cluster, "p0")
    await cluster.stop()
    answers = await asyncio.gather(
        keeper.release(old),
        keeper.nominate(old),
        keeper.apply_pod_group(group()),
        keeper.annotate(old[0].pod, {"x": "1"}),
        keeper.annotate_pod_group(NAMESPACE, "g", {"x": "1"}),
    )
    assert tuple(answers) == ((set(), set()), set(), False, None, None)  # a release that never left is no doubt
    assert keeper.failed == 3


async def test_only_so_many_writes_are_under_way_at_once(cluster: FileCluster, api: KubeApi) -> None:
    under_way, most = 0, 0

    class Counting(KubeApi):
        async def request(self, method: str, path: str, **rest: Any) -> bytes:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await super().request(method, path, **rest)
            finally:
                under_way -= 1

    make(cluster, *(held(f"d{i}") for i in range(12)))
    async with Counting(api._access) as counting:
        keeper = PodWriter(counting, writes_at_once=3)
        assert len(await keeper.nominate(releases(cluster, *(f"d{i}" for i in range(12))))) == 12
    assert most == 3


# --- PodGroups and words -----------------------------------------------------------------------


def group(**spec: Any) -> Raw:
    meta = {"name": "isochrone-chat", "namespace": NAMESPACE}
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": spec}


async def test_a_pod_group_is_applied_as_often_as_is_wanted(cluster: FileCluster, keeper: PodWriter) -> None:
    assert await keeper.apply_pod_group(group(minMember=2))
    assert await keeper.apply_pod_group(group(minMember=3))
    (made,) = cluster.objects("podgroups")
    assert made["spec"] == {"minMember": 3}
    await keeper.annotate_pod_group(NAMESPACE, "isochrone-chat", {PLACEMENT: "words"})
    (made,) = cluster.objects("podgroups")
    assert made["metadata"]["annotations"] == {PLACEMENT: "words"}
    await keeper.annotate_pod_group(NAMESPACE, "not-there", {PLACEMENT: "words"})


async def test_words_about_a_held_pod_are_not_written_over_those_of_its_release(
    cluster: FileCluster, keeper: PodWriter
) -> None:
    make(cluster, held("p0"), held("d0", gates_before=("another",)))
    old = now(cluster, "p0")
    await keeper.annotate(old, {PLACEMENT: "held"})
    assert annotation(cluster, "p0") == "held"
    await keeper.release(releases(cluster, "p0"))
    await keeper.annotate(old, {PLACEMENT: "held"})
    assert annotation(cluster, "p0") == "planned"
    await keeper.annotate(now(cluster, "p0"), {PLACEMENT: "placed elsewhere"})
    assert annotation(cluster, "p0") == "placed elsewhere"
    await keeper.annotate(now(cluster, "d0"), {PLACEMENT: "held"})
    assert annotation(cluster, "d0") == "held"
    assert [gate["name"] for gate in cluster.pod(NAMESPACE, "d0")["spec"]["schedulingGates"]] == ["another", GATE]


async def test_words_for_a_pod_that_is_gone_or_another_are_dropped(cluster: FileCluster, keeper: PodWriter) -> None:
    make(cluster, held("p0"))
    old = now(cluster, "p0")
    cluster.delete("pods", NAMESPACE, "p0")
    await keeper.annotate(old, {PLACEMENT: "held"})
    make(cluster, held("p0"))
    await keeper.annotate(old, {PLACEMENT: "held"})
    assert annotation(cluster, "p0") == ""
