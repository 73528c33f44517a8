"""MIG profiles and where they may start, card by card: the hardware's own table.

Source: NVIDIA MIG User Guide, "Supported MIG Profiles" (profiles and instance counts per product) and what
`nvidia-smi mig -lgipp` prints as `{starts}:memory slices`. A card has eight memory slices (four on A30 and RTX PRO)
and one compute slice fewer; starts and sizes are memory slices. B300 and
GB200 names: NVIDIA mig-parted device configurations (which also call the whole GB200 7g.189gb).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile on one card: the memory slices at which an instance may start, and how many it takes."""

    name: str
    starts: tuple[int, ...]
    size: int

    @property
    def masks(self) -> tuple[int, ...]:
        """Every placement as a set of memory slices, bit i for slice i, in the order of starts."""
        return tuple(((1 << self.size) - 1) << start for start in self.starts)


@dataclass(frozen=True, slots=True)
class MigGpu:
    """A card that can be split. `products` are parts of its product name, `memory_gb` the memory in that name."""

    name: str
    products: tuple[str, ...]
    memory_gb: tuple[int, ...]
    slices: int
    profiles: tuple[Profile, ...]

    def profile(self, name: str) -> Profile | None:
        """The profile of this name, media and graphics suffixes left aside."""
        base = base_name(name)
        return next((p for p in self.profiles if p.name == base), None)


def _eight(one: int, two: int, half: int, full: int) -> tuple[Profile, ...]:
    """The seven-instance layout that A100, H100, H200, B200 and B300 share, by the gigabytes in the names."""
    return (
        Profile(f"1g.{one}gb", (0, 1, 2, 3, 4, 5, 6), 1),
        Profile(f"1g.{two}gb", (0, 2, 4, 6), 2),
        Profile(f"2g.{two}gb", (0, 2, 4), 2),
        Profile(f"3g.{half}gb", (0, 4), 4),
        Profile(f"4g.{half}gb", (0,), 4),
        Profile(f"7g.{full}gb", (0,), 8),
    )


def _four(one: int, two: int, full: int) -> tuple[Profile, ...]:
    """The four-instance layout of A30 and RTX PRO 6000."""
    return (
        Profile(f"1g.{one}gb", (0, 1, 2, 3), 1),
        Profile(f"2g.{two}gb", (0, 2), 2),
        Profile(f"4g.{full}gb", (0,), 4),
    )


MIG_GPUS: Final = (
    MigGpu("A30", ("A30",), (24,), 4, _four(6, 12, 24)),
    MigGpu("A100-40GB", ("A100",), (40,), 8, _eight(5, 10, 20, 40)),
    MigGpu("A100-80GB", ("A100", "A800"), (80,), 8, _eight(10, 20, 40, 80)),
    MigGpu("H100-80GB", ("H100", "H800"), (80,), 8, _eight(10, 20, 40, 80)),
    MigGpu("H100-94GB", ("H100",), (94,), 8, _eight(12, 24, 47, 94)),
    MigGpu("H100-96GB", ("H100", "GH200", "H20"), (96,), 8, _eight(12, 24, 48, 96)),
    MigGpu("H200-141GB", ("H200",), (141,), 8, _eight(18, 35, 71, 141)),
    MigGpu("B200-180GB", ("B200",), (180, 183), 8, _eight(23, 45, 90, 180)),
    MigGpu("GB200-186GB", ("GB200",), (186, 189), 8, (*_eight(23, 47, 93, 186), Profile("7g.189gb", (0,), 8))),
    MigGpu("B300-269GB", ("B300",), (269, 288), 8, _eight(34, 67, 135, 269)),
    MigGpu("RTX-PRO-6000", ("RTX-PRO-6000",), (96,), 4, _four(24, 48, 96)),
)

_SUFFIX: Final = re.compile(r"(?:[.+-](?:me(?:\.all)?|gfx))+$")
_NAME: Final = re.compile(r"([1-7])g\.([0-9]{1,3})gb")


def base_name(name: str) -> str:
    """A profile without its media or graphics suffix, as nvidia-smi (`1g.10gb+me`) or a resource (`1g.10gb.me`) says
    it."""
    return _SUFFIX.sub("", name)


@cache
def _all_names() -> frozenset[str]:
    return frozenset(p.name for gpu in MIG_GPUS for p in gpu.profiles)


def known_profile(name: str) -> str | None:
    """The profile's base name if some card has it, else None."""
    base = base_name(name)
    return base if base in _all_names() else None


def profile_mib(name: str) -> int:
    """The most memory an instance of this name can have, in MiB: its gigabytes taken as GiB. 0 for an unknown name."""
    match = _NAME.fullmatch(base_name(name))
    return int(match[2]) * 1024 if match and known_profile(name) else 0


def mig_gpu(product: str, memory_mib: int = 0) -> MigGpu | None:
    """The card of a product name as GPU feature discovery writes it, such as `NVIDIA-H100-80GB-HBM3`, or None.

    Products that come in several sizes are told apart by the gigabytes in the name, else by the memory of the card.
    """
    value = product.upper().replace(" ", "-").replace("_", "-")
    tokens = set(re.split(r"[^A-Z0-9]+", value))
    able = [c for c in MIG_GPUS if any(p in tokens or ("-" in p and p in value) for p in c.products)]
    if len(able) > 1:
        gigabytes = [int(n) for n in re.findall(r"([0-9]+)GB", value)]
        size = gigabytes[0] if gigabytes else round(memory_mib / 1024)
        able = [min(able, key=lambda c: (min(abs(gb - size) for gb in c.memory_gb), c.name))] if size else []
    return able[0] if able else None
