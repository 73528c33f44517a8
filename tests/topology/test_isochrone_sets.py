"""Isochrone sets: sound by every pair, around what is planned, and written with few values."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.clusters import node
from tests.scheduler.small_cases import BOUNDS_US, snapshots
from topology.cluster.isochrone_sets import MAX_HOSTNAMES, NodeSet, as_requirement, isochrone_masks
from topology.cluster.snapshot import NodeTable, Snapshot
from topology.labels import HOSTNAME, LEAF, ZONE
from topology.objects import Metadata, Node

PAGE = 65_536


@settings(max_examples=300, deadline=None)
@given(
    snapshots(),
    st.lists(st.integers(0, 5), max_size=3),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(BOUNDS_US),
)
def test_every_pair_of_the_sets_is_within_the_bound(
    snapshot: Snapshot, prefill: list[int], decode: list[int], bound: float
) -> None:
    table = snapshot.table
    p, d = [i % len(table) for i in prefill], [i % len(table) for i in decode]
    planned_is_sound = all(table.reach.between(a, b, PAGE).us <= bound for a, b in product(p, d))
    here, there = isochrone_masks(table, p, d, bound, PAGE)
    if p or d:
        for a, b in product(np.flatnonzero(here).tolist(), np.flatnonzero(there).tolist()):
            assert table.reach.between(a, b, PAGE).us <= bound
    if planned_is_sound and p and d:
        assert here[p].all()
        assert there[d].all()


def four_in_two_zones() -> NodeTable:
    return NodeTable(
        [
            node("a", zone="z1", leaf="l1"),
            node("b", zone="z1", leaf="l1"),
            node("c", zone="z1", leaf="l2"),
            node("d", zone="z2", leaf="l1"),
        ]
    )


def test_one_millisecond_is_a_zone_and_a_tighter_bound_is_a_leaf() -> None:
    table = four_in_two_zones()
    # Within 1 ms: everything in zone z1 (159 us at most). Within 100 us: TCP in one leaf (79.2 us).
    zone, _ = isochrone_masks(table, [0], [1], 1000.0, PAGE)
    leaf, _ = isochrone_masks(table, [0], [1], 100.0, PAGE)
    assert zone.tolist() == [True, True, True, False]
    assert leaf.tolist() == [True, True, False, False]
    assert as_requirement(table, zone, [0, 1]) == NodeSet(ZONE, ("z1",), 3)


def test_leaf_names_that_repeat_in_another_zone_are_no_label_for_a_leaf() -> None:
    table = four_in_two_zones()
    leaf, _ = isochrone_masks(table, [0], [1], 100.0, PAGE)
    # The label value l1 means node d of zone z2 too, so the set is written by name.
    assert as_requirement(table, leaf, [0, 1]) == NodeSet(HOSTNAME, ("a", "b"), 2)


def test_a_leaf_is_written_as_a_leaf_where_its_name_is_its_own() -> None:
    table = NodeTable([node(n, zone="z1", leaf=leaf) for n, leaf in (("a", "l1"), ("b", "l1"), ("c", "l2"))])
    allowed = np.array([True, True, False])
    assert as_requirement(table, allowed, [0]) == NodeSet(LEAF, ("l1",), 2)


def test_names_win_where_they_cover_more() -> None:
    table = NodeTable([node(n, zone="z1", leaf=leaf) for n, leaf in (("a", "l1"), ("b", "l2"), ("c", "l2"))])
    allowed = np.array([True, True, False])
    assert as_requirement(table, allowed, [0]) == NodeSet(HOSTNAME, ("a", "b"), 2)


def test_at_most_so_many_names_and_the_planned_ones_first() -> None:
    table = NodeTable([node(f"n{i:03}") for i in range(MAX_HOSTNAMES + 40)])
    allowed = np.ones(len(table), dtype=bool)
    nodes = as_requirement(table, allowed, [len(table) - 1])
    assert nodes is not None
    assert nodes.nodes == len(nodes.values) == MAX_HOSTNAMES
    assert f"n{len(table) - 1:03}" in nodes.values


def test_a_planned_node_without_a_hostname_needs_a_domain() -> None:
    nameless = Node(metadata=Metadata(name="x", labels={ZONE: "z1"}))
    table = NodeTable([nameless, node("y", zone="z1")])
    everywhere = np.ones(2, dtype=bool)
    assert as_requirement(table, everywhere, [0]) == NodeSet(ZONE, ("z1",), 2)
    assert as_requirement(table, np.array([True, False]), [0]) is None


def test_a_set_is_shown_with_three_values_and_a_count() -> None:
    assert NodeSet(ZONE, ("z1",), 8).show() == "topology.kubernetes.io/zone in (z1)"
    assert NodeSet(HOSTNAME, tuple("abcde"), 5).show() == "kubernetes.io/hostname in (a, b, c and 2 more)"
