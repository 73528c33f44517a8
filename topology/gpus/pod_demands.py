"""What watched pods ask for, read once for all that ask for the same: most of them come from a few hundred templates.

It decides when two pods ask for the same. It must never decide what that is: `topology.resources` and
`topology.gpus.request` read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from topology.gpus.forms import GPU_ANNOTATIONS
from topology.gpus.gpu_request import GpuRequest
from topology.gpus.request import readable_gpus, requests_gpus
from topology.objects import Pod
from topology.resources import Amounts, readable_request

_KNOWN_LIMIT: Final = 1024
"""Different asks remembered. Above it all are forgotten and read anew."""


@dataclass(frozen=True, slots=True)
class PodDemand:
    """`amounts` is shared, so not to be written to. `problem` is a sentence about what could not be read, or empty."""

    amounts: Amounts
    gpu: GpuRequest | None
    problem: str


class InternedDemands:
    """One per keeper of pods."""

    def __init__(self) -> None:
        self._known: dict[bytes, PodDemand] = {}

    def of(self, pod: Pod) -> PodDemand:
        """What the pod asks for; never raises. What cannot be read counts as in `readable_request`, `readable_gpus`."""
        spec, notes = pod.spec, pod.metadata.annotations
        value = {k: v for k, v in notes.items() if k in GPU_ANNOTATIONS} if notes else None
        key = msgspec.json.encode((spec.containers, spec.init_containers, spec.overhead, value or None), order="sorted")
        demand = self._known.get(key)
        if demand is None:
            if len(self._known) >= _KNOWN_LIMIT:
                self._known.clear()
            demand = self._known[key] = _read(pod)
        return demand


def _read(pod: Pod) -> PodDemand:
    spec, notes = pod.spec, pod.metadata.annotations
    gpu, bad = readable_gpus(spec, notes)
    amounts, wrong = readable_request(spec)
    if not requests_gpus(spec, notes):
        bad = None  # the amounts say it
    value = bad or wrong  # the former names the form
    return PodDemand(amounts, gpu, "" if value is None else str(value))
