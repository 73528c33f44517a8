"""What a benchmark found: figures with their goals, as a table for people and as JSON for machines."""

import json
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from e2e.stack.build import CHECKOUT

FOLDER: Final = CHECKOUT / "build" / "bench"
COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {"<=": operator.le, ">=": operator.ge}


class NotHere(Exception):  # noqa: N818 - not an error: the benchmark is skipped and says why
    """What a benchmark needs (data, hardware) is not on this machine; the text says what."""


@dataclass(frozen=True, slots=True)
class Goal:
    """`op` is `<=` or `>=`."""

    op: str
    value: float

    def met(self, value: float) -> bool:
        """Whether a value reaches the goal."""
        return COMPARE[self.op](value, self.value)

    def __str__(self) -> str:
        return f"{self.op} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. `anchor` is what it is to be held against, `source` how it was measured."""

    figure: str
    value: float
    unit: str
    goal: Goal | None = None
    anchor: str = ""
    source: str = ""

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or nothing where there is no goal."""
        if self.goal is None:
            return ""
        return "met" if self.goal.met(self.value) else "missed"

    def as_json(self) -> dict[str, Any]:
        """The shape that `build/bench/<name>.json` promises."""
        goal = None if self.goal is None else {"op": self.goal.op, "value": self.goal.value}
        return {
            "figure": self.figure,
            "value": round(self.value, 4),
            "unit": self.unit,
            "goal": goal,
            "anchor": self.anchor,
            "source": self.source,
        }


def show(name: str, figures: Sequence[Figure]) -> None:
    """The table, on standard output."""
    table = Table(title=f"bench {name}", title_justify="left")
    for column, justify in (("figure", "left"), ("value", "right"), ("unit", "left"), ("goal", "right")):
        table.add_column(column, justify="right" if justify == "right" else "left", no_wrap=column != "unit")
    for column in ("", "anchor", "measured"):
        table.add_column(column, overflow="fold")
    styles = {"met": "[green]met[/]", "missed": "[red]missed[/]", "": ""}
    for each in figures:
        goal = "" if each.goal is None else str(each.goal)
        table.add_row(each.figure, f"{each.value:.3g}", each.unit, goal, styles[each.verdict], each.anchor, each.source)
    console().print(table)


def matrix(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A small table of numbers: the first column is a name."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def console() -> Console:
    """Wide when nobody sets a width: a pipe or a file has none of its own, and figures must not be cut."""
    found = Console()
    return found if found.is_terminal else Console(width=160)


def write(name: str, figures: Sequence[Figure], folder: Path = FOLDER) -> Path:
    """`build/bench/<name>.json`, replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    aside = path.with_suffix(".json.new")
    content = {"name": name, "figures": [each.as_json() for each in figures]}
    aside.write_text(json.dumps(content, indent=1) + "\n")
    aside.replace(path)
    return path
