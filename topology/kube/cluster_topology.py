"""EDGE. The topology that the API server knows now: labels of nodes, and Volcano's HyperNodes where they exist.

It reads and never watches: one call for a person's question. What the labels mean: topology/reach/label_schemes.py.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from topology.bad_input import BadInput
from topology.graph.parts import Topology
from topology.kube.api import KubeApi
from topology.kube.errors import ApiError
from topology.objects import HyperNode, ListPage, Node
from topology.readers.node_labels import MAX_NODES, of_cluster

_PAGE: Final = "500"
_Kind = TypeVar("_Kind", Node, HyperNode)


async def cluster_topology(api: KubeApi, node: str = "") -> Topology:
    """Of one node, or of all. Raises ApiFailure; BadInput for an unknown node and for labels that cannot be shown."""
    nodes = [await _one(api, node)] if node else await _all(api, "/api/v1/nodes", Node)
    try:
        hypernodes = await _all(api, "/apis/topology.volcano.sh/v1alpha1/hypernodes", HyperNode)
    except ApiError as error:
        if error.status not in (403, 404):  # Volcano without HyperNodes, or no right to see them: labels are enough
            raise
        hypernodes = []
    return of_cluster(nodes, hypernodes)


async def _one(api: KubeApi, node: str) -> Node:
    try:
        return msgspec.json.decode(await api.get(f"/api/v1/nodes/{node}"), type=Node)
    except ApiError as error:
        if error.not_found:
            raise BadInput("--node", node, "the cluster has no node of this name: see kubectl get nodes") from None
        raise


async def _all(api: KubeApi, path: str, kind: type[_Kind]) -> list[_Kind]:
    found: list[_Kind] = []
    more = ""
    while len(found) <= MAX_NODES:
        params = {"limit": _PAGE, **({"continue": more} if more else {})}
        page = msgspec.json.decode(await api.get(path, params=params, timeout_s=30.0), type=ListPage)
        found += [msgspec.json.decode(item, type=kind) for item in page.items or ()]
        more = page.metadata.continue_
        if not more:
            break
    return found
