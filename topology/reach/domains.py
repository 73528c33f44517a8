"""Which network domains a node stands in: labels first, then a topology file, then HyperNodes where both are silent.

A chain has five tiers, narrowest last: zone, spine, leaf, NVLink fabric, host. Two nodes that share a tier's value
share that domain. A tier that nobody states is the empty string and is never shared, except the zone: a cluster without
zone labels is one zone, because that is what such a cluster means.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from topology.labels import MANAGED_BY, MANAGER
from topology.objects import HyperNode, MemberSelector, Node
from topology.reach.label_schemes import place_of
from topology.selectors import matches_requirements


@dataclass(frozen=True, slots=True)
class DomainChain:
    """One node's domains."""

    zone: str = ""
    spine: str = ""
    leaf: str = ""
    fabric: str = ""


def chain_of(node: Node, hypernodes: Mapping[str, tuple[str, ...]], reported: DomainChain | None = None) -> DomainChain:
    """The chain of one node, without what agents see; `hypernodes` is what `membership` returned (tier 1 first).

    `reported` is the node's place in a topology file; only its zone, spine and leaf are read, and only where no label
    of the node names a zone or a switch. Raises nothing.
    """
    place = place_of(node.metadata.labels or {})
    leaf, spine = (*place.tiers, "", "")[:2]
    where = f"{place.region}/{place.zone}"
    if reported is not None:
        if not any(place.tiers):
            leaf, spine = (tier.removeprefix(f"{reported.zone}/") for tier in (reported.leaf, reported.spine))
        if where == "/":
            where = reported.zone or where
    above = hypernodes.get(node.metadata.name, ())
    if not leaf and above:
        leaf = "hypernode:" + above[0]
    if not spine and len(above) > 1:
        spine = "hypernode:" + above[1]
    # Leaf and spine names repeat between zones in some estates; the zone in front keeps them apart.
    return DomainChain(
        zone=where,
        spine=f"{where}/{spine}" if spine else "",
        leaf=f"{where}/{leaf}" if leaf else "",
        fabric=place.domain,
    )


def _selects(selector: MemberSelector, name: str, labels: Mapping[str, str]) -> bool:
    if selector.exact_match is not None:
        return selector.exact_match.name == name
    if selector.regex_match is not None:
        try:
            return re.search(selector.regex_match.pattern, name) is not None
        except re.error:
            return False
    if selector.label_match is not None:
        wanted = selector.label_match.match_labels or {}
        return all(labels.get(key) == value for key, value in wanted.items()) and matches_requirements(
            labels, selector.label_match.match_expressions or ()
        )
    return False


# complexity: three short passes over one tree of HyperNodes
def membership(nodes: Iterable[Node], hypernodes: Iterable[HyperNode]) -> dict[str, tuple[str, ...]]:
    """Node name to the names of the HyperNodes above it, lowest tier first.

    Members of type HyperNode are followed upwards; a cycle or a second parent ends the chain there instead of raising,
    since these objects are other people's. Ties between two lowest parents are broken by name.
    """
    # Those that the publisher made say what the labels say already, and their rests say less than nothing.
    by_name = {h.metadata.name: h for h in hypernodes if h.metadata.label(MANAGED_BY) != MANAGER}
    node_list = list(nodes)
    lowest: dict[str, str] = {}
    for name in sorted(by_name, key=lambda n: (by_name[n].spec.tier, n)):
        for member in by_name[name].spec.members or ():
            if member.type != "Node":
                continue
            exact = member.selector.exact_match
            for node in node_list:
                if exact is not None and exact.name != node.metadata.name:
                    continue
                if _selects(member.selector, node.metadata.name, node.metadata.labels or {}):
                    lowest.setdefault(node.metadata.name, name)
    parent: dict[str, str] = {}
    for name in sorted(by_name, key=lambda n: (by_name[n].spec.tier, n)):
        for member in by_name[name].spec.members or ():
            if member.type == "HyperNode":
                for child in sorted(by_name):
                    if child != name and _selects(member.selector, child, by_name[child].metadata.labels or {}):
                        parent.setdefault(child, name)
    chains: dict[str, tuple[str, ...]] = {}
    for node_name, first in lowest.items():
        chain = [first]
        while (above := parent.get(chain[-1])) is not None and above not in chain:
            chain.append(above)
        chains[node_name] = tuple(chain)
    return chains
