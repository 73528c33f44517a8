"""The command line: what each command is called, what it prints, which code it leaves."""

import subprocess
import sys
from pathlib import Path

import pytest

from admission.cli import app, main
from scheduler.extender.scheduler_config import stanza

COMMANDS = ("webhook", "controller", "agent", "release", "admit", "volcano-conf", "demo")


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["isochrone", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_the_commands_are_these() -> None:
    assert tuple(command.name or command.callback.__name__ for command in app.registered_commands) == COMMANDS  # type: ignore[union-attr]


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("isochrone 0.")


def test_volcano_conf_prints_the_stanza(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://isochrone-controller.elsewhere.svc:8800"
    assert leave(monkeypatch, "volcano-conf", "--url", url, "--timeout", "1s") == 0
    assert capsys.readouterr().out == stanza(url, "1s")


def test_volcano_conf_judges_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    conf = tmp_path / "volcano-scheduler.conf"
    conf.write_text("tiers: [{plugins: [{name: predicates}, {name: nodeorder}]}]")
    assert leave(monkeypatch, "volcano-conf", "--check", str(conf)) == 1
    assert capsys.readouterr().out.startswith("The plugin extender is missing")
    lines = ("    " + line for line in stanza("http://there:8800").splitlines())
    conf.write_text("tiers:\n- plugins:\n    - name: predicates\n    - name: nodeorder\n" + "\n".join(lines))
    assert leave(monkeypatch, "volcano-conf", "--check", str(conf)) == 0
    assert capsys.readouterr().out == "Volcano's scheduler configuration is right for Isochrone.\n"


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["volcano-conf", "--url", "there:8800"], "isochrone: the URL of the extender is 'there:8800'"),
        (["volcano-conf", "--check", "/does/not/exist"], "isochrone: --check is '/does/not/exist'"),
        (["admit", "-f", "/does/not/exist"], "isochrone: -f is '/does/not/exist'"),
        (["admit", "-f", "pyproject.toml", "-o", "xml"], "isochrone: --output is 'xml'"),
        (["release"], "isochrone: what to release is 'missing'"),
        (["release", "--all", "-n", "prod"], "isochrone: --all is 'given with -n or POD'"),
        (["release", "--all", "--kubeconfig", "/does/not/exist"], "isochrone: kubeconfig is '/does/not/exist'"),
        (["webhook"], "isochrone: ISOCHRONE_LISTEN is 'nowhere'"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], start: str
) -> None:
    monkeypatch.setenv("ISOCHRONE_LISTEN", "nowhere")
    assert leave(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(start)
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_an_unreachable_api_server_is_one_line_and_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(
        "{apiVersion: v1, kind: Config, current-context: it, contexts: [{name: it, context: {cluster: it, user: it}}],"
        " clusters: [{name: it, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: it, user: {token: t}}]}"
    )
    assert leave(monkeypatch, "release", "--all", "--kubeconfig", str(file)) == 1
    assert capsys.readouterr().err.startswith("isochrone: GET /api/v1/pods: ")


def test_asking_for_help_loads_no_server() -> None:
    heavy = "{'aiohttp', 'kubernetes', 'cryptography', 'numpy', 'pydantic'}"
    code = f"import sys, admission.cli; print({heavy} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
