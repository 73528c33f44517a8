"""What watched pods ask for, read once for all that ask for the same: most of them come from a few hundred templates.

It decides when two pods ask for the same. It must never decide what that is: `topology.resources` and
`topology.gpus.request` read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from topology.gpus.asked import GpuRequest
from topology.gpus.forms import CARD_ANNOTATIONS
from topology.gpus.request import asks_for_cards, readable_gpus
from topology.objects import Pod
from topology.resources import Amounts, readable_request

_KNOWN_LIMIT: Final = 1024
"""Different asks remembered. Above it all are forgotten and read anew."""


@dataclass(frozen=True, slots=True)
class PodAsk:
    """`amounts` is shared, so not to be written to. `problem` is a sentence about what could not be read, or empty."""

    amounts: Amounts
    gpu: GpuRequest | None
    problem: str


class PodAsks:
    """One per keeper of pods."""

    def __init__(self) -> None:
        self._known: dict[bytes, PodAsk] = {}

    def of(self, pod: Pod) -> PodAsk:
        """What the pod asks for; never raises. What cannot be read counts as in `readable_request`, `readable_gpus`."""
        spec, notes = pod.spec, pod.metadata.annotations
        said = {k: v for k, v in notes.items() if k in CARD_ANNOTATIONS} if notes else None
        key = msgspec.json.encode((spec.containers, spec.init_containers, spec.overhead, said or None), order="sorted")
        ask = self._known.get(key)
        if ask is None:
            if len(self._known) >= _KNOWN_LIMIT:
                self._known.clear()
            ask = self._known[key] = _read(pod)
        return ask


def _read(pod: Pod) -> PodAsk:
    spec, notes = pod.spec, pod.metadata.annotations
    gpu, bad = readable_gpus(spec, notes)
    amounts, wrong = readable_request(spec)
    if not asks_for_cards(spec, notes):
        bad = None  # the amounts say it
    said = bad or wrong  # the former names the form
    return PodAsk(amounts, gpu, "" if said is None else str(said))
