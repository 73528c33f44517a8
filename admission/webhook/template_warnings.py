"""What the pods of an owner's template would be warned of, for whoever applies the owner.

The pods are created by a controller, which throws the warnings of their admission away. So the owner gets them, each
with the place of its template. Decides what is warned of, within bounds; nothing is ever refused for it. It must never
know the namespace's labels: of a template without phase and gang labels only misplaced and misspelt keys are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from admission.recognition.key_places import hints
from admission.recognition.signals import Rules
from admission.templates.operator_templates import leader_worker_set
from admission.templates.pod_templates import TemplateOfWorkload, mapping, of_workload
from admission.webhook.nonsense import nonsense
from admission.webhook.pod_warnings import sentence
from admission.webhook.tagging import Entry, labelled_by_person, tag
from topology import labels
from topology.bad_input import BadInput

_MAX_WARNINGS: Final = 10
_PLAIN: Final = frozenset({"Deployment", "StatefulSet", "DaemonSet", "Job"})
_LWS: Final = "spec.leaderWorkerTemplate"


def raw_templates(owner: Mapping[str, Any]) -> dict[str, Any]:
    """Every pod template of an object, by its place; empty for kinds that are not read."""
    spec, kind = mapping(owner.get("spec")), owner.get("kind")
    if kind == "CronJob":
        inner = mapping(mapping(spec.get("jobTemplate")).get("spec"))
        return {"spec.jobTemplate.spec.template": inner.get("template")}
    if kind == "LeaderWorkerSet":
        group = mapping(spec.get("leaderWorkerTemplate"))
        return {f"{_LWS}.{name}": group[name] for name in ("leaderTemplate", "workerTemplate") if group.get(name)}
    return {"spec.template": spec.get("template")} if isinstance(kind, str) and kind in _PLAIN else {}


def template_warnings(owner: dict[str, Any], namespace: str, rules: Rules, refused: bool = False) -> list[str]:
    """One sentence each, with the place before it; the same warning of two templates is given once.

    `refused`: the owner is refused, with the reason, so that it is not said again.
    """
    raw = raw_templates(owner)
    if not any(_has_our_key(template) for template in raw.values()):
        return []
    read = leader_worker_set if owner.get("kind") == "LeaderWorkerSet" else of_workload
    found: dict[str, str] = {}
    for template in read(owner, namespace):
        place = _place(template, raw)
        if _has_our_key(raw.get(place)):
            for text in _warnings(template, rules, refused):
                found.setdefault(text, place)
    return list(islice((f"{place}: {text}" for text, place in found.items()), _MAX_WARNINGS))


def _place(template: TemplateOfWorkload, raw: Mapping[str, Any]) -> str:
    """A LeaderWorkerSet without a leader's template makes its leaders of the workers' one."""
    own = f"{_LWS}.{template.template}Template"
    return own if own in raw else list(raw)[-1]


def _warnings(template: TemplateOfWorkload, rules: Rules, refused: bool) -> Iterator[str]:
    try:
        pod = template.pod
    except BadInput:  # the API server has its own words for what is no pod
        return
    if pod.metadata.label(labels.ENABLED).lower() == "false":
        return
    if not labelled_by_person(pod):
        yield from map(sentence, () if refused else nonsense(pod))
        yield from hints(pod)
        return
    tagging = tag(pod, template.namespace, Entry.LABELLED, rules)
    if tagging.denied and not refused:
        yield f"its pods will be refused: {tagging.denied}"
    yield from tagging.warnings


def _has_our_key(template: object) -> bool:
    metadata = mapping(mapping(template).get("metadata"))
    return any(
        key.startswith(labels.PREFIX) for where in ("labels", "annotations") for key in mapping(metadata.get(where))
    )
