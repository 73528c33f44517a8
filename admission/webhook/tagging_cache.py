"""One decision for all pods of a template.

A Deployment's pods differ in nothing that a decision is made from, so a gang of two hundred is read once or twice. The
key holds every field that is read, in the bytes of the key itself: equal keys are equal pods. Bounded.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from admission.recognition.signals import Rules
from admission.webhook import json_patch
from admission.webhook.tagging import Entry, tag
from topology.objects import Metadata, Pod, PodSpec

_MAX_ENTRIES: Final = 512
_LONGEST_KEY: Final = 16 * 1024  # bytes; longer ones are read anew each time


@dataclass(frozen=True, slots=True)
class Decided:
    """A `Tagging` as an answer carries it: `patch` is a JSON Patch in base64, empty where nothing is written."""

    patch: str
    warnings: tuple[str, ...]
    denied: str | None


class _Read(msgspec.Struct, frozen=True, array_like=True):
    """Whatever a decision is made from, and nothing else."""

    name: str
    generate_name: str
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    spec: PodSpec


_ENCODE: Final = msgspec.json.Encoder().encode
_DECODE: Final = msgspec.json.Decoder(_Read).decode


def decided(pod: Pod, namespace: str, entry: Entry, rules: Rules) -> Decided:
    """What `tag` says of this pod."""
    meta = pod.metadata
    # What a controller appends to a name is another one for every pod and says nothing.
    name = "" if meta.generate_name else meta.name.rstrip("0123456789")
    key = _ENCODE(_Read(name, meta.generate_name, meta.labels, meta.annotations, pod.spec))
    decide = _cached if len(key) <= _LONGEST_KEY else _cached.__wrapped__
    return decide(key, namespace, entry, rules)


@lru_cache(maxsize=_MAX_ENTRIES)
def _cached(key: bytes, namespace: str, entry: Entry, rules: Rules) -> Decided:
    read = _DECODE(key)
    meta = Metadata(name=read.name, generate_name=read.generate_name, labels=read.labels, annotations=read.annotations)
    tagging = tag(Pod(meta, read.spec), namespace, entry, rules)
    patch = base64.b64encode(json_patch.encode(tagging.ops)).decode() if tagging.ops else ""
    return Decided(patch, tagging.warnings, tagging.denied)
