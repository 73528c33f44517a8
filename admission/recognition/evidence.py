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


class PhaseSign(StrEnum):
    """What one signal says about a pod."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"  # it does both
    NO_ENGINE = "no engine"  # router, proxy, planner, encoder: never tagged
    OPEN = "open"  # the field is there but does not tell
    AGGREGATED = "aggregated"  # an engine, and nothing separates it; counts only where nothing else is said


DECIDES: Final = frozenset({PhaseSign.PREFILL, PhaseSign.DECODE, PhaseSign.MIXED, PhaseSign.NO_ENGINE})


@dataclass(frozen=True, slots=True)
class Finding:
    sign: PhaseSign
    text: str  # for people: `vLLM kv_role kv_consumer`


Lookup = Callable[[Pod, tuple[EngineCall, ...]], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class SignalRow:
    """One known signal."""

    rank: int
    name: str
    where: str
    yields: str
    confidence: Confidence
    source: str
    read: Lookup


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
_TOKENS: Final = {
    "prefill": PhaseSign.PREFILL,
    "prefiller": PhaseSign.PREFILL,
    "decode": PhaseSign.DECODE,
    "decoder": PhaseSign.DECODE,
    "both": PhaseSign.MIXED,
    "mixed": PhaseSign.MIXED,
    "mix": PhaseSign.MIXED,
    "hybrid": PhaseSign.MIXED,
    "aggregated": PhaseSign.MIXED,
    "prefill-decode": PhaseSign.MIXED,
    "prefill-and-decode": PhaseSign.MIXED,
    "encode-prefill-decode": PhaseSign.MIXED,
    "encode-prefill": PhaseSign.OPEN,
}
_NEUTRAL_TOKENS: Final = frozenset(
    {"worker", "workers", "leader", "server", "engine", "pool", "node", "group", "instance", "service", "pod", "role"}
)
_SHORT_TOKENS: Final = {"p": PhaseSign.PREFILL, "d": PhaseSign.DECODE}
NO_ENGINE_TOKENS: Final = frozenset(
    {
        *("router", "frontend", "proxy", "epp", "planner", "encode", "encoder", "lb", "loadbalancer", "gateway"),
        *("scheduler", "autoscaler", "kvstore", "cache", "master", "store", "pool", "controller", "picker"),
    }
)
_SEPARATORS = re.compile(r"[_. ]")


def role(value: str, short: bool = False) -> PhaseSign | None:
    """A role word of a framework; None for words that say nothing to us. `short`: p and d are words."""
    word = _SEPARATORS.sub("-", value.strip().lower())
    given = _TOKENS.get(word) or (_SHORT_TOKENS.get(word) if short else None)
    if given is not None:
        return given
    tokens = word.split("-")
    telling = [each for each in tokens if each not in _NEUTRAL_TOKENS]
    if len(telling) == 1 and telling != tokens:  # `prefill-worker`, `decode-pool`
        given = _TOKENS.get(telling[0])
    if given is None and not NO_ENGINE_TOKENS.isdisjoint(tokens):
        return PhaseSign.NO_ENGINE
    return given


def plain_phase(value: str) -> PhaseSign | None:
    """`prefill` and `decode` themselves and nothing else: for places where any text may stand."""
    word = value.strip().lower()
    return PhaseSign(word) if word in ("prefill", "decode") else None


def runs_beside_engines(tokens: Iterable[str]) -> bool:
    """A router or the like, by the words of its names. A pool may be one of engines."""
    return any(word in NO_ENGINE_TOKENS and word != "pool" for word in tokens)
