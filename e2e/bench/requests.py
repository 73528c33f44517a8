"""Which requests the API server answered between two moments, from its own metrics."""

import re
from collections import Counter
from typing import Final

from e2e.stack.access import Access

_LINE: Final = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.M)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


def answered(access: Access) -> Counter[str]:
    """Requests so far by verb, resource and refusal; a watch counts when it ends."""
    found: Counter[str] = Counter()
    for labels, value in _LINE.findall(str(access.api("GET", "/metrics"))):
        by_name = dict(_LABEL.findall(labels))
        if not by_name["resource"]:
            continue
        below = f"/{by_name['subresource']}" if by_name["subresource"] else ""
        code = "" if by_name["code"].startswith("2") else f" {by_name['code']}"
        found[f"{by_name['verb']} {by_name['resource']}{below}{code}"] += int(float(value))
    return found
