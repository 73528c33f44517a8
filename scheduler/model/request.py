"""What is asked: one pod, or one gang, as values a plan can be made from."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.model.gang_group import Group, group_of
from topology.gpus.allocations import GpuAllocation, allocation_of_request
from topology.gpus.gpu_request import GpuRequest
from topology.gpus.request import readable_gpus
from topology.labels import (
    ALL_PAIRS,
    DECODE,
    DEFAULT_REACH_SIZE_BYTES,
    DEFAULT_REACH_US,
    PHASE,
    PHASES,
    PREFILL,
    REQUIRED,
)
from topology.objects import Pod, PodSpec
from topology.resources import GPU, Amounts, readable_request


@dataclass(frozen=True, slots=True)
class PodRequest:
    """One pod that wants a place. `amounts` is what it takes from a node (cpu in thousandths, the rest whole).

    `gpu` is what it asks of cards, in whatever form; `problem` is why that cannot be read, and then no node will do.
    `group` is what of its gang belongs under one PCI root with it, where the gang is planned as a whole. `unit` names
    the atomic unit that it is part of (an LWS group), whose pods have places together or not at all; "" for none.
    """

    uid: str
    namespace: str
    name: str
    phase: str
    amounts: Amounts
    spec: PodSpec = field(default_factory=PodSpec)
    gpu: GpuRequest | None = None
    problem: str = ""
    group: Group | None = None
    unit: str = ""

    @property
    def gpus(self) -> int:
        """Whole GPUs asked for."""
        return self.amounts.get(GPU, 0)

    @property
    def hold(self) -> GpuAllocation | None:
        """Its part of a node's cards once it has a place, where amounts do not say it all."""
        return allocation_of_request(self.gpu, self.phase)


def pod_request_of(pod: Pod, uid: str = "", namespace: str = "", name: str = "") -> PodRequest:
    """A pod as a request, identified by its metadata unless told otherwise. Never raises: see `PodRequest.problem`."""
    meta = pod.metadata
    gpu, wrong = readable_gpus(pod.spec, meta.annotations)
    amounts, bad = readable_request(pod.spec)
    value = wrong or bad
    return PodRequest(
        uid=uid or meta.uid,
        namespace=namespace or meta.namespace,
        name=name or meta.name,
        phase=meta.label(PHASE),
        amounts=amounts,
        spec=pod.spec,
        gpu=gpu,
        problem="" if value is None else str(value),
    )


@dataclass(frozen=True, slots=True)
class Partner:
    """A pod of the gang that already has a place, or may take one of several.

    `nodes` is one name when it is bound; all nodes its own affinity allows when it is released and not yet bound.
    `spec` says what it holds there, where that is known.
    """

    uid: str
    name: str
    phase: str
    nodes: tuple[str, ...]
    bound: bool = True
    spec: PodSpec | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ReachBound:
    """How near the phases must be: one-way p99 microseconds for one message of `size_bytes`.

    To every partner; with `nearest` one partner within the bound is enough.
    """

    us: float = DEFAULT_REACH_US
    size_bytes: int = DEFAULT_REACH_SIZE_BYTES
    nearest: bool = False


@dataclass(frozen=True, slots=True)
class GangRequest:
    """The pods of one gang that want places, the partners that have them, and what must hold.

    `minimum` is pods per phase over members and partners together: below it the gang is not placed at all.
    """

    namespace: str
    name: str
    members: tuple[PodRequest, ...]
    partners: tuple[Partner, ...] = ()
    bound: ReachBound = ReachBound()
    pairing: str = ALL_PAIRS
    mode: str = REQUIRED
    min_prefill: int = 1
    min_decode: int = 1

    @property
    def group(self) -> Group | None:
        """What belongs under one PCI root, by the members alone."""
        each = {phase: [m.gpus for m in self.members if m.phase == phase] for phase in PHASES}
        return group_of(each[PREFILL], each[DECODE])

    def still_needed(self, phase: str) -> int:
        """Members of this phase that must be placed for the gang to reach its minimum."""
        minimum = self.min_prefill if phase == PREFILL else self.min_decode
        return max(0, minimum - sum(1 for p in self.partners if p.phase == phase))

    @property
    def enough(self) -> bool:
        """There are as many pods as the minimum asks for, if all of them found a place."""
        return all(self.still_needed(phase) <= sum(1 for m in self.members if m.phase == phase) for phase in PHASES)

    @property
    def satisfied(self) -> bool:
        """The partners alone reach the minimum: whoever is left joins one by one."""
        return self.still_needed(PREFILL) == 0 and self.still_needed(DECODE) == 0
