"""Webhook and recognition in the behaviour record: what becomes of a pod, and what `isochrone admit` finds.

Every pod is sent through each of the webhook's entries, every object that is no pod to its validating part.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from admission.commands.admit import Admitted, admitted
from admission.recognition.pod_settings import read_settings
from admission.templates.manifest_file import Document, documents
from admission.webhook import review
from admission.webhook.tagging import Entry
from e2e.bench.record_values import Data, public
from e2e.bench.reviews import reviews
from tests.admission.test_templates import DATA, PODS, WORKLOADS
from tests.admission.test_templates import pod as pod_of_case

_ENTRIES: Final = ("labelled", "namespace", "recognise")
_SENTENCES: Final = ("isochrone.dev~1phase-conflict",)
"""Keys in patches whose value is a sentence for people."""
_PLURALS: Final = {"Deployment": ("apps", "deployments"), "StatefulSet": ("apps", "statefulsets")}


def template_records() -> dict[str, Data]:
    """Pods of the template files, whole manifests, the bench's reviews: each by the name of its file and case."""
    found: dict[str, Data] = {}
    for name, case in PODS.items():
        found[f"pod {name}"] = _manifest([Document("here", pod_of_case(case))])
    for name, case in WORKLOADS.items():
        found[f"workload {name}"] = _manifest(documents(case["manifest"], "here"))
    for path in sorted(DATA.glob("*.yaml")):
        found[f"public {path.name}"] = _manifest(documents(path.read_text(), path.name))
    for number, (path_below, body) in enumerate(reviews()):
        entry = path_below.rpartition("/")[2]
        found[f"review {number} {entry}"] = _answered(body, entry)
    return found


def admission_data(given: Mapping[str, Any]) -> Data:
    """The answer to a case of kind `admission`: its pod, namespace and entry, and what its request says otherwise."""
    pod = {"apiVersion": "v1", "kind": "Pod", **given["pod"]}
    return _answered(_review(pod, given["namespace"], given.get("request", {})), given["entry"])


def _manifest(objects: list[Document]) -> Data:
    """The findings of `isochrone admit`, in order, what the webhook answers to each pod, and to each object."""
    found = admitted(objects)
    return {
        "found": [_finding(each) for each in found],
        "pods": [_through_all(each) for each in found],
        "objects": [_judged(each.content) for each in objects],
    }


def _finding(each: Admitted) -> Data:
    template, tagging, reading = each.template, each.tagging, each.reading
    settings, wrong = read_settings(template.pod.metadata.annotations, requests=True)
    return {
        "object": [template.kind, template.namespace, template.name, template.template, template.replicas],
        "webhook_sees": public(each.inspection.inspections),
        "phase": public(each.phase),
        "gang": tagging.gang,
        "mode": public(tagging.mode),
        "refused": tagging.denied is not None,
        "group": [each.group_system, each.existing_group],
        "copy": [each.unit, each.size],
        "warnings": len(each.warnings),
        "read": [public(reading.phase), reading.signal, public(reading.confidence), reading.mixed, reading.engine],
        "conflicts": len(reading.conflicts),
        "settings": {
            "reach_us": float(settings.reach_us),
            "reach_size_bytes": settings.reach_size_bytes,
            "mode": public(settings.mode),
            "pairing": public(settings.pairing),
            "minimum": [settings.min_prefill, settings.min_decode],
            "wrong": len(wrong),
        },
    }


def _through_all(each: Admitted) -> Data:
    body = _review({"apiVersion": "v1", "kind": "Pod", **each.template.raw}, each.template.namespace, {})
    return {entry: _answered(body, entry) for entry in _ENTRIES}


def _review(pod: Mapping[str, Any], namespace: str, more: Mapping[str, Any]) -> bytes:
    request = {
        "uid": "r1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": namespace,
        **more,
        "object": pod,
    }
    return _encoded(request)


def _encoded(request: Mapping[str, Any]) -> bytes:
    review_json = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(review_json).encode()


def _answered(body: bytes, entry: str) -> Data:
    """What the mutating webhook answers."""
    return _response(review.answer(review.decode(body), Entry(entry)).body)


def _judged(content: Mapping[str, Any]) -> Data:
    """What the validating webhook answers when the object is created."""
    kind = str(content.get("kind", ""))
    group, plural = _PLURALS.get(kind, ("other.example", f"{kind.lower()}s"))
    request = {
        "uid": "r1",
        "resource": {"group": group, "version": "v1", "resource": plural},
        "operation": "CREATE",
        "namespace": "team-a",
        "object": content,
    }
    return _response(review.validated(review.decode(_encoded(request))).body)


def _response(body: bytes) -> Data:
    response = json.loads(body)["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else None
    for operation in patch or ():
        if operation["path"].endswith(_SENTENCES):
            operation["value"] = "a sentence"
    return {
        "allowed": response["allowed"],
        "patch": patch,
        "warnings": len(response.get("warnings", ())),
        "code": response.get("status", {}).get("code"),
    }
