"""`pairing: nearest` from the annotation to the affinity: each group of partners is held to its own nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from admission.demo.file_cluster import FileCluster
from tests.admission.controllers import controlling, create, gated, nominations, released
from tests.admission.held_pods import held
from tests.admission.pods import Raw
from tests.topology.list_watch_server import until
from topology.labels import MIN_DECODE, MIN_PREFILL, NEAREST, PAIRING, ZONE


def four(**more: str) -> list[Raw]:
    notes = {MIN_PREFILL: "2", MIN_DECODE: "2", **more}
    return [held(name, gpus=4, annotations=notes) for name in ("p-0", "p-1", "d-0", "d-1")]


def zones_of(pod: Raw) -> list[str]:
    """What the pod's required node affinity allows."""
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = required["nodeSelectorTerms"][0]["matchExpressions"]
    assert expression["key"] == ZONE
    values: list[str] = expression["values"]
    return values


def nodes() -> list[dict[str, Any]]:
    """Two nodes of 4 GPUs in each of two zones, which are 2 ms apart."""
    return [{"name": f"n{i}", "zone": "a" if i < 2 else "b", "leaf": f"l{i // 2}", "gpus": 4} for i in range(4)]


async def test_each_pair_is_held_to_its_zone(tmp_path: Path) -> None:
    async with FileCluster(nodes()) as cluster, controlling(cluster, tmp_path):
        create(cluster, *four(**{PAIRING: NEAREST}))
        await until(lambda: len(released(cluster)) == 4)
        places = nominations(cluster)
        zone = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}
        for pod in cluster.objects("pods"):
            assert zones_of(pod) == [zone[places[pod["metadata"]["name"]]]]
        assert {zone[places["p-0"]], zone[places["p-1"]]} == {"a", "b"}
        assert {zone[places["d-0"]], zone[places["d-1"]]} == {"a", "b"}


async def test_with_every_pair_bound_nobody_goes(tmp_path: Path) -> None:
    async with FileCluster(nodes()) as cluster, controlling(cluster, tmp_path) as controller:
        create(cluster, *four())
        await until(lambda: controller.batch.held_gangs() == 1)
        assert gated(cluster) == {"p-0", "p-1", "d-0", "d-1"}
