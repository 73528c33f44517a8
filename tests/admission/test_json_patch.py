"""The patches only add."""

from __future__ import annotations

import jsonpatch

from admission.webhook.json_patch import Add, add_entries, add_item, encode, pointer


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
    assert jsonpatch.apply_patch({"metadata": {}}, encode(ops)) == {"metadata": {"labels": {"a/b": "1", "c": "2"}}}


def test_what_is_there_stays() -> None:
    assert add_entries(("m",), {"a": "old"}, {"a": "new", "b": "1"}) == [Add("/m/b", "1")]
    assert add_entries(("m",), {}, {"a": "1"}) == [Add("/m/a", "1")]
    assert add_entries(("m",), {"a": "old"}, {"a": "new"}) == []
    assert add_entries(("m",), None, {}) == []


def test_lists() -> None:
    assert jsonpatch.apply_patch({"s": {}}, encode(add_item(("s", "g"), None, 1))) == {"s": {"g": [1]}}
    assert jsonpatch.apply_patch({"s": {"g": [0]}}, encode(add_item(("s", "g"), [0], 1))) == {"s": {"g": [0, 1]}}
