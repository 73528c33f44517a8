"""`python -m e2e.stack`: build the stack, or bring a cluster up and keep it until it is told to end."""

import os
import signal
import time
from types import FrameType
from typing import Annotated

import typer

from e2e.stack.build import build as build_stack
from e2e.stack.build import say
from e2e.stack.cluster import Cluster
from e2e.stack.gotool import BuildError
from e2e.stack.nodes import grid
from e2e.stack.pin import pin_all

SCHEDULES_FOR = ("volcano", "default-scheduler")
"""kube-scheduler is not in the stack: Volcano takes pods that name no scheduler too, so that none waits for ever."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


class Ended(BaseException):
    """A signal to end: an orderly end, from wherever the program is."""


def _end(_number: int, _frame: FrameType | None) -> None:
    # A second signal must not stop the cleaning up.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise Ended


@app.command()
def build() -> None:
    """Builds what is missing in the cache; VOLCANO=1.15.1 chooses another Volcano."""
    try:
        stack = build_stack()
    except BuildError as error:
        say(str(error))
        raise typer.Exit(1) from None
    for component, folder in stack.folders:
        say(f"{component.name} {component.version}: {folder}")


@app.command()
def pin() -> None:
    """Renews the committed go.mod and go.sum files after a version changed."""
    pin_all()


@app.command()
def up(
    nodes: Annotated[
        int, typer.Option(envvar="NODES", min=0, help="GPU nodes in four zones of two leaves each.")
    ] = 100,
    isochrone: Annotated[
        bool, typer.Option("--isochrone/--no-isochrone", envvar="ISOCHRONE", help="Install Isochrone too.")
    ] = True,
    audit: Annotated[bool, typer.Option(help="Write an audit log of all writes.")] = False,
) -> None:
    """Brings a cluster up, prints KUBECONFIG=<path> when ready, stays until SIGINT, SIGTERM or its parent's end."""
    parent = os.getppid()
    for number in ENDING:
        signal.signal(number, _end)
    try:
        with Cluster(grid(nodes) if nodes else [], name="up", audit=audit, schedules_for=SCHEDULES_FOR) as cluster:
            installed = ""
            if isochrone:
                from e2e.stack import isochrone as product

                product.install(cluster)
                installed = " with Isochrone"
            say(f"{nodes} nodes{installed}, ready after {cluster.since_start():.1f} s; Ctrl-C ends it")
            say("in another terminal, with the kubectl that was built for it:")
            say(f"  export KUBECONFIG={cluster.kubeconfig} PATH={cluster.bin('kubectl').parent}:$PATH")
            print(f"KUBECONFIG={cluster.kubeconfig}", flush=True)
            stay(cluster, parent)
    except Ended:
        say("ended")
    except BuildError as error:
        say(str(error))
        raise typer.Exit(1) from None


def stay(cluster: Cluster, parent: int) -> None:
    """Returns when the parent is gone; raises when a process of the cluster dies."""
    while os.getppid() == parent:
        cluster.check()
        time.sleep(0.3)


if __name__ == "__main__":
    app()
