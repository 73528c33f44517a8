"""EDGE. What the controller publishes of the topology, by its settings, and when it may begin.

It wires; what is published is decided in topology/hypernodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from admission.settings import ControllerSettings
from topology.clock import monotonic_s
from topology.cluster.state import ClusterState
from topology.gpus.capacity import node_gpus
from topology.hypernodes.label_publisher import NodeLabelPublisher
from topology.hypernodes.publication import Publication, Publisher
from topology.hypernodes.publisher import HyperNodePublisher
from topology.kube.api import KubeApi
from topology.objects import HyperNode, Node

AGENTS_BACK_S: Final = 90.0
"""Agents come back after a random part of pauses of 10 to 60 s (topology/agent/hub_client.py)."""
_POLL_S: Final = 1.0


def publication(
    api: KubeApi,
    settings: ControllerSettings,
    state: ClusterState,
    nodes: Callable[[], Iterable[Node]],
    hypernodes: Callable[[], Iterable[HyperNode]],
    heard: Callable[[str], bool],
) -> Publication:
    """HyperNodes and node labels, each where a setting asks for it; disagreements are told in any case.

    `heard` says whether a node's agent has reported to this process.
    """
    publishers: list[Publisher] = []
    if settings.publish_hypernodes:
        publishers.append(HyperNodePublisher(api, hypernodes))
    if settings.publish_node_labels:
        publishers.append(NodeLabelPublisher(api))

    async def agents_back() -> None:
        """Until every GPU node's agent was heard, or those that are missing will not come."""
        until_s = monotonic_s() + AGENTS_BACK_S if settings.hub_listen is not None else 0.0
        while monotonic_s() < until_s:
            if all(heard(node.metadata.name) for node in nodes() if has_gpus(node)):
                return
            await asyncio.sleep(_POLL_S)

    return Publication(nodes, has_gpus, state.sources, publishers, agents_back)


def has_gpus(node: Node) -> bool:
    """Whether the node says that it has GPUs, whole or divided."""
    devices = node_gpus(node)
    return bool(devices.memory_mib) or devices.all_mig
