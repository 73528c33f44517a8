"""What the webhook would say about every pod template of a manifest, without a cluster.

The same selectors and the same reading as of the webhook: templates in, one entry each out, as lines for people or as
JSON. Where a namespace's labels are not known, what would become of the pod if it is enabled, and that "if" with it.
Pods are read as their controller or operator would create them. It must never know files.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from admission.recognition.evidence import PhaseReading
from admission.recognition.existing_group import existing_group
from admission.recognition.key_places import on_owner
from admission.recognition.pod_settings import read_settings
from admission.recognition.readings import readings_of
from admission.recognition.replica_group import size_of, unit_of
from admission.recognition.signals import BUILT_IN, Rules
from admission.templates.inspection import ENABLED, Inspected, Inspection, inspected, known_namespaces, not_strings
from admission.templates.manifest_file import Document
from admission.templates.operator_templates import reader_of
from admission.templates.pod_templates import TemplateOfWorkload, anywhere, mapping, of_workload
from admission.templates.role_groups import is_production_stack, production_stack, role_based_group
from admission.webhook.tagging import Entry, Tagging, tag
from topology import labels
from topology.objects import Pod

DEFAULT_NAMESPACE: Final = "default"
_NO_GPU: Final = f"it asks for no GPU and has no label {labels.PHASE} or {labels.GANG}; with one"


@dataclass(frozen=True, slots=True)
class Admitted:
    """One pod template and what would become of its pods."""

    template: TemplateOfWorkload
    tagging: Tagging
    reading: PhaseReading
    existing_group: str | None
    group_system: str
    unit: str
    size: int
    warnings: tuple[str, ...]
    inspection: Inspected

    @property
    def phase(self) -> str | None:
        """What was read: `mixed` tags nothing, and neither does a phase without a gang."""
        if self.tagging.phase is None and self.reading.mixed and not self.tagging.denied:
            return "mixed"
        without_gang = bool(self.tagging.warnings) and not self.tagging.denied
        return self.tagging.phase or (self.reading.phase if without_gang else None)

    @property
    def conditional(self) -> bool:
        """Something would become of it, but only in a namespace that is enabled."""
        return self.inspection.inspections is Inspection.IF_ENABLED and bool(self.tagging.phase or self.tagging.denied)

    def as_json(self) -> dict[str, Any]:
        """The shape that docs/recognition.md promises."""
        return {
            "kind": self.template.kind,
            "namespace": self.template.namespace,
            "name": self.template.name,
            "template": self.template.template,
            "inspected": str(self.inspection.inspections),
            "looked_at": str(self.inspection.inspections),  # its old name, for one release
            "phase": self.phase,
            "gang": self.tagging.gang,
            "existing_group": self.existing_group,
            "signal": self.reading.signal,
            "confidence": str(self.reading.confidence),
            "refused": self.tagging.denied is not None,
            "warnings": list(self.warnings),
        }


def templates(document: Document, namespace: str = DEFAULT_NAMESPACE) -> Iterator[TemplateOfWorkload]:
    """Every pod template of one object; none for a Service and the like."""
    content = document.content
    where = str(mapping(content.get("metadata")).get("namespace") or namespace)
    if is_production_stack(content):
        yield from production_stack(content, where)
        return
    kind, group = str(content.get("kind", "")), str(content.get("apiVersion", "")).rpartition("/")[0]
    reader = reader_of(content)
    if reader is not None:
        yield from reader(content, where)
    elif kind == "RoleBasedGroup" and group == "workloads.x-k8s.io":
        yield from role_based_group(content, where)
    else:
        found = list(of_workload(content, where))
        yield from found or anywhere(content, where)


def admitted(
    documents: Sequence[Document], namespace: str = DEFAULT_NAMESPACE, rules: Rules = BUILT_IN
) -> list[Admitted]:
    """One entry a pod template, in the order of the documents. Raises BadInput for a template that is no pod."""
    known = known_namespaces(documents)
    found = [_entry(template, rules, each, known) for each in documents for template in templates(each, namespace)]
    gangs, units = defaultdict[str, list[Admitted]](list), defaultdict[tuple[str, str], list[Admitted]](list)
    for each in found:
        if each.tagging.gang:
            gangs[each.tagging.gang].append(each)
        if each.unit:
            units[each.template.namespace, each.unit].append(each)
    return [
        replace(
            each,
            warnings=(
                *each.warnings,
                *_too_few(each, gangs[each.tagging.gang or ""]),
                *_elsewhere(each, gangs[each.tagging.gang or ""]),
                *_alone(each, found),
                *_half(each, units[each.template.namespace, each.unit]),
            ),
        )
        for each in found
    ]


def _entry(
    template: TemplateOfWorkload, rules: Rules, document: Document, known: Mapping[str, Mapping[str, str]]
) -> Admitted:
    pod, namespace = template.pod, template.namespace
    inspection = inspected(pod, namespace, known)
    unread = [] if is_production_stack(document.content) else _not_strings(document, template)
    if unread:
        tagging = Tagging(namespace, denied=" ".join(f"{each}." for each in unread))
    elif inspection.inspections is Inspection.NO:
        tagging = Tagging(namespace)
    else:
        tagging = tag(
            pod, namespace, Entry.LABELLED if labels.labelled(pod.metadata.labels) else Entry.NAMESPACE, rules
        )
    if tagging.phase and not labels.labelled(pod.metadata.labels) and not _wants_gpu(pod):
        inspection = Inspected(Inspection.NO, _NO_GPU)
    group = existing_group(pod)
    warnings = [tagging.denied] if tagging.denied else []
    warnings += [*tagging.warnings, *template.notes, *on_owner(document.content, template.raw)]
    return Admitted(
        template,
        tagging,
        readings_of(pod, rules).phase,
        group.value if group else None,
        group.system if group else "",
        unit_of(pod),
        size_of(pod),
        tuple(warnings),
        inspection,
    )


def _not_strings(document: Document, template: TemplateOfWorkload) -> list[str]:
    """What the API server refuses before any webhook is asked."""
    own = not_strings(mapping(document.content.get("metadata")))
    return list(dict.fromkeys((*own, *not_strings(mapping(template.raw.get("metadata"))))))


def _half(entry: Admitted, unit: Sequence[Admitted]) -> Iterator[str]:
    """A pod of a multi-node copy that is not what its leader is: the copy would be held without it."""
    reported = next((each for each in unit if each.tagging.phase), None)
    if entry.phase is None and reported:
        part = reported.template.template
        yield (
            f"{part} is {reported.tagging.phase} but this one tells nothing; set label {labels.PHASE} on both templates"
        )
    elif (
        reported
        and reported is not entry
        and (entry.tagging.gang, entry.tagging.mode) != (reported.tagging.gang, reported.tagging.mode)
    ):
        part, both = reported.template.template, f"{labels.PHASE} and {labels.GANG}"
        yield f"{part}, of the same copy, is in another gang or held otherwise; set labels {both} on both templates"


def _elsewhere(entry: Admitted, all_: Sequence[Admitted]) -> Iterator[str]:
    """A gang whose other half is in another namespace: those are two gangs, and each waits for a partner."""
    namespace, gang, phase = _group(entry)
    if gang is None or any(_group(each)[:2] == (namespace, gang) and _group(each)[2] != phase for each in all_):
        return
    for other in sorted({_group(each)[0] for each in all_ if _group(each)[1] == gang and _group(each)[2] != phase}):
        yield f"gang {gang} is in namespace {other} too: gangs do not reach over namespaces, these are two"


def _alone(entry: Admitted, all_: Sequence[Admitted]) -> Iterator[str]:
    """A gang of one phase, told once: the other half comes from elsewhere, or one of two names is misspelt.

    Of one template alone it is no news.
    """
    namespace, gang, phase = _group(entry)
    if gang is None or phase is None or len(all_) < 2:
        return
    if next(each for each in all_ if _group(each)[:2] == (namespace, gang)) is not entry:
        return
    phases = _phases_of_gangs(namespace, all_)
    if len(phases[gang]) > 1:
        return
    other = labels.DECODE if phase == labels.PREFILL else labels.PREFILL
    lone = [name for name in phases if phases[name] == {other}]
    close = difflib.get_close_matches(gang, lone, n=1, cutoff=0.6) or lone[: len(lone) == 1]
    waits = "waits for them" if entry.tagging.mode == labels.REQUIRED else "has no partner without them"
    yield f"gang {gang} has only {phase} pods here; its {other} pods must come from elsewhere: it {waits}" + (
        f"; gang {close[0]} has only {other} pods: did you mean one gang?" if close else ""
    )


def _phases_of_gangs(namespace: str, all_: Sequence[Admitted]) -> dict[str, set[str | None]]:
    """The phases of each gang of a namespace, by name."""
    return {
        name: {_group(each)[2] for each in all_ if _group(each)[:2] == (namespace, name)}
        for name in sorted({each.tagging.gang for each in all_ if each.tagging.gang and _group(each)[0] == namespace})
    }


def _too_few(entry: Admitted, all_: Sequence[Admitted]) -> Iterator[str]:
    """A minimum above what the same files would create: the gang could never start."""
    if entry.tagging.gang is None:
        return
    settings, _ = read_settings(entry.template.pod.metadata.annotations, requests=False)
    for phase, key, minimum in (
        (labels.PREFILL, labels.MIN_PREFILL, settings.min_prefill),
        (labels.DECODE, labels.MIN_DECODE, settings.min_decode),
    ):
        same = [other.template.replicas for other in all_ if _group(other) == (*_group(entry)[:2], phase)]
        known = [count for count in same if count is not None]
        if minimum is not None and known and len(known) == len(same) and sum(known) < minimum:
            yield f"{key} is {minimum}, but only {sum(known)} {phase} pods of this gang are described here"


def _group(entry: Admitted) -> tuple[str, str | None, str | None]:
    return entry.tagging.namespace, entry.tagging.gang, entry.tagging.phase


def _wants_gpu(pod: Pod) -> bool:
    given = pod.metadata.annotations or {}
    if pod.spec.resource_claims:
        return True
    if any(key in given for key in ("gpu-memory", "gpu-fraction")) or any(k.startswith(labels.PREFIX) for k in given):
        return True
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        for amounts in (container.resources.limits, container.resources.requests):
            if any(key.startswith("nvidia.com/") or "gpu" in key for key in amounts or ()):
                return True
    return False


def lines(entry: Admitted) -> Iterator[str]:
    """One template for people: what, then why, then what they should know."""
    template = entry.template
    part = f" {template.template}" if template.template else ""
    condition = f"{entry.inspection.why}: " if entry.conditional else ""
    yield f"{template.kind} {template.namespace}/{template.name}{part}: {condition}{_outcome(entry)}"
    if entry.reading.signal:
        yield f"  phase   {entry.reading.signal} ({entry.reading.confidence})"
    if entry.tagging.gang:
        yield f"  gang    {entry.tagging.signal.rpartition('gang: ')[2]}"
    if entry.existing_group:
        yield f"  group   {entry.existing_group} of {entry.group_system}, kept"
    if entry.unit:
        yield f"  member  {entry.size} pods serve one copy of the model"
    for warning in entry.warnings:
        yield f"  note    {warning}"


def _outcome(entry: Admitted) -> str:
    """What would become of the pods of one template."""
    tagging, reading = entry.tagging, entry.reading
    if tagging.denied:
        return "refused"
    passed_by = f"not looked at: {entry.inspection.why}" if entry.inspection.inspections is Inspection.NO else ""
    if tagging.phase:
        held = "held until its gang has a place" if tagging.mode == labels.REQUIRED else "labelled, not held"
        return f"{passed_by and passed_by + ': '}{tagging.phase} of gang {tagging.gang}, {held}"
    if passed_by:
        return passed_by
    if reading.mixed:
        return "serves both phases, left alone"
    if not reading.engine:
        return "no engine, left alone"
    if tagging.warnings:
        return "not tagged"
    return "left alone: opted out or placed already" if reading.phase else "nothing that is recognised, left alone"


def to_enable(found: Sequence[Admitted]) -> Iterator[str]:
    """How the namespaces are enabled without which pods are not looked at; nothing where every pod is."""
    for namespace in sorted({each.template.namespace for each in found if each.conditional}):
        yield f"Unless it has {ENABLED}, pods without a label of ours are not looked at in namespace {namespace}:"
        yield f"  kubectl label namespace {namespace} {ENABLED}"


def summary(found: Sequence[Admitted], objects: int) -> str:
    """The last line: how much was read and what came of it."""
    tagged = [each for each in found if each.tagging.phase and each.inspection.inspections is not Inspection.NO]
    gangs = len({(each.tagging.namespace, each.tagging.gang) for each in tagged if each.tagging.gang})
    unsure = sum(1 for each in tagged if each.conditional)
    reported = f"{len(tagged)} ({unsure} only in an enabled namespace)" if unsure else f"{len(tagged)}"
    return f"objects: {objects}, pod templates: {len(found)}, tagged: {reported}, gangs: {gangs}"
