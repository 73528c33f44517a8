"""`isochrone admit` from the command line to the last line."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from admission.cli import main
from topology import labels

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
            "inspected": "yes",
            "looked_at": "yes",
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
    value = capsys.readouterr()
    assert (value.out, value.err.count("\n")) == ("", 1)
    assert value.err.startswith(f"isochrone: -f is '{file}'; there is no object in it")


def test_a_broken_file_is_one_line_with_its_number_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text("kind: Pod\nmetadata: [\n")
    assert run(monkeypatch, "-f", str(tmp_path / "a.yaml")) == 2
    value = capsys.readouterr()
    assert value.err.startswith(f"isochrone: {tmp_path}/a.yaml is 'line 3'; it must be YAML")
    assert (value.out, value.err.count("\n")) == ("", 1)


# --- where the webhook looks ------------------------------------------------------------------

VLLM = """\
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: chat}}
spec:
  containers:
    - name: engine
      image: vllm/vllm-openai
      args: [--model, m, --kv-transfer-config, '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}']
      resources: {limits: {nvidia.com/gpu: 1}}
"""
SPACE = """\
---
apiVersion: v1
kind: Namespace
metadata: {name: sg, labels: {isochrone.dev/enabled: "VALUE"}}
"""
READ = "prefill of gang model-m, held until its gang has a place"
CONDITION = "if namespace sg has isochrone.dev/enabled=true"


@pytest.mark.parametrize(
    ("manifest", "namespace", "inspected", "head", "last"),
    [
        (
            VLLM,
            "sg",
            "if-namespace-enabled",
            f"{CONDITION}: {READ}",
            "tagged: 1 (1 only in an enabled namespace), gang",
        ),
        (VLLM + SPACE.replace("VALUE", "true"), "sg", "yes", READ, "tagged: 1, gangs: 1"),
        (SPACE.replace("VALUE", "true") + "---\n" + VLLM, "sg", "yes", READ, "tagged: 1, gangs: 1"),
        (
            VLLM + SPACE.replace("VALUE", "false"),
            "sg",
            "no",
            "not looked at: it has no label of ours, and namespace sg has no isochrone.dev/enabled=true",
            "tagged: 0, gangs: 0",
        ),
        (VLLM + SPACE.replace("VALUE", "True"), "sg", "no", "not looked at: ", "tagged: 0, gangs: 0"),
        (VLLM, "kube-system", "no", "not looked at: the webhook never looks into namespace kube-system", "tagged: 0"),
        (VLLM, "volcano-system", "no", "not looked at: the webhook never looks into namespace volcano-", "tagged: 0"),
        (VLLM, "isochrone-system", "no", "not looked at: the webhook never looks into namespace iso", "tagged: 0"),
        (
            VLLM.replace("{app: chat}", '{isochrone.dev/enabled: "false"}'),
            "sg",
            "yes",
            "left alone: opted out or placed already",
            "tagged: 0",
        ),
        # A label of ours is looked at wherever it is, but for the excluded namespaces.
        (
            VLLM.replace("app: chat", "isochrone.dev/gang: model-m") + SPACE.replace("VALUE", "false"),
            "sg",
            "yes",
            READ,
            "",
        ),
        (VLLM.replace("app: chat", "isochrone.dev/gang: model-m"), "kube-system", "no", "not looked at", "tagged: 0"),
        # What is left alone in any case has no condition.
        (VLLM.replace("kv_producer", "kv_both"), "sg", "if-namespace-enabled", "not tagged", "tagged: 0, gangs: 0"),
        (
            VLLM.replace("nvidia.com/gpu: 1", ""),
            "sg",
            "no",
            f"not looked at: it asks for no GPU and has no label {labels.PHASE} or {labels.GANG}; with one: {READ}",
            "tagged: 0, gangs: 0",
        ),
    ],
)
def test_only_what_the_webhook_looks_at_is_held(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    manifest: str,
    namespace: str,
    inspected: str,
    head: str,
    last: str,
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(manifest)
    assert run(monkeypatch, "-f", str(file), "-n", namespace) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"Pod {namespace}/p: {head}")
    assert last in printed[-1]
    hint = f"  kubectl label namespace {namespace} isochrone.dev/enabled=true"
    assert (hint in printed) is (inspected == "if-namespace-enabled" and "tagged: 1" in last)
    assert run(monkeypatch, "-f", str(file), "-n", namespace, "-o", "json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["inspected"] == entry["looked_at"] == inspected


# --- what the API server would not take -----------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "line", "value"),
    [
        ("labels", "isochrone.dev/gang: 12", "label isochrone.dev/gang is the number 12; the API server takes strings"),
        ("labels", "isochrone.dev/enabled: false", 'only: write "false", in quotes.'),
        ("annotations", "isochrone.dev/min-decode: 2", "annotation isochrone.dev/min-decode is the number 2; the API"),
        (
            "annotations",
            "isochrone.dev/reach: {us: 1}",
            "annotation isochrone.dev/reach is a map; the API server takes",
        ),
    ],
)
def test_values_without_quotes_are_refused_as_the_api_server_refuses_them(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    where: str,
    line: str,
    value: str,
) -> None:
    pod = "metadata: {labels: {isochrone.dev/phase: decode}}\nspec: {containers: [{name: e, image: e}]}\n"
    pod = pod.replace("decode}", f"decode, {line}}}" if where == "labels" else f"decode}}, annotations: {{{line}}}")
    inner = "".join(f"    {each}\n" for each in pod.splitlines())
    deployment = f"kind: Deployment\nmetadata: {{name: d}}\nspec:\n  template:\n{inner}"
    for manifest in (f"kind: Pod\n{pod}", deployment):
        (tmp_path / "a.yaml").write_text(manifest)
        assert run(monkeypatch, "-f", str(tmp_path / "a.yaml")) == 1
        printed = capsys.readouterr().out
        assert ": refused\n" in printed
        assert value in printed


def test_a_namespace_that_the_api_server_would_not_take_is_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(VLLM + SPACE.replace('"VALUE"', "true"))
    assert run(monkeypatch, "-f", str(tmp_path / "a.yaml")) == 2
    value = capsys.readouterr().err
    assert 'label isochrone.dev/enabled is the boolean true; the API server takes strings only: write "true"' in value


# --- gangs of one phase ---------------------------------------------------------------------------


def test_a_misspelt_gang_leaves_two_halves_and_both_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prefill, decode = POD.replace("PHASE", "prefill"), POD.replace("PHASE", "decode")
    file = tmp_path / "a.yaml"

    def notes(*pods: str) -> list[str]:
        file.write_text("---\n".join(pods))
        assert run(monkeypatch, "-f", str(file)) == 0
        return [each.strip() for each in capsys.readouterr().out.splitlines() if each.startswith("  note")]

    typo = decode.replace("gang: chat", "gang: chatt")
    assert notes(prefill, typo, typo) == [
        "note    gang chat has only prefill pods here; its decode pods must come from elsewhere: it waits for them;"
        " gang chatt has only decode pods: did you mean one gang?",
        "note    gang chatt has only decode pods here; its prefill pods must come from elsewhere: it waits for them;"
        " gang chat has only prefill pods: did you mean one gang?",
    ]
    assert notes(prefill, decode) == []
    assert notes(prefill, prefill) == [
        "note    gang chat has only prefill pods here; its decode pods must come from elsewhere: it waits for them"
    ]
    assert notes(prefill) == []  # of one template alone that is no news
