"""Two hundred random gangs on two hundred nodes: the promises of twenty hold for many at once."""

import pytest

from e2e.conftest import ClusterFactory
from e2e.random_gangs import random_waves, run_waves
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import Isochrone
from e2e.stack.nodes import grid

pytestmark = [pytest.mark.e2e, pytest.mark.full]

SEED = 1
GANGS = 200


@pytest.fixture(scope="module")
def cluster(cluster_factory: ClusterFactory) -> Cluster:
    """Two hundred nodes in four zones of ten leaves."""
    return cluster_factory(grid(200, leaves_per_zone=10))


def test_many_random_gangs(isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    seen = run_waves(cluster, namespace, random_waves(SEED, waves=5, gangs_a_wave=GANGS // 5))
    print(f"{len(seen.placed)} gangs ran, {len(seen.held)} were held for a while, {seen.pairs} pairs judged")
    assert seen.beyond == {}
    assert seen.below == set()
    assert len(seen.placed) >= GANGS // 2
    assert seen.held
    assert seen.pairs >= 10 * GANGS
