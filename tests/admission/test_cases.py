"""The public cases that concern the webhook: tests/cases/*.yaml of kind `admission`, one document each.

Every case also runs as a dry run and ten times over: the bytes must be the same.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import jsonpatch
import msgspec
import pytest
import yaml

from admission.webhook import review
from admission.webhook.tagging import Entry

CASES = Path(__file__).parents[1] / "cases"


def cases() -> list[Any]:
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        for case in yaml.safe_load_all(path.read_text()):
            if case.get("kind") == "admission":
                found.append(pytest.param(case, id=f"{case['id']}-{case['name']}"))
    return found


def answered(case: dict[str, Any], dry_run: bool) -> bytes:
    given = case["input"]
    request = {
        "uid": "r1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": given["namespace"],
        "dryRun": dry_run,
        **given.get("request", {}),
        "object": {"apiVersion": "v1", "kind": "Pod", **given["pod"]},
    }
    body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    return review.answer(review.decode(body), Entry(given["entry"])).body


@pytest.mark.parametrize("case", cases())
def test_case(case: dict[str, Any]) -> None:
    answer = answered(case, dry_run=False)
    assert {answered(case, dry_run) for dry_run in (True, False) for _ in range(10)} == {answer}
    response = msgspec.json.decode(answer)["response"]
    expect = case["expect"]
    assert response["allowed"] is expect["allowed"]
    assert response.get("warnings", []) == expect.get("warnings", [])
    assert response.get("status", {}).get("message") == expect.get("message")
    pod = case["input"]["pod"]
    if expect.get("untouched"):
        assert "patch" not in response
        assert "patchType" not in response
    elif "pod" in expect:
        assert response["patchType"] == "JSONPatch"
        patched = jsonpatch.apply_patch(pod, base64.b64decode(response["patch"]))
        assert patched == expect["pod"]


def test_every_document_says_what_it_is() -> None:
    ids = [case.id for case in cases()]
    assert len(ids) == len(set(ids))
    assert {i.split("-")[0] for i in ids} >= {"C001", "C004", "C005", "C007", "C008", "C010", "C011", "C019", "C020"}
