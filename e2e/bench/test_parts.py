"""The benchmarks' pure parts: what they write, what they create, how they are shortened."""

import json
from pathlib import Path

import pytest

from e2e.bench.__main__ import BENCHMARKS
from e2e.bench.bodies import SIZE, many, our_gang, plain_gang
from e2e.bench.cpu import CLIENT, Meter
from e2e.bench.report import Figure, Goal, write
from e2e.bench.sizes import Sizes, sizes


def test_the_file_has_the_promised_shape(tmp_path: Path) -> None:
    figures = [
        Figure("a ratio", 0.51234, "of b", Goal(">=", 0.5), "a bare client: 0.63", "mean of 3"),
        Figure("b", 20, "ms"),
    ]
    found = json.loads(write("gangs", figures, tmp_path).read_text())
    assert found["name"] == "gangs"
    assert found["figures"][0] == {
        "figure": "a ratio",
        "value": 0.5123,
        "unit": "of b",
        "goal": {"op": ">=", "value": 0.5},
        "anchor": "a bare client: 0.63",
        "source": "mean of 3",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["gangs.json"]


@pytest.mark.parametrize(("value", "verdict"), [(0.5, "met"), (0.499, "missed")])
def test_a_goal_is_met_or_not(value: float, verdict: str) -> None:
    assert Figure("a", value, "", Goal(">=", 0.5)).verdict == verdict


def test_gangs_are_of_the_same_size_on_both_sides() -> None:
    plain, ours = plain_gang("n", "g"), our_gang("n", "g")
    assert [sum(post.is_pod for post in gang) for gang in (plain, ours)] == [SIZE, SIZE]
    assert not plain[0].is_pod, "the PodGroup comes first"
    phases = [json.loads(post.body)["metadata"]["labels"]["isochrone.dev/phase"] for post in ours]
    assert (phases.count("prefill"), phases.count("decode")) == (4, 4)
    assert len({post.name for post in many([plain, our_gang("n", "h")]) if post.is_pod}) == 2 * SIZE


def test_sizes_come_from_the_environment() -> None:
    assert sizes({}) == Sizes()
    assert sizes({"RUNS": "1", "NODES": "16", "GANGS": "2", "PARTS": "held"}) == Sizes(
        runs=1, nodes=(16,), gangs=2, parts=("held",)
    )
    assert [Sizes().gangs_on(nodes) for nodes in (100, 1000)] == [100, 150]
    with pytest.raises(ValueError, match="RUNS=many: use a number"):
        sizes({"RUNS": "many"})
    with pytest.raises(ValueError, match="PARTS=all: use bulk or held"):
        sizes({"PARTS": "all"})


def test_the_meter_sees_this_process() -> None:
    meter = Meter({"gone": 2**22 + 1})
    assert sum(range(3_000_000)) > 0
    usage = meter.read()
    assert usage.by_process["gone"] == 0
    assert 0 < usage.by_process[CLIENT] < usage.wall_s + 1


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_every_benchmark_has_a_measure(name: str) -> None:
    assert iter(BENCHMARKS[name].measure())
