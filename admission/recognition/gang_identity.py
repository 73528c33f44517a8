"""Which gang a pod belongs to and what its PodGroup is called.

Decides the gang's name from labels and arguments that every pod of the gang shares, whatever owns it. It must never
know pod names, UIDs, revisions or template hashes (a rolling update would split the gang), nor phases: where a name of
a service has the phase in it, as `chat-prefill` has, the phase is taken out. Gangs live in one namespace, as PodGroups
do, so the namespace is part of a gang's identity without being part of its name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from admission.recognition.command_line import EngineCall, engine_calls
from admission.recognition.replica_group import LWS_NAME, size_of
from topology import labels
from topology.objects import Pod

_MAX_LABEL: Final = 63
PODGROUP_PREFIX: Final = "isochrone-"
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_NOT_IN_SLUG = re.compile(r"[^a-z0-9.]+")
_HASHED_NAME = re.compile(r"-[0-9a-f]{8}")
_PART_OF: Final = (
    *("app.kubernetes.io/part-of", "app.kubernetes.io/instance", "helm-release-name"),
    "ome.io/inferenceservice",
)
_KSERVE: Final = "llminferenceservice"  # KServe's part-of is the kind; the service's name is app.kubernetes.io/name
_PHASE_TOKENS: Final = frozenset({"prefill", "decode", "prefiller", "decoder"})
_NAMES: Final = ("app.kubernetes.io/name", "app")  # only where a phase is in them: then the rest is the service
_ENGINE_FLAGS: Final = ("--kv-transfer-config", "--kv-transfer-config.kv-role", "--disaggregation-mode")


@dataclass(frozen=True, slots=True)
class GangReading:
    """The gang as a label value, or None and what is `missing`; `signal` is for people."""

    gang: str | None
    signal: str = ""
    missing: str = ""


def read_gang(pod: Pod, calls: tuple[EngineCall, ...] | None = None) -> GangReading:
    """Our label, else the framework's own identity, else the model with its application, else what its owner says.

    `calls`: the pod's command lines, if they are read already.
    """
    own = pod.metadata.label(labels.GANG)
    if own:
        return GangReading(own, f"label {labels.GANG}")
    for framework in (_kthena, _disaggregated_set, _dynamo, _grove, _rbg, _llm_d, _aibrix):
        found = framework(pod)
        if found:
            name, signal = found
            return GangReading(gang_label_value(name), signal)
    calls = engine_calls(pod) if calls is None else calls
    name, signal = _by_ray(pod, calls) or _by_model(pod, calls) or _by_owner(pod, calls) or ("", "")
    if name:
        return GangReading(gang_label_value(name), signal)
    return GangReading(None, missing=f"set label {labels.GANG}, or --model and label {_PART_OF[0]}")


def gang_label_value(text: str) -> str:
    """`text` as a valid label value: itself where it is one, else cut and told apart by a hash."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    return _cut(_NOT_IN_SLUG.sub("-", text.lower()), text, _MAX_LABEL)


def podgroup_name(gang: str) -> str:
    """The PodGroup of a gang: `isochrone-<gang>`, a DNS name of at most 63 characters, never shared by two gangs."""
    name = PODGROUP_PREFIX + gang
    # A gang that happens to look like one of our hashed names gets a hash too, so no two names can meet.
    if len(name) <= _MAX_LABEL and _DNS_NAME.fullmatch(name) and not _HASHED_NAME.fullmatch(name[-9:]):
        return name
    return _cut(PODGROUP_PREFIX + _NOT_IN_SLUG.sub("-", gang.lower()), gang, _MAX_LABEL)


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


def _dynamo(pod: Pod) -> tuple[str, str] | None:
    graph = pod.metadata.label("nvidia.com/dynamo-graph-deployment-name")
    if not graph or pod.metadata.label("grove.io/podgang"):
        return None
    return f"dynamo-{graph}", f"Dynamo graph {graph}"


def _llm_d(pod: Pod) -> tuple[str, str] | None:
    """One gang a model and release; llm-d itself has no label for a group."""
    model = pod.metadata.label("llm-d.ai/model")
    if not model:
        return None
    release = _application(pod) or without_phase(pod.metadata.label("llm-d.ai/guide"))
    of = f"{release.replace('.', '-')}." if release else ""
    return f"llmd-{of}{model}", f"llm-d model {model}" + (f" of {release}" if release else "")


def _aibrix(pod: Pod) -> tuple[str, str] | None:
    service, roleset = pod.metadata.label("storm-service-name"), pod.metadata.label("roleset-name")
    if not service and not roleset:
        return None
    if not roleset:
        return f"aibrix-{service}", f"AIBrix StormService {service}"
    return f"aibrix-{roleset if roleset.startswith(service) else service + '.' + roleset}", f"AIBrix role set {roleset}"


def _by_ray(pod: Pod, calls: tuple[EngineCall, ...]) -> tuple[str, str] | None:
    """The LWS of a copy that Ray spans over nodes: the leader alone knows the model, and its workers go with it."""
    spanned = size_of(pod) > 1 and any(call.ray for call in calls)
    return _by_lws(pod) if spanned else None


def _by_lws(pod: Pod) -> tuple[str, str] | None:
    lws = pod.metadata.label(LWS_NAME)
    stem = without_phase(lws)
    return (f"lws-{stem}", f"LWS {lws}") if stem not in ("", lws, "lws") else None


def _by_model(pod: Pod, calls: tuple[EngineCall, ...]) -> tuple[str, str] | None:
    model = _model(calls)
    if not model:
        return None
    slug, application = _slug(model), _application(pod)
    if not application:
        return f"model-{slug}", f"model {slug}"
    # The first dot ends the application, which is why its own name keeps none.
    return f"app-{_slug(application, dots=False)}.{slug}", f"model {slug} of {application}"


def _by_owner(pod: Pod, calls: tuple[EngineCall, ...]) -> tuple[str, str] | None:
    """Where no model is named: the application, Dynamo's namespace, an LWS, a PodGroup that is given, its own name."""
    meta = pod.metadata
    application = _application(pod)
    if application:
        return f"app-{_slug(application, dots=False)}", f"application {application}"
    for container, call in zip(pod.spec.containers, calls, strict=False):
        for variable in container.env or ():
            if variable.name == "DYN_NAMESPACE" and variable.value and call.is_engine:
                return f"dynamo-{variable.value}", f"variable DYN_NAMESPACE {variable.value}"
    if meta.label(LWS_NAME):
        return _by_lws(pod)
    group = meta.annotation(labels.GROUP_NAME)
    if group and not group.startswith("podgroup-"):  # podgroup-<uid> is Volcano's, one per ReplicaSet
        return f"group-{group}", f"PodGroup {group}"
    for key in _NAMES:
        name = meta.label(key)
        stem = without_phase(name)
        if stem not in ("", name):
            return f"app-{_slug(stem, dots=False)}", f"label {key} {name}"
    return None


def without_phase(name: str) -> str:
    """A service's name without the phase in it, so that `chat-prefill` and `chat-decode` are one `chat`."""
    tokens = [word for word in name.split("-") if word.lower() not in _PHASE_TOKENS]
    return "-".join(tokens).strip("-._")


def _application(pod: Pod) -> str:
    for key in _PART_OF:
        value = pod.metadata.label(key)
        if value == _KSERVE:
            value = pod.metadata.label("app.kubernetes.io/name")
        if value and (name := without_phase(value)):
            return name
    return ""


def _model(calls: tuple[EngineCall, ...]) -> str:
    """The model of the container that moves KV; else of any container that names one."""
    engines = [call for call in calls if call.model and call.is_engine]
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
