"""What a signal is: a row of the table, what it can say about a pod, and how sure it is.

Role words are read here once for every framework. It must never know where a word stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from admission.recognition.command_line import EngineCall
from topology.objects import Pod

Phase = Literal["prefill", "decode"]


class Confidence(StrEnum):
    """How far a signal can be believed."""

    NONE = "none"
    LOW = "low"  # names and variables; nobody meant them for a machine
    MEDIUM = "medium"  # engine arguments, plain labels
    HIGH = "high"  # a framework's role label
    EXPLICIT = "explicit"  # our own label


class Says(StrEnum):
    """What one signal says about a pod."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"  # it does both
    NO_ENGINE = "no engine"  # router, proxy, planner, encoder: never tagged
    OPEN = "open"  # the field is there but does not tell
    AGGREGATED = "aggregated"  # an engine, and nothing separates it; counts only where nothing else is said


DECIDES: Final = frozenset({Says.PREFILL, Says.DECODE, Says.MIXED, Says.NO_ENGINE})


@dataclass(frozen=True, slots=True)
class Finding:
    says: Says
    text: str  # for people: `vLLM kv_role kv_consumer`


Look = Callable[[Pod, tuple[EngineCall, ...]], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Row:
    """One known signal."""

    rank: int
    name: str
    where: str
    yields: str
    confidence: Confidence
    source: str
    look: Look


@dataclass(frozen=True, slots=True)
class PhaseReading:
    """The phase, or None, and why. `conflicts` are sentences for people: signals said different things."""

    phase: Phase | None
    signal: str = ""
    confidence: Confidence = Confidence.NONE
    conflicts: tuple[str, ...] = ()
    mixed: bool = False
    engine: bool = True  # False: a router or the like, which nobody needs to be warned about


# encode-prefill is left open on purpose: one pod, two duties, and which partner matters more is not ours to guess.
_WORDS: Final = {
    "prefill": Says.PREFILL,
    "prefiller": Says.PREFILL,
    "decode": Says.DECODE,
    "decoder": Says.DECODE,
    "both": Says.MIXED,
    "mixed": Says.MIXED,
    "mix": Says.MIXED,
    "hybrid": Says.MIXED,
    "aggregated": Says.MIXED,
    "prefill-decode": Says.MIXED,
    "prefill-and-decode": Says.MIXED,
    "encode-prefill-decode": Says.MIXED,
    "encode-prefill": Says.OPEN,
}
_NEUTRAL_WORDS: Final = frozenset(
    {"worker", "workers", "leader", "server", "engine", "pool", "node", "group", "instance", "service", "pod", "role"}
)
_SHORT_WORDS: Final = {"p": Says.PREFILL, "d": Says.DECODE}
NO_ENGINE_WORDS: Final = frozenset(
    {
        *("router", "frontend", "proxy", "epp", "planner", "encode", "encoder", "lb", "loadbalancer", "gateway"),
        *("scheduler", "autoscaler", "kvstore", "cache", "master", "store", "pool", "controller", "picker"),
    }
)
_SEPARATORS = re.compile(r"[_. ]")


def role(value: str, short: bool = False) -> Says | None:
    """A role word of a framework; None for words that say nothing to us. `short`: p and d are words."""
    word = _SEPARATORS.sub("-", value.strip().lower())
    said = _WORDS.get(word) or (_SHORT_WORDS.get(word) if short else None)
    if said is not None:
        return said
    words = word.split("-")
    telling = [each for each in words if each not in _NEUTRAL_WORDS]
    if len(telling) == 1 and telling != words:  # `prefill-worker`, `decode-pool`
        said = _WORDS.get(telling[0])
    if said is None and not NO_ENGINE_WORDS.isdisjoint(words):
        return Says.NO_ENGINE
    return said


def plain_phase(value: str) -> Says | None:
    """`prefill` and `decode` themselves and nothing else: for places where any text may stand."""
    word = value.strip().lower()
    return Says(word) if word in ("prefill", "decode") else None


def stands_beside_engines(words: Iterable[str]) -> bool:
    """A router or the like, by the words of its names. A pool may be one of engines."""
    return any(word in NO_ENGINE_WORDS and word != "pool" for word in words)
