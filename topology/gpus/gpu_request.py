"""What one pod asks of GPUs, as one value, whichever form it was written in (topology/gpus/request.py reads them)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from topology.gpus.forms import FORMS, WHOLE

BY_NAME: Final = {form.name: form for form in FORMS}


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """One pod's wish. `count` cards (or MIG instances, listed in `profiles`); everything else is per card.

    `memory_mib` and `memory_milli` (thousandths of the card's memory) are 0 where nothing is said; `whole` then tells
    that the pod takes whole cards. `compute_milli` is 0 where the form sets no compute share. `peak_mib` is 0 where the
    pod never holds more than it asks for. `parts` are the containers' own requests where several ask for parts of
    cards; the rest then is all of their cards with the largest amounts.
    """

    form: str
    count: int = 1
    memory_mib: int = 0
    memory_milli: int = 0
    compute_milli: int = 0
    peak_mib: int = 0
    profiles: tuple[tuple[str, int], ...] = ()
    whole: bool = False
    pinned: tuple[str, ...] = ()
    parts: tuple[GpuRequest, ...] = ()

    @property
    def isolates(self) -> bool:
        """Nobody on the same card can take the pod's memory."""
        return BY_NAME[self.form].isolates

    @property
    def predicted(self) -> bool:
        """Only the node can be chosen: which card it becomes is a prediction."""
        return not self.pinned

    @property
    def plain(self) -> bool:
        """Whole GPUs and nothing more: counted by amounts alone, as ever."""
        return self.form == WHOLE.name and not (self.memory_mib or self.peak_mib)

    @property
    def picks(self) -> str:
        """The rule by which its owner takes a card."""
        return BY_NAME[self.form].picks


@lru_cache(maxsize=64)
def whole_gpus(count: int) -> GpuRequest:
    """The plain request for whole GPUs; shared, since most pods have one."""
    return GpuRequest(form=WHOLE.name, count=count, whole=True)
