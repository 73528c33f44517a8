"""A pod with a phase and a gang: how far Isochrone goes with it, and everything that is written on it.

Rules: nothing that is there is overwritten, but for the default scheduler's name; what only the controller writes is
taken off; a second pass writes nothing. One function for each thing that is written; their order is the patch's. It
must never know how phase and gang were found, nor what people are warned of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from admission.recognition.existing_group import ExistingGroup
from admission.recognition.gang_identity import podgroup_name
from admission.recognition.pod_settings import Mode
from admission.recognition.signals import Phase
from admission.webhook import json_patch
from admission.webhook.json_patch import Add, Operation
from topology import labels
from topology.objects import Container, Pod

_MAX_CONFLICT: Final = 1000  # an Event's note may have 1024 characters
_CONTROLLERS_KEYS: Final = (labels.DECISION, labels.PLACEMENT)  # the controller believes them: nobody else brings them
# msgspec gives every container without `resources` this very object, which tells absent from empty: an empty map,
# or one with claims only, must be added to and not replaced.
_NO_RESOURCES: Final = Container().resources


@dataclass(frozen=True, slots=True)
class TaggedPod:
    """What is known of a pod that gets tags. `opted_in`: a person, or its namespace, wants Isochrone to hold it."""

    pod: Pod
    opted_in: bool
    phase: Phase
    gang: str
    signal: str
    conflicts: tuple[str, ...]  # signals that disagree
    wanted_mode: Mode
    not_gated_because: str  # "" unless it is one that nobody should wait for
    group: ExistingGroup | None

    @property
    def scheduler(self) -> str:
        """The scheduler's name, Kubernetes' own where none is given."""
        return self.pod.spec.scheduler_name or labels.DEFAULT_SCHEDULER

    @property
    def third_scheduler(self) -> bool:
        """Neither Kubernetes' nor Volcano places it."""
        return self.scheduler not in (labels.DEFAULT_SCHEDULER, labels.VOLCANO_SCHEDULER)

    @property
    def for_volcano(self) -> bool:
        """Volcano places it, in no gang of another system: more than labels and annotations may be written."""
        if self.third_scheduler or (self.group is not None and not self.group.volcano):
            return False
        return self.opted_in or self.scheduler == labels.VOLCANO_SCHEDULER

    @property
    def mode(self) -> Mode:
        """What is not gated is stored as preferred, so that the controller never waits for it."""
        may_wait = self.for_volcano and self.opted_in and not self.not_gated_because
        return self.wanted_mode if may_wait else "preferred"

    @property
    def gated(self) -> bool:
        """It waits for its gang, behind our gate."""
        return self.mode == "required"

    @property
    def forged(self) -> tuple[str, ...]:
        """Annotations that only the controller may write."""
        return tuple(key for key in _CONTROLLERS_KEYS if key in (self.pod.metadata.annotations or {}))


def operations(tagged: TaggedPod) -> tuple[Operation, ...]:
    """The whole patch; empty for a pod that has been tagged already."""
    return tuple(operation for write in _WRITES for operation in write(tagged))


def conflict_alone(pod: Pod, conflicts: tuple[str, ...]) -> tuple[Operation, ...]:
    """For a pod whose signals disagree on its phase: it carries why, so that the controller can say so in an Event."""
    if not conflicts or labels.PHASE in (pod.metadata.labels or {}):
        return ()
    entry = {labels.CONFLICT: _in_one(conflicts)}
    return tuple(json_patch.add_entries(("metadata", "annotations"), pod.metadata.annotations, entry))


def _without_forged(tagged: TaggedPod) -> Iterable[Operation]:
    """Off with what only the controller writes."""
    return (json_patch.removed("metadata", "annotations", key) for key in tagged.forged)


def _phase_and_gang(tagged: TaggedPod) -> Iterable[Operation]:
    """The two labels."""
    entries = {labels.PHASE: tagged.phase, labels.GANG: tagged.gang}
    return json_patch.add_entries(("metadata", "labels"), tagged.pod.metadata.labels, entries)


def _annotations(tagged: TaggedPod) -> Iterable[Operation]:
    """Mode, signal, conflicts, and for Volcano the task and the PodGroup."""
    entries = {labels.REACH_MODE: str(tagged.mode), labels.SIGNAL: tagged.signal}
    if tagged.conflicts:
        entries[labels.CONFLICT] = _in_one(tagged.conflicts)
    if tagged.for_volcano and labels.TASK_SPEC not in (tagged.pod.metadata.labels or {}):
        entries[labels.TASK_SPEC] = tagged.phase
    if tagged.gated and tagged.group is None:
        entries[labels.GROUP_NAME] = podgroup_name(tagged.gang)
    return json_patch.add_entries(("metadata", "annotations"), tagged.pod.metadata.annotations, entries)


def _scheduler_name(tagged: TaggedPod) -> Iterable[Operation]:
    """Volcano's, in place of the default."""
    if tagged.for_volcano and tagged.scheduler != labels.VOLCANO_SCHEDULER:
        yield Add(json_patch.pointer("spec", "schedulerName"), labels.VOLCANO_SCHEDULER)


def _gate(tagged: TaggedPod) -> Iterable[Operation]:
    """Our scheduling gate, behind those that are there."""
    if not tagged.gated or tagged.pod.has_gate(labels.GATE):
        return []
    return json_patch.add_item(("spec", "schedulingGates"), tagged.pod.spec.scheduling_gates, {"name": labels.GATE})


def _marker(tagged: TaggedPod) -> Iterable[Operation]:
    """The marker resource on the first container; extended resources need requests and limits to be the same."""
    if not tagged.for_volcano or not tagged.pod.spec.containers:
        return []
    resources = tagged.pod.spec.containers[0].resources
    path: tuple[str | int, ...] = ("spec", "containers", 0, "resources")
    made = [Add(json_patch.pointer(*path), {})] if resources is _NO_RESOURCES else []
    entry = {labels.MARKER_RESOURCE: "0"}
    made += json_patch.add_entries((*path, "requests"), resources.requests, entry)
    return made + json_patch.add_entries((*path, "limits"), resources.limits, entry)


_WRITES: Final[tuple[Callable[[TaggedPod], Iterable[Operation]], ...]] = (
    _without_forged,
    _phase_and_gang,
    _annotations,
    _scheduler_name,
    _gate,
    _marker,
)
"""Everything that is written on a pod, in the order of the patch."""


def _in_one(conflicts: tuple[str, ...]) -> str:
    return "; ".join(conflicts)[:_MAX_CONFLICT]
