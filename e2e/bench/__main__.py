"""`python -m e2e.bench [NAME]`: runs all benchmarks, or one; prints tables and writes `build/bench/<name>.json`."""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Final

import typer

from e2e.bench import gangs
from e2e.bench.report import Figure, show, write
from e2e.stack.build import build, say
from e2e.stack.gotool import BuildError

BENCHMARKS: Final[Mapping[str, Callable[[], Iterator[list[Figure]]]]] = {"gangs": gangs.measure}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def bench(name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHMARKS)}; default: all.")] = "") -> None:
    """Figures are written as soon as they are there, so that a long run that breaks leaves its first parts."""
    if name and name not in BENCHMARKS:
        _leave(f"bench: {name}: no such benchmark; use {', '.join(BENCHMARKS)}", 2)
    try:
        build()
        for each in [name] if name else BENCHMARKS:
            found: list[Figure] = []
            for part in BENCHMARKS[each]():
                found += part
                path = write(each, found)
            show(each, found)
            say(f"written to {path}")
    except ValueError as error:
        _leave(f"bench: {error}", 2)
    except BuildError as error:
        _leave(str(error), 1)


def _leave(line: str, code: int) -> None:
    say(line)
    sys.exit(code)


if __name__ == "__main__":
    app()
