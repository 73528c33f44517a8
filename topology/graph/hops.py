"""The way of a KV block inside machines, hop by hop, as a machine's graph names it.

`GPU3, NVSwitch, GPU5` and `GPU0, PIX, mlx5_0`: between two devices stands what joins them. Of several GPUs the pair
that is worst joined is named, since that is the one that reach counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from topology.graph.link_types import UNKNOWN, nvlinks, rank
from topology.graph.parts import PartKind, Topology

THROUGH_SWITCH = "NVSwitch"


def between_gpus(machine: Topology, ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, ...]:
    """From one of our GPUs to one of theirs, the worst pair, ties by order. Nothing where no such pair is known."""
    graph = machine.graph
    pairs = [(a, b, graph.edges[a, b]["kind"]) for a in ours for b in theirs if graph.has_edge(a, b)]
    if not pairs:
        return ()
    a, b, word = max(pairs, key=lambda pair: (rank(pair[2]), -nvlinks(pair[2])))
    if word == UNKNOWN:
        return ()
    kinds = machine.kinds
    if nvlinks(word) and any(kinds[at] == PartKind.NVSWITCH.value for at in nx.common_neighbors(graph, a, b)):
        word = THROUGH_SWITCH
    return a, word, b


def to_adapter(machine: Topology, gpus: Sequence[str], adapters: Sequence[str]) -> tuple[str, ...]:
    """From the GPU that has the farthest way out to the adapter nearest to it: GPU, what joins them, adapter. Nothing
    where nobody knows how an adapter is joined to it."""
    graph, ways = machine.graph, []
    for gpu in gpus:
        joined = [(rank(graph.edges[gpu, each]["kind"]), each) for each in adapters if graph.has_edge(gpu, each)]
        if joined:
            far, nearest = min(joined)
            ways.append((far, gpu, graph.edges[gpu, nearest]["kind"], nearest))
    if not ways:
        return ()
    _, gpu, word, adapter = max(ways, key=lambda way: way[0])
    return () if word == UNKNOWN else (gpu, word, adapter)
