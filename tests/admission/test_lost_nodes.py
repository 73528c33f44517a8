"""A node object that goes and comes back under a running gang: the bound holds all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from admission.demo.file_cluster import FileCluster
from tests.admission.controllers import bind_released, controlling, create, gated, groups, nominations, reasons
from tests.admission.held_pods import held
from tests.topology.list_watch_server import until

NODES: list[dict[str, Any]] = [
    {"name": "n1", "zone": "a", "leaf": "l1", "gpus": 8},
    {"name": "n2", "zone": "a", "leaf": "l1", "gpus": 8},
]
ONE_NODE = {"isochrone.dev/reach": "15us"}


async def test_nobody_joins_a_partner_whose_node_is_gone_until_it_is_back(tmp_path: Path) -> None:
    async with FileCluster(NODES) as cluster, controlling(cluster, tmp_path) as controller:
        create(cluster, held("p0", annotations=ONE_NODE), held("d0", annotations=ONE_NODE))
        await until(lambda: "isochrone-chat" in groups(cluster))
        bind_released(cluster)
        home = nominations(cluster)["p0"]
        await until(lambda: len(controller.state.snapshot(0.0, 0.0).assumed) == 0)
        (node,) = [n for n in cluster.objects("nodes") if n["metadata"]["name"] == home]
        cluster.delete("nodes", "", home)
        await until(lambda: home not in controller.state.table().index)
        create(cluster, held("d1", annotations=ONE_NODE))
        await until(lambda: "WaitingForPartner" in reasons(cluster, "d1"))
        assert gated(cluster) == {"d1"}
        cluster.create("nodes", {key: node[key] for key in ("metadata", "spec", "status") if key in node})
        await until(lambda: gated(cluster) == set())
        assert nominations(cluster)["d1"] == home
