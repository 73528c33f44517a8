"""AdmissionReview v1, as the API server speaks it."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from admission.webhook import review
from admission.webhook.review import ReviewResult
from admission.webhook.tagging import Entry
from tests.admission.pods import raw_pod
from topology.bad_input import BadInput

OURS = {"isochrone.dev/phase": "decode", "isochrone.dev/gang": "chat"}


def body(pod: Any, **request: Any) -> bytes:
    given = {
        "uid": "705ab4f5",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "team-a",
        "operation": "CREATE",
        "object": pod,
        **request,
    }
    return msgspec.json.encode({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": given})


def answered(sent: bytes) -> tuple[dict[str, Any], ReviewResult]:
    reply = review.answer(review.decode(sent), Entry.LABELLED)
    whole = msgspec.json.decode(reply.body)
    assert (whole["apiVersion"], whole["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert whole["response"]["uid"] == "705ab4f5"
    return whole["response"], reply.result


def test_a_patch_is_base64_and_says_its_type() -> None:
    response, result = answered(body(raw_pod(OURS)))
    assert (result, response["allowed"], response["patchType"]) == (ReviewResult.TAGGED, True, "JSONPatch")
    assert msgspec.json.decode(base64.b64decode(response["patch"]))[0] == {
        "op": "add",
        "path": "/metadata/annotations",
        "value": {},
    }


def test_without_a_patch_there_is_no_patch_type() -> None:
    assert answered(body(raw_pod())) == ({"uid": "705ab4f5", "allowed": True}, ReviewResult.UNTOUCHED)


def test_a_refusal_has_a_message_and_a_code() -> None:
    response, result = answered(body(raw_pod({"isochrone.dev/phase": "decoder"})))
    assert (result, response["allowed"]) == (ReviewResult.REFUSED, False)
    assert response["status"]["code"] == 400
    assert "patch" not in response


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"operation": "CONNECT"},
        {"subResource": "binding"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
        {"resource": {"group": "metrics.k8s.io", "version": "v1", "resource": "pods"}},
    ],
)
def test_everything_else_passes(request_: dict[str, Any]) -> None:
    assert answered(body(raw_pod(OURS), **request_)) == ({"uid": "705ab4f5", "allowed": True}, ReviewResult.UNTOUCHED)


@pytest.mark.parametrize("pod", [None, 1, {"spec": {"containers": 1}}, {"metadata": {"labels": {"a": 1}}}])
def test_a_pod_that_cannot_be_read_is_allowed_with_a_warning(pod: Any) -> None:
    response, result = answered(body(pod))
    assert (result, response["allowed"]) == (ReviewResult.FAILED, True)
    assert response["warnings"][0].startswith("Isochrone cannot read this pod and leaves it alone: ")


def test_nulls_that_the_api_server_writes_are_read() -> None:
    raw = raw_pod(OURS)
    raw["metadata"] |= {"creationTimestamp": None, "annotations": None}
    raw["spec"]["containers"][0] |= {"resources": {}, "args": None}
    raw["status"] = {}
    assert answered(body(raw))[1] is ReviewResult.TAGGED


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"", "body is ''; it must be an AdmissionReview: "),
        (b"{", "body is '{'; it must be an AdmissionReview: "),
        (b"[]", "body is '[]'; it must be an AdmissionReview: "),
        (b'{"x": "\xff"}', "body is 'byte 7'; it must be UTF-8"),
        (b"{}", "body is ''; it must be of admission.k8s.io/v1 AdmissionReview"),
        (b"[" * 100_000, "body is '[["),
        (
            b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}',
            "body is 'admission.k8s.io/v1beta1 AdmissionReview'; it must be of",
        ),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', "request is None; an AdmissionReview needs"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}', "body is "),
    ],
)
def test_what_is_no_review_is_said_in_one_sentence(sent: bytes, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        review.decode(sent)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
