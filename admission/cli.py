"""EDGE. The command line, `isochrone` and `kubectl isochrone`: arguments in, one service or one answer out.

It decides how each command is called and which exit code it leaves. It must never hold logic of its own. Commands
import what they run when they run it, so that `--help` and the quick ones start fast.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from admission.commands.reach import app as reach_app
from admission.commands.topology import app as topology_app
from topology.bad_input import BadInput

app = typer.Typer(
    name="isochrone",
    help="Keeps the prefill and decode pods of an LLM service within reach of each other, beside Volcano.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(reach_app, name="reach")
app.add_typer(topology_app, name="topology")


def main() -> None:
    """Runs a command. Bad input is one line and code 2; an API server that says no is one line and code 1."""
    try:
        app()
    except BadInput as bad:
        _leave(str(bad), 2)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _leave(line: str, code: int) -> None:
    sys.stderr.write(f"isochrone: {line}\n")
    raise SystemExit(code)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"isochrone {version('isochrone')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command."""


@app.command()
def webhook() -> None:
    """Serve the admission webhook. Settings come from ISOCHRONE_* variables."""
    from admission.settings import WebhookSettings
    from admission.webhook.server import serve
    from topology.environment import load

    asyncio.run(serve(load(WebhookSettings)))


@app.command()
def controller() -> None:
    """Hold and release gangs, and answer Volcano's scheduler. Settings come from ISOCHRONE_* variables."""
    from admission.controller.serve import serve
    from admission.settings import ControllerSettings
    from topology.environment import load

    asyncio.run(serve(load(ControllerSettings)))


@app.command()
def agent() -> None:
    """Report this node's GPUs, links and network cards. Settings come from ISOCHRONE_* variables."""
    # A fresh process in place of this one: without the command line's own modules it is 9 MB smaller, for good.
    started = "from topology.agent.main import main; main()"
    os.execv(sys.executable, [sys.executable, "-c", started])  # noqa: S606  # no shell is wanted


@app.command()
def release(
    pods: Annotated[list[str] | None, typer.Argument(metavar="[POD]...", help="Pods by name.")] = None,
    namespace: Annotated[
        str,
        typer.Option(
            "-n", "--namespace", help="Where; alone: every held pod in it. Default with POD or --gang: default."
        ),
    ] = "",
    gang: Annotated[str, typer.Option("--gang", help="Only pods of this gang.")] = "",
    everywhere: Annotated[bool, typer.Option("--all", help="In every namespace.")] = False,
    remove_webhook: Annotated[
        bool,
        typer.Option("--remove-webhook", help="First delete the webhook configuration, so that no new pod is held."),
    ] = False,
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", help="Path; else the usual places.")] = "",
) -> None:
    """Let held pods go by hand. Their PodGroup is made if it is missing, then our gate is opened and no other."""
    if everywhere and (namespace or pods):
        raise BadInput("--all", "given with -n or POD", "use one or the other")
    if not (everywhere or namespace or pods or gang):
        raise BadInput("what to release", "missing", "name pods, --gang, a namespace with -n, or --all")
    where = None if everywhere else namespace or "default"
    code = asyncio.run(_release(where, gang, pods or [], remove_webhook, kubeconfig))
    raise typer.Exit(code)


async def _release(namespace: str | None, gang: str, pods: list[str], remove_webhook: bool, kubeconfig: str) -> int:
    from admission.commands.release import release as let_go
    from topology.kube.api import KubeApi
    from topology.kube.errors import ApiFailure

    try:
        async with await KubeApi.connect(kubeconfig or None) as api:
            summary = await let_go(
                api, namespace=namespace, gang=gang, pods=pods, remove_webhook=remove_webhook, printer=typer.echo
            )
    except ApiFailure as failure:
        sys.stderr.write(f"isochrone: {failure}\n")
        return 1
    typer.echo(str(summary))
    return 0 if summary.well else 1


@app.command()
def admit(
    files: Annotated[
        list[str],
        typer.Option("-f", "--filename", metavar="FILE", help="Manifests: a file, a folder, or - for standard input."),
    ],
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="For objects that name none.")] = "default",
    output: Annotated[str, typer.Option("-o", "--output", metavar="text|json", help="How to print.")] = "text",
    rules: Annotated[str, typer.Option("--rules", metavar="FILE", help="The webhook's rule file.")] = "",
) -> None:
    """Print what the webhook would make of manifests, and why.

    No cluster is needed.

    Exit codes: 0, everything was read; 1, a pod would be refused; 2, something cannot be read.
    """
    from admission.commands import admit as reader
    from admission.recognition.signals import BUILT_IN
    from admission.templates.manifest_file import documents

    if output not in ("text", "json"):
        raise BadInput("--output", output, 'use "text" or "json"')
    read = [each for file in _manifests(files) for each in documents(_read(file, "-f"), _shown(file))]
    if not read:
        raise BadInput("-f", ", ".join(files), "there is no object in it: give manifests of Kubernetes objects")
    table = BUILT_IN
    if rules:
        from admission.recognition.rule_file import read_rules

        table = read_rules(_read(rules, "--rules"), rules)
    found = reader.admitted(read, namespace, table)
    if output == "json":
        import json

        typer.echo(json.dumps([each.as_json() for each in found], indent=1))
    else:
        for each in found:
            for line in reader.lines(each):
                typer.echo(line)
        for line in reader.to_enable(found):
            typer.echo(line)
        typer.echo(reader.summary(found, len(read)))
    if any(each.tagging.denied for each in found):
        raise typer.Exit(1)


def _manifests(files: list[str]) -> list[str]:
    """Folders as kubectl takes them: their manifests in the order of their names, and no folder inside."""
    found: list[str] = []
    for file in files:
        path = Path(file)
        if file != "-" and path.is_dir():
            inside = sorted(str(each) for each in path.iterdir() if each.suffix in (".yaml", ".yml", ".json"))
            if not inside:
                raise BadInput("-f", file, "there is no .yaml, .yml or .json file in this folder itself")
            found += inside
        else:
            found.append(file)
    return found


def _shown(file: str) -> str:
    return "standard input" if file == "-" else file


@app.command("volcano-conf")
def volcano_conf(
    url: Annotated[
        str, typer.Option("--url", help="Where Volcano's scheduler reaches the controller.")
    ] = "http://isochrone-controller.isochrone-system.svc:8800",
    timeout: Annotated[str, typer.Option("--timeout", help="How long Volcano waits for one answer.")] = "500ms",
    check: Annotated[
        str,
        typer.Option(
            "--check", metavar="FILE", help="Judge a configuration or its ConfigMap instead; - reads standard input."
        ),
    ] = "",
) -> None:
    """Print the plugin for Volcano, or check a configuration.

    The plugin goes into Volcano's scheduler configuration; --check says what is wrong with one that exists.
    """
    from scheduler.extender import scheduler_config as conf

    if not check:
        typer.echo(conf.stanza(url, timeout), nl=False)
        return
    findings = conf.check(_read(check, "--check"))
    for finding in findings:
        typer.echo(finding)
    if findings:
        raise typer.Exit(1)
    typer.echo("Volcano's scheduler configuration is right for Isochrone.")


def _read(file: str, option: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8 text"
        raise BadInput(option, file, f"it must be a readable file: {why}") from None


@app.command()
def demo(
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="Write the plain text to a file too.")] = "",
) -> None:
    """Show on this terminal what Isochrone does. A made-up cluster, four gangs, every decision explained."""
    from admission.demo.play import run

    raise typer.Exit(run(output))


if __name__ == "__main__":
    main()
