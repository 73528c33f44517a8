"""The openb benchmark on a small cluster of its own: valid placements, curves by hand, the shape of what is written."""

import csv
import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from e2e.bench.openb import write_curve
from e2e.bench.openb_run import Curve, run, scorer_for
from e2e.bench.openb_trace import Nodes, PodKind, Pods, folder
from e2e.bench.report import NotHere
from topology.fragmentation.pod_mix import Mix
from topology.fragmentation.pod_shape import PodShape

NODES = Nodes(
    names=tuple(f"n{i}" for i in range(12)),
    cpu_milli=np.array([96_000] * 6 + [32_000] * 6),
    memory_mib=np.full(12, 400_000),
    gpus=np.array([8] * 6 + [2] * 6),
    model=np.array([0] * 6 + [1] * 6),
    models=("A", "B"),
)
KINDS = (
    PodKind(PodShape(11_000, 1, 1000), 10_000),
    PodKind(PodShape(3000, 1, 810), 10_000),
    PodKind(PodShape(9000, 1, 470), 10_000),
    PodKind(PodShape(4000, 1, 190), 10_000),
    PodKind(PodShape(20_000, 2, 1000, models=("A",)), 10_000),
    PodKind(PodShape(8000), 10_000),
)
PODS = Pods("small", tuple((f"p{i:03}", KINDS[i * 7 % 6]) for i in range(60)))
KNOWN = Mix(Counter(kind.shape for _, kind in PODS.pods).items())


@pytest.mark.parametrize("policy", ["fgd", "isochrone"])
def test_places_are_valid_and_nothing_that_fits_is_refused(policy: str) -> None:
    nodes = NODES.renamed(1)
    arrivals = PODS.arrivals(1, nodes.capacity_milli)
    curve = run(nodes, arrivals, scorer_for(policy, nodes, KNOWN), KNOWN)
    cpu, memory = nodes.cpu_milli.copy(), nodes.memory_mib.copy()
    devices = [[1000] * int(gpus) for gpus in nodes.gpus]
    allocated = 0
    for (_, kind), node, gpu in zip(arrivals, curve.node.tolist(), curve.gpu.tolist(), strict=True):
        shape = kind.shape

        def fits(i: int, kind: PodKind = kind, shape: PodShape = shape) -> bool:
            allowed = not shape.models or nodes.models[nodes.model[i]] in shape.models
            enough = sum(left >= shape.milli for left in devices[i]) >= shape.gpus
            return bool(allowed and enough and cpu[i] >= shape.cpu_milli and memory[i] >= kind.memory_mib)

        if node < 0:
            assert not any(fits(i) for i in range(len(devices)))
            continue
        assert fits(node)
        cpu[node] -= shape.cpu_milli
        memory[node] -= kind.memory_mib
        taken = [gpu] if gpu >= 0 else [g for g, left in enumerate(devices[node]) if left == 1000][: shape.gpus]
        for device in taken:
            devices[node][device] -= shape.milli
            assert devices[node][device] >= 0
        allocated += kind.gpu_milli
    assert curve.allocated_milli[-1] == allocated
    assert (np.diff(curve.arrived_milli) >= 0).all()


def test_the_arrivals_end_where_the_protocol_says() -> None:
    arrivals = PODS.arrivals(7, NODES.capacity_milli)
    asked = sum(kind.gpu_milli for _, kind in arrivals)
    assert 1.3 * NODES.capacity_milli - 1000 <= asked <= 1.3 * NODES.capacity_milli + 1000
    assert arrivals == PODS.arrivals(7, NODES.capacity_milli)
    assert arrivals != PODS.arrivals(8, NODES.capacity_milli)
    assert sum(k.gpu_milli for _, k in PODS.arrivals(7, 20_000)) <= 26_000, "a list that asks for more loses pods"


def test_nodes_are_taken_in_the_order_of_their_new_names() -> None:
    nodes = NODES.renamed(3)
    assert list(nodes.names) == sorted(nodes.names)
    assert sorted(name.split("-")[1] for name in nodes.names) == sorted(NODES.names)


def test_values_of_one_percent_are_averaged(tmp_path: Path) -> None:
    """Of 100 GPUs, 1.2 and then 1.4 arrived are both 1 %: 1.2 and 1.4 allocated are 1.3 on average; 2.5 is 2 %."""
    milli = np.array([1200, 1400, 2500])
    fragmented = np.array([4.0, 2.0, 1.0])
    curve = Curve(milli, milli, fragmented, np.array([0, 1, -1]), np.array([0, -1, -1]), 100_000)
    assert curve.allocated_percent() == pytest.approx({1: 1.3, 2: 2.5})
    assert curve.fragmented_percent() == pytest.approx({1: 3.0, 2: 1.0})
    write_curve(curve, "c", NODES, [("a", KINDS[0]), ("b", KINDS[4]), ("c", KINDS[1])], tmp_path)
    assert (tmp_path / "c.csv").read_text().splitlines() == [
        "arrived_percent,allocated_percent,fragmented_percent",
        "1,1.300000,3.000000",
        "2,2.500000,1.000000",
    ]
    with gzip.open(tmp_path / "c-places.csv.gz", "rt") as file:
        assert [(row["pod"], row["node"], row["gpu"]) for row in csv.DictReader(file)] == [
            ("a", "n0", "0"),
            ("b", "n1", ""),
            ("c", "", ""),
        ]


def test_without_the_data_the_benchmark_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ISOCHRONE_DATA", str(tmp_path))
    with pytest.raises(NotHere, match="openb_node_list_gpu_node"):
        folder()
