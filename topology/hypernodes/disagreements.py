"""Where two that say which nodes belong together do not agree: said in words, with the one that counts.

Values are opaque (a writer may have put a hash in place of a long id: NVIDIA/topograph#254), so only which nodes share
one is compared, never the values themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from topology.cluster.domain_sources import Sources
from topology.labels import ACCELERATOR, NVLINK_CLIQUE
from topology.objects import Node
from topology.reach.domains import chain_of
from topology.reach.label_schemes import place_of


def disagreements(nodes: Sequence[Node], sources: Sources) -> tuple[str, ...]:
    """One sentence for each two sources and direction, about the first group that the other splits; [] where none is.

    The labels of an NVLink domain against each other, then labels against what agents see and what the file says.
    """

    def label(key: str) -> Callable[[Node], str]:
        return lambda node: node.metadata.label(key)

    def seen(node: Node) -> str:
        found = sources.seen.get(node.metadata.name)
        return (found.fabric or "") if found is not None else ""

    def of_file(tier: str) -> Callable[[Node], str]:
        return lambda node: str(getattr(reported, tier)) if (reported := sources.file.of(node)) is not None else ""

    def of_labels(tier: str) -> Callable[[Node], str]:
        return lambda node: str(getattr(chain_of(node, {}), tier))

    def domain(node: Node) -> str:
        return place_of(node.metadata.labels or {}).domain

    found = _split(nodes, NVLINK_CLIQUE, label(NVLINK_CLIQUE), ACCELERATOR, label(ACCELERATOR), NVLINK_CLIQUE)
    found += _split(nodes, "the NVLink label", domain, "the agents' NVLink domain", seen, "the label")
    if len(sources.file):
        found += _split(nodes, "the agents' NVLink domain", seen, "the file's", of_file("fabric"), "the agent")
        found += _split(nodes, "the leaf label", of_labels("leaf"), "the file's leaf", of_file("leaf"), "the label")
        found += _split(nodes, "the spine label", of_labels("spine"), "the file's spine", of_file("spine"), "the label")
    return tuple(found)


def _split(
    nodes: Sequence[Node],
    one: str,
    of_one: Callable[[Node], str],
    other: str,
    of_other: Callable[[Node], str],
    wins: str,
) -> list[str]:
    pairs = sorted({pair for node in nodes if all(pair := (of_one(node), of_other(node)))})
    found = []
    for at, named, against in ((0, one, other), (1, other, one)):
        several = Counter(pair[at] for pair in pairs)
        split = sorted(value for value, count in several.items() if count > 1)
        if split:
            found.append(
                f"nodes with {named} {split[0]!r} have several values of {against}"
                + (f", and {len(split) - 1} more like it" if len(split) > 1 else "")
                + f"; {wins} counts"
            )
    return found
