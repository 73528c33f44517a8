"""MIG instances where the driver shows them: which slices pods hold on each GPU, and what one pod more would do to it.

Where an agent tells the places of the instances nothing is predicted but what the kubelet has not heard of yet. A pod
gets an instance that is there and idle, so only their places count. The measure is that of
topology/gpus/mig_placement.py. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from topology.facts.report import Gpu, Health
from topology.gpus.mig_placement import fragmentation, taken
from topology.gpus.mig_profiles import MigGpu, base_name, mig_gpu


class SeenInstance(NamedTuple):
    """One instance that a pod can have; `start` in memory slices."""

    uuid: str
    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class SeenMig:
    """The GPUs of a node in MIG mode, in the order of their index, with their instances by place."""

    device: MigGpu
    gpus: tuple[tuple[SeenInstance, ...], ...]

    def used(self, in_use: Collection[str], held: Mapping[str, int]) -> tuple[tuple[SeenInstance, ...], ...]:
        """The instances on each GPU that pods hold, `held` by profile: those the kubelet names (`in_use`), then the
        first that are idle."""
        left: dict[str, int] = {}
        for name, count in held.items():
            left[base_name(name)] = left.get(base_name(name), 0) + count
        found: set[str] = set()
        for named in (True, False):
            for instance in (each for gpu in self.gpus for each in gpu):
                name = base_name(instance.profile)
                if instance.uuid not in found and left.get(name) and (instance.uuid in in_use or not named):
                    left[name] -= 1
                    found.add(instance.uuid)
        return tuple(tuple(each for each in gpu if each.uuid in found) for gpu in self.gpus)

    def added(
        self, in_use: Collection[str], held: Mapping[str, int], profile: str, mix: tuple[tuple[str, float], ...]
    ) -> float | None:
        """What one more pod with an instance of this profile adds to the fragmentation of its GPU, on the idle instance
        that harms least; None where none is idle. `mix` are the profiles that pods ask for, with weights."""
        wanted, least = base_name(profile), None
        for gpu, busy in zip(self.gpus, self.used(in_use, held), strict=True):
            slices = taken(self.device, [(each.profile, each.start) for each in busy])
            for idle in gpu:
                if idle in busy or base_name(idle.profile) != wanted:
                    continue
                after = slices | taken(self.device, [(idle.profile, idle.start)])
                placement_cost = _fragmentation(self.device, after, mix) - _fragmentation(self.device, slices, mix)
                least = placement_cost if least is None else min(least, placement_cost)
        return least


@lru_cache(maxsize=8192)
def _fragmentation(device: MigGpu, used: int, mix: tuple[tuple[str, float], ...]) -> float:
    return fragmentation(device, used, dict(mix))


def seen_mig(gpus: Sequence[Gpu], total_mib: Mapping[str, int]) -> SeenMig | None:
    """From an agent's GPUs and their memory by uuid; None where no GPU is in MIG mode, where they are of several kinds
    or of one that nobody knows, or where the driver will not show the place of an instance."""
    split = [gpu for gpu in gpus if gpu.mig is not None and gpu.mig.enabled and gpu.health is not Health.LOST]
    devices = {mig_gpu(gpu.name or "", total_mib.get(gpu.uuid, 0)) for gpu in split}
    device = devices.pop() if len(devices) == 1 else None
    if device is None:
        return None
    found = []
    for gpu in split:
        instances = []
        for each in gpu.mig.instances if gpu.mig is not None else ():
            if each.profile is None or each.start_slice is None:
                return None
            if each.uuid is not None:
                instances.append(SeenInstance(each.uuid, each.profile, each.start_slice))
        found.append(tuple(sorted(instances, key=lambda each: (each.start, each.uuid))))
    return SeenMig(device, tuple(found))
