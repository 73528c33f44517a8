"""A topology's graph for other programs: networkx's node-link data as JSON, and DOT for Graphviz.

The JSON is a contract (docs/topology.md). What a source cannot say is left out of a node, never guessed.
"""

from __future__ import annotations

from typing import Any

import networkx as nx

from topology.graph.link_types import HOP
from topology.graph.parts import INSIDE, NETWORK_SWITCHES, PartKind, Topology


def as_dict(topology: Topology) -> dict[str, Any]:
    """The JSON form: `networkx.node_link_graph(data, edges="edges")` reads it back.

    Beside it are the lists of the form before it, for one release: `gpus`, `nics`, `links`, `hosts` and `switches`.
    """
    data: dict[str, Any] = nx.node_link_data(topology.graph, edges="edges")
    return {"format": topology.source, **data, "warnings": list(topology.warnings), **_lists(topology)}


def _devices(topology: Topology, kind: PartKind) -> list[dict[str, Any]]:
    return [
        {"name": part.name, "numa": part.numa, "device": part.device or None, "inside": part.inside or None}
        for part in topology.of_kind(kind)
    ]


def _hosts(topology: Topology) -> list[dict[str, Any]]:
    return [
        {
            "name": part.name,
            "inside": part.inside or None,
            "nvlink_domain": part.domain or None,
            "zone": part.zone or None,
            "region": part.region or None,
        }
        for part in topology.of_kind(PartKind.HOST)
    ]


def _switches(topology: Topology) -> list[dict[str, Any]]:
    return [
        {
            "name": part.name,
            "kind": part.kind.value,
            "inside": part.inside or None,
            "zone": part.zone or None,
            "region": part.region or None,
        }
        for part in topology.of_kind(*NETWORK_SWITCHES, PartKind.NVSWITCH, PartKind.PCIE_SWITCH)
    ]


def _lists(topology: Topology) -> dict[str, Any]:
    return {
        "gpus": _devices(topology, PartKind.GPU),
        "nics": _devices(topology, PartKind.NIC),
        "links": [
            {"a": link.a, "b": link.b, "kind": link.kind, **({"count": link.count} if link.kind == HOP else {})}
            for link in topology.links
        ],
        "hosts": _hosts(topology),
        "switches": _switches(topology),
    }


def as_dot(topology: Topology) -> str:
    """The graph in DOT: parts with name and kind, links with their kind and how many they are; dashed is `inside`."""
    lines = [f"graph {_quoted(topology.source)} {{"]
    for name, kind in topology.kinds.items():
        lines.append(f"  {_quoted(name)} [label={_quoted(name, kind)}];")
    for a, b, link in topology.graph.edges(data=True):
        style = "style=dashed" if link["kind"] == INSIDE else f"label={_quoted(_label(link['kind'], link['count']))}"
        lines.append(f"  {_quoted(a)} -- {_quoted(b)} [{style}];")
    return "\n".join([*lines, "}"])


def _label(kind: str, count: int) -> str:
    return kind if count == 1 else f"{kind} x {count}"


def _quoted(*lines: str) -> str:
    """A DOT string of these lines: quotes are escaped, and so are backslashes, which DOT reads in labels."""
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'
