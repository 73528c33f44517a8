"""Which gang a pod belongs to, what its PodGroup is called, and whether another system already holds it.

Decides the gang's name from labels and arguments that every pod of the gang shares. It must never know pod names,
UIDs or ReplicaSet hashes (a rolling update would split the gang), nor phases. Gangs live in one namespace, as
PodGroups do, so the namespace is part of a gang's identity without being part of its name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from admission.command_line import EngineCall, engine_calls
from topology import labels
from topology.objects import Pod

_MAX_LABEL: Final = 63
_POD_GROUP_PREFIX: Final = "isochrone-"
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_NOT_IN_SLUG = re.compile(r"[^a-z0-9.]+")
_LOOKS_HASHED = re.compile(r"-[0-9a-f]{8}")
_PART_OF: Final = ("app.kubernetes.io/part-of", "app.kubernetes.io/instance")
_ENGINE_FLAGS: Final = ("--kv-transfer-config", "--kv-transfer-config.kv-role", "--disaggregation-mode")


@dataclass(frozen=True, slots=True)
class GangReading:
    """The gang as a label value, or None and what is `missing`; `signal` is for people."""

    gang: str | None
    signal: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class ExistingGroup:
    """A group that holds the pod already. Volcano's own PodGroup composes with our gate, the others do not."""

    system: str
    key: str
    value: str
    volcano: bool


def read_gang(pod: Pod, calls: tuple[EngineCall, ...] | None = None) -> GangReading:
    """Our label, else the framework's own identity, else the model with its application, else a given PodGroup.

    `calls`: the pod's command lines, if they are read already.
    """
    own = pod.metadata.label(labels.GANG)
    if own:
        return GangReading(own, f"label {labels.GANG}")
    for framework in (_kthena, _disaggregated_set, _grove, _rbg):
        found = framework(pod)
        if found:
            name, signal = found
            return GangReading(gang_label_value(name), signal)
    model = _model(engine_calls(pod) if calls is None else calls)
    application = next((value for key in _PART_OF if (value := pod.metadata.label(key))), "")
    if model:
        slug = _slug(model)
        if not application:
            return GangReading(gang_label_value(f"model-{slug}"), f"model {slug}")
        # The first dot ends the application, which is why its own name keeps none.
        name = f"app-{_slug(application, dots=False)}.{slug}"
        return GangReading(gang_label_value(name), f"model {slug} of {application}")
    group = pod.metadata.annotation(labels.GROUP_NAME)
    if group and not group.startswith("podgroup-"):  # podgroup-<uid> is Volcano's, one per ReplicaSet
        return GangReading(gang_label_value(f"group-{group}"), f"PodGroup {group}")
    return GangReading(None, missing=f"set label {labels.GANG}, or --model and label {_PART_OF[0]}")


def gang_label_value(text: str) -> str:
    """`text` as a valid label value: itself where it is one, else cut and told apart by a hash."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    return _cut(_NOT_IN_SLUG.sub("-", text.lower()), text, _MAX_LABEL)


def podgroup_name(gang: str) -> str:
    """The PodGroup of a gang: `isochrone-<gang>`, a DNS name of at most 63 characters, never shared by two gangs."""
    name = _POD_GROUP_PREFIX + gang
    # A gang that happens to look like one of our hashed names gets a hash too, so no two names can meet.
    if len(name) <= _MAX_LABEL and _DNS_NAME.fullmatch(name) and not _LOOKS_HASHED.fullmatch(name[-9:]):
        return name
    return _cut(_POD_GROUP_PREFIX + _NOT_IN_SLUG.sub("-", gang.lower()), gang, _MAX_LABEL)


def existing_group(pod: Pod) -> ExistingGroup | None:
    """The gang carrier that somebody else put on the pod; it is never replaced."""
    for system, key, read in _CARRIERS:
        value = read(pod, key)
        if value:
            return ExistingGroup(system, key, value, volcano=key == labels.GROUP_NAME)
    return None


def _annotation(pod: Pod, key: str) -> str:
    return pod.metadata.annotation(key)


def _label(pod: Pod, key: str) -> str:
    return pod.metadata.label(key)


def _gate(pod: Pod, key: str) -> str:
    return next((gate.name for gate in pod.spec.scheduling_gates or () if gate.name.startswith(key)), "")


_CARRIERS: Final[tuple[tuple[str, str, Callable[[Pod, str], str]], ...]] = (
    ("Volcano", labels.GROUP_NAME, _annotation),
    ("coscheduling", "scheduling.x-k8s.io/pod-group", _label),
    ("KAI", "pod-group-name", _annotation),
    ("KAI", "kai.scheduler/subgroup-name", _label),
    ("Godel", "godel.bytedance.com/pod-group-name", _annotation),
    ("Godel", "godel.bytedance.com/pod-group-name", _label),
    ("Koordinator", "gang.scheduling.koordinator.sh/name", _annotation),
    ("Kueue", "kueue.x-k8s.io/queue-name", _label),
    ("Kueue", "kueue.x-k8s.io/", _gate),
    ("Grove", "grove.io/podgang", _label),
    ("Grove", "grove.io/", _gate),
)


def _kthena(pod: Pod) -> tuple[str, str] | None:
    group = pod.metadata.label("modelserving.volcano.sh/group-name")
    return (f"kthena-{group}", f"Kthena group {group}") if group else None


def _disaggregated_set(pod: Pod) -> tuple[str, str] | None:
    name = pod.metadata.label("disaggregatedset.x-k8s.io/name")
    if not name:
        return None
    part = pod.metadata.label("disaggregatedset.x-k8s.io/slice") or "0"
    return f"ds-{name}-{part}", f"DisaggregatedSet {name} slice {part}"


def _grove(pod: Pod) -> tuple[str, str] | None:
    # Replicas beyond the minimum have a pod gang of their own and name the one that they belong beside.
    gang = pod.metadata.label("grove.io/base-podgang") or pod.metadata.label("grove.io/podgang")
    return (f"grove-{gang}", f"Grove podgang {gang}") if gang else None


def _rbg(pod: Pod) -> tuple[str, str] | None:
    group = pod.metadata.label("rbg.workloads.x-k8s.io/group-name") or pod.metadata.label(
        "rolebasedgroup.workloads.x-k8s.io/name"
    )
    return (f"rbg-{group}", f"RBG group {group}") if group else None


def _model(calls: tuple[EngineCall, ...]) -> str:
    """The model of the container that moves KV; else of any container that names one."""
    engines = [call for call in calls if call.model and not call.is_router]
    engines.sort(key=lambda call: not any(flag in call.flags for flag in _ENGINE_FLAGS))
    return engines[0].model if engines else ""


def _slug(text: str, dots: bool = True) -> str:
    """The readable end of a name; whatever was cut or changed is told apart by a short hash."""
    short = _NOT_IN_SLUG.sub("-", text.rstrip("/").rpartition("/")[2].lower())
    short = (short if dots else short.replace(".", "-")).strip("-.")[:40].strip("-.")
    return short if short == text else f"{short or 'x'}-{_hash(text, 6)}"


def _cut(readable: str, original: str, limit: int) -> str:
    stem = re.sub(r"[-.]*\.[-.]*", ".", readable).strip("-.")[: limit - 9].strip("-.")
    return f"{stem or 'x'}-{_hash(original, 8)}"


def _hash(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
