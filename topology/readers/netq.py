"""Reads two answers of NetQ's API: the topology graph (switches, hosts, cables) and the list of compute nodes.

Source: the shapes that NVIDIA/topograph reads (tests/output/netq). Tier 1 is a leaf, 2 a spine, above it core; a
device that was only seen through LLDP is a host. In the list of compute nodes DomainUUID is the NVLink domain.
"""

from __future__ import annotations

from typing import Final

from topology.graph.network_cables import NetworkCables
from topology.graph.parts import GraphPart, PartKind, Topology, TopologyBuilder, bad, check_name
from topology.readers.documents import DocumentValue, json_document

GRAPH: Final = "NetQ topology graph"
COMPUTE: Final = "NetQ compute nodes"
MAX_GPUS: Final = 64  # of one host
_HOST_TYPES: Final = ("discovered_via_lldp", "host")


def is_one(document: DocumentValue) -> bool:
    """Whether a JSON document is one of the two answers."""
    if not isinstance(document.data, list) or not document.data:
        return False
    first = document.data[0].data
    return isinstance(first, dict) and ({"links", "nodes"} <= first.keys() or "DomainUUID" in first)


def read(text: str) -> Topology:
    """The network, or the hosts with their domains. Raises BadInput with line and reason."""
    return read_document(json_document(text))


def read_document(document: DocumentValue) -> Topology:
    """The same, from a value."""
    entries = document.items("answer")
    if entries and "DomainUUID" in entries[0].mapping("entry"):
        return _compute_nodes(entries)
    fabric = NetworkCables(TopologyBuilder(GRAPH))
    names: dict[str, str] = {}
    for entry in entries:
        for group in entry.need("nodes", "graph").items("nodes"):
            for node in group.need("compounded_nodes", "group of nodes").items("compounded_nodes"):
                _node(node, names, fabric)
    for entry in entries:
        for link in entry.need("links", "graph").items("links"):
            _link(link, names, fabric)
    if not fabric.switches:
        raise bad(document.line, "number of switches", 0, "at least one node of device_type switch is needed")
    return fabric.finish()


def _node(node: DocumentValue, names: dict[str, str], fabric: NetworkCables) -> None:
    key = node.need("id", "node").text("id of a node")
    name = node.need("name", "node").text("name of a node")
    kind = node.need("device_type", "node").text("device_type")
    check_name(name, node.line)
    if key in names or name in fabric.switches or name in fabric.hosts:
        raise bad(node.line, "node", name, "it is there twice; every node has one id and one name")
    names[key] = name
    if kind == "switch":
        fabric.switches[name] = max(node.need("tier", "node").whole("tier", -1, 9), 0)
    elif kind in _HOST_TYPES:
        fabric.hosts[name] = ""
    else:
        raise bad(node.line, f"device_type of {name}", kind, f"it is switch, {' or '.join(_HOST_TYPES)}")


def _link(link: DocumentValue, names: dict[str, str], fabric: NetworkCables) -> None:
    ends = []
    for key in ("src", "target"):
        value = link.need(key, "link").text(key)
        if value not in names:
            raise bad(link.line, f"{key} of a link", value, "no node has this id")
        ends.append(names[value])
    if ends[0] == ends[1] or not any(end in fabric.switches for end in ends):
        raise bad(link.line, "link", f"{ends[0]} to {ends[1]}", "it joins a switch to something else")
    cables = link.get("compounded_links")
    count = len(cables.items("compounded_links")) if cables else 1
    size = link.get("size")
    if size and size.whole("size", 1, 100_000) != count:
        fabric.build.warn(f"line {link.line}: a link says {size.shown()} cables and lists {count}; the list counts")
    fabric.cable(ends[0], ends[1], link.line, max(count, 1))


def _compute_nodes(entries: list[DocumentValue]) -> Topology:
    build = TopologyBuilder(COMPUTE)
    for entry in entries:
        name = entry.need("Name", "compute node").text("Name")
        check_name(name, entry.line)
        domain = entry.get("DomainUUID")
        build.part(GraphPart(name, PartKind.HOST, domain=domain.text("DomainUUID") if domain else ""), entry.line)
        gpus = entry.get("GpuIDList")
        ids = gpus.items("GpuIDList") if gpus else []
        if len(ids) > MAX_GPUS:
            raise bad(entry.line, f"GPUs of {name}", len(ids), f"a host has at most {MAX_GPUS}")
        for gpu in ids:
            build.part(GraphPart(gpu.text("GPU id"), PartKind.GPU, name), gpu.line)
        health = entry.get("Health")
        if health and health.text("Health") != "HEALTHY":
            build.warn(f"line {health.line}: {name} is {health.text('Health')}")
    return build.build()
