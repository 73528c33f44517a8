"""`python -m e2e.bench [NAME]`: runs all benchmarks, or one; prints tables and writes `build/bench/<name>.json`."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Final, cast

import typer

from e2e.bench.report import Figure, NotHere, show, write
from e2e.stack.build import build, say
from e2e.stack.gotool import BuildError


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`module` has `measure()`, which yields figures part by part or raises NotHere. `stack`: needs the built stack."""

    module: str
    stack: bool = False

    def measure(self) -> Iterator[list[Figure]]:
        """The figures. The module is imported now, so one benchmark does not cost the others' imports."""
        return cast("Iterator[list[Figure]]", import_module(self.module).measure())


# One line a benchmark.
BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "agent": Benchmark("e2e.bench.agent"),
    "gangs": Benchmark("e2e.bench.gangs", stack=True),
    "hub": Benchmark("e2e.bench.hub"),
    "optimum": Benchmark("e2e.bench.optimum"),
    "plan": Benchmark("e2e.bench.plan"),
    "safety": Benchmark("e2e.bench.safety"),
    "reach": Benchmark("e2e.bench.reach"),
    "decide": Benchmark("e2e.bench.decide"),
    "wire": Benchmark("e2e.bench.wire"),
    "memory": Benchmark("e2e.bench.memory"),
    "events": Benchmark("e2e.bench.events"),
    "webhook": Benchmark("e2e.bench.webhook"),
    "openb": Benchmark("e2e.bench.openb"),
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def bench(name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHMARKS)}; default: all.")] = "") -> None:
    """Figures are written as soon as they are there, so that a long run that breaks leaves its first parts."""
    if name and name not in BENCHMARKS:
        _leave(f"bench: {name}: no such benchmark; use {', '.join(BENCHMARKS)}", 2)
    chosen = [name] if name else list(BENCHMARKS)
    try:
        if any(BENCHMARKS[each].stack for each in chosen):
            build()
        for each in chosen:
            _run(each)
    except ValueError as error:
        _leave(f"bench: {error}", 2)
    except BuildError as error:
        _leave(str(error), 1)


def _run(name: str) -> None:
    found: list[Figure] = []
    try:
        for part in BENCHMARKS[name].measure():
            found += part
            path = write(name, found)
    except NotHere as reason:
        say(f"bench {name}: skipped: {reason}")
    if found:
        show(name, found)
        say(f"written to {path}")


def _leave(line: str, code: int) -> None:
    say(line)
    sys.exit(code)


if __name__ == "__main__":
    app()
