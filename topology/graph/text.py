"""A topology in words: the matrix in `nvidia-smi topo -m`'s own, a tree, one line of numbers.

It decides the layout and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from topology.bad_input import BadInput
from topology.graph.link_types import HOP, NODE, PHB, PIX, PXB, SELF, SYS, UNKNOWN, rank
from topology.graph.parts import NETWORK_SWITCHES, GraphPart, PartKind, Topology, enclosing

_SHOWN_CHILDREN: Final = 16  # of one leaf switch; the rest are counted
_MATRIX_DEVICES: Final = 64
_SHOWN_CABLES: Final = 4  # far ends of one switch; the rest are counted
_TIERS: Final = {kind: tier for tier, kind in enumerate(NETWORK_SWITCHES, 1)}
_UNSAID: Final = "N/A"  # nvidia-smi's own word for a thing that it cannot say

_LEGEND: Final = {
    SELF: "itself",
    SYS: "through PCIe and the interconnect between NUMA nodes",
    NODE: "through PCIe and several host bridges of one NUMA node",
    PHB: "through PCIe and one host bridge",
    PXB: "through several PCIe switches, no host bridge",
    PIX: "through at most one PCIe switch",
    UNKNOWN: "not said by the source",
}


def summary(topology: Topology) -> str:
    """What was read, in one line."""
    names = {
        PartKind.GPU: "GPU",
        PartKind.MIG: "MIG instance",
        PartKind.NIC: "NIC",
        PartKind.NVSWITCH: "NVSwitch",
        PartKind.PCIE_SWITCH: "PCIe switch",
        PartKind.PCI_ROOT: "PCI root",
        PartKind.NUMA: "NUMA node",
        PartKind.HOST: "host",
        PartKind.LEAF: "leaf switch",
        PartKind.SPINE: "spine switch",
        PartKind.CORE: "core switch",
        PartKind.SWITCH: "switch",
    }
    counts = Counter(part.kind for part in topology.parts)
    value = [_many(counts[kind], name) for kind, name in names.items() if counts[kind]]
    domains = {part.domain for part in topology.parts if part.domain}
    if domains:
        value.append(_many(len(domains), "NVLink domain"))
    kinds = Counter(link.kind for link in topology.links)
    if kinds:
        types = ", ".join(f"{kinds[kind]} {kind}" for kind in sorted(kinds, key=lambda kind: (rank(kind), kind)))
        value.append(f"links: {types}")
    return f"{topology.source}: {', '.join(value) or 'nothing'}"


def _many(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{count} {noun if count == 1 else plural}"


def picture(topology: Topology) -> Iterator[str]:
    """Matrix, tree and warnings as lines."""
    devices = (*topology.of_kind(PartKind.GPU), *topology.of_kind(PartKind.NIC))
    if devices and any(link.kind != HOP for link in topology.links):
        yield from matrix(topology, devices)
        yield ""
    yield from tree(topology)
    for warning in topology.warnings:
        yield f"warning: {warning}"


def matrix(topology: Topology, devices: Sequence[GraphPart]) -> Iterator[str]:
    """Rows and columns of devices, their NUMA node behind, the words that occur explained beneath."""
    if len(devices) > _MATRIX_DEVICES:
        yield f"{len(devices)} devices: too many for a matrix, see -o json"
        return
    rows = _matrix_rows(topology, devices)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    if legend := _legend({link.kind for link in topology.links}):
        yield ""
        yield from (f"{word:<4} = {text}" for word, text in legend)


def _matrix_rows(topology: Topology, devices: Sequence[GraphPart]) -> list[list[str]]:
    """The header and a row of cells per device."""
    types: dict[tuple[str, str], str] = {}
    for link in topology.links:
        types[link.a, link.b] = types[link.b, link.a] = link.kind
    names = [part.name for part in devices]
    rows = [["", *names, "NUMA"]]
    for part in devices:
        cells = [SELF if part.name == to else types.get((part.name, to), UNKNOWN) for to in names]
        numa = _UNSAID if part.numa is None else str(part.numa)
        rows.append([part.name, *(_UNSAID if cell == UNKNOWN else cell for cell in cells), numa])
    return rows


def _legend(used: Set[str]) -> list[tuple[str, str]]:
    """The link words that occur, explained."""
    legend = [(_UNSAID if word == UNKNOWN else word, text) for word, text in _LEGEND.items() if word in used]
    if any(rank(word) == 1 for word in used):
        legend.append(("NV#", "a bond of # NVLinks"))
    return legend


def tree(topology: Topology) -> Iterator[str]:
    """What is inside what, two spaces a level; children beyond a few are counted, a zone is said where it changes.

    A fabric where a switch has several above it is no tree: its switches stand side by side, and a line under each
    says what its cables lead up to.
    """
    cables = _cables(topology)
    inside: dict[str, list[GraphPart]] = {}
    by_name = {part.name: part for part in topology.parts}
    for each in topology.parts:
        inside.setdefault(each.inside, []).append(each)
    stack: list[tuple[int, GraphPart | str]] = [(0, top) for top in reversed(inside.get("", []))]
    while stack:
        depth, part = stack.pop()
        if isinstance(part, str):
            yield "  " * depth + part
            continue
        yield "  " * depth + _named(part, by_name.get(part.inside))
        children = inside.get(part.name, [])
        shown = children if len(children) <= _SHOWN_CHILDREN else children[: _SHOWN_CHILDREN // 2]
        if len(shown) < len(children):
            first, last = children[len(shown)].name, children[-1].name
            stack.append((depth + 1, f"and {len(children) - len(shown)} more, {first} to {last}"))
        stack += [(depth + 1, child) for child in reversed(shown)]
        if part.name in cables:
            stack.append((depth + 1, _cabled(cables[part.name])))


def _cables(topology: Topology) -> dict[str, Counter[str]]:
    """Of switches, hosts and lone adapters: how many cables go to which switches of no lower tier, beside the tree."""
    by_name = {part.name: part for part in topology.parts}
    found: dict[str, Counter[str]] = {}
    for link in topology.links:
        if link.kind != HOP:
            continue
        a, b = _holder(by_name, link.a), _holder(by_name, link.b)
        if a.inside == b.name or b.inside == a.name:
            continue  # the tree shows it
        for low, high in ((a, b), (b, a)):
            if high.kind in NETWORK_SWITCHES and _TIERS.get(low.kind, 0) <= _TIERS[high.kind]:
                found.setdefault(low.name, Counter())[high.name] += link.count
    return found


def _holder(by_name: Mapping[str, GraphPart], end: str) -> GraphPart:
    """The host that an adapter is in, if the source says it; else the end itself."""
    part = by_name[end]
    return by_name[part.inside] if part.kind is PartKind.NIC and part.inside else part


def _cabled(to: Counter[str]) -> str:
    """`cables to spine1 (4), spine2`: in the order of the source, the number where it is not one."""
    value = [name if count == 1 else f"{name} ({count})" for name, count in list(to.items())[:_SHOWN_CABLES]]
    more = f" and {len(to) - len(value)} more switches" if len(to) > len(value) else ""
    return f"cables to {', '.join(value)}{more}"


def _named(part: GraphPart, outer: GraphPart | None) -> str:
    notes = [] if part.kind in (PartKind.GPU, PartKind.NIC, PartKind.NUMA) else [part.kind.value]
    if part.kind is PartKind.NIC and not part.device:
        notes.append("nic")
    notes += [part.device] if part.device and part.device != part.name else []
    notes += [f"NVLink domain {part.domain}"] if part.domain else []
    notes += [f"zone {part.zone}"] if part.zone and (outer is None or outer.zone != part.zone) else []
    notes += [f"region {part.region}"] if part.region and (outer is None or outer.region != part.region) else []
    return f"{part.name} ({', '.join(notes)})" if notes else part.name


def _cabled_switches(topology: Topology, node: str) -> set[str]:
    """The switches that the cables of a host end in, also where they are several."""
    graph = topology.graph
    switches = {part.name for part in topology.of_kind(*NETWORK_SWITCHES)}
    return {
        other
        for pair in topology.pairs
        for end, other in (pair, pair[::-1])
        if other in switches and (end == node or graph.nodes[end].get("inside") == node)
    }


def around(topology: Topology, node: str) -> Topology:
    """The part of a cluster that one host sees: what it stands in, and what is inside the host.

    A source that knows one machine only and does not name it is returned as it is.
    """
    hosts = {part.name for part in topology.of_kind(PartKind.HOST)}
    if not hosts:
        return topology
    if node not in hosts:
        raise BadInput("--node", node, f"{topology.source} names {_many(len(hosts), 'host')}, and not this one")
    graph = topology.graph
    shown = {node, *enclosing(graph, node), *(name for name in graph if node in enclosing(graph, name))}
    shown |= _cabled_switches(topology, node)
    return Topology.of(
        topology.source,
        (part for part in topology.parts if part.name in shown),
        (link for link in topology.links if link.a in shown and link.b in shown),
        topology.warnings,
    )
