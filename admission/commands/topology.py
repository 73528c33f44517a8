"""EDGE. `isochrone topology`: a file or the cluster in, what it says out. It reads and prints, no more."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topology.bad_input import BadInput

if TYPE_CHECKING:  # networkx is loaded when a file is read, not for every command
    from topology.facts.age import PartAges
    from topology.facts.report import NodeFacts
    from topology.graph.parts import Topology

app = typer.Typer(
    help="Read a topology and show it.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)  # fabrics have capitals
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_Output = Annotated[str, typer.Option("-o", "--output", metavar="text|json|dot", help="How to print.")]


@app.command("import")
def import_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A topology file; - reads standard input.")],
    output: _Output = "text",
) -> None:
    """Read a topology file and say what it holds. Any known format is found; what is not understood is refused."""
    from topology.graph.text import summary

    _check_output(output)
    topology = _read(file)
    if output != "text":
        typer.echo(_exported(topology, output))
        return
    typer.echo(summary(topology))
    for warning in topology.warnings:
        typer.echo(f"warning: {warning}")


@app.command()
def show(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="A topology file; - reads standard input.")] = "",
    node: Annotated[
        str, typer.Option("--node", help="Only this node; without FILE: its labels, and what its agent sees.")
    ] = "",
    here: Annotated[bool, typer.Option("--here", help="This machine, as NVML and sysfs tell.")] = False,
    override: Annotated[
        str,
        typer.Option("--override", metavar="FILE", help="With --here: NCCL XML or a matrix for what a guest hides."),
    ] = "",
    output: _Output = "text",
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", help="Path; else the usual places.")] = "",
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Where Isochrone runs, to ask what the node's agent sees.")
    ] = "isochrone-system",
    sys_root: Annotated[str, typer.Option(envvar="ISOCHRONE_SYS_ROOT", hidden=True)] = "/sys",
    proc_root: Annotated[str, typer.Option(envvar="ISOCHRONE_PROC_ROOT", hidden=True)] = "/proc",
) -> None:
    """Draw FILE, this machine or the cluster. The matrix is in nvidia-smi's words, and a tree follows."""
    from topology.graph.text import around, picture

    _check_output(output)
    _check_names(node, namespace)
    if here and (file or node):
        raise BadInput("--here", f"given with {file or '--node'}", "use one or the other")
    if override and not here:
        raise BadInput("--override", override, "it goes with --here")
    if here:
        from topology.agent.this_machine import topology_here
        from topology.graph.of_facts import overridden

        topology = topology_here(sys_root, proc_root)
        if override:
            topology = overridden(topology, _read(override), override)
    elif not file:
        from topology.kube.errors import ApiFailure

        try:
            topology = asyncio.run(_ask(node, kubeconfig, namespace))
        except ApiFailure as failure:
            typer.echo(f"isochrone: {failure}", err=True)
            raise typer.Exit(1) from None
    else:
        topology = _read(file)
        if node:
            topology = around(topology, node)
    if output != "text":
        typer.echo(_exported(topology, output))
        return
    for line in picture(topology):
        typer.echo(line)


async def _ask(node: str, kubeconfig: str, namespace: str) -> Topology:
    from topology.kube.agent_facts import agent_facts
    from topology.kube.api import KubeApi
    from topology.kube.cluster_topology import cluster_topology

    async with await KubeApi.connect(kubeconfig or None) as api:
        topology = await cluster_topology(api, node)
        return _with_agent(topology, node, await agent_facts(api, namespace, node)) if node else topology


def _with_agent(topology: Topology, node: str, reported: tuple[NodeFacts, PartAges] | str) -> Topology:
    """With what the agent of the node sees, or the reason why it is not there."""
    from topology.facts.age import Freshness, age_text
    from topology.graph.of_facts import joined, of_facts

    if isinstance(reported, str):
        return replace(topology, warnings=(*topology.warnings, f"{node}: {reported}"))
    facts, ages = reported
    found = joined(topology, of_facts(node, facts), node)
    old = [
        f"{part}: {age_text(age.age_s, age.freshness)}"
        for part, age in ages.items()
        if age.freshness != Freshness.FRESH
    ]
    return replace(found, warnings=(*found.warnings, *old, *facts.state.problems))


def _check_names(node: str, namespace: str) -> None:
    if node and not _NODE.fullmatch(node):
        raise BadInput("--node", node, "it is the name of a node: letters, digits, - and .")
    if not _NAMESPACE.fullmatch(namespace):
        raise BadInput("--namespace", namespace, "it is a namespace: small letters, digits and -")


def _check_output(output: str) -> None:
    if output not in ("text", "json", "dot"):
        raise BadInput("-o", output, "it is text, json or dot")


def _exported(topology: Topology, output: str) -> str:
    from topology.graph.export import as_dict, as_dot

    return as_dot(topology) if output == "dot" else json.dumps(as_dict(topology), indent=2)


def _read(file: str) -> Topology:
    from topology.readers.formats import MAX_BYTES, read

    try:
        if file == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput("FILE", file, f"it must be a readable file: {error.strerror or error}") from None
    try:
        return read(data)
    except BadInput as bad:
        raise BadInput(f"{file}: {bad.field}", bad.value, bad.allowed) from None
