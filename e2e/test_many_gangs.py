"""The promises of twenty gangs hold for two hundred, and while the controller dies again and again."""

import random
import time

import pytest

from e2e.conftest import ClusterFactory
from e2e.random_gangs import Seen, random_waves, run_waves
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import CONTROLLER, Isochrone
from e2e.stack.nodes import grid

pytestmark = [pytest.mark.e2e, pytest.mark.full]

SEED = 1
GANGS = 200
DEATHS = 3
"""How often the controller dies while one wave comes or goes."""


@pytest.fixture(scope="module")
def cluster(cluster_factory: ClusterFactory) -> Cluster:
    """Two hundred nodes in four zones of ten leaves."""
    return cluster_factory(grid(200, leaves_per_zone=10))


def evaluate(seen: Seen, gangs: int) -> None:
    """No promise broken, and enough happened to break one."""
    print(f"{len(seen.placed)} gangs ran, {len(seen.held)} were held for a while, {seen.pairs} pairs judged")
    assert seen.beyond == {}
    assert seen.below == set()
    assert len(seen.placed) >= gangs // 2
    assert seen.pairs >= 10 * gangs


def test_many_random_gangs(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    seen = run_waves(cluster, namespace, random_waves(SEED, waves=5, gangs_a_wave=GANGS // 5))
    evaluate(seen, GANGS)
    assert seen.held


def test_the_controller_dies_again_and_again(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    rng = random.Random(SEED)

    def die() -> None:
        for _ in range(DEATHS):
            # From "just started" to "in the middle of the gangs": a process needs about two seconds to be ready.
            time.sleep(rng.uniform(0.0, 4.0))
            cluster.kill(CONTROLLER)
            cluster.restart(CONTROLLER)
        isochrone.wait_ready(isochrone.controller)

    seen = run_waves(cluster, namespace, random_waves(SEED + 1, waves=4, gangs_a_wave=25), disturb=die)
    evaluate(seen, 100)
