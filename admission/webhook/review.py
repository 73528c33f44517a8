"""AdmissionReview v1: bytes in, bytes out.

Decides which reviews concern us (pods that are created, and owners for their templates) and how the answer is put. It
must never know why a pod is tagged, nor HTTP. A review that is none is BadInput; a pod that cannot be read is
allowed with a warning, because an inference pod must never be lost to our reading of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from admission.recognition.key_places import on_described
from admission.recognition.signals import BUILT_IN, Rules
from admission.webhook.nonsense import Owner, above_size, nonsense
from admission.webhook.pod_warnings import sentence, shortened
from admission.webhook.tagging import Entry
from admission.webhook.tagging_cache import Decided, decided
from admission.webhook.template_warnings import raw_templates, template_warnings
from topology.bad_input import BadInput
from topology.labels import labelled
from topology.objects import Pod

_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"


class ReviewResult(StrEnum):
    """What became of a review; the label of the metric."""

    TAGGED = "tagged"
    UNTOUCHED = "untouched"
    REFUSED = "refused"
    FAILED = "failed"


class _Resource(msgspec.Struct, frozen=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class Request(msgspec.Struct, frozen=True, rename="camel"):
    """The part of an admission request that we read. The object waits undecoded until it is known to be a pod."""

    uid: str
    operation: str = ""
    namespace: str = ""
    sub_resource: str = ""
    resource: _Resource = _Resource()
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def creates_owner(self) -> bool:
        """A Deployment or StatefulSet, whose template is validated before it makes pods."""
        owners = self.resource.group == "apps" and self.resource.resource in ("deployments", "statefulsets")
        return owners and self.operation == "CREATE" and not self.sub_resource

    @property
    def applies_object(self) -> bool:
        """Something else than a pod is created or changed; which kinds are sent here the configuration decides."""
        pods = self.resource.group == "" and self.resource.resource == "pods"
        return self.operation in ("CREATE", "UPDATE") and not self.sub_resource and not pods

    @property
    def creates_pod(self) -> bool:
        """Everything else cannot be tagged: most of a pod is immutable once it exists."""
        pods = self.resource.group == "" and self.resource.resource == "pods"
        return pods and self.operation == "CREATE" and not self.sub_resource


class _AdmissionReview(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: Request | None = None


class _Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    message: str
    code: int = 0


class _Response(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    patch_type: str = ""
    patch: str = ""
    status: _Refusal | None = None
    warnings: tuple[str, ...] = ()


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    response: _Response
    api_version: str = _API_VERSION
    kind: str = _KIND


@dataclass(frozen=True, slots=True)
class Reply:
    """The body to send and what to count."""

    body: bytes
    result: ReviewResult


_REVIEW = msgspec.json.Decoder(_AdmissionReview)
_POD = msgspec.json.Decoder(Pod)
_OWNER = msgspec.json.Decoder(Owner)
_OBJECT: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()


def decode(body: bytes | bytearray) -> Request:
    """The request of a review. Raises BadInput, naming what is wrong, for anything that is no AdmissionReview v1."""
    try:
        body.decode()  # the decoder below skips what it does not need, bad bytes included
        review = _REVIEW.decode(body)
    except UnicodeDecodeError as error:
        raise BadInput("body", f"byte {error.start}", "it must be UTF-8") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput("body", body[:40].decode(errors="replace"), f"it must be an AdmissionReview: {error}") from None
    if review.api_version != _API_VERSION or review.kind != _KIND:
        named = f"{review.api_version} {review.kind}".strip()
        raise BadInput("body", named, f"it must be of {_API_VERSION} {_KIND}")
    if review.request is None:
        raise BadInput("request", None, "an AdmissionReview needs one")
    return review.request


def answer(request: Request, entry: Entry, rules: Rules = BUILT_IN) -> Reply:
    """Decides and encodes. The same request gives the same bytes, dry run or not: nothing else is touched."""
    if not request.creates_pod:
        return untouched(request.uid)
    try:
        pod = _POD.decode(request.object)
    except (msgspec.DecodeError, RecursionError) as error:
        return untouched(
            request.uid, f"Isochrone cannot read this pod and leaves it alone: {error}"[:240], ReviewResult.FAILED
        )
    return _encoded(request.uid, decided(pod, request.namespace or pod.metadata.namespace, entry, rules))


def validated(request: Request, rules: Rules = BUILT_IN) -> Reply:
    """The validating part: refuses an owner whose template nobody could mean, and says what it can never fulfil.

    Of any object it says which keys of ours stand on it and not on its pod template, and, where that template is new,
    what its pods would be warned of; those are never refused.
    """
    try:
        if not request.applies_object:
            return _verdict(request.uid, (), ())
        content = _OBJECT.decode(request.object)
        wrong: Sequence[BadInput] = ()
        warnings: list[str] = []
        if request.creates_owner:
            owner = _OWNER.decode(request.object)
            pod, replicas = owner.template, 1 if owner.spec.replicas is None else owner.spec.replicas
            # Without a label of ours nobody looks at its pods but in an enabled namespace: said, not refused.
            wrong = nonsense(pod) if labelled(pod.metadata.labels) else ()
            # Another owner may bring the rest, and none at all is a way to wait: said, not refused.
            warnings += map(sentence, above_size(pod, replicas) if replicas else ())
        if request.operation == "CREATE" or raw_templates(content) != raw_templates(_old(request)):
            warnings += template_warnings(content, request.namespace, rules, bool(wrong))
        return _verdict(request.uid, wrong, shortened([*warnings, *on_described(content)]))
    except (msgspec.DecodeError, RecursionError) as error:
        return untouched(request.uid, f"Isochrone cannot read this object: {error}"[:240], ReviewResult.FAILED)


def _old(request: Request) -> dict[str, Any]:
    found = msgspec.json.decode(request.old_object)
    return found if isinstance(found, dict) else {}


def _verdict(uid: str, wrong: Sequence[BadInput], warnings: tuple[str, ...]) -> Reply:
    if not wrong:
        return Reply(_encode(_Response(uid, True, warnings=warnings)), ReviewResult.UNTOUCHED)
    refused = _Response(uid, False, status=_Refusal(" ".join(map(sentence, wrong)), 400), warnings=warnings)
    return Reply(_encode(refused), ReviewResult.REFUSED)


def untouched(uid: str, warning: str = "", result: ReviewResult = ReviewResult.UNTOUCHED) -> Reply:
    """Allowed as it is."""
    return Reply(_encode(_Response(uid, True, warnings=(warning,) if warning else ())), result)


def _encoded(uid: str, found: Decided) -> Reply:
    if found.denied:
        refused = _Response(uid, False, status=_Refusal(found.denied, 400), warnings=found.warnings)
        return Reply(_encode(refused), ReviewResult.REFUSED)
    if not found.patch:
        return Reply(_encode(_Response(uid, True, warnings=found.warnings)), ReviewResult.UNTOUCHED)
    tagged = _Response(uid, True, patch_type="JSONPatch", patch=found.patch, warnings=found.warnings)
    return Reply(_encode(tagged), ReviewResult.TAGGED)


def _encode(response: _Response) -> bytes:
    return _ENCODER.encode(_Answer(response))
