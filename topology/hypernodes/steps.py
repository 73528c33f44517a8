"""The order of writes from the HyperNodes that are there to those that should be: a tree at every moment in between.

First everything is taken apart, from the top: members that are to go leave their parents, then HyperNodes that are to
go are deleted. Then it is put together, from the bottom: a member exists, and has left its old parent, before a new
parent names it. HyperNodes of others are never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from topology.hypernodes.plan import Desired, is_ours
from topology.objects import HyperNode


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this one, if it is still that object."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Apply:
    """Write this one."""

    desired: Desired


Step = Delete | Apply


def steps(existing: Iterable[HyperNode], desired: Mapping[str, Desired]) -> list[Step]:
    """All writes, in order; nothing where all is as it should be."""
    held = {h.metadata.name: h for h in existing if is_ours(h)}
    now = {name: _as_desired(h) for name, h in held.items()}
    shrunk: list[Step] = []
    left: dict[str, Desired] = {}
    for name in sorted(now, key=lambda n: (-now[n].tier, n)):
        wanted = desired.get(name)
        if wanted is None:
            continue
        same_kind = now[name].of_nodes == wanted.of_nodes
        stay = tuple(m for m in now[name].members if same_kind and m in wanted.members)
        left[name] = now[name]
        if stay != now[name].members:
            left[name] = replace(now[name], members=stay, of_nodes=wanted.of_nodes)
            shrunk.append(Apply(left[name]))
    gone = sorted(now.keys() - desired.keys(), key=lambda n: (-now[n].tier, n))
    deleted: list[Step] = [Delete(name, held[name].metadata.uid) for name in gone]
    grown: list[Step] = [
        Apply(desired[name])
        for name in sorted(desired, key=lambda n: (desired[n].tier, n))
        if left.get(name) != desired[name]
    ]
    return [*shrunk, *deleted, *grown]


def _as_desired(hypernode: HyperNode) -> Desired:
    """What is there, in the shape of what should be. One that somebody else wrote into is written anew."""
    spec, members = hypernode.spec, hypernode.spec.members or ()
    names = sorted({m.selector.exact_match.name for m in members if m.selector.exact_match is not None})
    kinds = {m.type for m in members}
    tier_name = spec.tier_name if len(names) == len(members) and len(kinds) <= 1 else "?"
    return Desired(hypernode.metadata.name, spec.tier, tier_name, tuple(names), "Node" in kinds)
