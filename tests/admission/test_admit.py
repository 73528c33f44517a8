"""`isochrone admit` from the command line to the last line."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from admission.cli import main

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: chat-decode-0, labels: {isochrone.dev/phase: PHASE, isochrone.dev/gang: chat}}
spec: {containers: [{name: engine, image: e}]}
"""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["isochrone", "admit", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_text_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POD.replace("PHASE", "decode"))
    (tmp_path / "b.json").write_text('{"kind": "Service", "metadata": {"name": "s"}}')
    (tmp_path / "notes.txt").write_text("{")
    assert run(monkeypatch, "-f", str(tmp_path)) == 0
    assert capsys.readouterr().out == (
        "Pod default/chat-decode-0: decode of gang chat, held until its gang has a place\n"
        "  phase   label isochrone.dev/phase (explicit)\n"
        "  gang    label isochrone.dev/gang\n"
        "objects: 2, pod templates: 1, tagged: 1, gangs: 1\n"
    )
    assert run(monkeypatch, "-f", str(tmp_path / "a.yaml"), "-n", "prod", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "kind": "Pod",
            "namespace": "prod",
            "name": "chat-decode-0",
            "template": "",
            "phase": "decode",
            "gang": "chat",
            "existing_group": None,
            "signal": "label isochrone.dev/phase",
            "confidence": "explicit",
            "refused": False,
            "warnings": [],
        }
    ]


def test_a_pod_that_would_be_refused_is_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(POD.replace("PHASE", "decod").encode())))
    assert run(monkeypatch, "-f", "-") == 1
    assert capsys.readouterr().out == (
        "Pod default/chat-decode-0: refused\n"
        '  note    isochrone.dev/phase is \'decod\'; use "prefill" or "decode". Did you mean "decode"?\n'
        "objects: 1, pod templates: 1, tagged: 0, gangs: 0\n"
    )


def test_json_tells_which_pod_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(POD.replace("PHASE", "decode") + "---\n" + POD.replace("PHASE", "decod"))
    assert run(monkeypatch, "-f", str(tmp_path), "-o", "json") == 1
    assert [each["refused"] for each in json.loads(capsys.readouterr().out)] == [False, True]


def test_nothing_to_read_is_one_line_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would be cut in the message
    assert run(monkeypatch, "-f", ".") == 2
    folder = "isochrone: -f is '.'; there is no .yaml, .yml or .json file in this folder itself"
    assert capsys.readouterr().err.strip().rstrip(".") == folder
    file = Path("a.yaml")
    file.write_text("# nothing yet\n---\n")
    assert run(monkeypatch, "-f", str(file)) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"isochrone: -f is '{file}'; there is no object in it")


def test_a_broken_file_is_one_line_with_its_number_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text("kind: Pod\nmetadata: [\n")
    assert run(monkeypatch, "-f", str(tmp_path / "a.yaml")) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"isochrone: {tmp_path}/a.yaml is 'line 3'; it must be YAML")
    assert (said.out, said.err.count("\n")) == ("", 1)
