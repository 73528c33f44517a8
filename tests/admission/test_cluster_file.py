"""Cluster files: what a compact entry stands for, and which sentence a mistake gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from admission.demo.file_cluster import FileCluster
from topology.bad_input import BadInput
from topology.cluster.snapshot import snapshot_of
from topology.labels import LEAF, ZONE
from topology.objects import Node, Pod

NODES: list[dict[str, Any]] = [
    {"name": "n1", "zone": "a", "spine": "s", "leaf": "l1", "used": 3, "rdma": True},
    {"name": "n2", "zone": "a", "spine": "s", "leaf": "l1"},
]


def test_a_compact_node_is_a_whole_one_and_used_gpus_are_a_pod() -> None:
    cluster = FileCluster(NODES)
    nodes = [msgspec.convert(node, Node) for node in cluster.objects("nodes")]
    first = nodes[0]
    assert (first.metadata.name, first.metadata.label(ZONE), first.metadata.label(LEAF)) == ("n1", "a", "l1")
    assert first.ready
    pods = [msgspec.convert(one, Pod) for one in cluster.objects("pods")]
    assert [(one.spec.node_name, one.status.phase) for one in pods] == [("n1", "Running")]
    reach = snapshot_of(nodes).table.reach
    assert reach.between(0, 1, 64 * 1024).path == "same leaf, TCP"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("nodes: 3", "a map with a list"),
        ("nodes: []\nfoo: 1", "'foo'"),
        ("nodes: [{zone: a}]", "nodes[0].name"),
        ("nodes: [{name: off}]", "nodes[0].name is False"),
        ("nodes: [n1]", "nodes[0] is 'n1'"),
        ("nodes: [{name: a, gpu: 8}]", "'gpu'"),
        ("nodes: [{name: a, gpus: 8, used: 9}]", "the node has 8 GPUs"),
        ("nodes: [{name: a, gpus: many}]", "whole number"),
        ("nodes: [", "must be YAML"),
    ],
)
def test_a_cluster_file_with_a_mistake_names_it(tmp_path: Path, text: str, value: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(BadInput) as error:
        FileCluster.from_file(file)
    assert value in str(error.value)


def test_a_whole_node_and_pods_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "defaults: {gpus: 4}\n"
        "nodes: [{metadata: {name: whole}}, {name: down, ready: false, labels: {team: x}}]\n"
        "pods: [{metadata: {name: p, namespace: team}, spec: {containers: []}}]\n"
    )
    cluster = FileCluster.from_file(file)
    whole, down = (msgspec.convert(node, Node) for node in cluster.objects("nodes"))
    assert whole.status.allocatable is None
    assert (down.ready, down.metadata.label("team")) == (False, "x")
    assert (down.status.allocatable or {})["nvidia.com/gpu"] == "4"
    assert cluster.pod("team", "p")["status"]["phase"] == "Pending"
    with pytest.raises(BadInput, match="readable file"):
        FileCluster.from_file(tmp_path / "none.yaml")
