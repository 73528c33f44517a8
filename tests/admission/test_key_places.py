"""What is told of keys that stand where nobody reads them, and of claims that nobody reads."""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from admission.commands.admit import admitted, lines
from admission.recognition.key_places import on_owner
from admission.templates.manifest_file import Document
from admission.webhook.tagging import Entry
from tests.admission.pods import PRODUCER, raw_pod, tagged

OURS = {"isochrone.dev/phase": "decode", "isochrone.dev/gang": "chat"}
CLAIM = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
UNREAD = (
    "the pod asks for devices by resourceClaims, which Isochrone does not read: "
    "it is planned and counted as a pod without GPUs"
)


def test_a_pod_that_asks_by_claims_alone_is_tagged_as_ever_and_told() -> None:
    with_claim, pod = tagged(raw_pod(OURS, resourceClaims=CLAIM))
    without, _ = tagged(raw_pod(OURS))
    assert (with_claim.warnings, without.warnings) == ((UNREAD,), ())
    assert (with_claim.ops, pod["spec"]["resourceClaims"]) == (without.ops, CLAIM)


def test_a_claim_beside_gpus_is_not_told_and_neither_is_one_of_a_pod_that_does_not_ask() -> None:
    both = raw_pod(OURS, resourceClaims=CLAIM)
    both["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    assert tagged(both)[0].warnings == ()
    recognised = raw_pod(args=PRODUCER, resourceClaims=CLAIM)
    assert tagged(recognised, Entry.RECOGNISE)[0].warnings == ()
    assert tagged(recognised, Entry.NAMESPACE)[0].warnings == (UNREAD,)


def test_admit_says_of_a_claim_what_the_webhook_says() -> None:
    pod = {"kind": "Pod", **raw_pod(args=PRODUCER, resourceClaims=CLAIM)}
    (entry,) = admitted([Document("f", pod)])
    assert list(lines(entry))[-1] == f"  note    {UNREAD}"
    assert entry.warnings == (UNREAD,)


@pytest.mark.parametrize(
    ("labels", "annotations", "reported"),
    [
        (
            {"isochrone.dev/reach": "1ms"},
            {},
            ["isochrone.dev/reach stands in the pod's labels and means nothing there; it belongs in its annotations"],
        ),
        (
            {},
            {"isochrone.dev/phase": "decode"},
            ["isochrone.dev/phase stands in the pod's annotations and means nothing there; it belongs in its labels"],
        ),
        (
            {"isochrone.dev/gangs": "chat"},
            {},
            ["isochrone.dev/gangs is no key of Isochrone and means nothing; did you mean isochrone.dev/gang?"],
        ),
        (
            {},
            {"isochrone.dev/reachh": "1ms"},
            ["isochrone.dev/reachh is no key of Isochrone and means nothing; did you mean isochrone.dev/reach?"],
        ),
        ({"app": "web"}, {"isochrone.dev/reach": "1ms"}, []),
    ],
)
def test_keys_that_mean_nothing_are_told(
    labels: dict[str, str], annotations: dict[str, str], reported: list[str]
) -> None:
    for more in ({}, OURS):
        assert list(tagged(raw_pod({**labels, **more}, annotations), Entry.NAMESPACE)[0].warnings) == reported
    # With a phase and no gang, the hints come after what is missing.
    phase = raw_pod({**labels, "isochrone.dev/phase": "decode"}, annotations)
    assert list(tagged(phase)[0].warnings)[1:] == reported
    assert tagged(raw_pod(labels, annotations), Entry.RECOGNISE)[0].warnings == ()


def test_the_words_for_one_pod_are_bounded() -> None:
    many = {f"isochrone.dev/{'x' * 30}{number}": "1" for number in range(40)}
    assert len(tagged(raw_pod(annotations=many), Entry.NAMESPACE)[0].warnings) == 10


def test_no_more_keys_are_compared_than_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    real = difflib.get_close_matches

    def counted(word: str, *arguments: Any, **options: Any) -> list[str]:
        compared.append(word)
        return real(word, *arguments, **options)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    many = {f"isochrone.dev/{number}{'x' * 60}": "1" for number in range(1000)}
    assert len(tagged(raw_pod(OURS, many))[0].warnings) == len(compared) == 10


BOTH = (
    "labels isochrone.dev/phase, isochrone.dev/gang stand on the Deployment, not on its pod template "
    "(spec.template.metadata.labels): pods do not get them"
)
BOUND = (
    "annotation isochrone.dev/reach stands on the Deployment, not on its pod template "
    "(spec.template.metadata.annotations): pods do not get it"
)


def deployment(labels: dict[str, str], annotations: dict[str, str], template: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": "chat", "labels": labels, "annotations": annotations}
    return {"kind": "Deployment", "metadata": metadata, "spec": {"template": raw_pod(template)}}


@pytest.mark.parametrize(
    ("owner", "reported"),
    [
        (deployment(OURS, {}, {"app": "chat"}), [BOTH]),
        (deployment(OURS, {"isochrone.dev/reach": "1ms"}, OURS), [BOUND]),
        (deployment(OURS, {}, OURS), []),
        (deployment({"app": "chat"}, {"note": "x"}, OURS), []),
        ({"kind": "Pod", **raw_pod(OURS)}, []),
    ],
)
def test_keys_on_the_owner_alone_are_told(owner: dict[str, Any], reported: list[str]) -> None:
    (entry,) = admitted([Document("f", owner)])
    assert [each for each in entry.warnings if "stand" in each] == reported


def test_where_the_template_is_depends_on_the_kind_and_unknown_kinds_are_not_judged() -> None:
    meta = {"labels": {"isochrone.dev/gang": "chat"}}
    (reported,) = on_owner({"kind": "CronJob", "metadata": meta}, {"metadata": None})
    assert "(spec.jobTemplate.spec.template.metadata.labels)" in reported
    assert list(on_owner({"kind": "InferenceService", "metadata": meta}, {})) == []
    assert list(on_owner({"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1", "metadata": meta}, {})) == []
