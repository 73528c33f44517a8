"""Which labels nodes should have: for clique, leaf and spine the name of the HyperNode that the node is in.

The labels are keys of our own, never those that others write (topograph's, GPU feature discovery's): nothing that we
write is read back as a fact, and nobody fights over a key. They say the same as the published tree, whether or not it
is published, so that whoever builds a tree from them (Volcano's label discovery, Kueue's topologies) gets one without a
second parent. A node for which nobody states a tier has no label for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topology.cluster.domain_sources import NO_SOURCES, Sources
from topology.hypernodes.plan import plan_hypernodes
from topology.labels import CLIQUE, IN_LEAF, IN_SPINE
from topology.objects import Node

KEYS: Final[Mapping[str, str]] = {"clique": CLIQUE, "leaf": IN_LEAF, "spine": IN_SPINE}
"""By the name of a HyperNode's tier. Zones have a label already."""


def plan_labels(gpu_nodes: Iterable[Node], sources: Sources = NO_SOURCES) -> dict[str, dict[str, str]]:
    """By node name: our labels that it should have; for every node given, if only an empty mapping."""
    nodes = list(gpu_nodes)
    made = plan_hypernodes(nodes, (), sources).desired
    parent = {(each.of_nodes, member): name for name, each in made.items() for member in each.members}
    wanted: dict[str, dict[str, str]] = {}
    for node in nodes:
        labels = wanted[node.metadata.name] = {}
        above = parent.get((True, node.metadata.name))
        while above is not None:
            group = made[above]
            if not group.rest and group.tier_name in KEYS:
                labels[KEYS[group.tier_name]] = group.name
            above = parent.get((False, above))
    return wanted


def ours_on(node: Node) -> dict[str, str]:
    """Labels under our keys that a node has, whoever wrote them."""
    return {key: value for key in KEYS.values() if (value := node.metadata.label(key))}
