"""Where MIG instances may still be placed on a card, and how much of its free memory no instance can use.

Pure arithmetic over memory slices as bits: a card has at most eight, so every answer is exact by enumeration. `used` is
the set of taken slices, bit i for slice i. The free placements are the table's; nothing is searched for on a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from topology.gpus.mig_profiles import MigGpu, Profile


def free_starts(gpu: MigGpu, used: int, profile: str) -> tuple[int, ...]:
    """Slices at which an instance of the profile may start now, ascending. Unknown profiles may start nowhere."""
    found = gpu.profile(profile)
    if found is None:
        return ()
    return tuple(start for start, mask in zip(found.starts, found.masks, strict=True) if not mask & used)


@lru_cache(maxsize=8192)
def _most(masks: tuple[int, ...], used: int) -> int:
    """Most placements of `masks` that overlap neither `used` nor each other."""
    best = 0
    for i, mask in enumerate(masks):
        if not mask & used:
            best = max(best, 1 + _most(masks[i + 1 :], used | mask))
    return best


def most_instances(gpu: MigGpu, used: int, profile: str) -> int:
    """How many more instances of one profile fit at once (what NVML calls the remaining capacity)."""
    found = gpu.profile(profile)
    return _most(found.masks, used) if found is not None else 0


def free_slices(gpu: MigGpu, used: int) -> int:
    """Memory slices nobody has."""
    return gpu.slices - (used & ((1 << gpu.slices) - 1)).bit_count()


def profile_fragmentation(gpu: MigGpu, used: int, profile: str) -> float:
    """1 - U / (s x min(floor(free / s), most)): the share of the memory that could hold instances of this profile, if
    free slices could be moved together, that cannot. 0 to 1, and 0 where none would fit anyway.

    U: slices in the largest packing of the profile into the free placements; s: its size; `most`: its instances on an
    empty card, without which an empty card would count as fragmented. An own definition in the spirit of the FGD
    measure (Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 3).
    """
    found = gpu.profile(profile)
    if found is None:
        return 0.0
    could = min(free_slices(gpu, used) // found.size, _most(found.masks, 0))
    return 1.0 - _most(found.masks, used) / could if could else 0.0


def fragmentation(gpu: MigGpu, used: int, mix: Mapping[str, float]) -> float:
    """`profile_fragmentation` over a mix of profiles (name to weight), weighted; 0 for a mix without weight. 0 to 1."""
    weight = sum(mix.values())
    if weight <= 0:
        return 0.0
    return sum(w * profile_fragmentation(gpu, used, name) for name, w in mix.items()) / weight


def stranded_share(gpu: MigGpu, used: int, profiles: Sequence[str]) -> float:
    """Share of the free memory slices that no placement of any of the profiles covers, 0 to 1; 0 on a full card.

    With a 1g profile among them one slice of eight stays stranded on most cards: the eighth can never hold a 1g.
    """
    free = free_slices(gpu, used)
    if not free:
        return 0.0
    covered = 0
    for name in profiles:
        found = gpu.profile(name)
        for mask in found.masks if found is not None else ():
            if not mask & used:
                covered |= mask
    return 1.0 - covered.bit_count() / free


def best_start(gpu: MigGpu, used: int, profile: str, mix: Mapping[str, float]) -> int | None:
    """Where an instance harms the rest of the mix least: least fragmentation afterwards, then the highest start. None
    where it fits nowhere."""
    found = gpu.profile(profile)
    starts = free_starts(gpu, used, profile)
    if found is None or not starts:
        return None
    mask = (1 << found.size) - 1
    return min(starts, key=lambda s: (fragmentation(gpu, used | mask << s, mix), -s))


def layout(gpu: MigGpu, instances: Sequence[str]) -> tuple[tuple[str, int], ...] | None:
    """A placement of all these instances on one empty card as (profile, start), the largest first; None if there is
    none. Where the real places are not known, this is the prediction."""
    known = [(name, gpu.profile(name)) for name in instances]
    wanted = sorted(((n, p) for n, p in known if p is not None), key=lambda item: (-item[1].size, item[0]))
    if len(wanted) != len(known):
        return None
    placed: list[tuple[str, int]] = []

    def place(depth: int, used: int) -> bool:
        if depth == len(wanted):
            return True
        name, profile = wanted[depth]
        for start, mask in sorted(_placements(profile), reverse=True):
            if not mask & used:
                placed.append((name, start))
                if place(depth + 1, used | mask):
                    return True
                placed.pop()
        return False

    return tuple(placed) if place(0, 0) else None


def _placements(profile: Profile) -> list[tuple[int, int]]:
    return list(zip(profile.starts, profile.masks, strict=True))


def taken(gpu: MigGpu, placed: Sequence[tuple[str, int]]) -> int:
    """The slices of placed instances, (profile, start) each, as a set of bits. Unknown profiles take nothing."""
    used = 0
    for name, start in placed:
        found = gpu.profile(name)
        if found is not None:
            used |= ((1 << found.size) - 1) << start
    return used
