"""Which phase a name tells: of an owner, a container, a script, or of a role that people may call what they like.

Names were made for people. One counts where it has one phase in it and no word that would turn its meaning
(`prefill-router`, `chunked-prefill`, `prefill-cache`), nor one of another trade (`eval-decode`, `train-prefill-0`). It
must never know where the name stands, nor what the pod runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from admission.recognition.evidence import PhaseSign, runs_beside_engines

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SPLIT = re.compile(r"[-_. ]+")
_PHASES: Final = {"prefill": PhaseSign.PREFILL, "prefiller": PhaseSign.PREFILL, "decode": PhaseSign.DECODE}
# Words that turn the meaning of the one behind or before them.
_BEFORE: Final = frozenset(
    {
        *("no", "non", "without", "disable", "chunked", "chunk", "prefix", "long", "fast"),
        *("speculative", "spec", "draft"),
    }
)
_AFTER: Final = frozenset({"cache", "only", "heavy", "free", "optimized", "url", "uri", "decode", "prefill", "length"})
# Whoever does this serves nobody, wherever the word stands.
_OTHER_TRADES: Final = frozenset(
    {
        *("bench", "benchmark", "test", "tests", "tester", "eval", "quality", "profile", "profiler", "tuner"),
        *("validator", "simulator", "predictor", "warmer", "warmup", "loader", "download", "downloader", "builder"),
        *("dataset", "client", "replay", "trace", "train", "trainer", "training", "finetune", "notebook", "exporter"),
        *("monitor", "dashboard", "metrics", "debug", "migration", "converter", "feature", "quantize"),
    }
)


def phase_in_name(name: str, more: Mapping[str, PhaseSign] = MappingProxyType({})) -> PhaseSign | None:
    """`chat-prefill-0` and `VllmPrefillWorker` name prefill; a name with both words, or a turned one, names none.

    `more`: words that mean a phase in this place.
    """
    tokens = tokens_of(name)
    value = {word: sign for word in tokens if (sign := _PHASES.get(word) or more.get(word))}
    if len(set(value.values())) != 1 or runs_beside_engines(tokens) or not _OTHER_TRADES.isdisjoint(tokens):
        return None
    word, sign = next(iter(value.items()))
    at = tokens.index(word)
    turned = (at > 0 and tokens[at - 1] in _BEFORE) or (at + 1 < len(tokens) and tokens[at + 1] in _AFTER)
    return None if turned else sign


def tokens_of(name: str) -> list[str]:
    """The words of a name, in small letters: `VllmPrefillWorker` has three."""
    return _SPLIT.split(_CAMEL.sub("-", name[:253]).lower())
