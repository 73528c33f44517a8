"""Reach with measurements: who wins, what the planner sees, and that it agrees with the slow way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.planning.plan import plan
from tests.scheduler.clusters import gang, node
from tests.scheduler.small_cases import Choices, snapshots
from topology.cluster.isochrone_sets import near_all
from topology.cluster.snapshot import NodeTable, Snapshot
from topology.cluster.state import ClusterState
from topology.facts.report import ReachSample
from topology.measured.reach import MeasuredReach
from topology.measured.store import Pair
from topology.objects import Node
from topology.reach.measured_values import LEAF, NODE, TIERS, ZONE, Curve, MeasuredPlace, Sample, curve_of
from topology.reach.model import ReachModel

NOW = 1_000_000.0
PAGE = 65_536
# Two leaves of two nodes, and a node in another zone, all over TCP: 79.2, 119 and 2,000 us by the model.
NODES = [
    *(node(f"a{i}", zone="z1", spine="s1", leaf="l1") for i in (1, 2)),
    *(node(f"b{i}", zone="z1", spine="s1", leaf="l2") for i in (1, 2)),
    node("c1", zone="z2", spine="s9", leaf="l9"),
]


def probed(us: float, *, age: float = 42.0, size: int = PAGE) -> Sample:
    return Sample(size, us, "p99", 200, NOW - age, 600.0, "tcp")


def at(name: str) -> MeasuredPlace:
    return MeasuredPlace(NODE, name)


def reach(pairs: Mapping[Pair, Sequence[Sample]], nodes: Sequence[Node] = NODES) -> tuple[MeasuredReach, NodeTable]:
    table = NodeTable(nodes)
    return MeasuredReach(table.reach, table.names, table.chains, pairs, NOW), table


def between(model: ReachModel, table: NodeTable, a: str, b: str, size: int = PAGE) -> tuple[float, str, str]:
    found = model.between(table.index[a], table.index[b], size)
    return round(found.us, 2), found.path, found.basis


def test_a_measured_pair_beyond_the_bound_is_out_though_the_model_says_near() -> None:
    model, table = reach({(at("a1"), at("a2")): [probed(1500.0)]})
    assert between(model, table, "a1", "a2") == (1500.0, "same leaf, TCP", "measured 42s ago")
    assert between(model, table, "a2", "a1") == between(model, table, "a1", "a2")
    assert between(model, table, "a1", "b1") == (119.24, "same spine, TCP", "modelled")
    table.reach = model
    near = near_all(table, np.array([table.index["a1"]]), 1000.0, PAGE)
    assert [name for name, inside in zip(table.names, near, strict=True) if inside] == ["a1", "b1", "b2"]


def test_a_measured_pair_within_the_bound_is_in_though_the_model_says_far() -> None:
    model, table = reach({(at("a1"), at("c1")): [probed(430.0)]})
    assert between(model, table, "a1", "c1") == (430.0, "other zone", "measured 42s ago")
    assert between(model, table, "a2", "c1") == (2000.0, "other zone, not measured", "modelled")


def test_kinds_split_where_measurements_tell_nodes_apart() -> None:
    model, table = reach({(at("a1"), at("a2")): [probed(1500.0)]})
    kinds = {name: int(model.kind[table.index[name]]) for name in table.names}
    assert kinds["b1"] == kinds["b2"]
    assert len(set(kinds.values())) == 4
    assert sorted(model.kind[model.first]) == sorted(set(kinds.values()))


def test_two_pairs_without_a_common_node_speak_for_their_domains() -> None:
    wide = [node(f"{leaf}{i}", zone="z1", spine="s1", leaf=leaf) for leaf in ("l1", "l2") for i in range(1, 5)]
    alone, table = reach({(at("l11"), at("l21")): [probed(900.0)]}, wide)
    assert between(alone, table, "l12", "l22") == (119.24, "same spine, TCP", "modelled")
    one_node = {(at("l11"), at("l21")): [probed(900.0)], (at("l11"), at("l22")): [probed(950.0)]}
    assert between(*reach(one_node, wide), "l13", "l24")[2] == "modelled"  # l11 may be the slow one
    several = one_node | {(at("l12"), at("l23")): [probed(600.0)]}
    model, table = reach(several, wide)
    # The upper median of 600, 900 and 950 us, where the pair itself was not measured
    assert between(model, table, "l13", "l24") == (900.0, "same spine, TCP", "measured 42s ago, leaf to leaf")
    assert between(model, table, "l11", "l22") == (950.0, "same spine, TCP", "measured 42s ago")
    assert between(model, table, "l13", "l14") == (79.24, "same leaf, TCP", "modelled")


def test_domains_that_an_import_names() -> None:
    given = {
        (MeasuredPlace(LEAF, "l1"), MeasuredPlace(LEAF, "l1")): [probed(60.0)],
        (MeasuredPlace(ZONE, "z1"), MeasuredPlace(ZONE, "z2")): [probed(700.0)],
        (MeasuredPlace(LEAF, "nowhere"), MeasuredPlace(LEAF, "l1")): [probed(1.0)],
    }
    model, table = reach(given)
    assert between(model, table, "a1", "a2") == (60.0, "same leaf, TCP", "measured 42s ago, within the leaf")
    assert between(model, table, "b1", "b2") == (79.24, "same leaf, TCP", "modelled")
    assert between(model, table, "b2", "c1") == (700.0, "other zone", "measured 42s ago, zone to zone")
    assert model.kind[table.index["a1"]] == model.kind[table.index["a2"]]  # domains need no kinds of their own


def test_a_stale_value_fades_to_the_model() -> None:
    # Twice 600 s old is gone; at 900 s half the weight: sqrt(1,500 x 79.24288) = 344.8 us
    half, table = reach({(at("a1"), at("a2")): [probed(1500.0, age=900.0)]})
    assert between(half, table, "a1", "a2") == (344.77, "same leaf, TCP", "measured 15m0s ago, fading to the model")
    gone, table = reach({(at("a1"), at("a2")): [probed(1500.0, age=1200.0)]})
    assert between(gone, table, "a1", "a2") == (79.24, "same leaf, TCP", "modelled")


def test_a_larger_message_takes_longer_as_the_model_says() -> None:
    # 100 us at one page; 8 MiB over 12.5 GB/s take 671.09 us and the page 5.24 of them
    model, table = reach({(at("a1"), at("a2")): [probed(100.0)]})
    assert between(model, table, "a1", "a2", 8 * 2**20)[0] == pytest.approx(100 + 671.09 - 5.24, abs=0.01)
    assert between(model, table, "a1", "a2", 1024)[0] == 100.0


def test_a_node_measured_against_itself() -> None:
    model, table = reach({(at("a1"), at("a1")): [Sample(PAGE, 11.0, "mean", None, NOW, 600.0, "")]})
    own = model.self_us(PAGE)
    assert own[table.index["a1"]] == 11.0
    assert own[table.index["a2"]] == pytest.approx(25.8, abs=0.01)
    assert between(model, table, "a1", "a1") == (11.0, "same node, PCIe across sockets", "measured 0.0s ago")


def test_a_probe_over_the_network_says_nothing_about_nvlink() -> None:
    clique = [node(f"t{i}", leaf=f"l{i}", labels={"nvidia.com/gpu.clique": "c1"}) for i in (1, 2)]
    model, table = reach({(at("t1"), at("t2")): [probed(300.0)]}, clique)
    assert between(model, table, "t1", "t2")[2] == "modelled"


def test_of_very_many_measured_nodes_those_that_differ_count_by_themselves() -> None:
    many = [node(f"n{i:03}", zone="z1", spine="s1", leaf="l1") for i in range(300)]
    pairs = {(at(f"n{i:03}"), at(f"n{i + 1:03}")): [probed(100.0)] for i in range(0, 300, 2)}
    pairs[at("n298"), at("n299")] = [probed(5000.0)]
    model, table = reach(pairs, many)
    assert between(model, table, "n298", "n299")[0] == 5000.0
    assert len(model.first) == 257
    assert between(model, table, "n100", "n200") == (100.0, "same leaf, TCP", "measured 42s ago, within the leaf")


def test_the_next_gang_goes_elsewhere_and_says_measured() -> None:
    state = ClusterState()
    state.apply_nodes([(None, each) for each in NODES])
    before = plan(gang(gpus=8, reach_us=100.0), state.snapshot(NOW, 0.0))
    assert set(before.places.values()) == {"a1", "a2"}
    reported = ReachSample(
        peer="a2", size_bytes=PAGE, p50_us=600, p99_us=1500, p999_us=2000, count=200, transport="tcp", measured_at_s=NOW
    )
    state.measured.probe("a1", [reported])
    grown = state.capacity_generation
    now = state.snapshot(NOW + 6, 0.0)
    assert state.capacity_generation > grown
    after = plan(gang(gpus=8, reach_us=100.0), now)
    assert set(after.places.values()) == {"b1", "b2"}
    found = now.table.reach.between(now.table.index["a1"], now.table.index["a2"], PAGE)
    assert (found.us, found.basis) == (1500.0, "measured 6.0s ago")
    assert found.measured is not None
    assert (found.measured.percentile, found.measured.count, found.measured.size_bytes) == ("p99", 200, PAGE)
    state.apply_nodes([(NODES[1], None)])  # the node goes, and what was measured from and to it
    assert state.measured.probed.both_ways() == {}


# --- the slow way ---------------------------------------------------------------------------------


def _chain(table: NodeTable, i: int, tier: str) -> str:
    return str(getattr(table.chains[i], tier))


def _shared(table: NodeTable, i: int, j: int, tier: str) -> bool:
    return _chain(table, i, tier) == _chain(table, j, tier) != ""


def _allowed(table: NodeTable, i: int, j: int) -> frozenset[str] | None:
    if i == j or not _shared(table, i, j, "zone"):
        return None
    if _shared(table, i, j, "fabric"):
        return frozenset([""])
    return frozenset(["", "rdma" if table.reach.rdma[i] and table.reach.rdma[j] else "tcp"])


def _slow(table: NodeTable, pairs: Mapping[Pair, Sequence[Sample]], size: int) -> dict[tuple[int, int], float]:
    """Each pair by itself, straight from the rules; reach by (i, j), i <= j."""
    curves: dict[tuple[int, int], Curve] = {}
    for (a, b), samples in pairs.items():
        if a.tier == NODE:
            i, j = sorted((table.index[a.name], table.index[b.name]))
            if (curve := curve_of(samples, _allowed(table, i, j), NOW)) is not None:
                curves[i, j] = curve

    def implied(tier: str, ends: set[str], within: bool) -> Curve | None:
        each = []
        for (i, j), curve in curves.items():
            narrower = any(_shared(table, i, j, t) for t in TIERS[: TIERS.index(tier)])
            here = i != j and {_chain(table, i, tier), _chain(table, j, tier)} == ends and "" not in ends
            if here and within == (len(ends) == 1) and not narrower:
                each.append(((i, j), curve))
        each = [e for e in each if e[1].weight == max(x[1].weight for x in each)]
        if len(each) < 2 or set.intersection(*(set(pair) for pair, _ in each)):
            return None
        return sorted(each, key=lambda e: (e[1].us(PAGE), e[0]))[len(each) // 2][1]

    found = {}
    for i, j in itertools.combinations_with_replacement(range(len(table)), 2):
        base = table.reach.self_us if i == j else None
        modelled = float(base(size)[i]) if base else float(table.reach.row_us(i, size)[j])
        picked = curves.get((i, j))
        if picked is None and i != j:
            for tier in TIERS:
                ends = {_chain(table, i, tier), _chain(table, j, tier)}
                if (picked := implied(tier, ends, len(ends) == 1)) is not None or _shared(table, i, j, tier):
                    break
        if picked is None:
            found[i, j] = modelled
            continue
        us = picked.us(size)
        top = picked.largest_bytes
        if size > top:
            before = float(base(top)[i]) if base else float(table.reach.row_us(i, top)[j])
            us += max(0.0, modelled - before)
        found[i, j] = math.exp(picked.weight * math.log(us) + (1 - picked.weight) * math.log(modelled))
    return found


@settings(max_examples=80, deadline=None)
@given(snapshots(7), st.binary(min_size=60, max_size=60), st.sampled_from([PAGE, 2**20]))
def test_it_agrees_with_the_slow_way(snapshot: Snapshot, data: bytes, size: int) -> None:
    table, choose = snapshot.table, Choices(data)
    pairs: dict[Pair, Sequence[Sample]] = {}
    for _ in range(choose.of(range(10))):
        a, b = sorted((at(choose.of(table.names)), at(choose.of(table.names))))
        pairs[a, b] = [
            Sample(
                choose.of((PAGE, 1024)),
                choose.of((5.0, 90.0, 1500.0)),
                "p99",
                9,
                NOW - choose.of((1, 900, 5000)),
                600.0,
                choose.of(("tcp", "rdma", "")),
            )
        ]
    model = MeasuredReach(table.reach, table.names, table.chains, pairs, NOW)
    slow = _slow(table, pairs, size)
    for (i, j), us in slow.items():
        assert model.between(i, j, size).us == pytest.approx(us)
        assert model.between(j, i, size).us == pytest.approx(us)
        if i != j:
            by_kind = model.kind_row_us(int(model.kind[i]), size)[model.kind[j]]
            assert by_kind == pytest.approx(us)
        else:
            assert model.self_us(size)[i] == pytest.approx(us)
    assert np.array_equal(model.kind[model.first], np.arange(len(model.first)))
