"""One pod in, one decision out: what the webhook writes on it, says about it, or refuses.

Rules (design, section 7):

1.  Pods that have a node, mirror pods and pods with `isochrone.dev/enabled: "false"` are left alone.
2.  A pod has *opted in* when a person put our phase or gang label on it, or when its namespace is enabled. Others that
    are recognised are tagged but never held back, and their scheduler is never changed.
3.  `required` pods get our gate and a PodGroup name, always together. A PodGroup name that is there stays. A phase
    that only a name tells is never `required`.
4.  A pod of a third scheduler, or of another gang system, gets labels and annotations only.
5.  Nothing that is there is overwritten, but for the default scheduler's name, and what only the controller writes is
    taken off (admission.webhook.tagged_pod). Tagging a tagged pod does nothing.
6.  Only pods that opted in can be refused, and only for values that nobody could mean.

It must never know the cluster, other pods, names or UIDs: the same pod gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from admission.recognition.existing_group import existing_group
from admission.recognition.gang_identity import podgroup_name
from admission.recognition.pod_settings import Mode, read_settings
from admission.recognition.readings import Readings, readings_of
from admission.recognition.signals import BUILT_IN, Confidence, Phase, Rules
from admission.webhook.json_patch import Operation
from admission.webhook.nonsense import above_role_size, wrong_labels
from admission.webhook.pod_warnings import SET_PHASE, of_gangless, of_tagged, of_untagged, sentence, shortened
from admission.webhook.tagged_pod import TaggedPod, conflict_alone, operations
from topology import labels
from topology.bad_input import BadInput
from topology.gpus.request import readable_gpus
from topology.objects import Pod


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
    own = labelled_by_person(pod)
    if _out_of_scope(pod) or (entry is Entry.LABELLED and not own):
        return Tagging(namespace)
    opted_in = own or entry is Entry.NAMESPACE
    settings, wrong = read_settings(pod.metadata.annotations, opted_in)
    read = readings_of(pod, rules)
    reading, gang = read.phase, read.gang
    if opted_in and (own or reading.phase):
        refused = " ".join(map(sentence, (*wrong_labels(pod), *wrong, *above_role_size(pod), *_wrong_gpus(pod))))
        if refused:
            return Tagging(namespace, denied=refused)
    if reading.phase is None:
        warnings = shortened(of_untagged(pod, reading, own, opted_in))
        return Tagging(namespace, conflict_alone(pod, reading.conflicts if opted_in else ()), warnings)
    if gang.gang is None:
        return Tagging(namespace, warnings=shortened(of_gangless(pod, reading, gang.missing, opted_in)))
    tagged = TaggedPod(
        pod,
        opted_in,
        phase=reading.phase,
        gang=gang.gang,
        signal=_signal(pod, read),
        conflicts=reading.conflicts,
        wanted_mode=settings.mode,
        not_gated_because=_not_gated_because(read, own),
        group=existing_group(pod),
    )
    if tagged.third_scheduler and not opted_in:
        return Tagging(namespace)
    warnings = shortened(of_tagged(tagged, wrong))
    return Tagging(namespace, operations(tagged), warnings, None, tagged.phase, tagged.gang, tagged.mode, tagged.signal)


def labelled_by_person(pod: Pod) -> bool:
    """Whether a person put our phase or gang label there.

    Labels that the webhook wrote are not a person's: the signal says which. A pod that we held opts in again when it is
    created anew from a copy, for the copy has lost the gate.
    """
    meta = pod.metadata
    if not labels.labelled(meta.labels):
        return False
    signal, group = meta.annotation(labels.SIGNAL), meta.annotation(labels.GROUP_NAME)
    return not signal or labels.PREFIX in signal or (bool(group) and group == podgroup_name(meta.label(labels.GANG)))


def _signal(pod: Pod, read: Readings) -> str:
    """What phase and gang were read from; what an earlier pass wrote stays."""
    return pod.metadata.annotation(labels.SIGNAL) or f"phase: {read.phase.signal}; gang: {read.gang.signal}"


def _not_gated_because(read: Readings, own: bool) -> str:
    """A name alone is worth a label and a score; nobody should wait for a partner because of it."""
    if own:
        return ""
    if read.phase.confidence is Confidence.LOW:
        return f"phase {read.phase.phase} is only named ({read.phase.signal}): not held; {SET_PHASE}"
    if read.alone:
        return f"its Ray workers tell no phase: not held; set labels {labels.PHASE} and {labels.GANG} on both templates"
    return ""


def _out_of_scope(pod: Pod) -> bool:
    return (
        bool(pod.spec.node_name)
        or labels.MIRROR_POD in (pod.metadata.annotations or {})
        or pod.metadata.label(labels.ENABLED).lower() == "false"
    )


def _wrong_gpus(pod: Pod) -> Iterator[BadInput]:
    """A GPU request that no planner could read: better said now than when the pod waits."""
    _, bad = readable_gpus(pod.spec, pod.metadata.annotations)
    if bad is not None:
        yield bad
