"""EDGE. How the demo looks: objects of the cluster as `kubectl` would show them, in plain text of at most 100 columns.

Decides layout and nothing else. Every sentence about a decision is printed as it stands on an object; it must never
make one up, shorten one or know what it means. Colour carries no meaning and a pipe gets none.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from admission.demo.gangs import gpus_of
from topology.labels import DECISION, PHASE, PLACEMENT

Object = dict[str, Any]

WIDTH: Final = 100
_INDENT: Final = "  "
_SHOWN_SCORES: Final = 5


class Report:
    """Writes to the terminal (or a pipe) and keeps a plain copy."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False, record=True)
        self._width = min(WIDTH, self._console.width) if self._console.is_terminal else WIDTH
        self._console.width = self._width
        self._copy = StringIO()
        self._plain = Console(file=self._copy, width=self._width, color_system=None, force_terminal=False)

    @property
    def text(self) -> str:
        """All that was written, without colour."""
        return "\n".join(line.rstrip() for line in self._copy.getvalue().splitlines()) + "\n"

    def save_svg(self, path: str) -> None:
        """The picture of what was written."""
        self._console.save_svg(path, title="make demo")

    def show_line(self, text: str = "", *, style: str = "") -> None:
        """Plain words, wrapped."""
        for line in text.splitlines() or [""]:
            self._line(textwrap.fill(line, self._width, break_on_hyphens=False), style)

    def heading(self, text: str) -> None:
        """The start of a section."""
        self._line()
        self._line(f"--- {text} ".ljust(self._width, "-"), "bold")

    def pods(self, pods: Sequence[Object], nodes: Mapping[str, str]) -> None:
        """Which pod is where; `nodes` is node name to a few words about the node."""
        rows = [("POD", "PHASE", "GPUS", "STATE", "NODE")]
        for pod in pods:
            meta, spec = pod["metadata"], pod["spec"]
            node = spec.get("nodeName", "")
            state = "SchedulingGated" if spec.get("schedulingGates") else "Bound" if node else "Pending"
            place = f"{node}  ({nodes[node]})" if node else "<none>"
            rows.append((meta["name"], meta["labels"][PHASE], gpus_of(pod), state, place))
        self._rows(rows)

    def annotations(self, obj: Object) -> None:
        """What `kubectl describe` shows of our annotations: a value of several lines becomes a block."""
        meta = obj["metadata"]
        self._line()
        self._line(f"{obj['kind']} {meta['name']}", "bold")
        for key in (DECISION, PLACEMENT):
            lines = (meta.get("annotations") or {}).get(key, "").splitlines()
            if len(lines) == 1:
                self._hanging(f"{_INDENT}{key}: {lines[0]}", len(_INDENT) + len(key) + 2)
            elif lines:
                self._line(f"{_INDENT}{key}:")
                column = max((match.end() for line in lines if (match := re.match(r"\S+\s+", line))), default=0)
                for line in lines:
                    self._hanging(2 * _INDENT + line, 2 * len(_INDENT) + column)

    def events(self, events: Iterable[Object]) -> None:
        """Events as `kubectl describe` lists them, without their age."""
        rows = [("Type", "Reason", "From", "Message")]
        for event in events:
            source = event.get("source", {}).get("component", "")
            rows.append((event["type"], event["reason"], source, event["message"]))
        self._line(f"{_INDENT}Events:")
        self._rows(rows, 2 * _INDENT)

    def scores(self, pod: str, scores: Mapping[str, float]) -> None:
        """What the extender answered to one prioritize call: the best, and the last."""
        ranked = sorted(scores.items(), key=lambda entry: -entry[1])
        chosen = [*ranked[:_SHOWN_SCORES], ranked[-1]] if len(ranked) > _SHOWN_SCORES + 1 else ranked
        shown = ", ".join(f"{node} {score:.1f}" for node, score in chosen[:_SHOWN_SCORES])
        if len(ranked) > len(chosen):
            shown += f" ... {ranked[-1][0]} {ranked[-1][1]:.1f}"
        self._line()
        self._line(f"POST /prioritize for {pod}, {len(scores)} nodes", "bold")
        self._hanging(f"{_INDENT}nodeScore  {shown}", len(_INDENT) + len("nodeScore  "))

    # --- inside --------------------------------------------------------------------------------

    def _hanging(self, text: str, column: int) -> None:
        """One line, wrapped under its value; text that the product wrote is never cut."""
        margin = text[: len(text) - len(text.lstrip())]
        for line in textwrap.wrap(
            text.lstrip(),
            self._width,
            initial_indent=margin,
            subsequent_indent=" " * column,
            break_on_hyphens=False,
            break_long_words=False,
        ):
            self._line(line)

    def _rows(self, rows: Sequence[Sequence[str]], margin: str = _INDENT) -> None:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for number in range(len(rows[0])):
            table.add_column(overflow="fold", no_wrap=number < len(rows[0]) - 1)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        sink = StringIO()
        Console(file=sink, width=self._width - len(margin), color_system=None).print(table)
        for line in sink.getvalue().splitlines():
            self._line((margin + line).rstrip())

    def _line(self, text: str = "", style: str = "") -> None:
        for console in (self._console, self._plain):
            console.print(Text(text, style=style), soft_wrap=True)


def save_text(path: str, text: str) -> None:
    """Writes the plain copy."""
    Path(path).write_text(text, encoding="utf-8")
