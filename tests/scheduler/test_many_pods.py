"""Gangs of very many pods: placed domain by domain, in time that grows with the pods, and as soundly as small ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scheduler.evaluate.partner_reach import Deciding, nodes_of, partner_of, seen_from
from scheduler.model.decision import Outcome, Plan
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest
from scheduler.planning.plan import plan
from tests.scheduler import brute_force
from tests.scheduler.case_files import of_kind, planned
from tests.scheduler.clusters import gang, node, partner
from tests.scheduler.small_cases import cases, random_case
from topology.cluster.isochrone_sets import farthest_us
from topology.cluster.snapshot import Assumed, NodeTable, Snapshot, snapshot_of
from topology.labels import DECODE, NEAREST, PHASES, PREFILL

CROWD = Policy(joint_pods=0)
"""Every gang is placed as one of very many pods is."""

unhurried = settings(deadline=None, suppress_health_check=list(HealthCheck))


def cluster(leaves: int, each: int = 4, gpus: int = 8) -> Snapshot:
    """Leaves of nodes over RDMA, all in one zone."""
    nodes = [
        node(f"n{leaf:02}-{i}", zone="z1", spine="s1", leaf=f"l{leaf}", rdma=True, gpus=gpus)
        for leaf in range(leaves)
        for i in range(each)
    ]
    return snapshot_of(nodes)


@pytest.mark.parametrize("case", of_kind("crowd"))
def test_a_crowd_case(case: dict[str, Any]) -> None:
    made, expect = planned(case), case["expect"]
    assert made.outcome == expect["outcome"]
    assert sorted(Counter(made.places.values()).values()) == expect["pods_by_node"]
    assert {name[0] for name in made.places.values()} == {expect["rack"]}


def test_a_thousand_pods_in_the_tightest_domain_that_holds_them() -> None:
    # 1,000 pods of one GPU: 125 of 128 nodes. Deeper than Python calls can go, one pod inside the other.
    made = plan(gang(500, 500, gpus=1, minimum=(500, 500)), cluster(32))
    assert made.outcome == Outcome.PLANNED
    assert max(Counter(made.places.values()).values()) == 8
    # 24 pods of one GPU fit into one leaf of 4 nodes: 24.4 us within it, and no farther.
    made = plan(gang(12, 12, gpus=1, minimum=(12, 12)), cluster(3), CROWD)
    assert len({name.split("-")[0] for name in made.places.values()}) == 1


def test_a_gang_of_a_thousand_pods_that_does_not_fit() -> None:
    asked = gang(500, 525, gpus=1, minimum=(500, 525))
    assert plan(asked, cluster(32), advise=False).outcome == Outcome.HELD  # 1,025 pods, 1,024 GPUs
    made = plan(replace(asked, min_prefill=1, min_decode=1), cluster(32), advise=False)
    assert made.outcome == Outcome.PLANNED
    assert len(made.places) == 1024
    assert Counter(m.phase for m in asked.members if m.uid in made.places) == {PREFILL: 500, DECODE: 524}


@settings(unhurried, max_examples=60)
@given(cases())
def test_many_pods_have_places_exactly_when_few_have(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    made = plan(asked, snapshot, CROWD, advise=False)
    # For gangs as small as these brute force says the same (test_plan.py).
    assert made.outcome == plan(asked, snapshot, advise=False).outcome
    assert brute_force.faults(asked, snapshot, made.places) == []
    event(made.outcome)


def one_by_one(asked: GangRequest, snapshot: Snapshot, made: Plan) -> int:
    """How many more pods find places beside those of a plan, each asked for alone after the one before: what `plan`
    did for every pod beyond the minimum, and what cost it the square of them."""
    found, now, partners = 0, snapshot, list(asked.partners)
    for member in asked.members:
        if member.uid in made.places:
            partners.append(partner(member.name, member.phase, made.places[member.uid]))
            now = now.with_assumed({member.uid: Assumed(made.places[member.uid], member.amounts, member.hold)})
    for member in asked.members:
        if member.uid not in made.places:
            alone = replace(asked, members=(member,), partners=tuple(partners), min_prefill=0, min_decode=0)
            joined = plan(alone, now, advise=False)
            found += len(joined.places)
    return found


@settings(unhurried, max_examples=40)
@given(st.integers(0, 10_000_000))
def test_whoever_is_left_out_would_not_have_fitted(seed: int) -> None:
    asked, snapshot = random_case(seed, "all")
    asked = replace(asked, min_prefill=1, min_decode=1)
    for policy in (Policy(), CROWD):
        made = plan(asked, snapshot, policy, advise=False)
        assume(made.places)
        event(f"{len(asked.members) - len(made.places)} left out")
        assert one_by_one(asked, snapshot, made) == 0


def slow_reach(table: NodeTable, partners: list[NDArray[np.int64]], size: int) -> NDArray[np.float64]:
    """One row for each partner, (partners, N)."""
    rows = [table.reach.row_us(int(n[0]), size) if len(n) == 1 else farthest_us(table, n, size) for n in partners]
    return np.array(rows).reshape(len(rows), len(table))


@settings(unhurried, max_examples=60)
@given(cases(), st.data(), st.booleans())
def test_what_partners_mean_for_every_node(case: tuple[GangRequest, Snapshot], data: st.DataObject, near: bool) -> None:
    table, size = case[1].table, case[0].bound.size_bytes
    names = st.lists(st.sampled_from(table.names), min_size=1, max_size=3)
    there = [partner(f"p{i}", PREFILL, *sorted(set(data.draw(names)))) for i in range(data.draw(st.integers(0, 6)))]
    nodes = nodes_of(there, PREFILL, table)
    seen, each = seen_from(table, nodes, size), slow_reach(table, nodes, size)
    assert seen.pods == len(there)
    assert seen.worst.tolist() == each.max(axis=0, initial=0.0).tolist()
    assert seen.nearest.tolist() == each.min(axis=0, initial=np.inf).tolist()
    assert seen.total == pytest.approx(each.sum(axis=0))
    named = [(p.name, table.index[n]) for p in there for n in p.nodes]
    bound = replace(case[0].bound, nearest=near)
    for at in range(len(table)):
        decides = Deciding(table, named, bound).of(at)
        assert list(decides) == ([partner_of(table, at, named, bound)] if named else [])


def test_thousands_with_pairing_nearest() -> None:
    asked = replace(gang(100, 100, gpus=1, minimum=(100, 100)), pairing=NEAREST)
    made = plan(asked, cluster(8), advise=False)
    assert made.outcome == Outcome.PLANNED
    assert {p: sum(m.phase == p and m.uid in made.places for m in asked.members) for p in PHASES} == {
        PREFILL: 100,
        DECODE: 100,
    }
