"""Reads NCCL's graph XML (NCCL_GRAPH_DUMP_FILE): in which order each channel visits the GPUs, and how far at worst.

The file knows no PCI tree. `typeintra` is the farthest of all hops of a graph between GPUs, `typeinter` to the network
(NVIDIA/nccl src/graph/search.cc), so each hop is read as that word: never nearer than it is. What no channel uses is
`unknown`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from topology.graph.link_types import C2C, PHB, PIX, PXB, SYS, UNKNOWN, nvlink, rank
from topology.graph.parts import GraphPart, PartKind, Topology, TopologyBuilder, bad
from topology.readers.xml_tree import Element

SOURCE: Final = "NCCL graph XML"
MAX_DEVICES: Final = 256
_RING: Final = 4  # NCCL_TOPO_PATTERN_RING: the last GPU sends to the first
_NVLINK: Final = nvlink(1)
_TOKENS: Final = dict(
    zip(
        ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "P2C", "PHB", "SYS", "NET", "DIS", ""),
        (PIX, _NVLINK, _NVLINK, C2C, PIX, PXB, PXB, PHB, PHB, SYS, UNKNOWN, UNKNOWN, UNKNOWN),
        strict=True,
    )
)
"""NCCL's path types (src/graph/topo.h) in nvidia-smi's words; an NVLink path does not say how many links it has."""


def read(root: Element) -> Topology:
    """The GPUs and hops of one machine's channels. Raises BadInput with line and reason."""
    build = TopologyBuilder(SOURCE)
    link_types: dict[tuple[str, str], str] = {}
    names: dict[str, PartKind] = {}
    for graph in root.named("graph"):
        intra, inter = _word(graph, "typeintra"), _word(graph, "typeinter")
        for channel in graph.named("channel"):
            stops = _stops(channel, names)
            ring = graph.number("pattern", 0, 16, default=0) == _RING and len(stops) > 1
            for a, b in pairwise([*stops, stops[0]] if ring else stops):
                if a == b:
                    continue
                word = intra if names[a] is names[b] is PartKind.GPU else inter
                pair = (min(a, b), max(a, b))
                # Of several upper limits for one hop the lowest holds.
                link_types[pair] = min(link_types.get(pair, word), word, key=rank)
    if PartKind.GPU not in names.values():
        raise bad(root.line, "number of GPUs", 0, "a channel with gpu elements is needed")
    ordered = sorted(names, key=lambda name: (names[name] is not PartKind.GPU, int(name[3:])))
    for name in ordered:
        build.part(GraphPart(name, names[name]))
    for at, a in enumerate(ordered):
        for b in ordered[at + 1 :]:
            build.link(a, b, link_types.get((min(a, b), max(a, b)), UNKNOWN))
    build.warn("a graph file gives the farthest hop of its channels; single hops may be nearer")
    return build.build()


def _stops(channel: Element, names: dict[str, PartKind]) -> list[str]:
    """The devices of a channel in its order; they are added to `names`."""
    stops = []
    for stop in channel.named("gpu", "net"):
        kind = PartKind.GPU if stop.name == "gpu" else PartKind.NIC
        name = f"{'GPU' if kind is PartKind.GPU else 'NET'}{stop.number('dev', 0, 1023)}"
        names[name] = kind
        if len(names) > MAX_DEVICES:
            raise bad(stop.line, "number of devices", f"above {MAX_DEVICES}", "this is one machine's file")
        stops.append(name)
    return stops


def _word(graph: Element, attribute: str) -> str:
    value = graph.get(attribute)
    if value not in _TOKENS:
        allowed = f"it is one of {', '.join(word for word in _TOKENS if word)}"
        raise bad(graph.line, f"{attribute} of graph", value, allowed)
    return _TOKENS[value]
