"""One node's facts as JSON, for `isochrone topology show` and other tools: written by the controller, read back here.

The hardware alone: who holds which device, and what was measured, are left out. The form of `facts` is that of
agent.proto (protobuf JSON with the names of the file); `ages` says how old each part is.
"""

from __future__ import annotations

import json
from typing import Any, Final

from google.protobuf import json_format

from topology.bad_input import BadInput
from topology.facts import agent_pb2 as wire
from topology.facts import wire as facts_wire
from topology.facts.age import FactPart, Freshness, PartAge, PartAges
from topology.facts.report import NodeFacts

_SHOWN: Final = (FactPart.GPUS, FactPart.NETWORK)


def written(node: str, facts: NodeFacts, ages: PartAges) -> bytes:
    """`{"node", "ages": {"gpus": {"age_s", "freshness"}, "network": ...}, "facts"}`."""
    message = facts_wire.full_message(facts)
    message.ClearField("pods")
    message.ClearField("reach")
    answer = {
        "node": node,
        "ages": {p.value: {"age_s": round(ages[p].age_s, 3), "freshness": ages[p].freshness.value} for p in _SHOWN},
        "facts": json_format.MessageToDict(message, preserving_proto_field_name=True),
    }
    return json.dumps(answer).encode()


def read(body: bytes) -> tuple[str, NodeFacts, PartAges]:
    """What `written` wrote. Raises BadInput for anything else."""
    try:
        answer: dict[str, Any] = json.loads(body)
        node, message = answer["node"], json_format.ParseDict(answer["facts"], wire.Full(), ignore_unknown_fields=True)
        ages = {p: PartAge(float(a["age_s"]), Freshness(a["freshness"])) for p, a in _known(answer["ages"])}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, json_format.ParseError) as error:
        raise BadInput("the controller's answer", type(error).__name__, "it is no report of a node's facts") from None
    if not isinstance(node, str):
        raise BadInput("the controller's answer", node, "it names no node")
    return node, facts_wire.read_full(message), ages


def _known(ages: dict[str, Any]) -> list[tuple[FactPart, dict[str, Any]]]:
    return [(part, ages[part.value]) for part in _SHOWN if part.value in ages]
