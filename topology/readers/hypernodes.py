"""Reads Volcano's HyperNodes: named groups of nodes or of groups, with a tier; the lowest tier is the nearest.

Source: the CRD topology.volcano.sh/v1alpha1. Only members by `exactMatch` can be listed without a cluster; patterns and
label selectors are counted in a warning and never run. A second parent or a circle is refused, since Volcano's
scheduler stops all topology jobs on either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topology.graph.network_tree import NetworkTree
from topology.graph.parts import Topology, TopologyBuilder, bad, check_name
from topology.readers.documents import DocumentValue

SOURCE: Final = "HyperNodes"
GROUP: Final = "topology.volcano.sh/"
MAX_TIER: Final = 30
_SELECTORS: Final = ("exactMatch", "regexMatch", "labelMatch")


def read_objects(objects: Sequence[DocumentValue]) -> Topology:
    """Groups as switches, nodes as hosts. Raises BadInput with line and reason."""
    tree = NetworkTree(TopologyBuilder(SOURCE))
    named: dict[str, int] = {}
    unlisted: list[int] = []
    given: dict[str, int] = {}
    for hypernode in objects:
        version = hypernode.get("apiVersion")
        if version is None or not version.text("apiVersion").startswith(GROUP):
            shown = version.shown() if version else "missing"
            raise bad(hypernode.line, "apiVersion of HyperNode", shown, f"it begins with {GROUP}")
        name = hypernode.need("metadata", "HyperNode").need("name", "metadata of HyperNode").text("name")
        check_name(name, hypernode.line)
        if name in named:
            raise bad(hypernode.line, "HyperNode", name, f"it is on line {named[name]} already")
        named[name] = hypernode.line
        spec = hypernode.need("spec", f"HyperNode {name}")
        group = tree.switch(name, hypernode.line)
        group.tier = spec.need("tier", f"spec of {name}").whole(f"tier of {name}", 1, MAX_TIER)
        members = spec.get("members")
        for member in members.items(f"members of {name}") if members else ():
            _member(name, member, tree, unlisted, given)
    for member_name, line in given.items():
        if member_name not in named:
            tree.switches[member_name].vague = True
            tree.build.warn(f"line {line}: HyperNode {member_name} is a member and has no object of its own here")
    if unlisted:
        tree.build.warn(
            f"line {unlisted[0]}: {len(unlisted)} members are selected by pattern or label; which nodes that are "
            "only the cluster knows"
        )
    if not tree.switches:
        raise bad(1, "number of HyperNodes", 0, "at least one is needed")
    return tree.finish()


def _member(name: str, member: DocumentValue, tree: NetworkTree, unlisted: list[int], given: dict[str, int]) -> None:
    kind = member.need("type", f"member of {name}").text("type of a member")
    if kind not in ("Node", "HyperNode"):
        raise bad(member.line, f"type of a member of {name}", kind, "it is Node or HyperNode")
    selector = member.need("selector", f"member of {name}")
    for key, value in selector.mapping("selector").items():
        if key not in _SELECTORS:
            raise bad(value.line, f"selector in {name}", key, f"it is one of {', '.join(_SELECTORS)}")
    exact = selector.get("exactMatch", "selector")
    if exact is None:
        unlisted.append(member.line)
        return
    below = exact.need("name", "exactMatch").text("name of a member")
    check_name(below, member.line)
    if below == name:
        raise bad(member.line, f"member of {name}", below, "a HyperNode cannot be its own member")
    if kind == "Node":
        tree.put(below, tree.host(below, member.line), name, member.line)
    else:
        given.setdefault(below, member.line)
        tree.put(below, tree.switch(below, member.line), name, member.line)
