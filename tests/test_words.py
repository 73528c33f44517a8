"""The words of docs/glossary.md: none of its retired words is part of an identifier, and no class name exists twice."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
SOURCES = sorted(
    path
    for layer in ("topology", "scheduler", "admission")
    for path in (ROOT / layer).rglob("*.py")
    if not path.name.endswith("_pb2.py")
)
OF_LIBRARIES = {"break_long_words"}
"""Identifiers that somebody else named."""


def retired() -> frozenset[str]:
    """The last column of the glossary's table."""
    rows = [line.split("|") for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    return frozenset(word for row in rows for word in re.findall(r"`([a-z]+)`", row[3]))


RETIRED = retired()


def parts(identifier: str) -> set[str]:
    """`_heldGPUs_of` has held, gpus, of."""
    return {each.lower() for each in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a file uses or makes, with its line."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name, line
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, line
            case ast.alias(name=name, asname=other):
                yield from ((each, line) for each in (*name.split("."), *filter(None, [other])))


def test_the_glossary_names_retired_words() -> None:
    assert {"told", "words", "room", "card", "alike", "lot"} <= RETIRED


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_identifier_has_a_retired_word(path: Path) -> None:
    names = [*identifiers(ast.parse(path.read_text())), (path.stem, 0)]
    found = sorted({(line, name) for name, line in names if name not in OF_LIBRARIES and parts(name) & RETIRED})
    assert found == [], "docs/glossary.md says which word to use"


def test_no_class_name_exists_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
