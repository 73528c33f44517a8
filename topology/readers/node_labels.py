"""Reads what node labels say: of one node (`key=value` lines, a `labels:` mapping) or of many (Node objects).

Which labels: topology/reach/label_schemes.py. Labels know which switches and which NVLink domain a node is on and
how many GPUs it has; how these are joined they do not know, so of a single node's GPUs every pair is `unknown`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from topology.graph.link_types import UNKNOWN
from topology.graph.network_tree import NetworkTree
from topology.graph.parts import MAX_NAME_CHARS, GraphPart, PartKind, Topology, TopologyBuilder, bad, check_name
from topology.labels import ACCELERATOR, GPU_COUNT, HOSTNAME, NVLINK_CLIQUE
from topology.objects import HyperNode, Node
from topology.reach.domains import membership
from topology.reach.label_schemes import place_of
from topology.readers.documents import DocumentValue

SOURCE: Final = "node labels"
MAX_NODES: Final = 50_000
MAX_LABELS: Final = 1_000  # of one node
MAX_GPUS: Final = 64

_KEY = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LINE = re.compile(r"([a-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63})[=:]\s*(.*)", re.ASCII)
_NAMES: Final = ("leaf", "spine", "core", "top")


@dataclass(frozen=True, slots=True)
class Labelled:
    """A node's name and labels, with the line that names it."""

    name: str
    labels: Mapping[str, str]
    line: int = 0
    hypernodes: tuple[str, ...] = ()  # lowest tier first, used where no label names a switch


def recognises(line: str) -> bool:
    """Whether this line is `domain/name=value`."""
    match = _LINE.fullmatch(line)
    return match is not None and "=" in line[: match.start(2)]


def read(text: str) -> Topology:
    """One node from `key=value` lines. Raises BadInput with line and reason."""
    labels: dict[str, str] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise bad(number, "line", line, "it is KEY=VALUE")
        _label(key, value, number, labels)
    return topology_of([Labelled(_own_name(labels), labels, 1)])


def read_mapping(document: DocumentValue) -> Topology:
    """One node from a document with a `labels` mapping."""
    labels = _labels(document.need("labels", "document"))
    return topology_of([Labelled(_own_name(labels), labels, document.line)])


def read_objects(objects: Sequence[DocumentValue]) -> Topology:
    """Many nodes from Node objects."""
    found = []
    for node in objects:
        metadata = node.need("metadata", "Node")
        given = metadata.get("labels")
        name = metadata.need("name", "metadata of Node").text("name")
        found.append(Labelled(name, _labels(given) if given else {}, node.line))
    return topology_of(found)


def of_cluster(nodes: Iterable[Node], hypernodes: Iterable[HyperNode] = ()) -> Topology:
    """The same from objects that were read from the API server. Made anew from what is there: who left is gone."""
    there = list(nodes)
    reported = membership(there, hypernodes)
    return topology_of(
        [
            Labelled(node.metadata.name, node.metadata.labels or {}, hypernodes=reported.get(node.metadata.name, ()))
            for node in sorted(there, key=lambda node: node.metadata.name)
        ]
    )


def topology_of(nodes: Sequence[Labelled]) -> Topology:
    """Hosts under the switches that their labels name. Raises BadInput with line and reason."""
    if len(nodes) > MAX_NODES:
        raise bad(nodes[MAX_NODES].line, "number of nodes", len(nodes), f"at most {MAX_NODES} are read")
    tree = NetworkTree(TopologyBuilder(SOURCE))
    paths = {node.name: _path(node) for node in nodes}
    names = _switch_names(paths)
    for node in nodes:
        check_name(node.name, node.line)
        if node.name in tree.hosts:
            raise bad(node.line, "node", node.name, "it is there twice; every node has one name")
        place = place_of(node.labels)
        host = tree.host(node.name, node.line)
        host.zone, host.region, host.domain = place.zone, place.region, place.domain
        name, below, path = node.name, host, paths[node.name]
        for at, (tier, _) in enumerate(path.up):
            above = tree.switch(names[_Path(path.where, path.up[at:])], node.line)
            above.tier = max(above.tier, tier + 1)
            tree.put(name, below, names[_Path(path.where, path.up[at:])], node.line)
            name, below = names[_Path(path.where, path.up[at:])], above
    _warn_of_disagreement(nodes, tree.build)
    if len(nodes) == 1:
        return _with_gpus(tree.finish(), nodes[0])
    return tree.finish()


@dataclass(frozen=True, slots=True)
class _Path:
    """Where the switches' names hold, and the way up: tier (0 is the leaf) and name."""

    where: str
    up: tuple[tuple[int, str], ...]


def _path(node: Labelled) -> _Path:
    place = place_of(node.labels)
    for value in (*place.tiers, place.zone, place.region, place.domain):
        if len(value) > MAX_NAME_CHARS or not (value.isprintable() or not value):
            raise bad(node.line, f"label value of {node.name}", value, f"at most {MAX_NAME_CHARS} printable characters")
    tiers = place.tiers or node.hypernodes
    return _Path(f"{place.region}/{place.zone}", tuple((tier, value) for tier, value in enumerate(tiers) if value))


def _switch_names(paths: Mapping[str, _Path]) -> dict[_Path, str]:
    """A switch is called by its label's value; if that also means another switch or a node, by its whole way up."""
    every = dict.fromkeys(_Path(path.where, path.up[at:]) for path in paths.values() for at in range(len(path.up)))
    often: dict[str, int] = dict.fromkeys(paths, 1)
    for path in every:
        often[path.up[0][1]] = often.get(path.up[0][1], 0) + 1
    names: dict[_Path, str] = {}
    for path in every:
        tier, value = path.up[0]
        whole = f"{_NAMES[min(tier, 3)]}:{path.where}/{'/'.join(value for _, value in reversed(path.up))}"
        names[path] = value if often[value] == 1 else whole[:MAX_NAME_CHARS]
    return names


def _warn_of_disagreement(nodes: Sequence[Labelled], build: TopologyBuilder) -> None:
    """Two labels about NVLink domains that group the nodes differently: the clique wins, and that is said once."""
    first: dict[str, dict[str, tuple[str, str]]] = {NVLINK_CLIQUE: {}, ACCELERATOR: {}}
    for node in nodes:
        clique, other = node.labels.get(NVLINK_CLIQUE, ""), node.labels.get(ACCELERATOR, "")
        if not clique or not other:
            continue
        for key, one, another in ((NVLINK_CLIQUE, clique, other), (ACCELERATOR, other, clique)):
            name, before = first[key].setdefault(one, (node.name, another))
            if before != another:
                build.warn(
                    f"{name} and {node.name} share {key} but not the other label about NVLink domains; "
                    f"{NVLINK_CLIQUE} is taken"
                )
                return


def _with_gpus(topology: Topology, node: Labelled) -> Topology:
    given = node.labels.get(GPU_COUNT, "0")
    if not re.fullmatch(r"[0-9]{1,3}", given, re.ASCII) or int(given) > MAX_GPUS:
        raise bad(node.line, GPU_COUNT, given, f"it is a number from 0 to {MAX_GPUS}")
    build = TopologyBuilder(SOURCE)
    for part in topology.parts:
        build.part(part, node.line)
    for link in topology.links:
        build.link(link.a, link.b, link.kind, count=link.count)
    for warning in topology.warnings:
        build.warn(warning)
    gpus = [f"GPU{number}" for number in range(int(given))]
    for gpu in gpus:
        build.part(GraphPart(gpu, PartKind.GPU, node.name), node.line)
    for a, b in combinations(gpus, 2):
        build.link(a, b, UNKNOWN)
    return build.build()


def _own_name(labels: Mapping[str, str]) -> str:
    return labels.get(HOSTNAME) or "node"


def _labels(given: DocumentValue) -> dict[str, str]:
    labels: dict[str, str] = {}
    for key, value in given.mapping("labels").items():
        _label(key, value.text(f"label {key}") if value.data is not None else "", value.line, labels)
    return labels


def _label(key: str, value: str, line: int, labels: dict[str, str]) -> None:
    if not _KEY.fullmatch(key):
        raise bad(line, "label", key, "it is a name like nvidia.com/gpu.count")
    if len(value) > MAX_NAME_CHARS or not value.isprintable():
        raise bad(line, key, value, f"a value has at most {MAX_NAME_CHARS} printable characters")
    if len(labels) >= MAX_LABELS:
        raise bad(line, "number of labels", f"above {MAX_LABELS}", "a node has fewer")
    if key in labels:
        raise bad(line, "label", key, "it is there twice; every label stands once")
    labels[key] = value
