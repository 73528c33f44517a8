"""One network written in every format reads as the same network; PCI distances against a plain walk in a tree."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.data_files import data
from topology.graph.link_types import HOP, PCIE_TYPES, PHB, PIX, PXB, SYS
from topology.graph.network_map import domain_chains
from topology.graph.parts import GraphPart, PartKind, Topology
from topology.readers.documents import DocumentValue, json_document
from topology.readers.formats import read

Network = dict[str, dict[str, list[str]]]
"""Spine to leaf to hosts."""


def slurm(network: Network) -> str:
    lines = [f"SwitchName={spine} Switches={','.join(leaves)}" for spine, leaves in network.items()]
    for leaves in network.values():
        lines += [f"SwitchName={leaf} Nodes={','.join(hosts)}" for leaf, hosts in leaves.items()]
    return "\n".join(lines) + "\n"


def topograph(network: Network) -> str:
    switches = {spine: {"switches": list(leaves)} for spine, leaves in network.items()}
    blocks = [{"switch": leaf, "nodes": hosts} for leaves in network.values() for leaf, hosts in leaves.items()]
    return "switches: " + json.dumps(switches) + "\nblocks: " + json.dumps(blocks) + "\n"


def netq(network: Network) -> str:
    def node(name: str, kind: str, tier: int) -> dict[str, object]:
        return {"id": f"id-{name}", "name": name, "device_type": kind, "tier": tier}

    nodes = [node(spine, "switch", 2) for spine in network]
    links = []
    for spine, leaves in network.items():
        for leaf, hosts in leaves.items():
            nodes += [node(leaf, "switch", 1), *(node(host, "discovered_via_lldp", -1) for host in hosts)]
            links.append({"src": f"id-{leaf}", "target": f"id-{spine}"})
            links += [{"src": f"id-{host}", "target": f"id-{leaf}"} for host in hosts]
    return json.dumps([{"links": links, "nodes": [{"name": "all", "compounded_nodes": nodes}]}], indent=1)


def ibnetdiscover(network: Network) -> str:
    ids: dict[str, str] = {}

    def guid(name: str, kind: str) -> str:
        return f"{kind}-{ids.setdefault(name, format(len(ids) + 1, 'x'))}"

    lines = []
    for spine, leaves in network.items():
        lines.append(f'Switch 64 "{guid(spine, "S")}" # "MF0;{spine}:M/U1" base')
        lines += [f'[{n}] "{guid(leaf, "S")}"[60] # "MF0;{leaf}:M/U1"' for n, leaf in enumerate(leaves, 1)]
        for leaf, hosts in leaves.items():
            lines.append(f'Switch 64 "{guid(leaf, "S")}" # "MF0;{leaf}:M/U1" base')
            lines.append(f'[60] "{guid(spine, "S")}"[{list(leaves).index(leaf) + 1}] # "MF0;{spine}:M/U1"')
            lines += [f'[{n}] "{guid(host, "H")}"[1] # "{host} mlx5_0"' for n, host in enumerate(hosts, 1)]
    return "\n".join(lines) + "\n"


def nodes(network: Network) -> str:
    prefix = "network.topology.nvidia.com/"
    items = [
        {"kind": "Node", "metadata": {"name": host, "labels": {f"{prefix}leaf": leaf, f"{prefix}spine": spine}}}
        for spine, leaves in network.items()
        for leaf, hosts in leaves.items()
        for host in hosts
    ]
    return json.dumps({"kind": "List", "items": items})


def hypernodes(network: Network) -> str:
    def one(name: str, tier: int, kind: str, members: list[str]) -> str:
        output = [{"type": kind, "selector": {"exactMatch": {"name": member}}} for member in members]
        spec = json.dumps({"tier": tier, "members": output})
        head = "apiVersion: topology.volcano.sh/v1alpha1\nkind: HyperNode"
        return f"{head}\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n"

    texts = [one(spine, 2, "HyperNode", list(leaves)) for spine, leaves in network.items()]
    texts += [one(leaf, 1, "Node", hosts) for leaves in network.values() for leaf, hosts in leaves.items()]
    return "".join(texts)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    made: Network = {}
    leaf = host = 0
    for spine in range(draw(st.integers(1, 3))):
        made[f"spine{spine}"] = {}
        for _ in range(draw(st.integers(1, 3))):
            count = draw(st.integers(1, 4))
            made[f"spine{spine}"][f"leaf{leaf}"] = [f"n{host + number:03d}" for number in range(count)]
            leaf, host = leaf + 1, host + count
    return made


WRITERS: dict[str, Callable[[Network], str]] = {
    writer.__name__: writer for writer in (slurm, topograph, netq, ibnetdiscover, nodes, hypernodes)
}


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=20, deadline=None)
@given(network=networks())
def test_one_network_reads_alike_from_every_format(name: str, network: Network) -> None:
    topology = read(WRITERS[name](network).encode())
    assert topology.warnings == ()
    waiting = {
        host: (leaf, spine) for spine, leaves in network.items() for leaf, hosts in leaves.items() for host in hosts
    }
    assert {part.name: part.inside for part in topology.of_kind(PartKind.HOST)} == {
        host: leaf for host, (leaf, _) in waiting.items()
    }
    kinds = {part.name: part.kind for part in topology.parts}
    assert {name for name, kind in kinds.items() if kind is PartKind.SPINE} == set(network)
    assert {name for name, kind in kinds.items() if kind is PartKind.LEAF} == {leaf for leaf, _ in waiting.values()}
    joined = {frozenset((link.a, link.b)) for link in topology.links if link.kind == HOP}
    assert all(frozenset((leaf, spine)) in joined for leaf, spine in waiting.values())
    chains = domain_chains(topology)
    for one in waiting:
        for other in waiting:
            assert (chains[one].leaf == chains[other].leaf) == (waiting[one][0] == waiting[other][0])


@pytest.mark.parametrize("name", ["azure_ndv2", "azure_ndv4", "azure_ndv5", "aws_p4d-24xl", "oci_topo-flattened"])
def test_pci_distances_are_what_a_walk_in_the_tree_meets(name: str) -> None:
    check_distances(read(data(f"nccl-xml/{name}-topo.xml" if name[0] != "o" else f"nccl-xml/{name}.xml")))


def test_pci_distances_of_a_deep_tree() -> None:
    check_distances(read(data("nccl-xml/oci_H100-topology.xml")))


def check_distances(topology: Topology) -> None:
    tree = nx.Graph([(part.name, part.inside) for part in topology.parts if part.inside])
    parts: dict[str, GraphPart] = {part.name: part for part in topology.parts}
    inspected = 0
    for link in topology.links:
        if link.kind not in PCIE_TYPES:
            continue
        inspected += 1
        if not nx.has_path(tree, link.a, link.b):
            expected = SYS
        else:
            met = [parts[name].kind for name in nx.shortest_path(tree, link.a, link.b)[1:-1]]
            expected = PHB if PartKind.NUMA in met else PIX if len(met) == 1 else PXB
        assert link.kind == expected, link
    assert inspected > 20


# Without what JSON may hold and YAML may not: control characters, line ends of Unicode, marks of byte order.
texts = st.text(st.characters(max_codepoint=0xD7FF, exclude_categories=("Cc", "Zl", "Zp")), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
)


def plain(value: DocumentValue) -> Any:
    """Without lines."""
    if isinstance(value.data, dict):
        return {key: plain(inside) for key, inside in value.data.items()}
    return [plain(inside) for inside in value.data] if isinstance(value.data, list) else value.data


def as_text(value: Any) -> Any:
    """Scalars as they stand in JSON."""
    if isinstance(value, dict):
        return {key: as_text(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [as_text(inside) for inside in value]
    return value if value is None or isinstance(value, str) else json.dumps(value)


@given(json_values, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_json_is_read_as_what_it_says(value: Any, ascii_only: bool, indent: int | str | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert plain(json_document(f"\n\t{text}\n\t")) == as_text(value)
