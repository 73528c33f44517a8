"""Which GPUs of a node are joined by NVLink, and how strongly.

Direct links are matched by the peer's PCI address. Links to a switch name the switch and never a peer: every two GPUs
with such links are joined, as strongly as the weaker of them. Public source of the rule: NVIDIA/go-gpuallocator
`internal/links/device.go`; all GPUs of one node behind NVSwitch see each other (NVIDIA Fabric Manager user guide).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from topology.facts.report import Gpu, Health, NvLink, Remote


@dataclass(frozen=True, slots=True)
class NvPair:
    """Two GPUs by uuid (a < b), joined by `links` active NVLinks; `speed_mbps` of all of them, one direction."""

    a: str
    b: str
    links: int
    speed_mbps: int | None
    switched: bool


def nvlink_pairs(gpus: Sequence[Gpu]) -> tuple[NvPair, ...]:
    """Every pair that has NVLink. GPUs that are lost, or whose links are not known, are in no pair.

    Whether links are not known (`nvlinks` in `Gpu.refused`) or not there is the caller's to tell apart.
    """
    usable = sorted((gpu for gpu in gpus if gpu.health is not Health.LOST), key=lambda gpu: gpu.uuid)
    found = []
    for number, a in enumerate(usable):
        for b in usable[number + 1 :]:
            if pair := _pair(a, b):
                found.append(pair)
    return tuple(found)


def _pair(a: Gpu, b: Gpu) -> NvPair | None:
    direct = _to(a, b) if len(_to(a, b)) <= len(_to(b, a)) else _to(b, a)
    if direct:
        return NvPair(a.uuid, b.uuid, len(direct), _speed(direct), switched=False)
    weaker = min((_switched(a), _switched(b)), key=len)
    return NvPair(a.uuid, b.uuid, len(weaker), _speed(weaker), switched=True) if weaker else None


def _to(a: Gpu, b: Gpu) -> list[NvLink]:
    return [
        link
        for link in a.nvlinks
        if link.active and link.remote is not Remote.SWITCH and b.bus_id and link.remote_bus_id == b.bus_id
    ]


def _switched(gpu: Gpu) -> list[NvLink]:
    return [link for link in gpu.nvlinks if link.active and link.remote is Remote.SWITCH]


def _speed(links: Sequence[NvLink]) -> int | None:
    speeds = [link.speed_mbps for link in links]
    return None if None in speeds else sum(speed for speed in speeds if speed is not None)
