"""The snapshot: what is free, what is assumed, and that nothing in it ever changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.clusters import READY, node
from tests.scheduler.small_cases import snapshots
from topology.cluster.snapshot import Assumed, NodeTable, Snapshot, capacity_for, snapshot_of
from topology.objects import Metadata, Node, NodeStatus, PodSpec

GPU = "nvidia.com/gpu"


def free(snapshot: Snapshot, name: str, resource: str = GPU) -> int:
    return int(snapshot.free[snapshot.table.index[name], snapshot.table.column[resource]])


def test_free_is_allocatable_minus_held() -> None:
    snapshot = snapshot_of([node("b", gpus=4), node("a")], [("a", {GPU: 3}), ("a", {GPU: 2, "cpu": 500})])
    assert snapshot.table.names == ("a", "b")
    assert free(snapshot, "a") == 3
    assert free(snapshot, "b") == 4
    assert free(snapshot, "a", "cpu") == 95_500


def test_what_is_held_on_unknown_nodes_or_of_unknown_resources_counts_nowhere() -> None:
    snapshot = snapshot_of([node("a")], [("gone", {GPU: 8}), ("a", {"example.com/fpga": 1})])
    assert free(snapshot, "a") == 8
    assert snapshot.table.vector({"example.com/fpga": 1, GPU: 2})[1] == ("example.com/fpga",)
    assert snapshot.table.vector({"example.com/fpga": 0})[1] == ()  # asking for nothing misses nothing


def test_one_unreadable_node_costs_only_itself() -> None:
    bad = Node(metadata=Metadata(name="b"), status=NodeStatus(allocatable={GPU: "eight"}, conditions=READY))
    table = NodeTable([node("a"), bad])
    assert "status.allocatable[nvidia.com/gpu] is 'eight'" in table.unreadable["b"]
    assert table.allocatable[table.index["b"]].sum() == 0
    assert table.allocatable[table.index["a"], table.column[GPU]] == 8


def test_an_assumed_pod_holds_its_amounts_and_moves_rather_than_doubles() -> None:
    before = snapshot_of([node("a"), node("b")])
    once = before.with_assumed({"u1": Assumed("a", {GPU: 4})})
    moved = once.with_assumed({"u1": Assumed("b", {GPU: 4}), "u2": Assumed("b", {GPU: 1})})
    assert (free(before, "a"), free(once, "a"), free(moved, "a")) == (8, 4, 8)
    assert free(moved, "b") == 3
    assert free(moved.without_assumed(["u1", "stranger"]), "b") == 7


def test_an_assumed_pod_on_a_node_that_is_gone_is_remembered_and_holds_nothing() -> None:
    snapshot = snapshot_of([node("a")]).with_assumed({"u1": Assumed("gone", {GPU: 4})})
    assert free(snapshot, "a") == 8
    assert set(snapshot.assumed) == {"u1"}
    assert not snapshot.without_assumed(["u1"]).assumed


@settings(max_examples=150, deadline=None)
@given(snapshots(), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 9)), max_size=6))
def test_with_assumed_then_without_is_as_before(snapshot: Snapshot, moves: list[tuple[int, int, int]]) -> None:
    now = snapshot
    for pod, where, gpus in moves:
        now = now.with_assumed({f"u{pod}": Assumed(f"n{where}", {GPU: gpus, "cpu": 1})})
    after = now.without_assumed([f"u{i}" for i in range(4)])
    assert (after.used == snapshot.used).all()
    assert after.assumed == snapshot.assumed
    assert after.table is snapshot.table


def test_arrays_cannot_be_written() -> None:
    snapshot = snapshot_of([node("a")]).with_assumed({})
    for array in (snapshot.used, snapshot.table.allocatable, snapshot.table.accept_mask(PodSpec())):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("free_row", "need", "capacity"),
    [
        ([8, 10], [4, 1], 2),
        ([8, 1], [4, 1], 1),
        ([3, 10], [4, 1], 0),
        ([-2, 10], [1, 0], 0),  # overcommitted
        ([-2, 10], [0, 3], 3),  # what is not asked for does not matter
        ([0, 0], [0, 0], 1000),
    ],
)
def test_room_is_how_many_fit(free_row: list[int], need: list[int], capacity: int) -> None:
    assert capacity_for(np.array([free_row]), np.array(need)).tolist() == [capacity]


def test_acceptance_is_by_node_and_remembered() -> None:
    table = NodeTable([node("a", labels={"pool": "x"}), node("b"), node("c", ready=False)])
    spec = PodSpec(node_selector={"pool": "x"})
    assert table.accept_mask(spec).tolist() == [True, False, False]
    assert table.accept_mask(PodSpec(node_selector={"pool": "x"})) is table.accept_mask(spec)
    assert table.accept_mask(PodSpec()).tolist() == [True, True, False]


def test_label_groups_number_the_values() -> None:
    table = NodeTable([node("a", zone="z2"), node("b", zone="z1"), node("c")])
    codes, values = table.label_groups("topology.kubernetes.io/zone")
    assert values == ("z1", "z2")
    assert codes.tolist() == [1, 0, -1]
    assert table.mask_of(["c", "gone"]).tolist() == [False, False, True]
