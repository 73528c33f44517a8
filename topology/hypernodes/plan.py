"""Which HyperNodes a cluster should have: a tree of NVLink cliques, leaves, spines and zones, for Volcano's own plugin.

Nodes are where labels, a topology file and agents say (topology/cluster/domain_sources.py); HyperNodes of others are no
source.

Rules of this file. (1) A tree by construction: each group of a level gets one parent on the next level, so there are
never two parents (which would stop all of Volcano's topology jobs) and never a cycle. (2) Every GPU node is in exactly
one HyperNode of the lowest level that exists: Volcano looks nodes up on that tier alone. Nodes without a value there go
together as the rest of the domain they are known to be in. (3) A tier's number means the same everywhere: clique 1,
leaf 2, spine 3, zone 4; a level that no node has is left out. (4) HyperNodes of others are adopted: then none of ours
are made, because two trees would give one number two meanings. (5) Values of labels are opaque: only equality counts.

Source of what Volcano demands: volcano-sh/volcano, pkg/scheduler/api/hyper_node_info.go (one parent, no cycle), and its
issue 5732 (trees of mixed depth).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from topology.cluster.domain_sources import NO_SOURCES, Sources
from topology.labels import MANAGED_BY, MANAGER
from topology.objects import HyperNode, Node
from topology.reach.domains import DomainChain

LEVELS: Final = ("fabric", "leaf", "spine", "zone")
TIER_OF: Final = {level: at for at, level in enumerate(LEVELS, start=1)}
WORD_OF: Final = {"fabric": "clique", "leaf": "leaf", "spine": "spine", "zone": "zone"}
NAME_CHARS: Final = 63
"""Names of HyperNodes end up in labels and annotations of others: no longer than a label's value may be."""
NAMES_SHOWN: Final = 3

_UNFIT = re.compile(r"[^a-z0-9]+")

Group = tuple[str, str]
"""The level where a group's value comes from, and the value. A rest has the level of the domain it is the rest of."""


@dataclass(frozen=True, slots=True)
class Desired:
    """One HyperNode: its members are nodes on the lowest level, HyperNodes above."""

    name: str
    tier: int
    tier_name: str
    members: tuple[str, ...]
    of_nodes: bool
    rest: bool = field(default=False, compare=False)  # of those for whom nobody states a value on this level

    def as_object(self) -> dict[str, Any]:
        """For server-side apply."""
        kind = "Node" if self.of_nodes else "HyperNode"
        return {
            "apiVersion": "topology.volcano.sh/v1alpha1",
            "kind": "HyperNode",
            "metadata": {"name": self.name, "labels": {MANAGED_BY: MANAGER}},
            "spec": {
                "tier": self.tier,
                "tierName": self.tier_name,
                "members": [{"type": kind, "selector": {"exactMatch": {"name": each}}} for each in self.members],
            },
        }


@dataclass(frozen=True, slots=True)
class HyperNodePlan:
    """All HyperNodes that should be there, by name, lowest tier first; and what is to be told."""

    desired: Mapping[str, Desired] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def is_ours(hypernode: HyperNode) -> bool:
    """Made by this publisher."""
    return hypernode.metadata.label(MANAGED_BY) == MANAGER


def plan_hypernodes(
    gpu_nodes: Iterable[Node], existing: Iterable[HyperNode], sources: Sources = NO_SOURCES
) -> HyperNodePlan:
    """What should be there for these nodes."""
    nodes = sorted(gpu_nodes, key=lambda n: n.metadata.name)
    if foreign := sorted(h.metadata.name for h in existing if not is_ours(h)):
        return HyperNodePlan(warnings=(_adopted(foreign),))
    chains = {node.metadata.name: sources.chain(node, {}) for node in nodes}
    levels = _levels(chains.values())
    inside: dict[Group, list[str]] = {}
    for name, chain in chains.items():
        inside.setdefault(_group(chain, levels), []).append(name)
    made = _level_made(levels[0], inside, of_nodes=True)
    holds = {_name(levels[0], group): members for group, members in inside.items()}
    warnings: list[str] = []
    for below, level in pairwise(levels):
        above: dict[Group, list[str]] = {}
        for child, members in sorted(holds.items()):
            parents = Counter(_group(chains[node], levels[levels.index(level) :]) for node in members)
            if len(parents) > 1:
                warnings.append(
                    f"the {WORD_OF[below]} {child} reaches over {len(parents)} {level} domains: it counts to the one "
                    f"with most of its nodes"
                )
            above.setdefault(_most_frequent(parents), []).append(child)
        made += _level_made(level, above, of_nodes=False)
        holds = {_name(level, group): [n for c in each for n in holds[c]] for group, each in above.items()}
    return HyperNodePlan({each.name: each for each in made}, tuple(warnings))


def _adopted(foreign: Sequence[str]) -> str:
    """The warning about HyperNodes of others."""
    shown = ", ".join(foreign[:NAMES_SHOWN]) + (" ..." if len(foreign) > NAMES_SHOWN else "")
    return f"{len(foreign)} HyperNodes of others are adopted ({shown}): none are made"


def _levels(chains: Collection[DomainChain]) -> list[str]:
    """The levels that some node has a value on; where no node has any, all are one rest of the leaf level."""
    return [level for level in LEVELS if any(_value(chain, level) for chain in chains)] or ["leaf"]


def _most_frequent(parents: Mapping[Group, int]) -> Group:
    """The parent of most nodes; of equals the first by name."""
    return min(parents, key=lambda group: (-parents[group], group))


def _value(chain: DomainChain, level: str) -> str:
    value = str(getattr(chain, level))
    # A cluster without zone labels is one zone that nobody named: no level of its own.
    return "" if level == "zone" and value == "/" else value


def _group(chain: DomainChain, levels: Sequence[str]) -> Group:
    """A node's group on the first of these levels: its own value, or the rest of the next wider domain it is in."""
    return next(((level, value) for level in levels if (value := _value(chain, level))), ("", ""))


def _name(level: str, group: Group) -> str:
    """`isochrone-leaf-l1-3f2a9c1b0d`: readable, unique, and no longer than a label's value."""
    of, value = group
    word = WORD_OF[level] if of == level else f"{WORD_OF[level]}-rest"
    digest = hashlib.sha256(f"{level}\0{of}\0{value}".encode()).hexdigest()[:10]
    slug = _UNFIT.sub("-", value.rpartition("/")[2].lower()).strip("-")
    capacity = NAME_CHARS - len(f"isochrone-{word}--{digest}")
    return "-".join(part for part in ("isochrone", word, slug[:capacity].strip("-"), digest) if part)


def _level_made(level: str, members: Mapping[Group, Sequence[str]], *, of_nodes: bool) -> list[Desired]:
    """The HyperNodes of one level, by group."""
    return [_made(level, group, tuple(inside), of_nodes=of_nodes) for group, inside in sorted(members.items())]


def _made(level: str, group: Group, members: tuple[str, ...], *, of_nodes: bool) -> Desired:
    name, rest = _name(level, group), group[0] != level
    return Desired(name, TIER_OF[level], WORD_OF[level], tuple(sorted(members)), of_nodes, rest)
