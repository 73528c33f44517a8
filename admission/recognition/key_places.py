"""Where our keys stand, and what is told of those that stand where nobody reads them.

Decides only words: a key that is none of ours, a label's key among the annotations or the other way round, a key on the
owner instead of its pod template. None of these is ever refused, and what is tagged never depends on them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from admission.recognition.pod_settings import SETTING_KEYS
from topology import labels
from topology.gpus.request import readable_gpus
from topology.objects import Pod

_KEYS: Final = dict.fromkeys(
    sorted(value for value in vars(labels).values() if isinstance(value, str) and value.startswith(labels.PREFIX))
)
_LABELS: Final = (labels.PHASE, labels.GANG, labels.ENABLED)
_ANNOTATIONS: Final = (*SETTING_KEYS, labels.GPU_MEMORY, labels.GPU_MEMORY_PEAK)
_MAX_REPORTED: Final = 10
# Where the template's metadata is in owners that give their pods nothing of their own labels and annotations:
# Kubernetes' API reference; argoproj/argo-rollouts, openkruise/kruise and kubernetes-sigs/lws for the last three.
_TEMPLATE_AT: Final = {
    **dict.fromkeys(
        (
            "Deployment",
            "ReplicaSet",
            "StatefulSet",
            "DaemonSet",
            "Job",
            "ReplicationController",
            "Rollout",
            "CloneSet",
        ),
        "spec.template",
    ),
    "PodTemplate": "template",
    "CronJob": "spec.jobTemplate.spec.template",
    "LeaderWorkerSet": "spec.leaderWorkerTemplate.leaderTemplate and workerTemplate, each",
}


def hints(pod: Pod) -> list[str]:
    """One sentence for each of our keys on this pod that means nothing where it stands; bounded."""
    return list(islice(chain(_misplaced(pod), _unknown(pod)), _MAX_REPORTED))


def _unknown(pod: Pod) -> Iterator[str]:
    """Keys under our prefix that are none of ours, with the likely meaning when there is one."""
    for key in (*(pod.metadata.labels or ()), *(pod.metadata.annotations or ())):
        if key.startswith(labels.PREFIX) and key not in _KEYS:
            hint = difflib.get_close_matches(key[:80], _KEYS, n=1, cutoff=0.85)
            yield f"{key[:80]} is no key of Isochrone and means nothing" + (
                f"; did you mean {hint[0]}?" if hint else ""
            )


def _misplaced(pod: Pod) -> Iterator[str]:
    for waiting, given, belongs, keys in (
        ("labels", pod.metadata.labels, "annotations", _ANNOTATIONS),
        ("annotations", pod.metadata.annotations, "labels", _LABELS),
    ):
        for key in keys:
            if key in (given or ()):
                yield f"{key} stands in the pod's {waiting} and means nothing there; it belongs in its {belongs}"


def unread_claims(pod: Pod) -> Iterator[str]:
    """Devices asked for by resource claims (DRA) alone: no part reads them, so the pod counts as one without GPUs."""
    if pod.spec.resource_claims and readable_gpus(pod.spec, pod.metadata.annotations)[0] is None:
        yield (
            "the pod asks for devices by resourceClaims, which Isochrone does not read: "
            "it is planned and counted as a pod without GPUs"
        )


def on_owner(owner: Mapping[str, Any], template: Mapping[str, Any]) -> Iterator[str]:
    """Our keys in an object's own metadata that its pod template lacks. Both are as manifests have them."""
    kind, at = str(owner.get("kind", "")), _TEMPLATE_AT.get(str(owner.get("kind", "")))
    if at is None or "volcano.sh/" in str(owner.get("apiVersion", "")):
        return
    for where, keys in (("labels", _LABELS), ("annotations", _ANNOTATIONS)):
        lost = [key for key in keys if key in _of(owner, where) and key not in _of(template, where)]
        if lost:
            one = len(lost) == 1
            yield (
                f"{where[:-1] if one else where} {', '.join(lost)} {'stands' if one else 'stand'} on the {kind}, not on"
                f" its pod template ({at}.metadata.{where}): pods do not get {'it' if one else 'them'}"
            )


def on_described(owner: Mapping[str, Any]) -> list[str]:
    """The same for an object as it is applied, by every template in it; bounded, and nothing for other kinds."""
    path = _TEMPLATE_AT.get(str(owner.get("kind", "")), "").split(" ")[0].split(".")
    parent = _at(owner, path[:-1])
    names = ("leaderTemplate", "workerTemplate") if path[-1] == "leaderTemplate" else path[-1:]
    found = (text for name in names if isinstance(parent.get(name), dict) for text in on_owner(owner, parent[name]))
    return list(islice(dict.fromkeys(found), _MAX_REPORTED))


def _at(raw: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    for key in path:
        inner = raw.get(key)
        raw = inner if isinstance(inner, dict) else {}
    return raw


def _of(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    metadata = raw.get("metadata")
    given = metadata.get(where) if isinstance(metadata, dict) else None
    return given if isinstance(given, dict) else {}
