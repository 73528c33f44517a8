"""Which fields a PodGroup has in this cluster, read from what the API server publishes about its schema. Pure.

Volcano's PodGroup grew: `minTaskMember` came after `minMember`, `subGroupPolicy` in 1.14. A field that the installed
CRD does not know would be dropped without a word, and the gang would be weaker than we think. So only known ones go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

OPENAPI_PATH = "/openapi/v3/apis/scheduling.volcano.sh/v1beta1"
"""Open to every service account by the role `system:discovery`."""

OPTIONAL = ("minTaskMember", "subGroupPolicy")


def optional_fields(document: bytes) -> frozenset[str]:
    """Those of OPTIONAL that a PodGroup's spec has. Raises ValueError for a document that describes no PodGroup."""
    try:
        schemas = msgspec.json.decode(document)["components"]["schemas"]
        (spec,) = [s["properties"]["spec"] for name, s in schemas.items() if name.endswith(".PodGroup")]
        properties = spec["properties"]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{OPENAPI_PATH} describes no PodGroup: {error}") from None
    return frozenset(name for name in OPTIONAL if name in properties)


def as_known(spec: Mapping[str, Any], known: frozenset[str], fallback: Mapping[str, Any]) -> dict[str, Any]:
    """The spec without optional fields that are not known; `fallback` (roles) stands in for sub-groups."""
    retained = {name: value for name, value in spec.items() if name not in OPTIONAL or name in known}
    if "subGroupPolicy" in spec and "subGroupPolicy" not in known:
        retained |= {name: value for name, value in fallback.items() if name in known}
    return retained
