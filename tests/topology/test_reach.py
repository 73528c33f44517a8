"""Reach: each path by hand from the link table, symmetry, and that nodes of one kind can be swapped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.clusters import node
from tests.scheduler.small_cases import snapshots
from topology.cluster.isochrone_sets import near_all, nearest_us
from topology.cluster.snapshot import NodeTable, Snapshot
from topology.labels import GPU_PRODUCT, NVLINK_CLIQUE, RDMA_CAPABLE, TRANSPORT
from topology.objects import Metadata, Node, NodeStatus
from topology.reach.model import NodeLinks, Reach, ReachModel, links_of

PAGE = 65_536  # bytes


def table(*nodes: Node) -> NodeTable:
    return NodeTable(nodes)


def between(a: Node, b: Node, size: int = PAGE) -> Reach:
    both = table(a, b)
    return both.reach.between(both.index[a.metadata.name], both.index[b.metadata.name], size)


# Latency of the link, 0.6 us per RDMA switch (1, 3, 5 for leaf, spine, zone), 40 us per TCP tier (0, 1, 2), plus
# 65,536 bytes over the bandwidth: 0.18832 us NVLink, 5.79965 PCIe, 1.82552 RDMA, 5.24288 TCP.
LEAF = {"zone": "z1", "spine": "s1", "leaf": "l1"}
FAR = {"zone": "z1", "spine": "s2", "leaf": "l2"}


@pytest.mark.parametrize(
    ("a", "b", "us", "path"),
    [
        ({**LEAF, "rdma": True}, {**LEAF, "rdma": True}, 24.42552, "same leaf, RDMA"),
        ({**LEAF, "rdma": True}, {**LEAF, "leaf": "l2", "rdma": True}, 25.62552, "same spine, RDMA"),
        (
            {**LEAF, "rdma": True},
            {**FAR, "rdma": True},
            26.82552,
            "same zone, RDMA",
        ),
        (LEAF, LEAF, 79.24288, "same leaf, TCP"),
        (LEAF, {**LEAF, "rdma": True}, 79.24288, "same leaf, TCP"),  # the slower end decides
        (LEAF, {**LEAF, "leaf": "l2"}, 119.24288, "same spine, TCP"),
        ({"zone": "z1"}, {"zone": "z1"}, 159.24288, "same zone, TCP"),  # no leaf told is never the same leaf
        ({}, {}, 159.24288, "same zone, TCP"),  # a cluster without zone labels is one zone
        (LEAF, {**LEAF, "zone": "z2"}, 2000.0, "other zone, not measured"),  # leaf names repeat between zones
    ],
)
def test_each_path(a: dict[str, str], b: dict[str, str], us: float, path: str) -> None:
    reach = between(node("a", **a), node("b", **b))  # type: ignore[arg-type]  # a table of keyword arguments
    assert reach.us == pytest.approx(us, abs=1e-4)
    assert reach.path == path
    assert reach.basis == "modelled"


@pytest.mark.parametrize(
    ("nvswitch", "us", "path"),
    [(True, 8.18832, "same node, NVLink"), (False, 25.79965, "same node, PCIe across sockets")],
)
def test_a_node_to_itself_is_its_worst_pair_of_gpus(nvswitch: bool, us: float, path: str) -> None:
    one = table(node("a", nvswitch=nvswitch))
    reach = one.reach.between(0, 0, PAGE)
    assert reach.us == pytest.approx(us, abs=1e-4)
    assert reach.path == path
    assert one.reach.self_us(PAGE)[0] == reach.us


def test_an_nvlink_fabric_beats_what_the_network_says() -> None:
    a = node("a", zone="z1", leaf="l1", labels={NVLINK_CLIQUE: "rack-7.1"})
    b = node("b", zone="z1", leaf="l2", labels={NVLINK_CLIQUE: "rack-7.1"})
    reach = between(a, b)
    assert reach.us == pytest.approx(10.0 + 0.6 + 0.18832, abs=1e-4)
    assert reach.path == "same NVLink fabric"


def test_the_message_size_is_divided_by_the_narrowest_link() -> None:
    # 8 MiB over 12.5 GB/s is 671.08864 us; across zones only what exceeds one page comes on top of the 2 ms.
    assert between(node("a", **LEAF), node("b", **LEAF), 8 * 2**20).us == pytest.approx(74 + 671.08864)  # type: ignore[arg-type]
    far = between(node("a", zone="z1"), node("b", zone="z2"), 8 * 2**20)
    assert far.us == pytest.approx(2000 + (8 * 2**20 - PAGE) / 12_500)


@pytest.mark.parametrize(
    ("labels", "allocatable", "links"),
    [
        ({}, {}, NodeLinks(rdma=False, nvswitch=False)),
        ({RDMA_CAPABLE: "true"}, {}, NodeLinks(rdma=True, nvswitch=False)),
        ({RDMA_CAPABLE: "true", TRANSPORT: "tcp"}, {}, NodeLinks(rdma=False, nvswitch=False)),  # a person knows better
        ({TRANSPORT: "carrier pigeon", RDMA_CAPABLE: "true"}, {}, NodeLinks(rdma=True, nvswitch=False)),
        ({}, {"rdma/hca_shared": "8"}, NodeLinks(rdma=True, nvswitch=False)),
        ({}, {"vpc.amazonaws.com/efa": "32"}, NodeLinks(rdma=True, nvswitch=False)),
        ({GPU_PRODUCT: "NVIDIA-H100-80GB-HBM3"}, {}, NodeLinks(rdma=False, nvswitch=True)),
        ({GPU_PRODUCT: "NVIDIA-H100-PCIe"}, {}, NodeLinks(rdma=False, nvswitch=False)),
    ],
)
def test_links_are_what_labels_and_resources_say(
    labels: dict[str, str], allocatable: dict[str, str | int | float], links: NodeLinks
) -> None:
    assert links_of(Node(metadata=Metadata(labels=labels), status=NodeStatus(allocatable=allocatable))) == links


def test_no_nodes_is_no_error() -> None:
    assert len(ReachModel([], [])) == 0


few = settings(max_examples=200, deadline=None)


@few
@given(snapshots())
def test_reach_is_symmetric_and_the_row_is_the_pairs(snapshot: Snapshot) -> None:
    reach = snapshot.table.reach
    rows = np.array([reach.row_us(i, PAGE) for i in range(len(reach))])
    assert (rows == rows.T).all()
    assert (np.diag(rows) == reach.self_us(PAGE)).all()
    assert rows[0, -1] == reach.between(0, len(reach) - 1, PAGE).us


@few
@given(snapshots())
def test_nodes_of_one_kind_can_be_swapped(snapshot: Snapshot) -> None:
    """Their rows are equal but for their own two entries, which the shortcut below rests on."""
    reach = snapshot.table.reach
    rows = np.array([reach.row_us(i, PAGE) for i in range(len(reach))])
    for a in range(len(reach)):
        for b in range(a):
            if reach.kind[a] == reach.kind[b]:
                others = np.array([i for i in range(len(reach)) if i not in (a, b)], dtype=np.int64)
                assert (rows[a, others] == rows[b, others]).all()
                assert rows[a, a] == rows[b, b]


@few
@given(snapshots(), st.lists(st.integers(0, 5), max_size=8), st.sampled_from((15.0, 24.0, 25.0, 100.0, 130.0, 1000.0)))
def test_near_all_and_nearest_are_what_every_member_says(snapshot: Snapshot, picked: list[int], bound: float) -> None:
    """Against the slow way, a row per member. Members may repeat: several pods share a node."""
    size = len(snapshot.table)
    members = np.array([i % size for i in picked], dtype=np.int64)
    rows = [snapshot.table.reach.row_us(int(m), PAGE) for m in members]
    every = np.logical_and.reduce([row <= bound for row in rows]) if rows else np.ones(size, dtype=bool)
    assert (near_all(snapshot.table, members, bound, PAGE) == every).all()
    nearest = np.minimum.reduce(rows) if rows else np.full(size, np.inf)
    assert (nearest_us(snapshot.table, members, PAGE) == nearest).all()
    lonely = [np.where(np.arange(size) == m, np.inf, row) for m, row in zip(members, rows, strict=True)]
    alone = np.minimum.reduce(lonely) if lonely else np.full(size, np.inf)
    none = np.empty(0, dtype=np.int64)
    assert (nearest_us(snapshot.table, none, PAGE, others=members) == alone).all()
