"""One pod in, one decision out: what the webhook writes on it, says about it, or refuses.

Rules (design, section 7):

1.  Pods that have a node, mirror pods and pods with `isochrone.dev/enabled: "false"` are left alone.
2.  A pod *asks* when a person put our phase or gang label on it, or when its namespace is enabled. Others that are
    recognised are tagged but never held back, and their scheduler is never changed.
3.  `required` pods get our gate and a PodGroup name, always together. A PodGroup name that is there stays. A phase
    that only a name tells is never `required`.
4.  A pod of a third scheduler, or of another gang system, gets labels and annotations only.
5.  Nothing that is there is overwritten, but for the default scheduler's name, and what only the controller writes is
    taken off. Tagging a tagged pod does nothing.
6.  Only pods that ask can be refused, and only for values that nobody could mean.

It must never know the cluster, other pods, names or UIDs: the same pod gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from admission.recognition.existing_group import ExistingGroup, existing_group
from admission.recognition.gang_identity import podgroup_name
from admission.recognition.key_places import hints, unread_claims
from admission.recognition.pod_settings import Mode, PodSettings, read_settings
from admission.recognition.readings import readings_of
from admission.recognition.signals import BUILT_IN, Confidence, Phase, PhaseReading, Rules
from admission.webhook import json_patch
from admission.webhook.json_patch import Add, Operation
from admission.webhook.nonsense import above_role_size, wrong_labels
from topology import labels
from topology.bad_input import BadInput
from topology.gpus.request import readable_gpus
from topology.objects import Container, Pod

_MAX_CONFLICT = 1000  # an Event's note may have 1024 characters
_MAX_WARNING = 240  # the API server cuts warnings above 256 bytes
_OUR_WORDS = (labels.DECISION, labels.PLACEMENT)  # the controller believes them, so nobody else may bring them
_SET_PHASE = f"set label {labels.PHASE} to {labels.PREFILL} or {labels.DECODE}"
# msgspec gives every container without `resources` this very object, which tells absent from empty: an empty map,
# or one with claims only, must be added to and not replaced.
_NO_RESOURCES = Container().resources


class Entry(StrEnum):
    """Which selector of the webhook configuration matched."""

    LABELLED = "labelled"
    NAMESPACE = "namespace"
    RECOGNISE = "recognise"


@dataclass(frozen=True, slots=True)
class Tagging:
    """What to do with one pod. `namespace` is where its gang and PodGroup live."""

    namespace: str
    ops: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    denied: str | None = None
    phase: Phase | None = None
    gang: str | None = None
    mode: Mode | None = None
    signal: str = ""


def tag(pod: Pod, namespace: str, entry: Entry, rules: Rules = BUILT_IN) -> Tagging:
    """Decides for one pod as it is created. `namespace` is the request's: the pod's own may still be empty."""
    own = asks_by_label(pod)
    if _out_of_scope(pod) or (entry is Entry.LABELLED and not own):
        return Tagging(namespace)
    asks = own or entry is Entry.NAMESPACE
    settings, wrong = read_settings(pod.metadata.annotations, asks)
    read = readings_of(pod, rules)
    reading, gang = read.phase, read.gang
    if asks and (own or reading.phase):
        wrong = (*wrong_labels(pod), *wrong, *above_role_size(pod), *_wrong_gpus(pod))
        if wrong:
            return Tagging(namespace, denied=" ".join(sentence(error) for error in wrong))
    if reading.phase is None:
        told = _told_of_conflict(pod, reading) if asks else ()
        why = [*_why_untagged(pod, reading, own, asks), *(hints(pod) if asks else ())]
        return Tagging(namespace, tuple(told), _short(why))
    if gang.gang is None:
        why = [f"phase {reading.phase} ({reading.signal}) but no gang; {gang.missing}"]
        return Tagging(namespace, warnings=_short([*why, *(hints(pod) if asks else ())]))
    # A name alone is worth a label and a score; nobody should wait for a partner because of it.
    unheld = ""
    if not own and reading.confidence is Confidence.LOW:
        unheld = f"phase {reading.phase} is only named ({reading.signal}): not held; {_SET_PHASE}"
    elif not own and read.alone:
        unheld = (
            f"its Ray workers tell no phase: not held; set labels {labels.PHASE} and {labels.GANG} on both templates"
        )
    return _write(pod, namespace, asks, unheld, settings, reading, gang.gang, gang.signal, wrong)


def asks_by_label(pod: Pod) -> bool:
    """Whether a person put our phase or gang label there.

    Labels that the webhook wrote are not a person's: the signal says which. A pod that we held asks again when it is
    created anew from a copy, for the copy has lost the gate.
    """
    meta = pod.metadata
    if not labels.labelled(meta.labels):
        return False
    signal, group = meta.annotation(labels.SIGNAL), meta.annotation(labels.GROUP_NAME)
    return not signal or labels.PREFIX in signal or (bool(group) and group == podgroup_name(meta.label(labels.GANG)))


def _out_of_scope(pod: Pod) -> bool:
    return (
        bool(pod.spec.node_name)
        or labels.MIRROR_POD in (pod.metadata.annotations or {})
        or pod.metadata.label(labels.ENABLED).lower() == "false"
    )


def _wrong_gpus(pod: Pod) -> list[BadInput]:
    """A GPU request that no planner could read: better said now than when the pod waits."""
    _, bad = readable_gpus(pod.spec, pod.metadata.annotations)
    return [] if bad is None else [bad]


def sentence(error: BadInput) -> str:
    text = str(error)
    return text if text.endswith("?") else text + "."


def _why_untagged(pod: Pod, reading: PhaseReading, own: bool, asks: bool) -> list[str]:
    """What a person should hear about a pod without a phase; nothing where no phase is to be expected."""
    if reading.conflicts:
        return list(reading.conflicts)
    if not reading.engine:
        return []
    if reading.mixed:
        return [f"{reading.signal} serves both phases: not tagged; {_SET_PHASE}"] if own else []
    if reading.signal and asks:
        return [f"{reading.signal} does not tell the phase: not tagged; {_SET_PHASE}"]
    if own and labels.GANG in (pod.metadata.labels or {}):
        return [f"{labels.GANG} is set but no phase was recognised: not tagged; {_SET_PHASE}"]
    return []


def _told_of_conflict(pod: Pod, reading: PhaseReading) -> list[Add]:
    """An untagged pod whose signals disagree carries why, so that the controller can say it where people look."""
    if not reading.conflicts or labels.PHASE in (pod.metadata.labels or {}):
        return []
    entry = {labels.CONFLICT: _in_one(reading.conflicts)}
    return json_patch.add_entries(("metadata", "annotations"), pod.metadata.annotations, entry)


def _write(
    pod: Pod,
    namespace: str,
    asks: bool,
    unheld: str,
    settings: PodSettings,
    reading: PhaseReading,
    gang: str,
    gang_signal: str,
    wrong: tuple[BadInput, ...],
) -> Tagging:
    assert reading.phase is not None
    scheduler = pod.spec.scheduler_name or labels.DEFAULT_SCHEDULER
    group = existing_group(pod)
    third = scheduler not in (labels.DEFAULT_SCHEDULER, labels.VOLCANO_SCHEDULER)
    if third and not asks:
        return Tagging(namespace)
    foreign_group = group is not None and not group.volcano
    volcano = scheduler == labels.VOLCANO_SCHEDULER or (asks and not foreign_group)
    full = volcano and not third and not foreign_group
    # What is not held is stored as preferred, so that the controller never waits for it.
    mode: Mode = settings.mode if full and asks and not unheld else "preferred"
    held = mode == "required"
    signal = pod.metadata.annotation(labels.SIGNAL) or f"phase: {reading.signal}; gang: {gang_signal}"

    annotations = {labels.REACH_MODE: str(mode), labels.SIGNAL: signal}
    if reading.conflicts:
        annotations[labels.CONFLICT] = _in_one(reading.conflicts)
    if full and labels.TASK_SPEC not in (pod.metadata.labels or {}):
        annotations[labels.TASK_SPEC] = reading.phase
    if held and group is None:
        annotations[labels.GROUP_NAME] = podgroup_name(gang)
    forged = [key for key in _OUR_WORDS if key in (pod.metadata.annotations or {})]
    ops: list[Operation] = [json_patch.removed("metadata", "annotations", key) for key in forged]
    ops += json_patch.add_entries(
        ("metadata", "labels"), pod.metadata.labels, {labels.PHASE: reading.phase, labels.GANG: gang}
    )
    ops += json_patch.add_entries(("metadata", "annotations"), pod.metadata.annotations, annotations)
    if full and scheduler != labels.VOLCANO_SCHEDULER:
        ops.append(Add(json_patch.pointer("spec", "schedulerName"), labels.VOLCANO_SCHEDULER))
    if held and not pod.has_gate(labels.GATE):
        ops += json_patch.add_item(("spec", "schedulingGates"), pod.spec.scheduling_gates, {"name": labels.GATE})
    if full:
        ops += _marker(pod)
    warnings = [f"{key} is written by Isochrone alone: removed" for key in forged]
    warnings += [*reading.conflicts, *map(sentence, wrong)]
    if asks:
        warnings += [*hints(pod), *unread_claims(pod)]
    task = pod.metadata.label(labels.TASK_SPEC) or pod.metadata.annotation(labels.TASK_SPEC)
    if held and group is None and task not in ("", reading.phase):
        warnings.append(f"{labels.TASK_SPEC} is {task!r}: Volcano does not count the pod as {reading.phase}; remove it")
    if unheld and asks:
        warnings.append(unheld)
    if not asks and settings.mode == "required":
        warnings.append(f"{labels.REACH_MODE} is required, but a pod is held only if it asks; {_SET_PHASE}")
    if asks and not full:
        warnings.append(_only_annotated(scheduler, third, group))
    return Tagging(namespace, tuple(ops), _short(warnings), None, reading.phase, gang, mode, signal)


def _marker(pod: Pod) -> list[Add]:
    """The marker resource on the first container; extended resources need requests and limits alike."""
    if not pod.spec.containers:
        return []
    resources = pod.spec.containers[0].resources
    path: tuple[str | int, ...] = ("spec", "containers", 0, "resources")
    ops = [Add(json_patch.pointer(*path), {})] if resources is _NO_RESOURCES else []
    entry = {labels.MARKER_RESOURCE: "0"}
    ops += json_patch.add_entries((*path, "requests"), resources.requests, entry)
    return ops + json_patch.add_entries((*path, "limits"), resources.limits, entry)


def _only_annotated(scheduler: str, third: bool, group: ExistingGroup | None) -> str:
    if third:
        return (
            f"schedulerName is {scheduler!r}: labelled only, not held or placed by Isochrone; "
            f"set schedulerName to {labels.VOLCANO_SCHEDULER}"
        )
    assert group is not None
    return f"the pod is in a {group.system} group ({group.key}): labelled only, not held or placed by Isochrone"


def _in_one(conflicts: tuple[str, ...]) -> str:
    return "; ".join(conflicts)[:_MAX_CONFLICT]


def _short(warnings: list[str]) -> tuple[str, ...]:
    return tuple(text if len(text) <= _MAX_WARNING else text[: _MAX_WARNING - 3] + "..." for text in warnings)
