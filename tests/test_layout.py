"""The shape of the source: pure modules stay pure, rooms import downwards, files stay short.

A module is pure unless .importlinter lists it as an edge. The linter there checks packages; here is the rest: the
standard library's ways to the outside, and pure modules that would import an edge.
"""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("topology", "scheduler", "admission")
LONGEST = 400
OUTSIDE = {
    # the standard library's clocks, chance, environment, network, processes, files and logs
    *("asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "selectors"),
    *("shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid"),
    *("http", "concurrent", "contextvars"),
    # and what is made for it
    *("aiohttp", "cryptography", "grpc", "kubernetes", "prometheus_client", "pynvml", "rich", "typer"),
    *("pydantic_settings", "requests", "httpx"),
}


def _edges() -> frozenset[str]:
    """The one list of edges, as the import linter reads it."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    lines = parser["importlinter:contract:pure"]["ignore_imports"].split("\n")
    return frozenset(line.split("->")[0].strip() for line in lines if "->" in line)


EDGES = _edges()


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at any depth of its code; `from a import b` gives both `a` and `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = _name(path).split(".")
                above = package[: len(package) - node.level + (path.name == "__init__.py")]
                base = ".".join([*above, *filter(None, [base])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


PURE = [path for path in _sources(*ROOMS) if _name(path) not in EDGES]


@pytest.mark.parametrize("path", PURE, ids=_name)
def test_a_pure_module_reaches_nothing_outside(path: Path) -> None:
    reached = {name for name in _imports(path) if name.split(".")[0] in OUTSIDE}
    assert not reached, f"{_name(path)} is pure; make it an edge in .importlinter or take what it needs as an argument"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "print", "input"), f"line {node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            moment = node.func.attr in ("now", "utcnow", "today")
            assert not moment, f"line {node.lineno}: time comes in as an argument"


@pytest.mark.parametrize("path", PURE, ids=_name)
def test_a_pure_module_imports_no_edge(path: Path) -> None:
    assert not EDGES.intersection(_imports(path))


@pytest.mark.parametrize("path", _sources(*ROOMS, "e2e"), ids=_name)
def test_a_file_holds_one_idea(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= LONGEST, f"{lines} lines; split it by idea"


def test_every_edge_is_in_a_room_and_says_so_once() -> None:
    assert EDGES
    assert all(edge.split(".")[0] in ROOMS and "*" not in edge for edge in EDGES)


LIMIT_AT = {"until": 1, "wait_until": 1, "wait_for": 1, "seconds_until": 2, "bound_after": 3, "drain": 0, "timeout": 0}
"""Functions that wait, and which of their arguments is the limit in seconds."""
PATIENT_S = 60


def test_no_test_waits_so_short_that_a_busy_machine_fails_it() -> None:
    """A limit is for what never comes. One below a second is a look at what may come, and not meant."""
    short = []
    for path in (*_sources("tests"), *(ROOT / "e2e").glob("*.py"), *(ROOT / "e2e" / "stack").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            name = getattr(call.func, "id", getattr(call.func, "attr", "")) if isinstance(call, ast.Call) else ""
            if name not in LIMIT_AT or not isinstance(call, ast.Call):
                continue
            given = call.args[LIMIT_AT[name] :][:1] + [
                w.value for w in call.keywords if w.arg in ("limit_s", "timeout")
            ]
            numbers = [each.value for each in given if isinstance(each, ast.Constant)]
            if any(isinstance(number, int | float) and 1 <= number < PATIENT_S for number in numbers):
                short.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert short == [], "use LIMIT_S"
