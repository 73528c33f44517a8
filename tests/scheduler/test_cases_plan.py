"""Case files of kind `plan`: places, reasons and the exact words of the Events."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.explain.events import gang_event, held_event, placed_event
from tests.scheduler.case_files import of_kind, planned


@pytest.mark.parametrize("case", of_kind("plan"))
def test_a_plan_case(case: dict[str, Any]) -> None:
    made, expect = planned(case), case["expect"]
    by_name = {d.request.name: d for d in made.decisions.values()}
    assert made.outcome == expect["outcome"]
    assert {d.request.name: made.places[uid] for uid, d in made.decisions.items() if uid in made.places} == expect.get(
        "places", {}
    )
    reason, text = gang_event(made)
    assert reason == expect["reason"]
    assert text == expect["gang"]
    for pod, tokens in expect.get("placed", {}).items():
        assert placed_event(by_name[pod], by_name[pod].chosen or "") == tokens
    for pod, left in expect.get("left", {}).items():
        assert held_event(made, by_name[pod]) == (left["reason"], left["event"])
    if expect["outcome"] == "held":
        # Every pod of a held gang says what its PodGroup says.
        assert {held_event(made, d) for d in by_name.values()} == {(reason, text)}
