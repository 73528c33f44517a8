"""The search alone: finds what exists, says when it gave up, and does not try twins."""

from __future__ import annotations

import numpy as np

from scheduler.search.demand import Demand
from scheduler.search.feasibility_search import FeasibilitySearch, Found
from tests.scheduler.clusters import node
from topology.cluster.snapshot import Snapshot, snapshot_of
from topology.labels import DECODE, PREFILL

GPU = "nvidia.com/gpu"
NOBODY = {PREFILL: np.empty(0, dtype=np.int64), DECODE: np.empty(0, dtype=np.int64)}


def demand(
    snapshot: Snapshot, phase: str, count: int, gpus: int = 4, where: list[str] | None = None, cpu: int = 0
) -> Demand:
    need = snapshot.table.vector({GPU: gpus, "cpu": 1000 * cpu})[0]
    accepts = snapshot.table.mask_of(where if where is not None else snapshot.table.names)
    return Demand(phase, need, gpus, count, accepts)


def search(snapshot: Snapshot, *demands: Demand, bound: float = 1000.0, budget: int = 20_000) -> Found:
    return FeasibilitySearch(snapshot, demands, NOBODY, bound, 65_536, budget).run()


def cluster(count: int, gpus: int = 4, **where: str) -> Snapshot:
    return snapshot_of([node(f"n{i:02}", gpus=gpus, **where) for i in range(count)])  # type: ignore[arg-type]  # keywords


def test_the_widest_pod_decides_first() -> None:
    # Only n00 holds the wide pod. Taken in the order given, the narrow one would sit there first.
    snapshot = snapshot_of([node("n00", gpus=8, zone="z1"), node("n01", gpus=4, zone="z1")])
    found = search(snapshot, demand(snapshot, DECODE, 1, 4), demand(snapshot, PREFILL, 1, 8))
    assert found.places == ((1,), (0,))
    assert found.expanded == 2


def test_it_turns_back() -> None:
    # By name n00 looks right for the decode pod, but the prefill pod may only stand on n02, a zone away from n00.
    snapshot = snapshot_of([node("n00", zone="z1"), node("n01", zone="z2"), node("n02", zone="z2")])
    found = search(snapshot, demand(snapshot, DECODE, 1, 8), demand(snapshot, PREFILL, 1, 8, ["n02"]))
    assert found.places == ((1,), (2,))


def test_twins_are_tried_once() -> None:
    # 40 equal nodes of 4 GPUs and 96 cores, each its own island below 100 us: two pods of 2 GPUs, one of 60 cores and
    # one of 40, do not fit together, though each does and two of 40 would. One node says so for all.
    pods = [demand(cluster(40), phase, 1, 2, cpu=cpu) for phase, cpu in ((DECODE, 60), (PREFILL, 40))]
    assert search(cluster(40), *pods, bound=100.0) == Found(places=None, expanded=1, complete=True)


def test_counting_says_that_no_island_holds_both() -> None:
    found = search(cluster(40), *[demand(cluster(40), phase, 1) for phase in (DECODE, PREFILL)], bound=100.0)
    assert found == Found(places=None, expanded=0, complete=True)


def test_nodes_that_different_pods_accept_are_no_twins() -> None:
    # Equal but for who may stand there: the decode pod must leave n00 to the prefill pod, which accepts nothing else.
    snapshot = cluster(2, zone="z1")
    found = search(snapshot, demand(snapshot, DECODE, 1), demand(snapshot, PREFILL, 1, where=["n00"]))
    assert found.places == ((1,), (0,))


def test_too_little_in_all_needs_no_search() -> None:
    snapshot = cluster(3)
    found = search(snapshot, demand(snapshot, DECODE, 2), demand(snapshot, PREFILL, 2))
    assert found == Found(places=None, expanded=0, complete=True)


def test_out_of_budget_is_not_a_no() -> None:
    snapshot = cluster(8)
    items = [demand(snapshot, DECODE, 3), demand(snapshot, PREFILL, 3)]
    gave_up = search(snapshot, *items, budget=3)
    assert gave_up.places is None
    assert not gave_up.complete
    assert search(snapshot, *items).places is not None


def test_places_given_are_kept_to() -> None:
    snapshot = snapshot_of([node("n00", zone="z1"), node("n01", zone="z2")])
    fixed = NOBODY | {PREFILL: np.array([1])}
    found = FeasibilitySearch(snapshot, [demand(snapshot, DECODE, 1)], fixed, 1000.0, 65_536, 100).run()
    assert found.places == ((1,),)  # n01 itself: 25.8 us; n00 is 2 ms away


def test_nobody_to_place_is_placed() -> None:
    assert search(cluster(1)) == Found(places=(), expanded=0, complete=True)


def test_a_large_gang_on_a_large_cluster_takes_one_step_per_pod() -> None:
    snapshot = cluster(600, gpus=8, zone="z1")
    found = search(snapshot, demand(snapshot, DECODE, 64, 8), demand(snapshot, PREFILL, 64, 8))
    assert found.places is not None
    assert found.expanded == 128
