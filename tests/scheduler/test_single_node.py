"""One node for the whole gang, known without a search: the same answer, to the last number, as the search gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from scheduler.evaluate.evaluate import fit_of
from scheduler.model.policy import Policy
from scheduler.model.request import ReachBound
from scheduler.search.demand import demand_of
from scheduler.search.solver import Solver
from tests.scheduler.clusters import node, pod
from topology.cluster.snapshot import Snapshot, snapshot_of
from topology.fragmentation.pod_mix import PodMix
from topology.fragmentation.pod_shape import PodShape
from topology.labels import DECODE, PREFILL
from topology.objects import Node, PodSpec

GPU = "nvidia.com/gpu"


def cluster(nodes: Sequence[Node], used: Mapping[int, int], expected: Sequence[int]) -> Snapshot:
    """Nodes with so many of their GPUs taken, in a cluster that is asked to run pods of so many GPUs."""
    mix = PodMix()
    for gpus in expected:
        mix.add(PodShape(gpus=gpus, milli=1000))
    held = [(nodes[i].metadata.name, {GPU: taken}) for i, taken in used.items() if taken]
    return replace(snapshot_of(nodes, held), mix=mix.current())


def search(
    snapshot: Snapshot,
    *pods: tuple[str, int, int],
    bound_us: float = 1000.0,
    pools: Sequence[str] = ("", ""),
    cores: int = 1,
) -> Solver:
    """For pods of (phase, GPUs, how many), with so many cores each; nodes have 96."""
    demands, policy = [], Policy()
    for (phase, gpus, count), pool in zip(pods, pools, strict=False):
        spec = PodSpec(node_selector={"pool": pool} if pool else None)
        amounts = {GPU: gpus, "cpu": 1000 * cores, "pods": 1}
        need = fit_of(pod(f"{phase}-{gpus}", phase, spec=spec, amounts=amounts), snapshot, policy)
        demands.append(demand_of(phase, need, count, snapshot))
    nobody: dict[str, list[object]] = {PREFILL: [], DECODE: []}
    return Solver(snapshot, demands, nobody, ReachBound(bound_us), bound_us, policy)  # type: ignore[arg-type]


def leaves(count: int) -> list[Node]:
    """Nodes of 8 GPUs with NVSwitch, ten to a leaf."""
    return [node(f"n{i:03d}", zone="z1", spine="s1", leaf=f"l{i // 10}", nvswitch=True) for i in range(count)]


@pytest.mark.parametrize("count", [70, 140])
def test_equal_pods_fill_a_cluster_node_by_node(count: int) -> None:
    eight = (PREFILL, 1, 4), (DECODE, 1, 4)
    full = dict.fromkeys(range(3), 8)
    assert search(cluster(leaves(count), full, [1]), *eight).single_node() == 3
    # Pods of two GPUs are expected too: one of one GPU takes least where an odd one is free, and nobody knows at once.
    assert search(cluster(leaves(count), full, [1, 2]), *eight).single_node() is None
    assert search(cluster(leaves(count), full, [1]), *eight, cores=12).single_node() == 3
    assert search(cluster(leaves(count), full, [1]), *eight, cores=13).single_node() is None
    # Inside a node is not within the bound, or the gang is too much for one.
    assert search(cluster(leaves(count), full, [1]), *eight, bound_us=5.0).single_node() is None
    assert search(cluster(leaves(count), full, [1]), (PREFILL, 1, 4), (DECODE, 1, 5)).single_node() is None


def test_a_search_of_one_region_starts_on_the_first_node_with_room() -> None:
    eight, used = ((PREFILL, 1, 4), (DECODE, 1, 4)), dict.fromkeys(range(3), 8) | {3: 6}
    assert search(cluster(leaves(70), used, [1]), *eight).single_node() is None
    assert search(cluster(leaves(140), used, [1]), *eight).single_node() == 4


def random_search(random: Random) -> Solver:
    """Mostly full clusters of more nodes than a search looks at one by one, of one or two makes."""
    mixed = random.random() < 0.4
    nodes = [
        node(
            f"n{i:03d}",
            zone=f"z{i // 60}",
            spine=f"s{i // 30}",
            leaf=f"l{i // 10}",
            rdma=i // 10 % 2 == 0,
            nvswitch=not mixed or random.random() < 0.7,
            labels={"pool": random.choice("ab")},
        )
        for i in range(random.choice((70, 100, 150)))
    ]
    crowded, tidy = random.random(), random.random() < 0.5
    start = random.randrange(60)
    used = {
        i: 8 if i < start or random.random() < crowded else 0 if tidy else random.choice((0, 0, 0, 2, 7))
        for i in range(len(nodes))
    }
    widths = random.choice(((1,), (1,), (2,), (1, 2), (4,)))
    prefill, decode = random.choice(widths), random.choice(widths)
    return search(
        cluster(nodes, used, random.choice(((1,), (1,), widths, (2,), (4, 4, 1), ()))),
        (PREFILL, prefill, random.randint(1, 4)),
        (DECODE, decode, random.randint(1, 4)),
        bound_us=random.choice((1000.0, 1000.0, 100.0, 20.0, 5.0)),
        pools=(random.choice(("", "", "", "a")), random.choice(("", "", "", "a"))),
    )


def test_what_is_known_beforehand_is_what_the_search_finds() -> None:
    known = 0
    for seed in range(250):
        asked = random_search(Random(seed))
        if asked.single_node() is not None:
            known += 1
            assert asked.run() == asked.searched(), seed
    assert known > 40
