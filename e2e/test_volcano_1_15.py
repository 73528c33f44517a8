"""The promises that lean on Volcano, on Volcano 1.15.1: the same tests on another cluster."""

import os

import pytest

from e2e.conftest import ClusterFactory
from e2e.stack.build import build
from e2e.stack.cluster import Cluster
from e2e.stack.nodes import grid

# Imported to be collected here, where `cluster` is another one.
from e2e.test_held_gangs import (  # noqa: F401
    test_a_gang_beyond_its_bound_waits_whole_until_a_node_fits,
    test_scaled_out_with_room,
    test_scaled_out_with_room_for_some,
)
from e2e.test_interrupted import (  # noqa: F401
    proxy,
    test_answers_get_lost,
    test_killed_between_two_steps,
    test_room_is_left_for_less_than_the_minimum,
    test_the_nominated_node_is_taken_and_the_set_has_room,
    test_the_whole_set_is_taken,
)
from e2e.test_placed_pair import (  # noqa: F401
    test_a_labelled_pair,
    test_a_pair_known_by_its_arguments_alone,
    test_a_preferred_gang_is_placed_by_scores,
    test_one_single_feasible_node,
)

pytestmark = [pytest.mark.e2e, pytest.mark.full]

VERSION = "1.15.1"


@pytest.fixture(scope="module")
def cluster(cluster_factory: ClusterFactory, request: pytest.FixtureRequest) -> Cluster:
    """As every module's, with the other Volcano; the first time it is built, which takes minutes."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        stack = build(VERSION)
    return cluster_factory(grid(16), audit=True, stack=stack)


def test_it_is_that_version(cluster: Cluster) -> None:
    assert cluster.stack.volcano == VERSION
    assert f"volcano-{VERSION}-" in str(cluster.bin("vc-scheduler"))
    folder = os.readlink(f"/proc/{cluster.pids()['vc-scheduler']}/exe")
    assert f"volcano-{VERSION}-" in folder
