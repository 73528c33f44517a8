"""Why a gang has no places: the closest pair, the most GPUs in one place, and what was tried and would help."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, assume, given, settings

from scheduler.model.decision import Outcome, Remedy, Shortfall
from scheduler.model.request import GangRequest
from scheduler.model.verdict import VerdictCode
from scheduler.planning.plan import plan
from tests.scheduler import brute_force
from tests.scheduler.clusters import gang, node, partner, pod
from tests.scheduler.small_cases import cases
from topology.cluster.snapshot import Snapshot, snapshot_of
from topology.labels import DECODE, PREFILL
from topology.objects import PodSpec

GPU = "nvidia.com/gpu"


def shortfall(asked: GangRequest, snapshot: Snapshot) -> Shortfall:
    made = plan(asked, snapshot)
    assert made.outcome == Outcome.HELD
    assert made.shortfall is not None
    return made.shortfall


def test_a_node_is_no_pair_with_itself_unless_it_holds_both() -> None:
    nodes = [node("n0", gpus=4, zone="z1"), node("n1", gpus=4, zone="z2")]
    short = shortfall(gang(), snapshot_of(nodes))
    assert short.closest is not None
    assert (short.closest.prefill, short.closest.decode) == ("n0", "n1")
    assert short.closest.reach.us == 2000.0


def test_the_most_gpus_are_found_on_the_fullest_of_equal_nodes() -> None:
    # Bound 30 us over TCP: every node is alone (25.8 us to itself). n0 comes first by name, n1 has the most.
    snapshot = snapshot_of([node("n0", zone="z1"), node("n1", zone="z1")], [("n0", {GPU: 6})])
    short = shortfall(gang(3, 2, 2, reach_us=30.0, minimum=(3, 2)), snapshot)
    assert (short.needed_gpus, short.best_gpus) == (10, 8)
    assert short.best_where == "kubernetes.io/hostname in (n1)"


def test_the_narrowest_members_are_what_is_needed() -> None:
    members = (pod("p-0", PREFILL, 8), pod("p-1", PREFILL, 4), pod("d-0", DECODE, 8))
    snapshot = snapshot_of([node("n0", gpus=8, zone="z1")])
    assert shortfall(replace(gang(), members=members), snapshot).needed_gpus == 12


def test_with_partners_on_one_side_the_farthest_one_counts() -> None:
    nodes = [node("n0", zone="z1"), node("n1", zone="z2"), node("n2", zone="z1", gpus=4)]
    there = [partner("d-0", DECODE, "n0"), partner("d-1", DECODE, "n1")]
    short = shortfall(gang(1, 0, 8, partners=there), snapshot_of(nodes))
    assert short.closest is not None
    assert short.closest.reach.us == 2000.0


def test_room_nowhere_for_the_other_phase_is_not_a_distance() -> None:
    picky = pod("p-0", PREFILL, spec=PodSpec(node_selector={"pool": "none"}))
    made = plan(replace(gang(0, 1), members=(picky, pod("d-0", DECODE))), snapshot_of([node("n0", zone="z1")]))
    assert made.decisions["uid-p-0"].ruled_out == {VerdictCode.NODE_NOT_ACCEPTED: 1}
    assert made.decisions["uid-d-0"].ruled_out == {VerdictCode.GANG_TOO_LARGE: 1}
    assert made.shortfall is not None
    assert made.shortfall.closest is None


def test_a_resource_that_a_node_never_has_outweighs_one_that_is_used_up() -> None:
    # n0 has no GPU and no cpu left: waiting for cpu would not help.
    snapshot = snapshot_of([node("n0", gpus=0), node("n1")], [("n0", {"cpu": 96_000}), ("n1", {GPU: 8})])
    asked = {GPU: 4, "cpu": 1000, "pods": 1}
    members = (pod("p-0", PREFILL, amounts=asked), pod("d-0", DECODE, amounts=asked))
    decision = plan(replace(gang(), members=members), snapshot).decisions["uid-d-0"]
    assert decision.ruled_out == {VerdictCode.RESOURCE_MISSING: 1, VerdictCode.INSUFFICIENT_GPU: 1}
    assert decision.nearest[VerdictCode.RESOURCE_MISSING].unit == GPU


def test_advice_is_what_was_tried() -> None:
    nodes = [node("n0", gpus=4, zone="z1"), node("n1", gpus=4, zone="z1"), node("n2", gpus=4, zone="z2")]
    snapshot = snapshot_of(nodes, [("n1", {GPU: 1})])
    assert shortfall(gang(), snapshot).remedies == (Remedy(1, "gpus", "n1"), Remedy(2000.0, "us"))


def test_no_advice_to_free_what_a_node_does_not_have() -> None:
    # One GPU short on n1, whose three are free already: nothing there could be freed.
    nodes = [node("n0", gpus=4, zone="z1"), node("n1", gpus=3, zone="z1"), node("n2", gpus=4, zone="z2")]
    assert shortfall(gang(), snapshot_of(nodes)).remedies == (Remedy(2000.0, "us"),)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(cases())
def test_the_numbers_are_those_of_the_slow_way(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    made = plan(asked, snapshot)
    assume(made.outcome == Outcome.HELD and not asked.satisfied and not asked.partners)
    short = made.shortfall
    assert short is not None
    table, size, bound = snapshot.table, asked.bound.size_bytes, asked.bound.us
    names = table.names

    def capacity(member_phase: str, name: str) -> list[dict[str, int]]:
        fitting = [m for m in asked.members if m.phase == member_phase and brute_force.welcome(snapshot, m, name)]
        return [m.amounts for m in fitting if brute_force.fits(brute_force.free_of(snapshot, name), m.amounts)]

    pairs = []
    for a in names:
        for b in names:
            for p in capacity(PREFILL, a):
                for d in capacity(DECODE, b):
                    both = {r: p.get(r, 0) + d.get(r, 0) for r in {*p, *d}}
                    if a != b or brute_force.fits(brute_force.free_of(snapshot, a), both):
                        pairs.append(brute_force.reach_us(snapshot, a, b, size))
    assert (short.closest.reach.us if short.closest else np.inf) == min(pairs, default=np.inf)
    usable = [n for n in names if capacity(PREFILL, n) or capacity(DECODE, n)]
    gpus = {n: max(brute_force.free_of(snapshot, n).get(GPU, 0), 0) for n in usable}
    around = [
        sum(gpus[n] for n in usable if brute_force.reach_us(snapshot, centre, n, size) <= bound) for centre in usable
    ]
    assert short.best_gpus == max(around, default=0)
