"""Rules of one's own: rows added and turned off, one sentence for what cannot be taken, and the old table kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from admission.recognition.rule_file import read_rules
from admission.recognition.rule_watch import RulesInUse
from admission.recognition.signals import BUILT_IN, Confidence, Rules, read_phase
from admission.serving import background
from admission.webhook.tagging import Entry, tag
from tests.admission.pods import CONSUMER, decoded, raw_pod
from tests.topology.list_watch_server import LIMIT_S
from topology.bad_input import BadInput

STAGES = """
disable: ["plain label"]
rules:
  - name: stages
    label: acme.example/stage
    values: {First: prefill, second: decode, all: mixed, front: none}
  - name: side
    argument: kv_side
    values: {left: prefill}
    confidence: medium
  - name: tier
    variable: TIER
    values: {x: decode}
    confidence: low
  - name: note
    annotation: acme.example/half
    values: {p: prefill}
"""


def reading(rules: Rules, **pod: object) -> tuple[str | None, str, bool, bool]:
    found = read_phase(decoded(raw_pod(**pod)), rules=rules)  # type: ignore[arg-type]
    return found.phase, found.signal, found.mixed, found.engine


def test_rows_are_added_and_turned_off() -> None:
    rules = read_rules(STAGES, "rules.yaml")
    stage = "acme.example/stage"
    assert reading(rules, labels={stage: "first"}) == ("prefill", f"rule stages: label {stage} first", False, True)
    assert reading(rules, labels={stage: "all"})[2]
    assert not reading(rules, labels={stage: "front"}, args=CONSUMER)[3]
    assert reading(rules, args=["--kv-side=left"])[0] == "prefill"
    assert reading(rules, env={"TIER": "X"})[0] == "decode"
    assert reading(rules, annotations={"acme.example/half": "p"})[0] == "prefill"
    plain = {"role": "decode", "llm-d.ai/model": "m"}
    assert (reading(rules, labels=plain)[0], reading(BUILT_IN, labels=plain)[0]) == (None, "decode")


def test_a_rule_stands_among_those_that_are_as_sure() -> None:
    rules = read_rules(STAGES, "rules.yaml")
    assert [row.name for row in rules.rows][:4] == ["Isochrone", "stages", "note", "Kthena"]
    found = read_phase(decoded(raw_pod({"acme.example/stage": "first"}, args=CONSUMER)), rules=rules)
    assert (found.phase, found.confidence, len(found.conflicts)) == ("prefill", Confidence.HIGH, 1)


def test_what_serves_both_phases_is_tagged_only_if_the_file_says_so() -> None:
    pod = decoded(raw_pod(command=["vllm", "serve", "m"]))
    assert tag(pod, "a", Entry.NAMESPACE).phase is None
    tagging = tag(pod, "a", Entry.NAMESPACE, read_rules("mixed: decode", "rules.yaml"))
    assert (tagging.phase, tagging.mode) == ("decode", "required")


def test_nothing_is_the_built_in_table() -> None:
    assert read_rules("# nothing\n", "rules.yaml") is BUILT_IN


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rules: [", "rules.yaml is 'line 1'; it must be YAML: "),
        ("- a", "rules.yaml is 'a list'; it must be a mapping with disable, mixed, rules"),
        ("ruels: [a]", "rules.yaml: ruels is 'a list'; there is no such key; the keys are disable, mixed, rules"),
        ("mixed: both", "rules.yaml: mixed is 'both'; use leave, prefill or decode"),
        ("disable: Kthena", "rules.yaml: disable is 'Kthena'; it must be a list"),
        (
            "disable: [Kthenna]",
            'rules.yaml: disable is \'Kthenna\'; use the name of a row: "AIBrix", "Dynamo", "Dynamo e',
        ),
        ("disable: [Isochrone]", "rules.yaml: disable is 'Isochrone'; use the name of a row: "),
        (
            "rules: [{name: a, values: {x: prefill}}]",
            "rules.yaml: rules[0]: where it looks is 'nowhere'; give one of label, annotation, variable, argument",
        ),
        (
            "rules: [{name: a, label: l, variable: v, values: {x: prefill}}]",
            "rules.yaml: rules[0]: where it looks is 'label and variable'; give one of label, annotation, ",
        ),
        (
            "rules: [{name: a, lable: l, values: {x: prefill}}]",
            "rules.yaml: rules[0].lable is 'l'; there is no such key; the keys are name, values, confidence and one of",
        ),
        (
            "rules: [{label: l, values: {x: prefill}}]",
            "rules.yaml: rules[0].name is 'missing'; a rule has name, values",
        ),
        ("rules: [{name: 3, label: l, values: {x: prefill}}]", "rules.yaml: rules[0].name is 3; it must be text: put "),
        ("rules: [{name: a, label: l, values: {1: prefill}}]", "rules.yaml: rules[0].values[1] is 1; it must be text"),
        (
            "rules: [{name: a, label: l, values: [x]}]",
            "rules.yaml: rules[0].values is 'a list'; it must map values to ",
        ),
        (
            "rules: [{name: a, label: l, values: {x: prefil}}]",
            "rules.yaml: rules[0].values.x is 'prefil'; use prefill, decode, mixed or none",
        ),
        (
            "rules: [{name: a, label: l, values: {}}]",
            "rules.yaml: rules[0].values is 'empty'; it must not be empty",
        ),
    ],
)
def test_what_cannot_be_taken_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadInput) as bad:
        read_rules(text, "rules.yaml")
    assert str(bad.value).startswith(sentence)
    assert "\n" not in str(bad.value)


def test_a_bad_file_keeps_the_old_table_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    watch = RulesInUse(str(file))
    assert (watch.rules, watch.problem) == (BUILT_IN, f"{file} cannot be read: No such file or directory")
    file.write_text(STAGES)
    watch.read()
    taken = watch.rules
    assert (len(taken.rows), watch.problem) == (len(BUILT_IN.rows) + 3, "")
    watch.read()
    assert watch.rules is taken
    for bad in (b"rules: {", b"\xff", b"disable: [nobody]"):
        file.write_bytes(bad)
        watch.read()
        assert watch.rules is taken
        assert watch.problem.startswith(str(file))
    file.unlink()
    watch.read()
    assert watch.rules is taken
    file.write_text("")
    watch.read()
    assert (watch.rules, watch.problem) == (BUILT_IN, "")


async def test_a_change_is_noticed_while_the_process_runs(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("")
    watch = RulesInUse(str(file))
    async with background(watch.keep(every_s=0.005)), asyncio.timeout(LIMIT_S):
        file.write_text("mixed: decode")
        while watch.rules.mixed_as != "decode":  # noqa: ASYNC110  # a file has no event
            await asyncio.sleep(0.005)
