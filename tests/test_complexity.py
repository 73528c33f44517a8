"""No function is too branched to be read at once: a cyclomatic complexity of at most 15, or a reason beside its `def`.

The number is radon's, which counts boolean operators and comprehensions too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from radon.complexity import cc_visit

ROOT = Path(__file__).resolve().parents[1]
MOST = 15
MOST_REASONS = 20
MARK = "# complexity: "
SOURCES = sorted(
    path
    for layer in ("topology", "scheduler", "admission")
    for path in (ROOT / layer).rglob("*.py")
    if not path.name.endswith("_pb2.py")
)


def too_complex(source: str) -> list[tuple[str, int, bool]]:
    """Functions above the number: name, complexity, and whether a reason stands on the `def` or above it."""
    lines = source.splitlines()
    return [
        (block.name, block.complexity, any(MARK in line for line in lines[max(0, block.lineno - 2) : block.lineno]))
        for block in cc_visit(source)
        if block.complexity > MOST and block.letter != "C"
    ]


def test_the_number_is_counted() -> None:
    source = "def f(a):\n" + "".join(f"    if a == {n}:\n        return {n}\n" for n in range(MOST))
    assert too_complex(source) == [("f", MOST + 1, False)]
    assert too_complex(f"{MARK}a flat table\n{source}") == [("f", MOST + 1, True)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_function_can_be_read_at_once(path: Path) -> None:
    assert [found for found in too_complex(path.read_text()) if not found[2]] == []


def test_few_functions_have_a_reason() -> None:
    assert sum(len(too_complex(path.read_text())) for path in SOURCES) <= MOST_REASONS
