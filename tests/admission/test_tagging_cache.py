"""Pods of one template get one decision, and pods that differ in anything that counts get their own."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from hypothesis import given

from admission.recognition.signals import BUILT_IN
from admission.webhook import json_patch
from admission.webhook.tagging import Entry, tag
from admission.webhook.tagging_cache import Decided, decided
from tests.admission.pods import CONSUMER, NAMESPACE, Raw, decoded, raw_pod
from tests.admission.test_tagging_properties import entries, pods

OURS = {"isochrone.dev/phase": "decode", "isochrone.dev/gang": "chat"}


def patch_of(raw: Raw, entry: Entry = Entry.LABELLED) -> list[dict[str, Any]]:
    found = decided(decoded(raw), NAMESPACE, entry, BUILT_IN).patch
    operations: list[dict[str, Any]] = msgspec.json.decode(base64.b64decode(found)) if found else []
    return operations


@given(pods(), entries)
def test_a_decision_is_what_tagging_says_of_the_very_pod(raw: Raw, entry: Entry) -> None:
    pod = decoded(raw)
    fresh = tag(pod, NAMESPACE, entry)
    patch = base64.b64encode(json_patch.encode(fresh.ops)).decode() if fresh.ops else ""
    assert decided(pod, NAMESPACE, entry, BUILT_IN) == Decided(patch, fresh.warnings, fresh.denied)


def test_pods_of_one_template_are_read_once() -> None:
    first, second = (raw_pod(labels=OURS) for _ in range(2))
    first["metadata"] |= {"generateName": "chat-7459345bb-", "name": "chat-7459345bb-x7k2p", "uid": "1"}
    second["metadata"] |= {"generateName": "chat-7459345bb-", "name": "chat-7459345bb-9qjzw", "uid": "2"}
    one, other = (decided(decoded(raw), NAMESPACE, Entry.LABELLED, BUILT_IN) for raw in (first, second))
    assert one is other


def test_absent_and_empty_resources_are_told_apart() -> None:
    absent, empty = raw_pod(labels=OURS), raw_pod(labels=OURS)
    absent["spec"]["containers"][0].pop("resources", None)
    empty["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    at = "/spec/containers/0/resources"
    for _ in range(2):
        assert {"op": "add", "path": at, "value": {}} in patch_of(absent)
        assert at not in [operation["path"] for operation in patch_of(empty)]


def test_who_asks_and_where_it_stands_belong_to_the_decision() -> None:
    raw = raw_pod(args=CONSUMER, labels={"app.kubernetes.io/part-of": "chat"})
    gate = "/spec/schedulingGates"
    assert gate in [operation["path"] for operation in patch_of(raw, Entry.NAMESPACE)]
    assert gate not in [operation["path"] for operation in patch_of(raw, Entry.RECOGNISE)]
    assert patch_of(raw_pod(labels=OURS, nodeName="n1")) == []
    assert patch_of(raw_pod(labels=OURS)) != []


def test_a_pod_too_long_to_be_kept_is_decided_all_the_same() -> None:
    assert patch_of(raw_pod(labels=OURS, args=["--model", "m" * 20_000])) == patch_of(raw_pod(labels=OURS))
