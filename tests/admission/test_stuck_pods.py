"""Released pods that are not placed: told, their nominations taken back, made anew only where that is safe."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from admission.demo.file_cluster import FileCluster
from admission.upkeep.stuck_pod_policy import Step, StuckPodPolicy
from tests.admission.controllers import (
    bind_released,
    controlling,
    create,
    events,
    gated,
    groups,
    nominations,
    pods_of,
    reasons,
)
from tests.admission.held_pods import CHAT, NAMESPACE, held, stored
from tests.admission.held_pods import released as let_go
from tests.admission.pods import Raw
from tests.topology.list_watch_server import until
from topology.labels import HOSTNAME
from topology.objects import Pod


def unplaced(name: str = "d0", kind: str = "ReplicaSet", nominated: str = "n1", phase: str = "Pending") -> Pod:
    owner = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "decode", "uid": "u1"}}
    pod = let_go(held(name, owner=owner if kind else None), nominated)
    return stored({**pod, "status": {**pod["status"], "phase": phase}})


# --- the decision ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "phase", "late"),
    [
        ("ReplicaSet", "Pending", Step.RENEW),
        ("StatefulSet", "Pending", Step.RENEW),
        ("Job", "Pending", Step.REPORT),
        ("LeaderWorkerSet", "Pending", Step.REPORT),
        ("", "Pending", Step.REPORT),
        ("ReplicaSet", "Running", Step.REPORT),
    ],
)
def test_who_is_made_anew(kind: str, phase: str, late: Step) -> None:
    read = StuckPodPolicy(60)
    pod = unplaced(kind=kind, phase=phase)
    assert read.step(CHAT, pod, 100, fits_nomination=True) is Step.WAIT
    assert read.step(CHAT, pod, 159.9, fits_nomination=True) is Step.WAIT
    assert read.step(CHAT, pod, 160, fits_nomination=True) is late
    assert read.step(CHAT, pod, 170, fits_nomination=True) is (Step.WAIT if late is Step.REPORT else late)


def test_a_nomination_that_does_not_hold_is_taken_back_at_once() -> None:
    read = StuckPodPolicy(60)
    assert read.step(CHAT, unplaced(), 0, fits_nomination=False) is Step.CLEAR
    assert read.step(CHAT, unplaced(nominated=""), 1, fits_nomination=False) is Step.WAIT


def test_off() -> None:
    read = StuckPodPolicy(0)
    read.step(CHAT, unplaced(), 0, fits_nomination=True)
    assert read.step(CHAT, unplaced(), 1e9, fits_nomination=True) is Step.WAIT


def test_patience_doubles_until_the_gang_runs() -> None:
    """60, 120, 240 ... at most 2^5 times: 1920."""
    read, seen = StuckPodPolicy(60), []
    for _ in range(8):
        seen.append(read.patience_s(CHAT))
        read.renewed(CHAT)
    assert seen == [60, 120, 240, 480, 960, 1920, 1920, 1920]
    read.calm(lambda key: key != CHAT)
    assert read.patience_s(CHAT) == 1920
    read.calm(lambda key: True)
    assert read.patience_s(CHAT) == 60


def test_a_pod_that_comes_again_starts_anew() -> None:
    read = StuckPodPolicy(60)
    read.step(CHAT, unplaced(), 0, fits_nomination=True)
    read.keep({"uid-other"})
    assert read.step(CHAT, unplaced(), 100, fits_nomination=True) is Step.WAIT


# --- carried out -------------------------------------------------------------------------------


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster([{"name": f"n{i}", "zone": "a", "leaf": "l", "gpus": 2} for i in (1, 2, 3)]) as made:
        yield made


def owner(cluster: FileCluster, kind: str = "replicasets", name: str = "decode") -> Raw:
    return cluster.create(kind, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"replicas": 1}})


async def lost_node(cluster: FileCluster, replicas: Raw | None) -> None:
    """A gang is let go, the prefill pod is bound, and the node of the decode pod goes away before it is."""
    create(cluster, held("p0", nodeSelector={HOSTNAME: "n1"}), held("d0", gpus=2, owner=replicas))
    await until(lambda: "isochrone-chat" in groups(cluster))
    nominated = nominations(cluster)["d0"]
    cluster.bind(NAMESPACE, "p0", nominations(cluster)["p0"])
    cluster.delete("nodes", "", nominated)


async def test_a_nomination_for_a_lost_node_is_taken_back(
    cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admission.upkeep.stuck_pods._LONGEST_PAUSE_S", 0.05)
    async with controlling(cluster, tmp_path, replan_after="off"):
        await lost_node(cluster, owner(cluster))
        await until(lambda: "d0" not in nominations(cluster))
        await until(lambda: reasons(cluster, "d0") == ["Replanned"])
        assert "planned for it, is gone, closed or full" in events(cluster, "d0")[0][1]
        assert len(pods_of(cluster)) == 2


async def test_it_is_made_anew_and_planned_again(cluster: FileCluster, tmp_path: Path) -> None:
    """The owner is played by the test: when its pod is gone it makes another."""
    replicas = owner(cluster)
    async with controlling(cluster, tmp_path, replan_after="1s") as controller:
        await lost_node(cluster, replicas)
        await until(lambda: len(pods_of(cluster)) == 1)
        await until(lambda: len(cluster.events_of(replicas["metadata"]["uid"])) == 1)
        (reported,) = cluster.events_of(replicas["metadata"]["uid"])
        assert reported["reason"] == "Replanned"
        waited = re.match(r"Pod d0: Not placed within ([0-9.]+)s of its release: ", reported["message"])
        assert waited is not None
        assert float(waited[1]) >= 1.0
        assert reported["message"].endswith("deleted for ReplicaSet decode to make another, which is planned anew")
        assert controller.renewal.renewed == 1
        create(cluster, held("d1", gpus=2, owner=replicas))
        await until(lambda: "d1" in bind_released(cluster))
        await until(lambda: "Placed" in reasons(cluster, "d1"))


@pytest.mark.parametrize("kind", [None, "jobs"])
async def test_nobody_would_make_it_again(cluster: FileCluster, tmp_path: Path, kind: str | None) -> None:
    maker: Any = None
    if kind:
        maker = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "decode", "uid": "u9"}}
    async with controlling(cluster, tmp_path, replan_after="1s"):
        await lost_node(cluster, maker)
        await until(lambda: reasons(cluster, "d0") == ["Replanned", "Replanned"])
        assert "is not deleted" in events(cluster, "d0")[1][1]
        assert len(pods_of(cluster)) == 2
        assert gated(cluster) == set()


async def test_a_pod_that_is_bound_in_between_is_not_deleted(
    cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is deleted is the pod as it was seen; bound meanwhile, it is another version."""
    async with controlling(cluster, tmp_path, replan_after="1h") as controller:
        await lost_node(cluster, owner(cluster))
        (seen,) = [p for p in controller.state.gang_pods(*CHAT) if p.metadata.name == "d0"]
        cluster.bind(
            NAMESPACE, "d0", "n1" if "n1" in {n["metadata"]["name"] for n in cluster.objects("nodes")} else "n2"
        )
        assert not await controller.renewal._pod_writer.remove(seen)
        assert cluster.pod(NAMESPACE, "d0")["spec"]["nodeName"]
