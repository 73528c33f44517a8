"""A start script as commands: what is cut where, what is put in, and what a stranger's script may cost."""

from __future__ import annotations

import pytest

from admission.recognition.command_line import engine_calls
from admission.recognition.signals import read_phase
from admission.recognition.start_script import Allowance, expanded, script_commands
from tests.admission.pods import decoded, raw_pod

ENV = {"MODE": "decode", "EMPTY": ""}


def commands(script: str, *parameters: str) -> list[list[str]] | None:
    return script_commands(script, ENV, True, parameters, Allowance())


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("a b; c | d & e\nf", [["a", "b"], ["c"], ["d"], ["e"], ["f"]]),
        ("cd /x;# a --comment\nrun '#' a#b", [["cd", "/x"], ["run", "#", "a#b"]]),
        ('run --a \\\n  \'b $MODE\' "c \\"$MODE\\"" d\\ e', [["run", "--a", "b $MODE", 'c "decode"', "d e"]]),
        ("run $MODE ${MODE}s ${X:-d} ${EMPTY:-d} \\$MODE", [["run", "decode", "decodes", "d", "${EMPTY:-d}", "$MODE"]]),
        ('A=b run $1 "$2" ${2}', [["A=b", "run", "x", "y z", "y", "z"]]),
        ("if [ $A = b ]; then run; else walk; fi", [["run"], ["walk"]]),
        ("(run; f() { walk; }) > log 2>&1 --port 8", [["run"], ["walk", "--port", "8"]]),
        ("A='--b c'; run $A", [["A=--b c"], ["run", "--b", "c"]]),
        ('A=(--b "c d"\n # e\n f); run "${A[@]}"', [["--b", "c d", "f"], ["run", "${A[@]}"]]),
        ("A=(); A+=(b); run $A", [["b"], ["run", "$A"]]),
        ("sh <<EOF\nrun $MODE\nEOF\nwalk", [["sh"], ["sh", "-c", "run decode\n"], ["walk"]]),
        ("if true; then run --a b", [["true"], ["run", "--a", "b"]]),
    ],
)
def test_commands_of_a_script(script: str, found: list[list[str]]) -> None:
    assert commands(script, "x", "y z") == found


@pytest.mark.parametrize(
    "script",
    [
        'a="$b".' * 4600,
        "run " + "x" * 8 * 1024,
        "run " + "é" * 4 * 1024,
        "a|" * 400,
        "$(" * 400,
        "\0" * 800,
    ],
)
def test_a_script_beyond_the_limits_is_not_read_and_leaves_its_phase_open(script: str) -> None:
    assert commands(script) is None
    pod = decoded(raw_pod(command=["sh", "-c"], args=[script]))
    assert [call.program.other for call in engine_calls(pod)] == [""]
    assert not read_phase(pod).mixed
    alone = raw_pod(args=[script + " --port 1"])
    alone["spec"]["containers"][0]["image"] = "vllm/vllm-openai"
    reading = read_phase(decoded(alone))
    assert (reading.phase, reading.mixed) == (None, False)


def test_a_script_of_the_longest_length_is_read() -> None:
    assert commands("run " + "x" * (8 * 1024 - 4)) == [["run", "x" * (8 * 1024 - 4)]]


def test_the_scripts_of_one_pod_have_one_allowance() -> None:
    allowance = Allowance()
    script = "run; " * 300
    read = [script_commands(script, {}, True, (), allowance) is not None for _ in range(4)]
    assert read == [True, True, False, False]
    assert allowance.pieces >= 0


def test_values_that_are_put_in_are_bounded_in_the_script_and_before_it() -> None:
    long = {"X": "x" * 1000}
    found = script_commands("run " + "$X " * 200, long, True, (), Allowance(chars=5000))
    assert found == [["run", *["x" * 1000] * 5, *["$X"] * 195]]
    assert expanded("$(X)" * 7, long, Allowance(chars=5000)) == "x" * 5000 + "$(X)" * 2
    grown = script_commands('X="$X $X"; ' * 60 + "run $X", {"X": "x" * 1000}, True, (), Allowance(chars=5000))
    assert grown is not None
    assert sum(len(word) for command in grown for word in command) < 100_000


def test_shells_within_shells_end() -> None:
    (call,) = engine_calls(decoded(raw_pod(command=["sh", "-c"] * 2000)))
    assert not call.program.engine
