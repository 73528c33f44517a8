"""Cases from public reports that concern scores, one file each: what wins, and what its parts say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.extender.decide import Ranking, decide
from scheduler.model.decision import KEEP
from scheduler.model.policy import Policy
from scheduler.planning.plan import plan
from tests.scheduler.clusters import gang_from, partner, pod, snapshot_from
from topology.cluster.snapshot import Assumed, Snapshot
from topology.fragmentation.pod_mix import Mix
from topology.fragmentation.pod_shape import shape_of
from topology.labels import PREFILL

FOLDER = Path(__file__).resolve().parents[1] / "cases"
CASES = {
    case["id"]: case
    for path in sorted(FOLDER.glob("C*.yaml"))
    for case in yaml.safe_load_all(path.read_text())
    if case.get("kind") == "score"
}
GPU = "nvidia.com/gpu"


def cluster_of(given: Mapping[str, Any]) -> Snapshot:
    mix = Mix([(shape_of({GPU: seen["gpus"]}), seen["pods"]) for seen in given.get("mix", ())])
    return replace(snapshot_from(given), mix=mix)


def ranking(given: Mapping[str, Any], snapshot: Snapshot, weight: float = Policy().volcano_weight) -> Ranking:
    there = [partner(name, PREFILL, node) for name, node in given.get("partners", {}).items()]
    asked = pod("chat-decode-0", given["pod"]["phase"], given["pod"]["gpus"])
    return decide(asked, snapshot, snapshot.table.names, there, policy=Policy(volcano_weight=weight))


def test_the_cases_are_here() -> None:
    assert set(CASES) >= {"C035", "C041", "C044", "C133"}


def test_c035_the_weight_is_ours() -> None:
    case = CASES["C035"]
    given, snapshot = case["input"], cluster_of(case["input"])
    for weight, winner in case["expect"]["winner_by_weight"].items():
        ours = ranking(given, snapshot, weight).scores
        total = {name: ours[name] + theirs for name, theirs in given["volcano"].items()}
        assert max(total, key=total.__getitem__) == winner, f"weight {weight}"
    assert set(ranking(given, snapshot, 0).scores.values()) == {0.0}, "as if we were not asked"


def test_c044_replicas_leave_whole_nodes_whole() -> None:
    case = CASES["C044"]
    given, snapshot = case["input"], cluster_of(case["input"])
    used: list[str] = []
    for i in range(given["one_after_the_other"]):
        best, *rest = ranking(given, snapshot).decision.ranked
        if used:
            broken = [c for c in rest if c.node not in used]
            gap = {p.name: p.points - next(q.points for q in broken[0].parts if q.name == p.name) for p in best.parts}
            assert max(gap, key=gap.__getitem__) == case["expect"]["decided_by"]
        used.append(best.node)
        snapshot = snapshot.with_assumed({f"uid-{i}": Assumed(best.node, {GPU: given["pod"]["gpus"]})})
    column = snapshot.table.column[GPU]
    assert len(set(used)) <= case["expect"]["nodes_used_at_most"]
    assert int((snapshot.used[:, column] == 0).sum()) >= case["expect"]["whole_nodes_at_least"]


def test_c041_the_node_with_two_stays_for_two() -> None:
    given, expect = CASES["C041"]["input"], CASES["C041"]["expect"]
    snapshot, nodes = cluster_of(given), []
    for i, gpus in enumerate(given["waves"]):
        ranked = ranking(given | {"pod": given["pod"] | {"gpus": gpus}}, snapshot).decision.ranked
        if not i:
            lost = {c.node: part.points for c in ranked for part in c.parts if part.name == "fragmentation"}
            assert lost == expect["fragmentation"]
        nodes.append(ranked[0].node)
        snapshot = snapshot.with_assumed({f"uid-{i}": Assumed(ranked[0].node, {GPU: gpus})})
    assert nodes == expect["nodes"]
    made = plan(gang_from(given), cluster_of(given))
    assert set(made.places.values()) == {expect["pair"]}
    for decision in made.decisions.values():
        assert set(expect["parts"]) <= {part.name for part in decision.ranked[0].parts}


@pytest.mark.parametrize("weight", CASES["C133"]["input"]["weights"])
def test_c133_what_is_shown_is_what_is_used(weight: float) -> None:
    given = CASES["C133"]["input"]
    found = ranking(given, cluster_of(given), weight)
    assert len(found.decision.ranked) == len(found.scores) <= KEEP
    for candidate in found.decision.ranked:
        assert sum(part.points for part in candidate.parts) * weight == pytest.approx(
            found.scores[candidate.node], abs=1e-9
        )
