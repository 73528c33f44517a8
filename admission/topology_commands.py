"""EDGE. `isochrone topology`: a file in, what it says out. Reads files and standard input; decides nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topology.bad_input import BadInput

if TYPE_CHECKING:  # networkx is loaded when a file is read, not for every command
    from topology.graph import Topology

app = typer.Typer(
    help="Read a topology and show it.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Output = Annotated[str, typer.Option("-o", "--output", metavar="FORMAT", help="text or json.")]


@app.command("import")
def import_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A topology file; - reads standard input.")],
    output: _Output = "text",
) -> None:
    """Read FILE, whichever known format it has, and say what it holds; a file that is not understood is refused."""
    from topology.graph_text import as_dict, summary

    as_json = _wants_json(output)
    topology = _read(file)
    if as_json:
        typer.echo(json.dumps(as_dict(topology), indent=2))
        return
    typer.echo(summary(topology))
    for warning in topology.warnings:
        typer.echo(f"warning: {warning}")


@app.command()
def show(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="A topology file; - reads standard input.")] = "",
    node: Annotated[str, typer.Option("--node", help="Only what this node sees; without FILE: ask the cluster.")] = "",
    output: _Output = "text",
    kubeconfig: Annotated[str, typer.Option("--kubeconfig", help="Path; else the usual places.")] = "",
) -> None:
    """Draw a topology: the matrix in nvidia-smi's words, and a tree."""
    from topology.graph_text import around, as_dict, picture

    as_json = _wants_json(output)
    if not file:
        raise BadInput("what to show", "missing", "name a topology file")
    topology = _read(file)
    if node:
        topology = around(topology, node)
    if as_json:
        typer.echo(json.dumps(as_dict(topology), indent=2))
        return
    for line in picture(topology):
        typer.echo(line)


def _wants_json(output: str) -> bool:
    if output not in ("text", "json"):
        raise BadInput("-o", output, "it is text or json")
    return output == "json"


def _read(file: str) -> Topology:
    from topology.formats import MAX_BYTES, read

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
