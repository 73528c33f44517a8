"""The pods that an object would be turned into: a pod as it is, a workload's template as its controller would fill it.

Decides which objects hold pod templates and what a controller adds to them that matters here: labels, annotations, a
name. Frameworks' own kinds are in admission.templates.operator_templates; a kind that nobody knows is searched for
templates, and that is said. It must never decide what is tagged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from topology.bad_input import BadInput
from topology.objects import Pod

Raw = dict[str, Any]

_TEMPLATED: Final = frozenset(
    {"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController", "Rollout", "CloneSet"}
)
_ORDINALS: Final = frozenset({"StatefulSet"})
_MAX_DEPTH: Final = 24
_KIND_GROUPS: Final = {"Job": ("batch",)}  # Volcano has a Job too


@dataclass(frozen=True, slots=True)
class TemplateOfWorkload:
    """One template of one object, filled as its controller would. `template` tells several of one object apart."""

    kind: str
    namespace: str
    name: str
    template: str
    raw: Raw
    replicas: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def pod(self) -> Pod:
        """As the webhook would read it, through JSON: only then absent and empty are told apart."""
        try:
            return msgspec.json.decode(msgspec.json.encode(_plain_pod(self.raw)), type=Pod)
        except (msgspec.MsgspecError, TypeError, RecursionError) as error:
            what = f"{self.kind} {self.name}" + (f" {self.template}" if self.template else "")
            raise BadInput(f"pod template of {what}", "not readable", f"it must be a pod: {error}") from None


@dataclass(frozen=True, slots=True)
class Filled:
    """What a controller adds to a template."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    generate_name: str = ""
    scheduler: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)  # of every container


def filled(template: Any, with_: Filled) -> Raw:
    """The pod made from a template: what the controller sets wins over the template's own."""
    template = mapping(template)
    metadata = dict(mapping(template.get("metadata")))
    for key, more in (("labels", with_.labels), ("annotations", with_.annotations)):
        if more:
            metadata[key] = {**mapping(metadata.get(key)), **more}
    metadata.pop("name", None)
    if with_.name:
        metadata["name"] = with_.name
    if with_.generate_name:
        metadata["generateName"] = with_.generate_name
    spec = dict(mapping(template.get("spec")))
    if with_.scheduler and "schedulerName" not in spec:
        spec["schedulerName"] = with_.scheduler
    if with_.variables:
        own = [{"name": name, "value": value} for name, value in with_.variables.items()]
        spec["containers"] = [
            {**each, "env": [*(e for e in sequence(each.get("env")) if e.get("name") not in with_.variables), *own]}
            for each in sequence(spec.get("containers"))
        ]
    return {"metadata": metadata, "spec": spec}


def of_workload(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """The templates of Kubernetes' own kinds; nothing for others."""
    kind, meta = str(document.get("kind", "")), mapping(document.get("metadata"))
    name = str(meta.get("name") or meta.get("generateName") or "")
    spec = mapping(document.get("spec"))
    if kind == "Pod":
        yield TemplateOfWorkload(kind, namespace, name, "", {"metadata": dict(meta), "spec": dict(spec)}, 1)
    elif kind == "PodTemplate":
        yield TemplateOfWorkload(
            kind, namespace, name, "", filled(document.get("template"), Filled(generate_name=f"{name}-"))
        )
    elif kind == "CronJob":
        template = mapping(mapping(spec.get("jobTemplate")).get("spec")).get("template")
        yield TemplateOfWorkload(kind, namespace, name, "", filled(template, Filled(generate_name=f"{name}-")))
    elif kind in _TEMPLATED and "template" in spec:
        with_ = Filled(name=f"{name}-0") if kind in _ORDINALS else Filled(generate_name=f"{name}-")
        replicas = count(spec.get("replicas")) if kind != "DaemonSet" else None
        yield TemplateOfWorkload(kind, namespace, name, "", filled(spec["template"], with_), replicas)


def anywhere(document: Raw, namespace: str) -> Iterator[TemplateOfWorkload]:
    """Whatever looks like a pod template in an object of an unknown kind; its controller's labels are not known."""
    kind, meta = str(document.get("kind", "")), mapping(document.get("metadata"))
    name = str(meta.get("name", ""))
    note = f"{kind} is not a kind that is known here: read without the labels that its controller adds"
    for path, template in _search(document.get("spec"), "spec", 0):
        raw = filled(template, Filled(generate_name=f"{name}-"))
        yield TemplateOfWorkload(kind, namespace, name, path, raw, None, (note,))


def _search(value: Any, path: str, depth: int) -> Iterator[tuple[str, Raw]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        spec = value.get("spec")
        if _is_pod_spec(spec):
            yield path, value
        elif _is_pod_spec(value):
            yield path, {"spec": value}
        else:
            for key, inner in value.items():
                yield from _search(inner, f"{path}.{key}", depth + 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            named = mapping(inner).get("name")
            yield from _search(inner, f"{path}[{named if isinstance(named, str) else number}]", depth + 1)


def _is_pod_spec(value: Any) -> bool:
    containers = value.get("containers") if isinstance(value, dict) else None
    return isinstance(containers, list) and bool(containers) and all(isinstance(each, dict) for each in containers)


def mapping(value: Any) -> Raw:
    """The value if it is a map, else an empty one: manifests of others are read as far as they can be."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Raw]:
    """The maps in a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def tokens(value: Any) -> list[str]:
    """The plain values in a list, as text."""
    return [str(each) for each in value if not isinstance(each, dict | list)] if isinstance(value, list) else []


def count(value: Any, default: int = 1) -> int:
    """A number of replicas; Kubernetes' default is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _plain_pod(raw: Raw) -> Raw:
    """Scalars where the API has strings: a person's `value: 8000` is read as kubectl's users mean it."""
    metadata, spec = dict(mapping(raw.get("metadata"))), dict(mapping(raw.get("spec")))
    for key in ("labels", "annotations"):
        if isinstance(metadata.get(key), dict):
            metadata[key] = {str(k): _text(v) for k, v in metadata[key].items()}
    for key in ("containers", "initContainers"):
        if isinstance(spec.get(key), list):
            spec[key] = [_plain_container(each) for each in sequence(spec[key])]
    return {"metadata": metadata, "spec": spec}


def _plain_container(raw: Raw) -> Raw:
    container = dict(raw)
    for key in ("command", "args"):
        given = container.get(key)
        if isinstance(given, str):
            container[key] = [given]
        elif isinstance(given, list):
            container[key] = [_text(word) for word in given]
    if isinstance(container.get("env"), list):
        container["env"] = [
            {**each, "value": _text(each["value"])} if "value" in each else each for each in sequence(container["env"])
        ]
    return container


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
