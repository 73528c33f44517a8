"""MIG instances of whole nodes: slices by counts, and which node an instance harms least."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.evaluate.mig_cost import fragmentation_added, mig_cost, mig_node
from topology.cluster.snapshot import snapshot_of
from topology.gpus.capacity import GPU_COUNT, NodeGpus
from topology.labels import GPU_PRODUCT
from topology.objects import Metadata, Node, NodeStatus

H100 = NodeGpus(model="NVIDIA-H100-80GB-HBM3", memory_mib=(81559,))


def test_slices_by_counts() -> None:
    # One card with a 3g and four 1g: the 3g at 4, the 1g at 3, 2, 1, 0. Pods hold the 3g and one 1g.
    node = mig_node(H100, 1, {"3g.40gb": 1, "1g.10gb": 4}, {"3g.40gb": 1, "1g.10gb": 1})
    assert node is not None
    assert node.used == (0b11111000,)
    # Two cards with seven instances each: alike, and the first is filled first.
    node = mig_node(H100, 2, {"1g.10gb": 14}, {"1g.10gb": 7})
    assert node is not None
    assert node.used == (0b1111111, 0)


def test_nodes_that_say_too_little_or_contradict_themselves() -> None:
    assert mig_node(NodeGpus(model="Tesla-T4"), 1, {"1g.10gb": 1}, {}) is None
    assert mig_node(H100, 1, {}, {}) is None
    assert mig_node(H100, 0, {"1g.10gb": 1}, {}) is None
    assert mig_node(H100, 1, {"3g.40gb": 3}, {}) is None


def test_an_instance_is_less_harm_where_a_gap_is() -> None:
    mix = {"3g.40gb": 1.0}
    empty = mig_node(H100, 1, {"1g.10gb": 7}, {})
    begun = mig_node(H100, 1, {"1g.10gb": 7}, {"1g.10gb": 1})
    assert empty is not None
    assert begun is not None
    # An empty card keeps a 3g at 0 when a 1g goes to slice 6: 1 of min(7 // 4, 2) = 1, nothing lost.
    assert fragmentation_added(empty, "1g.10gb", mix) == 0.0
    assert begun.used == (0b1000000,)
    assert fragmentation_added(begun, "1g.10gb", mix) == 0.0
    full = mig_node(H100, 1, {"7g.80gb": 1}, {"7g.80gb": 1})
    assert full is not None
    assert fragmentation_added(full, "1g.10gb", mix) == np.inf


def test_harm_of_nodes() -> None:
    def node(name: str, product: str) -> Node:
        labels = {GPU_PRODUCT: product, GPU_COUNT: "1"}
        return Node(
            metadata=Metadata(name=name, labels=labels),
            status=NodeStatus(allocatable={"nvidia.com/mig-1g.10gb": 4, "nvidia.com/mig-3g.40gb": 1}),
        )

    # n1 holds one 1g, by prediction at slice 3 (the 3g is laid out at 4, the 1g at 3 to 0), so a 4g has no place: 1.0.
    # A 3g at 4 leaves 3 slices, too few for a 4g wherever they were: 0.0, a gain of 1. On the empty n2 a 3g at 4 leaves
    # the 4g its place: no change. Nobody knows the card of n3.
    known = "NVIDIA-H100-80GB-HBM3"
    held = [("n1", {"nvidia.com/mig-1g.10gb": 1}), ("n3", {"nvidia.com/mig-1g.10gb": 1})]
    snapshot = snapshot_of([node("n1", known), node("n2", known), node("n3", "X")], held)
    placement_cost = mig_cost(snapshot, np.arange(3), ("3g.40gb",), {"4g.40gb": 1.0})
    assert placement_cost.tolist() == pytest.approx([-1.0, 0.0, 0.0])
    assert mig_cost(snapshot, np.arange(3), (), {"4g.40gb": 1.0}).tolist() == [0.0, 0.0, 0.0]
