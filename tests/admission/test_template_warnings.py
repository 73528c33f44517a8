"""What is told of an owner's pod template: the warnings of its pods, which their controller throws away."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from admission.webhook import review
from tests.admission.pods import raw_pod, tagged

OURS = {"isochrone.dev/phase": "decode", "isochrone.dev/gang": "chat"}
MISSPELT = "isochrone.dev/reech is no key of Isochrone and means nothing; did you mean isochrone.dev/reach?"
MISPLACED = "isochrone.dev/reach stands in the pod's labels and means nothing there; it belongs in its annotations"
GROUPS = {"deployments": "apps", "cronjobs": "batch", "leaderworkersets": "leaderworkerset.x-k8s.io"}


def answer(resource: str, content: Any, old: Any = None, namespace: str = "prod") -> dict[str, Any]:
    request = {
        "uid": "u",
        "operation": "CREATE" if old is None else "UPDATE",
        "namespace": namespace,
        "resource": {"group": GROUPS[resource], "version": "v1", "resource": resource},
        "object": content,
        "oldObject": old,
    }
    body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    found = msgspec.json.decode(review.validated(review.decode(body)).body)["response"]
    assert isinstance(found, dict)
    return found


def deployment(labels: dict[str, str], annotations: dict[str, str] | None = None, replicas: int = 1) -> dict[str, Any]:
    template = raw_pod(labels, annotations)
    return {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": replicas, "template": template}}


@pytest.mark.parametrize(
    ("labels", "annotations", "reported"),
    [
        (OURS, {}, []),
        (OURS, {"isochrone.dev/reech": "1ms"}, [MISSPELT]),
        ({**OURS, "isochrone.dev/reach": "1ms"}, {}, [MISPLACED]),
        ({"app": "web"}, {"note": "x"}, []),
        # Without our labels the namespace decides whether anybody looks: only what holds in any is told.
        ({"app": "web"}, {"isochrone.dev/reech": "1ms"}, [MISSPELT]),
        ({"app": "web"}, {"isochrone.dev/reach": "1ms"}, []),
        ({"isochrone.dev/enabled": "false", "isochrone.dev/reach": "1ms", **OURS}, {}, []),
    ],
)
def test_the_words_of_the_pods_are_said_of_their_owner(
    labels: dict[str, str], annotations: dict[str, str], reported: list[str]
) -> None:
    found = answer("deployments", deployment(labels, annotations))
    assert found["allowed"]
    assert found.get("warnings", []) == [f"spec.template: {text}" for text in reported]


def test_a_phase_without_a_gang_is_told_as_the_pod_would_be_told() -> None:
    phase = {"isochrone.dev/phase": "decode"}
    warnings = answer("deployments", deployment(phase))["warnings"]
    assert warnings == [f"spec.template: {text}" for text in tagged(raw_pod(phase))[0].warnings]
    assert "but no gang" in warnings[0]


def test_a_bad_value_without_our_labels_is_said_and_not_refused() -> None:
    found = answer("deployments", deployment({"app": "web"}, {"isochrone.dev/reach": "soon"}))
    assert found["allowed"]
    assert found["warnings"][0].startswith("spec.template: isochrone.dev/reach is 'soon'; ")
    refused = answer("deployments", deployment(OURS, {"isochrone.dev/reach": "soon"}))
    assert not refused["allowed"]
    assert "warnings" not in refused  # said once


def test_a_change_is_told_only_where_the_template_is_changed_and_is_never_refused() -> None:
    wrong, right = deployment(OURS, {"isochrone.dev/reech": "1ms"}), deployment(OURS)
    assert answer("deployments", wrong, right)["warnings"] == [f"spec.template: {MISSPELT}"]
    scaled = deployment(OURS, {"isochrone.dev/reech": "1ms"}, replicas=9)
    assert answer("deployments", scaled, wrong) == {"uid": "u", "allowed": True}
    bad = answer("deployments", deployment({**OURS, "isochrone.dev/phase": "decod"}), right)
    assert bad["allowed"]
    assert bad["warnings"][0].startswith("spec.template: its pods will be refused: isochrone.dev/phase is 'decod'")


def test_other_kinds_are_told_with_the_place_of_their_template() -> None:
    template = raw_pod(OURS, {"isochrone.dev/reech": "1ms"})
    job = {"kind": "CronJob", "metadata": {"name": "c"}, "spec": {"jobTemplate": {"spec": {"template": template}}}}
    assert answer("cronjobs", job)["warnings"] == [f"spec.jobTemplate.spec.template: {MISSPELT}"]

    def lws(**templates: Any) -> list[str]:
        spec = {"leaderWorkerTemplate": {"size": 2, **templates}}
        found = answer("leaderworkersets", {"kind": "LeaderWorkerSet", "metadata": {"name": "l"}, "spec": spec})
        warnings = found.get("warnings", [])
        assert isinstance(warnings, list)
        return warnings

    at = "spec.leaderWorkerTemplate"
    assert lws(workerTemplate=template) == [f"{at}.workerTemplate: {MISSPELT}"]
    assert lws(leaderTemplate=raw_pod(OURS), workerTemplate=template) == [f"{at}.workerTemplate: {MISSPELT}"]
    assert lws(leaderTemplate=template, workerTemplate=template) == [f"{at}.leaderTemplate: {MISSPELT}"]
    assert lws(leaderTemplate=raw_pod(OURS), workerTemplate=raw_pod(OURS)) == []


def test_what_is_told_is_bounded_in_number_and_length() -> None:
    many = {f"isochrone.dev/{number}{'x' * 300}": "1" for number in range(40)}
    warnings = answer("deployments", deployment({"isochrone.dev/phase": "decode"}, many))["warnings"]
    assert len(warnings) == 10
    assert all(len(text) <= 240 for text in warnings)


@pytest.mark.parametrize(
    "spec",
    [
        7,
        {"template": 7},
        {"template": {"metadata": {"labels": [1], "annotations": {"isochrone.dev/reech": ""}}, "spec": 3}},
        {"template": {"metadata": {"labels": OURS}, "spec": {"containers": [{"name": {}}]}}},
    ],
)
def test_a_template_of_any_form_is_let_through(spec: Any) -> None:
    assert answer("deployments", {"kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}, {})["allowed"]
