"""The patches only add, and the applier is as strict as the API server's."""

from __future__ import annotations

from typing import Any

import pytest

from admission.webhook.json_patch import Add, add_entries, add_item, apply, encode, pointer
from topology.bad_input import BadInput


def test_pointers_escape() -> None:
    assert pointer("metadata", "annotations", "volcano.sh/task-spec") == "/metadata/annotations/volcano.sh~1task-spec"
    assert pointer("a~b/c", 0) == "/a~0b~1c/0"


def test_an_absent_map_is_created_first() -> None:
    ops = add_entries(("metadata", "labels"), None, {"a/b": "1", "c": "2"})
    assert encode(ops) == (
        b'[{"op":"add","path":"/metadata/labels","value":{}},'
        b'{"op":"add","path":"/metadata/labels/a~1b","value":"1"},'
        b'{"op":"add","path":"/metadata/labels/c","value":"2"}]'
    )
    assert apply({"metadata": {}}, ops) == {"metadata": {"labels": {"a/b": "1", "c": "2"}}}


def test_what_is_there_stays() -> None:
    assert add_entries(("m",), {"a": "old"}, {"a": "new", "b": "1"}) == [Add("/m/b", "1")]
    assert add_entries(("m",), {}, {"a": "1"}) == [Add("/m/a", "1")]
    assert add_entries(("m",), {"a": "old"}, {"a": "new"}) == []
    assert add_entries(("m",), None, {}) == []


def test_lists() -> None:
    assert apply({"s": {}}, add_item(("s", "g"), None, 1)) == {"s": {"g": [1]}}
    assert apply({"s": {"g": [0]}}, add_item(("s", "g"), [0], 1)) == {"s": {"g": [0, 1]}}


DOCUMENT = {"a": {"b": [1, 2]}, "t": True}


@pytest.mark.parametrize(
    ("ops", "result"),
    [
        ('[{"op":"add","path":"/a/b/0","value":0}]', {"a": {"b": [0, 1, 2]}, "t": True}),
        ('[{"op":"remove","path":"/a/b/1"}]', {"a": {"b": [1]}, "t": True}),
        ('[{"op":"replace","path":"/a","value":1}]', {"a": 1, "t": True}),
        ('[{"op":"test","path":"/a/b","value":[1,2]},{"op":"remove","path":"/t"}]', {"a": {"b": [1, 2]}}),
        ('[{"op":"add","path":"","value":1}]', 1),
        ("[]", DOCUMENT),
    ],
)
def test_applied(ops: str, result: Any) -> None:
    assert apply(DOCUMENT, ops) == result
    assert DOCUMENT == {"a": {"b": [1, 2]}, "t": True}


@pytest.mark.parametrize(
    "op",
    [
        '{"op":"add","path":"/x/y","value":1}',
        '{"op":"add","path":"/a/b/3","value":1}',
        '{"op":"add","path":"/a/b/01","value":1}',
        '{"op":"add","path":"/a/b/-1","value":1}',
        '{"op":"add","path":"/a/b/x","value":1}',
        '{"op":"add","path":"/t/x","value":1}',
        '{"op":"add","path":"a","value":1}',
        '{"op":"add","path":"/a"}',
        '{"op":"remove","path":"/x"}',
        '{"op":"remove","path":"/a/b/-"}',
        '{"op":"replace","path":"/x","value":1}',
        '{"op":"test","path":"/a/b/0","value":2}',
        '{"op":"test","path":"/t","value":1}',
        '{"op":"test","path":"/x","value":null}',
        '{"op":"move","path":"/a","from":"/t"}',
    ],
)
def test_refused(op: str) -> None:
    with pytest.raises(BadInput):
        apply(DOCUMENT, f"[{op}]")
