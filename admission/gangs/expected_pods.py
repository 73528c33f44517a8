"""Pods that their owners will only make once earlier ones are ready: they are planned for with the others. Pure.

A StatefulSet with the default podManagementPolicy OrderedReady makes pod 1 when pod 0 is ready; an LWS with
startupPolicy LeaderReady makes a group's workers when its leader is. A gang that needs them would wait for ever for
pods that wait for it. So those that exist are planned together with those that are to come, and let go; the room of
the others is kept for a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from admission.gangs.gang_view import GangView
from admission.recognition.replica_group import short_units, size_of, unit_of
from scheduler.model.request import GangRequest, PodRequest, pod_request_of
from topology.gpus.request import readable_gpus
from topology.labels import PHASE, PHASES
from topology.objects import Pod, Workload
from topology.resources import readable_request

WorkloadOf = Callable[[Pod], Workload | None]
"""The workload that controls a pod, as far as it is known."""

TopOf = Callable[[Pod], Workload | None]
"""The workload at the top of a pod's chain of owners, as far as it is known."""

_PREFIX = "expected/"


@dataclass(frozen=True, slots=True)
class Expected:
    """Requests of pods that are to come; and how many of them complete which unit."""

    pods: tuple[PodRequest, ...] = ()
    per_unit: tuple[tuple[str, int], ...] = ()


def is_expected(uid: str) -> bool:
    """Whether a planned uid stands for a pod that does not exist yet."""
    return uid.startswith(_PREFIX)


def expected_of(view: GangView, gang: GangRequest, controller_of: WorkloadOf, top_of: TopOf) -> Expected:
    """Those without which the gang's units, or its minimum, could never be whole."""
    workers, per_unit = _workers(view, top_of)
    more: list[PodRequest] = list(workers)
    for phase in PHASES:
        here = sum(1 for m in gang.members if m.phase == phase) + sum(1 for w in workers if w.phase == phase)
        more += _ordered(view, phase, gang.still_needed(phase) - here, controller_of)
    return Expected(tuple(more), tuple(sorted(per_unit.items())))


def still_to_come(view: GangView, gang: GangRequest, controller_of: WorkloadOf, top_of: TopOf) -> Expected:
    """Of a gang that went already: the rest of its units, and of its minimum, that went with them as pods to come.

    Pods that came meanwhile and are held are among them. What a predecessor kept room for is found again so.
    """
    out = (*view.released, *view.bound)
    workers, per_unit = _rest_of_units(view, top_of)
    more: list[PodRequest] = list(workers)
    for phase in PHASES:
        needed = gang.still_needed(phase) - sum(1 for w in workers if w.phase == phase)
        more += _copies([p for p in out if p.metadata.label(PHASE) == phase], out, phase, needed, controller_of)
    return Expected(tuple(more), tuple(sorted(per_unit.items())))


def come_later(pods: Sequence[Pod], controller_of: WorkloadOf, top_of: TopOf) -> bool:
    """Whether an owner of these pods still wants more and makes them only once these are ready."""
    if any(_leader_first(top_of(p)) for p in pods if unit_of(p)) and short_units(pods):
        return True
    left: dict[str, int] = {}
    for pod in pods:
        workload = controller_of(pod)
        if workload is not None and _in_order(pod, workload):
            uid = workload.metadata.uid
            left[uid] = left.get(uid, _wanted(workload)) - 1
    return any(n > 0 for n in left.values())


def one_after_the_other(pod: Pod, controller_of: WorkloadOf, top_of: TopOf) -> bool:
    """Whether the pod's owner makes some pods only once others are ready, whether it wants more now or not."""
    workload = controller_of(pod)
    in_order = workload is not None and _in_order(pod, workload)
    return in_order or bool(unit_of(pod) and _leader_first(top_of(pod)))


def _leader_first(top: Workload | None) -> bool:
    return top is not None and top.spec.startup_policy == "LeaderReady"


def _in_order(pod: Pod, workload: Workload) -> bool:
    owner = pod.metadata.controller
    in_order = workload.spec.pod_management_policy in ("", "OrderedReady")
    return owner is not None and owner.kind == "StatefulSet" and in_order


def _wanted(workload: Workload) -> int:
    return 1 if workload.spec.replicas is None else workload.spec.replicas


def _workers(view: GangView, top_of: TopOf) -> tuple[list[PodRequest], dict[str, int]]:
    """Workers to come of units that are all held."""
    units = _units((*view.members, *view.released, *view.bound))
    gated = {p.metadata.uid for p in view.members}
    # Of the others the leader runs: the workers come as pods of their own.
    return _missing({unit: pods for unit, pods in units.items() if all(p.metadata.uid in gated for p in pods)}, top_of)


def _rest_of_units(view: GangView, top_of: TopOf) -> tuple[list[PodRequest], dict[str, int]]:
    """Workers that a unit lacks some of whose pods went already."""
    return _missing(_units((*view.released, *view.bound)), top_of)


def _units(pods: Sequence[Pod]) -> dict[str, list[Pod]]:
    units: dict[str, list[Pod]] = {}
    for pod in pods:
        if unit := unit_of(pod):
            units.setdefault(unit, []).append(pod)
    return units


def _missing(units: Mapping[str, Sequence[Pod]], top_of: TopOf) -> tuple[list[PodRequest], dict[str, int]]:
    """What these units lack, where workers come only when their leader is ready."""
    found: list[PodRequest] = []
    per_unit: dict[str, int] = {}
    for unit, mine in sorted(units.items()):
        sample = min(mine, key=lambda p: p.metadata.name)
        top = top_of(sample)
        missing = size_of(sample) - len(mine)
        if missing <= 0 or top is None or not _leader_first(top):
            continue
        template = top.spec.leader_worker_template
        spec, notes = sample.spec, sample.metadata.annotations
        if template is not None:
            spec, notes = template.worker_template.spec, template.worker_template.metadata.annotations
        amounts, gpu = readable_request(spec)[0], readable_gpus(spec, notes)[0]
        phase = sample.metadata.label(PHASE)
        for i in range(missing):
            uid = f"{_PREFIX}{top.metadata.uid}/{unit}/{i}"
            name, namespace = f"{sample.metadata.name}-expected-{i}", sample.metadata.namespace
            found.append(PodRequest(uid, namespace, name, phase, amounts, spec, gpu, unit=unit))
        per_unit[unit] = missing
    return found, per_unit


def _ordered(view: GangView, phase: str, wanted: int, controller_of: WorkloadOf) -> list[PodRequest]:
    """Copies of what a StatefulSet has made so far, as many as the minimum lacks and the StatefulSet still wants."""
    mine = [p for p in view.members if p.metadata.label(PHASE) == phase]
    return _copies(mine, (*view.held, *view.released, *view.bound), phase, wanted, controller_of)


def _copies(
    samples: Sequence[Pod], here: Sequence[Pod], phase: str, wanted: int, controller_of: WorkloadOf
) -> list[PodRequest]:
    """Copies of each ordered owner's first sample, as many as it wants beyond those that are `here`."""
    found: list[PodRequest] = []
    by_owner: dict[str, Pod] = {}
    for pod in samples:
        if (owner := pod.metadata.controller) is not None:
            by_owner.setdefault(owner.uid, pod)
    for uid, sample in sorted(by_owner.items()):
        workload = controller_of(sample)
        if workload is None or not _in_order(sample, workload):
            continue
        live = sum(1 for p in here if (o := p.metadata.controller) is not None and o.uid == uid)
        to_come = _wanted(workload) - live
        for i in range(max(0, min(to_come, wanted - len(found)))):
            like = pod_request_of(sample)
            name = f"{sample.metadata.name}-expected-{i}"
            found.append(replace(like, uid=f"{_PREFIX}{uid}/{i}", name=name, phase=phase))
    return found
