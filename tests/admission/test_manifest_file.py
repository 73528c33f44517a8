"""Manifests as kubectl takes them, and one sentence for those that it would not."""

from __future__ import annotations

import pytest

from admission.templates.manifest_file import documents
from topology.bad_input import BadInput


def kinds(text: str) -> list[str]:
    return [str(document.content.get("kind")) for document in documents(text, "m.yaml")]


def test_documents_lists_and_nothing() -> None:
    assert kinds("kind: A\n---\n---\n# nothing\n---\nkind: B\n") == ["A", "B"]
    assert kinds("kind: PodList\nitems:\n- kind: A\n- {kind: List, items: [{kind: B}]}\n") == ["A", "B"]
    assert kinds('{"kind": "A", "spec": {}}') == ["A"]
    assert kinds("") == []


def test_a_date_stays_a_string() -> None:
    (document,) = documents("metadata: {labels: {tag: 2025-05-27}}", "m.yaml")
    assert document.content["metadata"]["labels"]["tag"] == "2025-05-27"


def test_a_merged_key_may_be_set_again() -> None:
    (document,) = documents("base: &b {kind: A, x: 1}\nmade: {<<: *b, kind: B}\n", "m.yaml")
    assert document.content["made"] == {"kind": "B", "x": 1}


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(7)
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: A\n  bad: [1\n", "m.yaml is 'line 2'; it must be YAML: "),
        ("kind: A\nname: {{ .Values.name }}\n", "render a Helm chart first"),
        ("- kind: A\n", "m.yaml is 'document 1'; it must be an object"),
        ("kind: A\n---\njust text\n", "m.yaml is 'document 2'; it must be an object"),
        ("kind: List\nitems: [1]\n", "m.yaml, document 1 is 'item 1'; it must be an object"),
        ("kind: A\nspec:\n  a: 1\n  b: 2\n  a: 3\n", "m.yaml is 'line 5'; it must be YAML: key 'a' stands twice"),
        (BOMB, "m.yaml is 'over 1000000 values'"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadInput) as bad:
        documents(text, "m.yaml")
    assert sentence in str(bad.value)
    assert "\n" not in str(bad.value)
