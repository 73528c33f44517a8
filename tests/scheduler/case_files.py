"""Case files of one kind, for the test modules that run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.model.decision import Plan
from scheduler.planning.plan import plan
from tests.scheduler.clusters import gang_from, snapshot_from

CASES = Path(__file__).resolve().parents[1] / "cases"


def of_kind(kind: str) -> list[Any]:
    """Parameters for pytest, one a case; a file may hold several, one document each."""
    cases = [case for path in sorted(CASES.glob("*.yaml")) for case in yaml.safe_load_all(path.read_text())]
    return [pytest.param(case, id=case["id"]) for case in cases if case.get("kind") == kind]


def planned(case: dict[str, Any]) -> Plan:
    """The plan for the gang and the cluster of a case."""
    return plan(gang_from(case["input"]), snapshot_from(case["input"]))
