"""The graph of a machine or a cluster, whatever file or report it came from: parts, what is inside what, links.

It decides what a topology is made of and how it is bounded while it is built. A `Topology` is one networkx graph:
readers and agents build it, domains (topology/graph/network_map.py), paths (topology/graph/hops.py) and exports come
from it. It must never know a file format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final

import networkx as nx

from topology.bad_input import BadInput

MAX_PARTS: Final = 100_000
MAX_LINKS: Final = 500_000
MAX_NAME_CHARS: Final = 253  # a Kubernetes node name (RFC 1123 subdomain)
MAX_WARNINGS: Final = 50
MAX_DEPTH: Final = 32
INSIDE: Final = "in"
"""The kind of an edge that says no more than that one part is inside the other."""
_WARNING_CHARS: Final = 600


class PartKind(Enum):
    """What a part is. The value is the word in the output."""

    GPU = "gpu"
    MIG = "mig-instance"
    NIC = "nic"
    NVSWITCH = "nvswitch"
    PCIE_SWITCH = "pcie-switch"
    PCI_ROOT = "pci-root"
    NUMA = "numa"
    HOST = "host"
    LEAF = "leaf"
    SPINE = "spine"
    CORE = "core"
    SWITCH = "switch"  # of the network, when its tier is not known
    NVLINK_DOMAIN = "nvlink-domain"
    ZONE = "zone"


NETWORK_SWITCHES: Final = (PartKind.LEAF, PartKind.SPINE, PartKind.CORE, PartKind.SWITCH)


@dataclass(frozen=True, slots=True)
class GraphPart:
    """One thing. `inside` is the name of what contains it, empty at the top; an unknown NUMA node is None, never -1."""

    name: str
    kind: PartKind
    inside: str = ""
    numa: int | None = None
    device: str = ""  # what its machine calls it: mlx5_0, a PCI address
    cpus: str = ""  # CPUs near it, as a Linux CPU list
    domain: str = ""  # NVLink domain of a host: compared, never taken apart
    zone: str = ""  # of a network switch or a host, where the source says so
    region: str = ""


_OPTIONAL: Final = tuple(each.name for each in fields(GraphPart) if each.name not in ("name", "kind"))


@dataclass(frozen=True, slots=True)
class GraphLink:
    """What joins two parts, in the words of topology/graph/link_types.py; `count` parallel cables."""

    a: str
    b: str
    kind: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything one source said: an undirected graph that nobody changes, by the names of the parts.

    Nodes have the fields of `GraphPart` that are known, `kind` as a word; edges have the `kind` and `count` of
    `GraphLink`. A part also has an edge to what it is inside of, of kind `in` where no link joins the two. `pairs` are
    the links, each once, in the order and the direction of the source.
    """

    source: str
    graph: nx.Graph[str]
    pairs: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, source: str, parts: Iterable[GraphPart], links: Iterable[GraphLink] = (), warnings: tuple[str, ...] = ()
    ) -> Topology:
        """The graph of these parts and links, whose ends and insides are all among the parts."""
        graph: nx.Graph[str] = nx.Graph(source=source)
        graph.add_nodes_from((part.name, _known(part)) for part in parts)
        graph.add_edges_from(nx.get_node_attributes(graph, "inside").items(), kind=INSIDE)
        pairs = []
        for link in links:
            graph.add_edge(link.a, link.b, kind=link.kind, count=link.count)
            pairs.append((link.a, link.b))
        return cls(source, nx.freeze(graph), tuple(pairs), warnings)

    @property
    def parts(self) -> tuple[GraphPart, ...]:
        """All parts, in source order."""
        return tuple(self.part(name) for name in self.graph)

    @property
    def links(self) -> tuple[GraphLink, ...]:
        """All links, in source order."""
        return tuple(GraphLink(a, b, **self.graph.edges[a, b]) for a, b in self.pairs)

    @property
    def kinds(self) -> dict[str, str]:
        """Each part's kind as a word, by name, in source order."""
        return nx.get_node_attributes(self.graph, "kind")

    def part(self, name: str) -> GraphPart:
        """The part of this name. Raises KeyError without one."""
        known = self.graph.nodes[name]
        return GraphPart(name, **{**known, "kind": PartKind(known["kind"])})

    def of_kind(self, *kinds: PartKind) -> tuple[GraphPart, ...]:
        """The parts of these kinds, in source order."""
        names = {kind.value for kind in kinds}
        return tuple(self.part(name) for name, kind in self.kinds.items() if kind in names)


def _known(part: GraphPart) -> dict[str, str | int]:
    """The fields of a part that say something, as a graph holds them."""
    known: dict[str, str | int] = {"kind": part.kind.value}
    for name in _OPTIONAL:
        value = getattr(part, name)
        if value is not None and value != "":
            known[name] = value
    return known


@dataclass(slots=True)
class TopologyBuilder:
    """Collects parts and links under limits; `build` checks what can only be seen at the end.

    Every refusal is a BadInput. `line` is where the source says so, 1 for its first line, 0 if it has no lines.
    """

    source: str
    parts: dict[str, GraphPart] = field(default_factory=dict)
    _links: dict[tuple[str, str], GraphLink] = field(default_factory=dict)
    _warnings: dict[str, None] = field(default_factory=dict)
    _unsaid: int = 0

    def part(self, part: GraphPart, line: int = 0) -> None:
        """Adds a part; one that is there already may only be said again in the same words."""
        known = self.parts.get(part.name)
        if known is not None:
            if known != part:
                what = "a second time" if known.kind == part.kind else f"a {known.kind.value} and a {part.kind.value}"
                raise bad(line, "name", part.name, f"it is given {what}; every name stands for one thing")
            return
        check_name(part.name, line)
        for value in (part.device, part.cpus[:MAX_NAME_CHARS], part.domain, part.zone, part.region):
            if value:
                check_name(value, line)
        if len(self.parts) >= MAX_PARTS:
            raise bad(line, "number of parts", f"above {MAX_PARTS}", "split the file")
        self.parts[part.name] = part

    def link(self, a: str, b: str, kind: str, line: int = 0, count: int = 1) -> None:
        """Adds a link; cables of one kind between one pair add up."""
        pair = (a, b) if (b, a) not in self._links else (b, a)
        known = self._links.get(pair)
        if known is None and len(self._links) >= MAX_LINKS:
            raise bad(line, "number of links", f"above {MAX_LINKS}", "split the file")
        if known is not None and known.kind != kind:
            raise bad(line, f"link {a} to {b}", kind, f"it is {known.kind} elsewhere; a pair has one kind of link")
        self._links[pair] = GraphLink(*pair, kind, count + (known.count if known else 0))

    def linked(self, a: str, b: str) -> bool:
        """Whether the pair has a link already."""
        return (a, b) in self._links or (b, a) in self._links

    def warn(self, text: str) -> None:
        """One sentence about what was read with a doubt; beyond the limit they are only counted."""
        text = "".join(letter if letter.isprintable() else "?" for letter in text[:_WARNING_CHARS])
        if len(self._warnings) < MAX_WARNINGS:
            self._warnings[text] = None
        elif text not in self._warnings:
            self._unsaid += 1

    def build(self) -> Topology:
        """The finished topology. Refuses a part inside something that is missing, inside itself, or nested too deep."""
        safe: set[str] = set()
        for part in self.parts.values():
            chain = [part.name]
            while chain[-1] not in safe and (above := self.parts[chain[-1]].inside):
                if above not in self.parts:
                    raise BadInput(f"{chain[-1]} is inside", above, "the file does not say what that is")
                if above in chain:
                    raise BadInput("what contains", above, f"it contains itself, by way of {chain[-1]}")
                chain.append(above)
                if len(chain) > MAX_DEPTH:
                    raise BadInput("nesting above", part.name, f"it is deeper than {MAX_DEPTH}")
            safe.update(chain)
        for link in self._links.values():
            for end in (link.a, link.b):
                if end not in self.parts:
                    raise BadInput("link to", end, "the file does not say what that is")
        more = (f"{self._unsaid} more warnings like these",) if self._unsaid else ()
        return Topology.of(self.source, self.parts.values(), self._links.values(), (*self._warnings, *more))


def bad(line: int, what: str, value: object, allowed: str) -> BadInput:
    """A refusal that names its line."""
    return BadInput(f"line {line}: {what}" if line else what, value, allowed)


def check_name(name: str, line: int) -> None:
    """Refuses a name that is empty, too long, or would break a line of output."""
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise bad(line, "name", name, f"a name is 1 to {MAX_NAME_CHARS} printable characters")


def enclosing(graph: nx.Graph[str], name: str) -> Iterator[str]:
    """Names of what contains a part, narrowest first."""
    while name := graph.nodes[name].get("inside", ""):
        yield name
