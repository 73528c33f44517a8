"""Case files about cards: what is left of them, who is refused with which numbers, and which GPUs go together."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.evaluate.gpu_fit import gpu_need, gpu_slots, limits_of, plannable_phrase, usable_mib
from scheduler.explain.wording import counts, gap_of
from scheduler.model.policy import Policy
from scheduler.model.verdict import VerdictCode
from scheduler.planning.plan import plan
from tests.scheduler.case_files import of_kind
from tests.scheduler.clusters import gang_from, snapshot_from
from tests.scheduler.gpu_cases import ask, node_from
from topology.bad_input import BadInput
from topology.cluster.snapshot import Assumed, snapshot_of
from topology.gpus.amounts import read_count
from topology.gpus.gpu_request import GpuRequest
from topology.gpus.sets import GpuLinks, best_set
from topology.labels import DECODE
from topology.units import parse_quantity


@pytest.mark.parametrize("case", of_kind("cards"))
def test_a_case_of_cards(case: dict[str, Any]) -> None:
    asked, expect = ask(case["input"]), case["expect"]
    gpus = asked.snapshot.gpus
    assert asked.placed == expect["placed"]
    assert (asked.refused is None) == ("verdict" not in expect)
    if asked.refused is not None:
        code = VerdictCode[expect["verdict"]]
        assert set(asked.refused.ruled_out) == {code}
        if "short" in expect:
            assert gap_of(asked.refused.nearest[code]) == expect["short"]
        if "words" in expect:
            assert counts(asked.refused) == expect["words"]
    if "left_mib" in expect:
        assert gpus.left_mib.tolist() == expect["left_mib"]
    if "left_milli" in expect:
        assert gpus.left_milli.tolist() == expect["left_milli"]
    names = asked.snapshot.table.names
    assert [n for n, over in zip(names, gpus.overcommitted, strict=True) if over] == expect.get("overcommitted", [])
    doubts = [why for known in gpus.doubts.values() for why in known]
    assert len(doubts) == ("doubt" in expect)
    assert all(why.startswith(expect["doubt"]) for why in doubts)


@pytest.mark.parametrize("case", of_kind("usable"))
def test_a_case_of_usable_memory(case: dict[str, Any]) -> None:
    given, expect, policy = case["input"], case["expect"], Policy()
    usable = usable_mib(given["total_mib"], given["reserved_mib"])
    assert usable == expect["usable_mib"]
    assert plannable_phrase(given["total_mib"], given["reserved_mib"], limits_of(policy)) == expect["plannable"]
    register = {"volcano.sh/node-vgpu-register": f"GPU-a,10,{usable},NVIDIA,true,hami-core:"}
    node = node_from({"name": "n1", "have": {"volcano.sh/vgpu-number": 10}, "notes": register})
    need = gpu_need(GpuRequest("Volcano vGPU", memory_mib=given["each_mib"]), DECODE, policy)
    assert need is not None
    assert gpu_slots(snapshot_of([node]).gpus, need).tolist() == [expect["pods"]]


@pytest.mark.parametrize("case", of_kind("gpu-set"))
def test_a_case_of_gpu_sets(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    count = max(len(given.get(key, ())) for key in ("numa", "free", "rails", "load_milli")) or 4
    pairs = given.get("pairs", {})

    def word(a: int, b: int) -> str:
        return "X" if a == b else str(pairs.get(f"{min(a, b)}{max(a, b)}", given["others"]))

    links = GpuLinks(
        tuple(tuple(word(a, b) for b in range(count)) for a in range(count)),
        tuple(given.get("numa", ())),
        tuple(given.get("rails", ())),
        rails_known="rails" in given,
    )
    found = best_set(links, given.get("free", [True] * count), given["count"], given.get("load_milli", ()))
    assert found is not None
    assert list(found.gpus) == expect["gpus"]
    assert found.nic_share == expect.get("nic_share", 1.0)


@pytest.mark.parametrize("case", of_kind("quantity"))
def test_a_case_of_quantities(case: dict[str, Any]) -> None:
    def read(reader: Any, text: str) -> int | None:
        try:
            return int(reader(text, "field"))
        except BadInput:
            return None

    expect = case["expect"]
    assert [read(parse_quantity, text) for text in case["input"]] == expect["amounts"]
    assert [read(read_count, text) for text in case["input"]] == expect["gpus"]


@pytest.mark.parametrize("case", of_kind("gangs"))
def test_gangs_one_after_the_other(case: dict[str, Any]) -> None:
    """Each gang is planned with those before it in place: its nodes, and how its worst pair is joined."""
    snapshot, expect = snapshot_from(case["input"]), case["expect"]
    for asked, nodes, path in zip(case["input"]["gangs"], expect["nodes"], expect["paths"], strict=True):
        members = gang_from({"gang": asked})
        made = plan(members, snapshot)
        assert sorted(set(made.places.values())) == nodes
        assert made.worst is not None
        assert made.worst.reach.path.startswith(path)
        by_uid = {m.uid: m for m in members.members}
        snapshot = snapshot.with_assumed({u: Assumed(n, by_uid[u].amounts) for u, n in made.places.items()})
