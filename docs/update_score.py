"""Writes the tables of docs/score.md: the points from the weights, and the results from the JSON file of a whole run of
`make bench BENCH=openb` where one is named; `--check` only says whether the page is up to date."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from docs.marked_page import keep
from scheduler.evaluate.capacity_score import CAPACITY_PARTS
from scheduler.model.policy import Policy

PAGE = Path(__file__).with_name("score.md")


def points() -> list[str]:
    """One row a part, one column a kind of pod: where the part starts and the most that it gives."""
    policy = Policy()
    kinds = {
        "whole GPUs": policy.whole,
        "a share of a GPU": policy.sharing,
        "no GPU": policy.without_gpu,
        "MIG instances": policy.instances,
    }
    rows = ["| part | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    rows.append("| `reach` |" + f" {policy.reach_points:g} |" * len(kinds))
    for part in (*CAPACITY_PARTS, "mig"):
        cells = []
        for weights in kinds.values():
            weight = getattr(weights, part)
            cells.append(f" {weight.start:g} of {weight.of:g}" if weight.of else " -")
        rows.append(f"| `{part}` |" + " |".join(cells) + " |")
    rows.append("| `order` |" + " |".join(f" {weights.order:g}" for weights in kinds.values()) + " |")
    return rows


def results(run: Path) -> list[str]:
    """One row a list of the trace."""
    values = {each["figure"]: each["value"] for each in json.loads(run.read_text())["figures"]}
    rows = [
        f"Default list: {values['isochrone allocated']:.2f} % of the GPU allocated at 130 % arrived (FGD "
        f"{values['fgd allocated']:.2f}), {values['isochrone fragmented']:.2f} % fragmented at 100 % (FGD "
        f"{values['fgd fragmented']:.2f}).",
        "",
        "| list | ours less FGD, points of GPU allocated, at 130 % arrived | at 100 % |",
        "|---|---|---|",
    ]
    lists = [name.removesuffix(" gain at 130") for name in values if name.endswith(" gain at 130")]
    return rows + [
        f"| {name} | {values[f'{name} gain at 130']:+.2f} | {values[f'{name} gain at 100']:+.2f} |" for name in lists
    ]


if __name__ == "__main__":
    parts = {"points": points()}
    for name in sys.argv[1:]:
        if not name.startswith("-"):
            parts["results"] = results(Path(name))
    raise SystemExit(keep(PAGE, parts))
