"""What a cluster's PodGroups know, and what is sent then (case C062)."""

from __future__ import annotations

import msgspec
import pytest

from admission.gangs.gang_view import view_of
from admission.release.pod_group import wanted_pod_group
from admission.release.pod_group_schema import optional_fields
from tests.admission.held_pods import CHAT, held, stored
from tests.admission.test_units import lws
from topology.labels import MIN_PREFILL


def schema(*fields: str) -> bytes:
    spec = {"properties": {"minMember": {"type": "integer"}, **{f: {"type": "object"} for f in fields}}}
    schemas = {
        "sh.volcano.scheduling.v1beta1.PodGroup": {"properties": {"spec": spec, "status": {}}},
        "sh.volcano.scheduling.v1beta1.PodGroupList": {"properties": {"items": {}}},
    }
    return msgspec.json.encode({"openapi": "3.0.0", "components": {"schemas": schemas}})


@pytest.mark.parametrize("fields", [(), ("minTaskMember",), ("minTaskMember", "subGroupPolicy")])
def test_read(fields: tuple[str, ...]) -> None:
    assert optional_fields(schema(*fields, "networkTopology")) == frozenset(fields)


@pytest.mark.parametrize("wrong", [b"", b"[]", b"{}", b'{"components": {"schemas": {}}}', b"not found"])
def test_a_document_without_pod_groups(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="describes no PodGroup"):
        optional_fields(wrong)


@pytest.mark.parametrize(
    ("known", "retained"),
    [
        (frozenset(), {}),
        ({"minTaskMember"}, {"minTaskMember": {"prefill": 2, "decode": 1}}),
        ({"minTaskMember", "subGroupPolicy"}, {"minTaskMember": {"prefill": 2, "decode": 1}}),
    ],
)
def test_roles(known: frozenset[str], retained: dict[str, object]) -> None:
    """Prefill 2 of 4, decode 1 of 3: three must start together, whatever else the cluster can say."""
    pods = [stored(held(f"p{i}", annotations={MIN_PREFILL: "2"})) for i in range(4)]
    pods += [stored(held(f"d{i}")) for i in range(3)]
    spec = wanted_pod_group(view_of(CHAT, pods), pods, lambda _: None, {}, known=frozenset(known))["spec"]
    assert spec["minMember"] == 3
    assert {name: spec[name] for name in ("minTaskMember", "subGroupPolicy") if name in spec} == retained


def test_sub_groups_fall_back_to_roles() -> None:
    pods = [stored(held("p0")), stored(lws(0, 0, 2)), stored(lws(0, 1, 2))]
    spec = wanted_pod_group(view_of(CHAT, pods), pods, lambda _: None, {}, known=frozenset({"minTaskMember"}))["spec"]
    assert spec["minMember"] == 3
    assert spec["minTaskMember"] == {"prefill": 1, "decode": 2}
    assert "subGroupPolicy" not in spec
