"""Pods as the API server sends them, and what a tagging makes of them."""

from __future__ import annotations

from typing import Any

import jsonpatch
import msgspec

from admission.webhook import json_patch
from admission.webhook.tagging import Entry, Tagging, tag
from topology.objects import Pod

Raw = dict[str, Any]

NAMESPACE = "team-a"
PRODUCER = ["--model", "llama", "--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}']
CONSUMER = ["--model", "llama", "--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}']


def raw_pod(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    args: list[str] | None = None,
    command: list[str] | None = None,
    env: dict[str, str] | None = None,
    **spec: Any,
) -> Raw:
    """A pod with one container; what is None is left out."""
    container: Raw = {"name": "engine", "image": "engine:dev"}
    if command is not None:
        container["command"] = command
    if args is not None:
        container["args"] = args
    if env is not None:
        container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    metadata: Raw = {"generateName": "engine-"}
    if labels is not None:
        metadata["labels"] = labels
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def decoded(raw: Raw) -> Pod:
    """Through JSON, as the webhook reads it: only then absent and empty are told apart."""
    return msgspec.json.decode(msgspec.json.encode(raw), type=Pod)


def tagged(raw: Raw, entry: Entry = Entry.LABELLED) -> tuple[Tagging, Raw]:
    """The tagging and the patched pod."""
    tagging = tag(decoded(raw), NAMESPACE, entry)
    return tagging, jsonpatch.apply_patch(raw, json_patch.encode(tagging.ops))
