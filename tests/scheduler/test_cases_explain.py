"""Case files of kind `explain`: what a waiting pod is told is true, and told the same everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.explain.annotation import gang_block, placement_block
from scheduler.explain.events import gang_event, held_event, log_fields
from tests.scheduler.case_files import of_kind, planned


@pytest.mark.parametrize("case", of_kind("explain"))
def test_an_explain_case(case: dict[str, Any]) -> None:
    made, expect = planned(case), case["expect"]
    waiting = [d for d in made.decisions.values() if d.chosen is None]
    assert len(waiting) == expect["pods"]
    assert {held_event(made, d) for d in waiting} == {(expect["reason"], expect["event"])}
    assert gang_event(made)[0] == expect["reason"]
    assert log_fields(made)["reason"] == expect["reason"]
    assert expect["reason"] in gang_block(made)
    surfaces = [gang_event(made)[1], gang_block(made), *(placement_block(d, made) for d in waiting)]
    for phrase in expect["never"]:
        assert not any(phrase in text for text in surfaces)
