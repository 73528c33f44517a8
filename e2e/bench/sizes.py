"""How much is measured: every value can be set by the environment variable of its name, to shorten a run."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

PARTS: Final = ("bulk", "held")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("use a number, 1 or more")
    return int(text)


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if not set(parts) <= set(PARTS):
        raise ValueError(f"use {' or '.join(PARTS)}, or both with a comma")
    return parts


@dataclass(frozen=True, slots=True)
class Sizes:
    """What `gangs` measures."""

    runs: int = 3
    """Fresh clusters per side and size."""
    nodes: tuple[int, ...] = (100, 1000)
    gangs: int = 0
    """Gangs of 8 created at once; 0 is 100 on up to 100 nodes, else 150."""
    singles: int = 30
    """Gangs created alone, per side, on the smallest of several clusters."""
    held: int = 200
    """Gangs that can never be placed."""
    window: int = 20
    """Seconds in which session lengths are counted, per half of a pair; as many pairs as `pairs` says."""
    pairs: int = 4
    parts: tuple[str, ...] = PARTS

    def gangs_on(self, nodes: int) -> int:
        """Gangs created at once on so many nodes; 100 fill 100 nodes of 8 GPUs exactly."""
        return self.gangs or min(nodes, 150)


def _read(name: str, parse: Callable[[str], Any], default: Any, environment: Mapping[str, str]) -> Any:
    """The variable of this name; ValueError names it if it cannot be read."""
    text = environment.get(name)
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{name}={text}: {error}") from None


def number(name: str, default: int, environment: Mapping[str, str] = os.environ) -> int:
    """One number from the environment; ValueError names the variable if it is none."""
    return int(_read(name, _count, default, environment))


READ: Final[dict[str, Callable[[str], Any]]] = {"nodes": _numbers, "parts": _parts}


def sizes(environment: Mapping[str, str] = os.environ) -> Sizes:
    """The sizes from the environment; ValueError names a variable that cannot be read."""
    given = {
        field.name: _read(field.name.upper(), READ.get(field.name, _count), field.default, environment)
        for field in fields(Sizes)
    }
    return Sizes(**given)


def counted(name: str, default: int, environment: Mapping[str, str] = os.environ) -> int:
    """One count from the variable of this name; ValueError names a variable that cannot be read."""
    return numbers(name, (default,), environment)[0]


def numbers(name: str, default: tuple[int, ...], environment: Mapping[str, str] = os.environ) -> tuple[int, ...]:
    """Counts, with commas between them, from the variable of this name."""
    return tuple(_read(name, _numbers, default, environment))
