"""Phase and gang of a pod, read once for all pods that are alike.

A Deployment's pods differ in nothing that is read here, so a gang of two hundred is read once or twice. The key holds
every field that the readers may look at, in the bytes of the key itself: equal keys are equal pods. Bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from admission.gangs.identity import GangReading, read_gang
from admission.recognition.command_line import engine_calls
from admission.recognition.ray_groups import without_workers
from admission.recognition.signals import PhaseReading, Rules, read_phase
from topology.objects import Container, Metadata, Pod, PodSpec

_KEPT: Final = 512
_LONGEST_KEY: Final = 16 * 1024  # bytes; longer ones are read anew each time


class _Read(msgspec.Struct, frozen=True, array_like=True):
    """Whatever phase and gang are read from, and nothing else."""

    name: str
    labels: dict[str, str] | None
    annotations: dict[str, str] | None
    containers: tuple[Container, ...]


_ENCODE: Final = msgspec.json.Encoder().encode
_DECODE: Final = msgspec.json.Decoder(_Read).decode


@dataclass(frozen=True, slots=True)
class Readings:
    phase: PhaseReading
    gang: GangReading
    alone: bool  # the leader of a copy whose workers nothing can tell


def readings_of(pod: Pod, rules: Rules) -> Readings:
    """What `read_phase` and `read_gang` say of this pod. Never raises."""
    meta = pod.metadata
    # What a controller appends to a name is another one for every pod and says nothing.
    name = meta.generate_name or meta.name.rstrip("0123456789")
    read = _Read(name.rstrip("-"), meta.labels, meta.annotations, pod.spec.containers)
    key = _ENCODE(read)
    return _kept(key, rules) if len(key) <= _LONGEST_KEY else _anew(read, rules)


@lru_cache(maxsize=_KEPT)
def _kept(key: bytes, rules: Rules) -> Readings:
    return _anew(_DECODE(key), rules)


def _anew(read: _Read, rules: Rules) -> Readings:
    pod = Pod(
        Metadata(name=read.name, labels=read.labels, annotations=read.annotations),
        PodSpec(containers=read.containers),
    )
    calls = engine_calls(pod)
    phase = read_phase(pod, calls, rules)
    return Readings(phase, read_gang(pod, calls), without_workers(pod, calls, phase))
