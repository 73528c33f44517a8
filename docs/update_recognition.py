"""Writes the table and the sample of docs/recognition.md; `--check` only says whether they are up to date."""

from __future__ import annotations

from pathlib import Path

from admission.commands.admit import admitted, lines, summary, to_enable
from admission.recognition.signals import ROWS
from admission.templates.manifest_file import documents
from docs.marked_page import keep

PAGE = Path(__file__).with_name("recognition.md")
SAMPLE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat-prefill}
spec:
  replicas: 2
  template:
    spec:
      containers:
        - name: engine
          image: vllm/vllm-openai
          args: [--model, chat-8b, --kv-transfer-config, '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}']
          resources: {limits: {nvidia.com/gpu: 4}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat-decode}
spec:
  replicas: 4
  template:
    spec:
      containers:
        - name: engine
          image: vllm/vllm-openai
          args: [--model, chat-8b, --kv-transfer-config, '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}']
          resources: {limits: {nvidia.com/gpu: 2}}
"""


def rows() -> list[str]:
    """One row a signal, as it is ranked."""
    head = ["| rank | name | where | yields | confidence | source |", "|---|---|---|---|---|---|"]
    return head + [
        f"| {row.rank} | {row.name} | {row.where} | {row.yields} | {row.confidence} | {row.source} |" for row in ROWS
    ]


def sample() -> list[str]:
    """A manifest and what `isochrone admit` prints for it."""
    read = documents(SAMPLE, "chat.yaml")
    found = admitted(read)
    printed = [line for entry in found for line in lines(entry)] + list(to_enable(found))
    return ["```yaml", SAMPLE.rstrip(), "```", "", "```text", *printed, summary(found, len(read)), "```"]


if __name__ == "__main__":
    raise SystemExit(keep(PAGE, {"sample": sample(), "rows": rows()}))
