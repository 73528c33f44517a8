"""Random gangs come and go: no pair beyond its bound, no gang below its minimum. Volcano alone breaks bounds."""

import msgspec
import pytest

from e2e.checks import OTHER_ZONE_US, SAME_LEAF_US, SAME_NODE_US, SAME_ZONE_US, reach_us
from e2e.conftest import ClusterFactory, empty
from e2e.random_gangs import Seen, random_waves, run_waves
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import NAMESPACE as ISOCHRONE_NAMESPACE
from e2e.stack.isochrone import Isochrone
from e2e.stack.nodes import grid
from topology.cluster.snapshot import NodeTable
from topology.labels import DEFAULT_REACH_SIZE_BYTES
from topology.objects import Node

pytestmark = pytest.mark.e2e

SEED = 11
GANGS = 21
WAVES = random_waves(SEED, waves=3, gangs_a_wave=GANGS // 3)


@pytest.fixture(scope="module")
def cluster(cluster_factory: ClusterFactory) -> Cluster:
    """One without Isochrone, at first."""
    return cluster_factory(grid(16), audit=True)


@pytest.fixture(scope="module")
def control(cluster: Cluster) -> Seen:
    """The same gangs before Isochrone is there: Volcano with plain PodGroups."""
    assert cluster.get(f"/api/v1/namespaces/{ISOCHRONE_NAMESPACE}") is None, "Isochrone is installed already"
    namespace = cluster.create_namespace("control")
    seen = run_waves(cluster, namespace, WAVES, alone=True)
    empty(cluster, namespace)
    return seen


def test_volcano_alone_breaks_bounds(control: Seen) -> None:
    print(f"Volcano alone: {len(control.placed)} gangs ran, {len(control.beyond)} of them beyond their bound")
    for pair in control.beyond.values():
        print(f"  {pair.prefill.gang}: {pair.us} us, bound {pair.bound_us} us")
    assert control.beyond


def test_isochrone_keeps_them(control: Seen, isochrone: Isochrone, cluster: Cluster, namespace: str) -> None:
    seen = run_waves(cluster, namespace, WAVES)
    print(f"Isochrone: {len(seen.placed)} gangs ran, {len(seen.held)} were held for a while, {seen.pairs} pairs judged")
    assert seen.beyond == {}
    assert seen.below == set()
    # Whoever places nobody breaks no bound: most gangs must run, and some of those that Volcano alone put too far.
    assert len(seen.placed) >= GANGS // 2
    assert seen.placed & control.beyond.keys()
    assert seen.held
    assert seen.pairs >= 40


def test_the_oracle_is_the_documented_table() -> None:
    """The hand-written numbers against what the product says of the same nodes: neither may drift alone."""
    items = grid(16)
    table = NodeTable([msgspec.convert(item, Node) for item in items])
    labels = {item["metadata"]["name"]: item["metadata"]["labels"] for item in items}
    seen = set()
    for one, other in ((one, other) for one in table.names for other in table.names):
        value = table.reach.between(table.index[one], table.index[other], DEFAULT_REACH_SIZE_BYTES).us
        ours = reach_us(labels[one], labels[other])
        seen.add(ours)
        assert value == pytest.approx(ours, rel=0.01)
    assert seen == {SAME_NODE_US, SAME_LEAF_US, SAME_ZONE_US, OTHER_ZONE_US}
