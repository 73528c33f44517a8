"""A topology in words: the matrix in `nvidia-smi topo -m`'s own, a tree, one line of numbers, and JSON.

It decides the layout and nothing else. The JSON is a contract (docs/topology.md): `gpus`, `nics`, `links` and
`warnings` are always there, what a source cannot say is null or an empty list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from topology.bad_input import BadInput
from topology.graph.link_words import HOP, NODE, PHB, PIX, PXB, SELF, SYS, UNKNOWN, rank
from topology.graph.parts import NETWORK_SWITCHES, Part, PartKind, Topology, above

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


def as_dict(topology: Topology) -> dict[str, Any]:
    """The JSON form."""
    return {
        "format": topology.source,
        "gpus": [
            {"name": part.name, "numa": part.numa, "device": part.device or None, "inside": part.inside or None}
            for part in topology.of_kind(PartKind.GPU)
        ],
        "nics": [
            {"name": part.name, "numa": part.numa, "device": part.device or None, "inside": part.inside or None}
            for part in topology.of_kind(PartKind.NIC)
        ],
        "links": [
            {"a": link.a, "b": link.b, "kind": link.kind, **({"count": link.count} if link.kind == HOP else {})}
            for link in topology.links
        ],
        "warnings": list(topology.warnings),
        "hosts": [
            {
                "name": part.name,
                "inside": part.inside or None,
                "nvlink_domain": part.domain or None,
                "zone": part.zone or None,
                "region": part.region or None,
            }
            for part in topology.of_kind(PartKind.HOST)
        ],
        "switches": [
            {
                "name": part.name,
                "kind": part.kind.value,
                "inside": part.inside or None,
                "zone": part.zone or None,
                "region": part.region or None,
            }
            for part in topology.of_kind(*NETWORK_SWITCHES, PartKind.NVSWITCH, PartKind.PCIE_SWITCH)
        ],
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
    said = [_many(counts[kind], name) for kind, name in names.items() if counts[kind]]
    domains = {part.domain for part in topology.parts if part.domain}
    if domains:
        said.append(_many(len(domains), "NVLink domain"))
    kinds = Counter(link.kind for link in topology.links)
    if kinds:
        words = ", ".join(f"{kinds[kind]} {kind}" for kind in sorted(kinds, key=lambda kind: (rank(kind), kind)))
        said.append(f"links: {words}")
    return f"{topology.source}: {', '.join(said) or 'nothing'}"


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


def matrix(topology: Topology, devices: Sequence[Part]) -> Iterator[str]:
    """Rows and columns of devices, their NUMA node behind, the words that occur explained beneath."""
    if len(devices) > _MATRIX_DEVICES:
        yield f"{len(devices)} devices: too many for a matrix, see -o json"
        return
    words: dict[tuple[str, str], str] = {}
    for link in topology.links:
        words[link.a, link.b] = words[link.b, link.a] = link.kind
    names = [part.name for part in devices]
    rows = [["", *names, "NUMA"]]
    for part in devices:
        cells = [SELF if part.name == to else words.get((part.name, to), UNKNOWN) for to in names]
        numa = _UNSAID if part.numa is None else str(part.numa)
        rows.append([part.name, *(_UNSAID if cell == UNKNOWN else cell for cell in cells), numa])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    used = {link.kind for link in topology.links}
    legend = [(_UNSAID if word == UNKNOWN else word, text) for word, text in _LEGEND.items() if word in used]
    if any(rank(word) == 1 for word in used):
        legend.append(("NV#", "a bond of # NVLinks"))
    if legend:
        yield ""
        yield from (f"{word:<4} = {text}" for word, text in legend)


def tree(topology: Topology) -> Iterator[str]:
    """What is inside what, two spaces a level; children beyond a few are counted, a zone is said where it changes.

    A fabric where a switch has several above it is no tree: its switches stand side by side, and a line under each
    says what its cables lead up to.
    """
    cables = _cables(topology)
    inside: dict[str, list[Part]] = {}
    by_name = {part.name: part for part in topology.parts}
    for each in topology.parts:
        inside.setdefault(each.inside, []).append(each)
    stack: list[tuple[int, Part | str]] = [(0, top) for top in reversed(inside.get("", []))]
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


def _holder(by_name: Mapping[str, Part], end: str) -> Part:
    """The host that an adapter is in, if the source says it; else the end itself."""
    part = by_name[end]
    return by_name[part.inside] if part.kind is PartKind.NIC and part.inside else part


def _cabled(to: Counter[str]) -> str:
    """`cables to spine1 (4), spine2`: in the order of the source, the number where it is not one."""
    said = [name if count == 1 else f"{name} ({count})" for name, count in list(to.items())[:_SHOWN_CABLES]]
    more = f" and {len(to) - len(said)} more switches" if len(to) > len(said) else ""
    return f"cables to {', '.join(said)}{more}"


def _named(part: Part, outer: Part | None) -> str:
    notes = [] if part.kind in (PartKind.GPU, PartKind.NIC, PartKind.NUMA) else [part.kind.value]
    if part.kind is PartKind.NIC and not part.device:
        notes.append("nic")
    notes += [part.device] if part.device and part.device != part.name else []
    notes += [f"NVLink domain {part.domain}"] if part.domain else []
    notes += [f"zone {part.zone}"] if part.zone and (outer is None or outer.zone != part.zone) else []
    notes += [f"region {part.region}"] if part.region and (outer is None or outer.region != part.region) else []
    return f"{part.name} ({', '.join(notes)})" if notes else part.name


def around(topology: Topology, node: str) -> Topology:
    """The part of a cluster that one host sees: what it stands in, and what is inside the host.

    A source that knows one machine only and does not name it is returned as it is.
    """
    hosts = {part.name: part for part in topology.of_kind(PartKind.HOST)}
    if not hosts:
        return topology
    if node not in hosts:
        raise BadInput("--node", node, f"{topology.source} names {_many(len(hosts), 'host')}, and not this one")
    by_name = {part.name: part for part in topology.parts}
    kept = {node, *(part.name for part in above(by_name, hosts[node]))}
    kept.update(part.name for part in topology.parts if any(up.name == node for up in above(by_name, part)))
    for link in topology.links:  # the switches that its cables end in, also where they are several
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if (end == node or by_name[end].inside == node) and by_name[other].kind in NETWORK_SWITCHES:
                kept.add(other)
    return Topology(
        topology.source,
        tuple(part for part in topology.parts if part.name in kept),
        tuple(link for link in topology.links if link.a in kept and link.b in kept),
        topology.warnings,
    )
