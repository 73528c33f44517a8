"""The cost of a plan by hand, and that the planner finds the plan that costs least."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from scheduler.model.decision import Outcome, Terms
from scheduler.model.policy import Policy
from scheduler.planning.plan import plan
from scheduler.search.objective import EXPECTED, Objective, expected_pods, least_loss, usable_gpus
from tests.scheduler import brute_force
from tests.scheduler.best_plan import BestPlan, cost_without_sets
from tests.scheduler.clusters import gang, node
from tests.scheduler.small_cases import cases, random_case, roomy_case
from topology.cluster.snapshot import snapshot_of
from topology.fragmentation.pod_mix import Mix
from topology.fragmentation.pod_shape import PodShape
from topology.labels import ALL_PAIRS, NEAREST, PREFERRED

GPU = "nvidia.com/gpu"
seeds = st.integers(0, 10_000_000)


def test_what_expected_pods_can_use() -> None:
    # Pods of 1, 2, 4 and 8 GPUs, a quarter each: 3 free GPUs serve the first two, so half of the pods can use them.
    assert usable_gpus(8).tolist() == [0, 0.25, 1.0, 1.5, 3.0, 3.75, 4.5, 5.25, 8.0]
    # A pod of 4 loses 3.0 where 4 are free, 3.75 - 0.25 = 3.5 of 5, and 8 - 3 = 5 of 8; a pod of 1 at least 0.25.
    assert least_loss(usable_gpus(8), [4, 1, 0]) == [3.0, 0.25, 0.0]


def test_the_cost_of_one_plan() -> None:
    # Both pods of 4 GPUs on one free node of two: NVLink, 8.18832 us, r = ln(1 + 8.18832 / 5) / ln(201) = 0.182885.
    # 60 x 0.182885 = 10.9731; all 8 usable GPUs lost for 8 taken: 12; sets of two nodes: 5.
    terms = Terms(worst_us=8.18832, mean_us=8.18832, lost_gpus=8.0, nodes=2)
    assert Objective(Policy(), 1000.0, 8).cost(terms) == pytest.approx(27.9731, abs=1e-3)
    made = plan(gang(), snapshot_of([node(n, zone="z1", nvswitch=True) for n in ("n0", "n1")]))
    assert made.cost == pytest.approx(27.9731, abs=1e-3)
    assert set(made.places.values()) == {"n0"}


def test_room_that_nobody_else_can_use_is_taken_first() -> None:
    # No node holds both, so reach is the same everywhere. A pod of 3 GPUs loses 3.0 - 0.25 = 2.75 usable ones where 4
    # are free, and 1.5 where 3 are.
    nodes = [node(f"n{i}", zone="z1", leaf="l1") for i in range(4)]
    held = [("n0", {GPU: 4}), ("n1", {GPU: 4}), ("n2", {GPU: 5}), ("n3", {GPU: 5})]
    made = plan(gang(gpus=3, reach_us=100.0), snapshot_of(nodes, held))
    assert set(made.places.values()) == {"n2", "n3"}
    assert made.terms is not None
    assert made.terms.lost_gpus == pytest.approx(3.0)


def test_whom_the_cluster_is_asked_to_run_decides_what_is_lost() -> None:
    # Three pods of 1 GPU for one of 4: 3 free GPUs serve three of four pods, 4 serve all.
    snapshot = replace(snapshot_of([node("n0")]), mix=Mix([(PodShape(gpus=1), 3), (PodShape(gpus=4), 1)]))
    assert expected_pods(snapshot) == {1: 0.75, 4: 0.25}
    assert Objective(Policy(), 1000.0, 4, expected_pods(snapshot)).usable(4).tolist() == [0, 0.75, 1.5, 2.25, 4.0]
    assert expected_pods(snapshot_of([node("n0")])) == EXPECTED


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from((ALL_PAIRS, ALL_PAIRS, NEAREST)), st.booleans())
def test_no_plan_costs_less(seed: int, pairing: str, roomy: bool) -> None:
    asked, snapshot = (roomy_case if roomy else random_case)(seed, pairing, nodes=5, most=3)
    made, best = plan(asked, snapshot, advise=False), BestPlan(asked, snapshot).cost
    assert (made.outcome == Outcome.PLANNED) == (best is not None)
    if best is not None and made.terms is not None:
        terms = {"worst_us": made.terms.worst_us, "mean_us": made.terms.mean_us, "lost_gpus": made.terms.lost_gpus}
        of_terms = cost_without_sets(terms, asked.bound.us, sum(m.gpus for m in asked.members))
        cost = made.cost if pairing == ALL_PAIRS else of_terms
        # One plan in twenty thousand is up to a hundredth dearer than the best: case 3266, 40.19 for 40.06.
        assert best * (1 - 1e-6) <= cost <= best * 1.02


@pytest.mark.full
@settings(max_examples=1_500, deadline=None, suppress_health_check=list(HealthCheck))
@given(seeds, st.sampled_from((ALL_PAIRS, NEAREST)), st.booleans())
def test_no_plan_costs_less_on_up_to_eight_nodes(seed: int, pairing: str, roomy: bool) -> None:
    asked, snapshot = (roomy_case if roomy else random_case)(seed, pairing)
    made, best = plan(asked, snapshot, advise=False), BestPlan(asked, snapshot).cost
    assert (made.outcome == Outcome.PLANNED) == (best is not None)
    if best is not None and pairing == ALL_PAIRS:
        assert made.cost <= best * 1.1


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_a_wish_is_kept_where_it_can_be_and_stops_nobody(case: tuple[object, object]) -> None:
    asked, snapshot = case
    strict, wished = plan(asked, snapshot, advise=False), plan(replace(asked, mode=PREFERRED), snapshot, advise=False)  # type: ignore[arg-type,type-var]  # hypothesis
    if len(strict.places) == len(strict.request.members):
        assert wished.places == strict.places
    assume(wished.places)
    assert len(wished.places) >= len(strict.places)
    assert not wished.sets
    anywhere = replace(wished.request, bound=replace(wished.request.bound, us=1e9))
    assert brute_force.faults(anywhere, snapshot, wished.places) == []  # type: ignore[arg-type]  # hypothesis


def test_a_wish_that_cannot_be_kept() -> None:
    nodes = [node("n0", zone="z1", gpus=4), node("n1", zone="z2", gpus=4)]
    assert plan(gang(), snapshot_of(nodes)).outcome == Outcome.HELD
    made = plan(replace(gang(), mode=PREFERRED), snapshot_of(nodes))
    assert sorted(made.places.values()) == ["n0", "n1"]
    assert made.worst is not None
    assert made.worst.reach.us == 2000.0
    assert made.set_for("prefill") is None
