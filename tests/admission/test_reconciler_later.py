"""What happens to gangs after they went: nodes get lost or move, templates are replaced, owners change their minds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from admission.controller.controller import Controller
from admission.demo.file_cluster import FileCluster
from tests.admission.controllers import (
    bind_released,
    controlling,
    create,
    events,
    gated,
    groups,
    reasons,
    released,
    writes,
)
from tests.admission.held_pods import NAMESPACE, held, reference
from tests.admission.pods import Raw
from tests.topology.list_watch_server import until
from topology.labels import GANG, GROUP_NAME, HOSTNAME, ZONE

NODES: list[dict[str, Any]] = [
    {"name": "n1", "zone": "a", "spine": "s", "leaf": "l1", "gpus": 4},
    {"name": "n2", "zone": "a", "spine": "s", "leaf": "l1", "gpus": 4},
]


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster(NODES) as made:
        yield made


async def running_pair(cluster: FileCluster, prefill_on: str = "n1", decode_on: str = "n2") -> None:
    create(cluster, held("p0", nodeSelector={HOSTNAME: prefill_on}), held("d0", nodeSelector={HOSTNAME: decode_on}))
    await until(lambda: "isochrone-chat" in groups(cluster))
    bind_released(cluster)
    await until(lambda: reasons(cluster, "p0") == reasons(cluster, "d0") == ["Placed"])


# --- nodes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("comes_back", [True, False])
async def test_nobody_joins_a_partner_on_a_lost_node(cluster: FileCluster, tmp_path: Path, comes_back: bool) -> None:
    async with controlling(cluster, tmp_path) as controller:
        await running_pair(cluster)
        lost = cluster.delete("nodes", "", "n2")
        await until(lambda: len(controller.state.table()) == 1)
        before = len(writes(cluster))
        create(cluster, held("p1"))
        await until(lambda: reasons(cluster, "p1") == ["WaitingForPartner"])
        assert "Partner d0 is on node n2, which is not known any more" in events(cluster, "p1")[0][1]
        assert gated(cluster) == {"p1"}
        assert len(writes(cluster)) == before
        assert controller.batch.held_gangs() == 1
        if comes_back:
            cluster.create("nodes", lost)
        else:
            cluster.delete("pods", NAMESPACE, "d0")
            create(cluster, held("d1"))
        await until(lambda: not gated(cluster))


async def test_a_running_pair_that_is_moved_apart_is_a_breach_and_goes_on(
    cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admission.report.reporter.NODES_SETTLE_S", 0.05)
    async with controlling(cluster, tmp_path) as controller:
        await running_pair(cluster)
        before = len(writes(cluster))
        cluster.change("nodes", "", "n2", {"metadata": {"labels": {ZONE: "b"}}})
        await until(lambda: reasons(cluster, "p0") == reasons(cluster, "d0") == ["Placed", "ReachBreached"])
        text = dict(events(cluster, "d0"))["ReachBreached"]
        assert text.startswith("Reach to prefill p0 is 2.00 ms (bound 1.00 ms, other zone, not measured), 1.00 ms over")
        cluster.change("nodes", "", "n2", {"metadata": {"labels": {"touched": "yes"}}})
        await until(lambda: controller.events.suppressed >= 2)  # said once, not with every change
        assert len(writes(cluster)) == before
        assert set(released(cluster)) == {"p0", "d0"}


# --- owners ------------------------------------------------------------------------------------


def replica_set(cluster: FileCluster, name: str, revision: int, replicas: int, deployment: Raw) -> Raw:
    meta = {
        "name": name,
        "namespace": NAMESPACE,
        "annotations": {"deployment.kubernetes.io/revision": str(revision)},
        "ownerReferences": [reference(deployment)],
    }
    return cluster.create("replicasets", {"metadata": meta, "spec": {"replicas": replicas}})


def deployment(cluster: FileCluster, name: str) -> Raw:
    return cluster.create("deployments", {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {}})


async def test_a_held_pod_of_an_old_template_does_not_hold_up_its_successor(
    cluster: FileCluster, tmp_path: Path
) -> None:
    """A Deployment removes its old pods once the new ones run, so the new ones must not wait for the old."""
    decode = deployment(cluster, "decode")
    old = replica_set(cluster, "decode-1", 1, 1, decode)
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0"), held("d-old", gpus=9, owner=old))
        await until(lambda: controller.batch.held_gangs() == 1)
        new = replica_set(cluster, "decode-2", 2, 1, decode)
        create(cluster, held("d-new", owner=new))
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert gated(cluster) == {"d-old"}
        assert [o["name"] for o in groups(cluster)["isochrone-chat"]["metadata"]["ownerReferences"]] == ["decode", "p0"]


async def test_an_owner_that_wants_fewer_is_not_waited_for(cluster: FileCluster, tmp_path: Path) -> None:
    owners = [
        replica_set(cluster, name, 1, n, deployment(cluster, name)) for name, n in (("prefill", 1), ("decode", 3))
    ]
    async with controlling(cluster, tmp_path, settle="60s") as controller:
        create(cluster, held("p0", owner=owners[0]), held("d0", owner=owners[1]))
        await inspected(controller)
        assert gated(cluster) == {"p0", "d0"}
        cluster.change("replicasets", NAMESPACE, "decode", {"status": {"replicas": 1}})  # says nothing new
        cluster.change("replicasets", NAMESPACE, "decode", {"spec": {"replicas": 1}})
        await until(lambda: "isochrone-chat" in groups(cluster))


async def inspected(controller: Controller) -> None:
    """The loop has seen both pods and found that others are to come."""
    await until(lambda: len(controller.state.gang_pods(NAMESPACE, "chat")) == 2)
    await until(lambda: all(not gang.enqueued for gang in controller.batch._gangs.values()))


# --- labels ------------------------------------------------------------------------------------


async def test_a_pod_of_another_gang_joins_its_new_group(cluster: FileCluster, tmp_path: Path) -> None:
    """It still names the PodGroup of the gang it was made for; with its new gang it goes into that one's."""
    async with controlling(cluster, tmp_path, partner_after="100ms"):
        create(cluster, held("p0"), held("d0", gang="code"))
        await until(lambda: reasons(cluster, "p0") == reasons(cluster, "d0") == ["WaitingForPartner"])
        assert writes(cluster) == []
        cluster.change("pods", NAMESPACE, "d0", {"metadata": {"labels": {GANG: "chat"}}})
        await until(lambda: "isochrone-chat" in groups(cluster))
        assert not gated(cluster)
        assert cluster.pod(NAMESPACE, "d0")["metadata"]["annotations"][GROUP_NAME] == "isochrone-chat"
        assert groups(cluster)["isochrone-chat"]["spec"]["minMember"] == 2
