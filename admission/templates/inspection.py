"""Which pods of a manifest reach the webhook: the selectors of the chart's webhook configuration, without a cluster.

Decides by the pod's labels, its namespace's name, and its namespace's labels where the manifest itself has them (a
Namespace object). Where they are not known the answer is "if", never "yes". It must never decide what a pod is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from admission.templates.manifest_file import Document
from admission.templates.pod_templates import mapping
from topology import labels
from topology.bad_input import BadInput
from topology.objects import Pod

# The chart's `webhook.excludeNamespaces` and the namespace of its release, as install.yaml has them.
EXCLUDED: Final = ("isochrone-system", "kube-system", "volcano-system")
ENABLED: Final = f"{labels.ENABLED}=true"


class Inspection(StrEnum):
    """Whether the webhook is asked about a pod; the words are those of `isochrone admit -o json`."""

    YES = "yes"
    NO = "no"
    IF_ENABLED = "if-namespace-enabled"


@dataclass(frozen=True, slots=True)
class Inspected:
    """`why` is for people, and empty where the webhook looks without more ado."""

    inspections: Inspection
    why: str = ""


def known_namespaces(documents: Sequence[Document]) -> dict[str, Mapping[str, str]]:
    """The labels of every Namespace object. Raises BadInput for labels that the API server would not take."""
    found: dict[str, Mapping[str, str]] = {}
    for each in documents:
        if each.content.get("kind") == "Namespace" and each.content.get("apiVersion", "v1") == "v1":
            meta = mapping(each.content.get("metadata"))
            for sentence in not_strings(meta):
                raise BadInput(each.where, "a Namespace", sentence)
            found[str(meta.get("name", ""))] = {k: v or "" for k, v in mapping(meta.get("labels")).items()}
    return found


def inspected(pod: Pod, namespace: str, known: Mapping[str, Mapping[str, str]]) -> Inspected:
    """As the API server would decide with the chart's own values; `known` as known_namespaces gives it."""
    if namespace in EXCLUDED:
        return Inspected(Inspection.NO, f"the webhook never looks into namespace {namespace}")
    if pod.metadata.label(labels.ENABLED) == "false" or labels.labelled(pod.metadata.labels):
        return Inspected(Inspection.YES)  # the first is left alone by its own word, which is told elsewhere
    if namespace not in known:
        return Inspected(Inspection.IF_ENABLED, f"if namespace {namespace} has {ENABLED}")
    if known[namespace].get(labels.ENABLED) == "true":
        return Inspected(Inspection.YES)
    return Inspected(Inspection.NO, f"it has no label of ours, and namespace {namespace} has no {ENABLED}")


def not_strings(metadata: Mapping[str, object]) -> Iterator[str]:
    """One sentence for each label and annotation that the API server refuses because it is no string.

    Kubernetes' API reference, ObjectMeta: both are maps of string to string; null is taken as the empty string.
    """
    for where in ("labels", "annotations"):
        for key, value in mapping(metadata.get(where)).items():
            if value is None or (isinstance(value, str) and isinstance(key, str)):
                continue
            yield _sentence(where[:-1], str(key), value)


def _sentence(what: str, key: str, value: object) -> str:
    if isinstance(value, dict | list):
        return (
            f"{what} {key[:80]} is a {'map' if isinstance(value, dict) else 'list'}; the API server takes strings only"
        )
    kind, shown = ("number", str(value)) if not isinstance(value, bool) else ("boolean", str(value).lower())
    if isinstance(value, str):
        kind, shown = "string under a key that is none", value
    taken = f'the API server takes strings only: write "{shown[:80]}", in quotes'
    return f"{what} {key[:80]} is the {kind} {shown[:80]}; {taken}"
