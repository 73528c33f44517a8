"""What is refused, in words; what merely looks unwise is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from admission.webhook import review
from admission.webhook.nonsense import nonsense
from admission.webhook.tagging import Entry
from tests.admission.pods import decoded, raw_pod

OURS = {"isochrone.dev/phase": "decode", "isochrone.dev/gang": "chat"}
GROUP = "scheduling.k8s.io/group-name"


def value(labels: dict[str, str], annotations: dict[str, str] | None = None) -> list[str]:
    return [str(each) for each in nonsense(decoded(raw_pod(labels, annotations)))]


@pytest.mark.parametrize(
    ("labels", "annotations", "sentences"),
    [
        (OURS, {}, []),
        ({"app": "web"}, {GROUP: "other/g"}, []),
        ({"isochrone.dev/phase": "decoding"}, {}, ['isochrone.dev/phase is \'decoding\'; use "prefill" or "decode". ']),
        ({"isochrone.dev/gang": ""}, {}, ["isochrone.dev/gang is ''; use one name for all pods"]),
        ({**OURS, "isochrone.dev/gang": "team-b/chat"}, {}, ["isochrone.dev/gang is 'team-b/chat'; a gang lives in"]),
        ({**OURS, "isochrone.dev/gang": "-"}, {}, ["isochrone.dev/gang is '-'; use at most 63 letters"]),
        (OURS, {GROUP: "team-b/pg"}, [f"{GROUP} is 'team-b/pg'; a PodGroup is looked up in its pods' own namespace"]),
        (OURS, {"isochrone.dev/reach": "soon"}, ["isochrone.dev/reach is 'soon'; "]),
        (OURS, {"isochrone.dev/reach-mode": "must"}, ["isochrone.dev/reach-mode is 'must'; "]),
        (OURS, {"isochrone.dev/min-decode": "0"}, ["isochrone.dev/min-decode is '0'; use a whole number from 1 to"]),
        (OURS, {"isochrone.dev/min-decode": "-1"}, ["isochrone.dev/min-decode is '-1'; use a whole number from 1 to"]),
        (OURS, {"isochrone.dev/min-decode": "four"}, ["isochrone.dev/min-decode is 'four'; use a whole number from"]),
        (OURS, {"isochrone.dev/min-decode": "9" * 11}, ["isochrone.dev/min-decode is '99999999999'; use a whole"]),
        (
            OURS,
            {"isochrone.dev/min-decode": "5", "rbg.workloads.x-k8s.io/role-size": "4"},
            ["isochrone.dev/min-decode is '5'; use at most 4, the number of decode pods that there will be"],
        ),
        (OURS, {"isochrone.dev/min-prefill": "5", "rbg.workloads.x-k8s.io/role-size": "4"}, []),
        (
            OURS,
            {"isochrone.dev/reach": "x", "isochrone.dev/pairing": "y"},
            ["isochrone.dev/reach ", "isochrone.dev/p"],
        ),
    ],
)
def test_nonsense(labels: dict[str, str], annotations: dict[str, str], sentences: list[str]) -> None:
    found = value(labels, annotations)
    assert len(found) == len(sentences)
    for sentence, start in zip(found, sentences, strict=True):
        assert sentence.startswith(start)


def validated(resource: str, content: Any, operation: str = "CREATE", group: str = "") -> dict[str, Any]:
    request = {
        "uid": "u",
        "operation": operation,
        "resource": {"group": group, "version": "v1", "resource": resource},
        "object": content,
    }
    body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    answer = msgspec.json.decode(review.validated(review.decode(body)).body)["response"]
    assert isinstance(answer, dict)
    return answer


def tagged(content: Any) -> dict[str, Any]:
    request = {
        "uid": "u",
        "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "object": content,
    }
    body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    answer = msgspec.json.decode(review.answer(review.decode(body), Entry.LABELLED).body)["response"]
    assert isinstance(answer, dict)
    return answer


def test_pods_are_refused_where_they_are_tagged() -> None:
    assert tagged(raw_pod(OURS))["allowed"]
    message = 'isochrone.dev/phase is \'decod\'; use "prefill" or "decode". Did you mean "decode"?'
    refused = {"uid": "u", "allowed": False, "status": {"message": message, "code": 400}}
    assert tagged(raw_pod({**OURS, "isochrone.dev/phase": "decod"})) == refused
    notes = {"isochrone.dev/min-decode": "5", "rbg.workloads.x-k8s.io/role-size": "4"}
    assert "use at most 4" in tagged(raw_pod(OURS, notes))["status"]["message"]


def test_pods_are_not_judged_a_second_time() -> None:
    wrong = raw_pod({**OURS, "isochrone.dev/phase": "decod"})
    assert validated("pods", wrong) == {"uid": "u", "allowed": True}
    assert validated("pods", {"metadata": []})["allowed"]


def test_a_pod_that_was_merely_recognised_is_not_refused_afterwards() -> None:
    notes = {"isochrone.dev/signal": "phase: Kthena role decode; gang: Kthena group a", "isochrone.dev/reach": "soon"}
    assert tagged(raw_pod(OURS, notes))["allowed"]


def test_owners_hear_of_their_templates() -> None:
    def owner(replicas: int | None, annotations: dict[str, str], phase: str = "decode") -> dict[str, Any]:
        labels = {**OURS, "isochrone.dev/phase": phase}
        template = raw_pod(labels, annotations)
        spec = {"template": template} if replicas is None else {"replicas": replicas, "template": template}
        return validated("deployments", {"metadata": {"name": "chat"}, "spec": spec}, group="apps")

    minimum = {"isochrone.dev/min-decode": "4"}
    assert owner(4, minimum) == {"uid": "u", "allowed": True}
    assert owner(0, minimum) == {"uid": "u", "allowed": True}
    reported = "isochrone.dev/min-decode is '4'; use at most 2, the number of decode pods that there will be."
    assert owner(2, minimum) == {"uid": "u", "allowed": True, "warnings": [reported]}
    assert "at most 1," in owner(None, minimum)["warnings"][0]
    assert not owner(1, {}, phase="both")["allowed"]


LOST = "stands on the Deployment, not on its pod template (spec.template.metadata.labels): pods do not get it"


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_who_applies_an_owner_hears_of_keys_that_no_pod_gets(operation: str) -> None:
    def deployment(own: dict[str, str], pods: dict[str, str]) -> dict[str, Any]:
        content = {"kind": "Deployment", "metadata": {"labels": own}, "spec": {"template": raw_pod(pods)}}
        return validated("deployments", content, operation, group="apps")

    assert deployment(OURS, OURS) == deployment({}, OURS) == deployment({}, {}) == {"uid": "u", "allowed": True}
    gang = {"isochrone.dev/gang": "chat"}
    assert deployment(gang, {}) == {"uid": "u", "allowed": True, "warnings": [f"label isochrone.dev/gang {LOST}"]}
    # What nobody could mean is on no pod either: said, not refused.
    assert deployment({"isochrone.dev/phase": "decod"}, {})["allowed"]


def test_an_lws_is_told_once_for_both_of_its_templates() -> None:
    def lws(**templates: Any) -> list[str]:
        content = {"kind": "LeaderWorkerSet", "metadata": {"annotations": {"isochrone.dev/reach": "1ms"}}}
        spec = {"spec": {"leaderWorkerTemplate": templates}}
        warnings = validated("leaderworkersets", content | spec, group="leaderworkerset.x-k8s.io").get("warnings", [])
        assert isinstance(warnings, list)
        return warnings

    there = {"metadata": {"annotations": {"isochrone.dev/reach": "1ms"}}}
    assert lws(leaderTemplate=there, workerTemplate=there) == lws(workerTemplate=there) == []
    assert len(lws(leaderTemplate=there, workerTemplate={})) == len(lws(leaderTemplate={}, workerTemplate={})) == 1


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"kind": "Deployment"},
        {"kind": "Deployment", "metadata": [], "spec": {"template": 7}},
        {"kind": "CronJob", "metadata": {"labels": OURS}, "spec": {"jobTemplate": {"spec": None}}},
        {"kind": ["Deployment"], "spec": "x"},
        {"kind": "Widget", "metadata": {"labels": OURS}},
    ],
)
def test_an_object_of_any_form_is_let_through(content: Any) -> None:
    assert validated("widgets", content, group="acme.example") == {"uid": "u", "allowed": True}


def test_many_lost_keys_are_told_within_bounds() -> None:
    notes = {"isochrone.dev/gpu-memory": "1Gi", "isochrone.dev/reach": "1ms"}
    metadata = {"labels": OURS, "annotations": notes | {f"k{i}": "x" * 1000 for i in range(200)}}
    content = {"kind": "StatefulSet", "metadata": metadata, "spec": {"template": {}}}
    warnings = validated("statefulsets", content, group="apps")["warnings"]
    assert len(warnings) == 2
    assert all(len(text) <= 240 for text in warnings)
