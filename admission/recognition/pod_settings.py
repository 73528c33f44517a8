"""What a pod's isochrone.dev annotations ask for.

Decides every setting's value or says in one sentence each what is wrong with it, all of them at once. Used by the
webhook on what a person wrote and by the controller on what the webhook stored. It must never know the cluster, the
pod's phase or its gang.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from topology import labels, units
from topology.bad_input import BadInput

Mode = Literal["required", "preferred"]
Pairing = Literal["all", "nearest"]

SETTING_KEYS = (
    labels.REACH,
    labels.REACH_SIZE,
    labels.REACH_MODE,
    labels.PAIRING,
    labels.MIN_PREFILL,
    labels.MIN_DECODE,
)
_COUNT = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class PodSettings:
    """The settings of one pod, defaults filled in. A minimum of None means the gang's default: one."""

    reach_us: float = labels.DEFAULT_REACH_US
    reach_size_bytes: int = labels.DEFAULT_REACH_SIZE_BYTES
    mode: Mode = "preferred"
    pairing: Pairing = "all"
    min_prefill: int | None = None
    min_decode: int | None = None


def read_settings(annotations: Mapping[str, str] | None, requests: bool) -> tuple[PodSettings, tuple[BadInput, ...]]:
    """The settings, and everything that is wrong with them; a wrong value counts as its default.

    `requests`: the pod asks for Isochrone, so that the bound is a hard limit unless it says otherwise. A pod that the
    webhook has tagged says its mode itself.
    """
    given = annotations or {}
    return _read(tuple((key, given[key]) for key in SETTING_KEYS if key in given), requests)


# The pods of a gang carry the same settings, and a controller reads them at every change of every pod.
@lru_cache(maxsize=1024)
def _read(stated: tuple[tuple[str, str], ...], requests: bool) -> tuple[PodSettings, tuple[BadInput, ...]]:
    given = dict(stated)
    wrong: list[BadInput] = []
    reach_us, reach_size_bytes = labels.DEFAULT_REACH_US, labels.DEFAULT_REACH_SIZE_BYTES
    if labels.REACH in given:
        try:
            reach_us = units.parse_duration_us(given[labels.REACH], labels.REACH)
        except BadInput as error:
            wrong.append(error)
    if labels.REACH_SIZE in given:
        try:
            reach_size_bytes = units.parse_size_bytes(given[labels.REACH_SIZE], labels.REACH_SIZE)
        except BadInput as error:
            wrong.append(error)
    mode: Mode = "required" if requests else "preferred"
    match given.get(labels.REACH_MODE):
        case None:
            pass
        case "required" | "preferred" as mode:
            pass
        case other:
            wrong.append(not_one_of(labels.REACH_MODE, other, (labels.REQUIRED, labels.PREFERRED)))
    pairing: Pairing = "all"
    match given.get(labels.PAIRING):
        case None:
            pass
        case "all" | "nearest" as pairing:
            pass
        case other:
            wrong.append(not_one_of(labels.PAIRING, other, (labels.ALL_PAIRS, labels.NEAREST)))
    settings = PodSettings(
        reach_us=reach_us,
        reach_size_bytes=reach_size_bytes,
        mode=mode,
        pairing=pairing,
        min_prefill=_count(given, labels.MIN_PREFILL, wrong),
        min_decode=_count(given, labels.MIN_DECODE, wrong),
    )
    return settings, tuple(wrong)


def not_one_of(field: str, value: str, allowed: tuple[str, str]) -> BadInput:
    """The sentence for a word outside a closed set of two, with the likely meaning when there is one."""
    hint = difflib.get_close_matches(value.strip().lower()[:40], allowed, n=1)
    advice = f'use "{allowed[0]}" or "{allowed[1]}"'
    return BadInput(field, value, f'{advice}. Did you mean "{hint[0]}"?' if hint else advice)


def _count(given: Mapping[str, str], field: str, wrong: list[BadInput]) -> int | None:
    if field not in given:
        return None
    text = given[field]
    count = int(text) if _COUNT.fullmatch(text) else 0
    if count == 0:
        wrong.append(BadInput(field, text, "use a whole number from 1 to 9999"))
        return None
    return count
