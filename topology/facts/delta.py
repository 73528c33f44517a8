"""What changed between two reports of a node, and the report that follows from a change.

Decides when a change can be told alone: not when the topology's generation grew, for then things may be gone. It must
never know how messages travel.

Why there are changes at all: with a full report each time, 5,000 agents that report every 15 s cost the hub 46 % of a
core and 1.1 GB instead of 26 % and 0.7 GB (`make bench BENCH=hub`; 12,189 bytes a report instead of 142).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from topology.bad_input import BadInput
from topology.facts import agent_pb2 as wire
from topology.facts.report import (
    MOST_MEMORIES,
    MOST_REACH,
    Gpu,
    Memory,
    Nic,
    NodeChange,
    NodeFacts,
    NvmlState,
    ReachSample,
)
from topology.facts.wire import change_message, read_change

K = TypeVar("K", Gpu, Memory, Nic)


def difference(old: NodeFacts, new: NodeFacts) -> wire.Delta | None:
    """What turns `old` into `new`; None if only a full report can. Measurements are those of `new` alone."""
    if old.state.topology_generation != new.state.topology_generation:
        return None
    if _keys(old.gpus) != _keys(new.gpus) or _keys(old.nics) != _keys(new.nics) or old.pairs != new.pairs:
        return None
    if not set(_keys(old.memory)) <= set(_keys(new.memory)) or (old.pods and not new.pods):
        return None
    same_time = replace(new.state, collected_at_s=old.state.collected_at_s, nvml_good_at_s=old.state.nvml_good_at_s)
    pods_same = new.pods is None or (
        old.pods is not None and replace(new.pods, collected_at_s=old.pods.collected_at_s) == old.pods
    )
    change = NodeChange(
        topology_generation=new.state.topology_generation,
        collected_at_s=new.state.collected_at_s,
        state=None if same_time == old.state else new.state,
        gpus=_changed(old.gpus, new.gpus),
        memory=_changed(old.memory, new.memory),
        nics=_changed(old.nics, new.nics),
        pods=None if pods_same else new.pods,
        reach=new.reach,
    )
    return change_message(change)


def apply(facts: NodeFacts, delta: wire.Delta) -> NodeFacts:
    """The facts after a change. Raises BadInput if it is about another topology than these facts."""
    known, change = facts.state.topology_generation, read_change(delta)
    if change.topology_generation != known:
        raise BadInput("topology_generation", change.topology_generation, f"the last full report had {known}")
    if change.state is None:
        now_s = change.collected_at_s
        good_at_s = now_s if facts.state.nvml is NvmlState.OK else facts.state.nvml_good_at_s
        state = replace(facts.state, collected_at_s=now_s, nvml_good_at_s=good_at_s)
    elif change.state.topology_generation == known:
        state = change.state
    else:
        found = change.state.topology_generation
        raise BadInput("node.topology_generation", found, "it grows with a full report only")
    return replace(
        facts,
        state=state,
        gpus=_merged("gpus", facts.gpus, change.gpus),
        memory=_merged("memory", facts.memory, change.memory, most=MOST_MEMORIES),
        nics=_merged("nics", facts.nics, change.nics),
        pods=change.pods or facts.pods,
        reach=_measured(facts.reach, change.reach),
    )


def _measured(old: Sequence[ReachSample], new: Sequence[ReachSample]) -> tuple[ReachSample, ...]:
    """The newest of each (peer, size, transport); beyond the bound the oldest go."""
    if not new:
        return tuple(old)
    found = {(sample.peer, sample.size_bytes, sample.transport): sample for sample in (*old, *new)}
    if len(found) > MOST_REACH:
        newest = sorted(found, key=lambda key: (-found[key].measured_at_s, key))[:MOST_REACH]
        found = {key: found[key] for key in newest}
    return tuple(found[key] for key in sorted(found))


def _key(value: Gpu | Memory | Nic) -> str:
    return value.name if isinstance(value, Nic) else value.uuid


def _keys(values: Sequence[K]) -> list[str]:
    return [_key(value) for value in values]


def _changed(old: Sequence[K], new: Sequence[K]) -> tuple[K, ...]:
    before = {_key(value): value for value in old}
    return tuple(value for value in new if before.get(_key(value)) != value)


def _merged(field: str, old: tuple[K, ...], new: Sequence[K], *, most: int = 0) -> tuple[K, ...]:
    """`most` above 0: what is not known yet is added, up to so many."""
    if not new:
        return old
    found = {_key(value): value for value in old}
    for value in new:
        if not most and _key(value) not in found:
            raise BadInput(field, _key(value), "a change names what the last full report named")
        found[_key(value)] = value
    if most and len(found) > most:
        raise BadInput(field, f"{len(found)} entries", f"at most {most} are taken")
    return tuple(found[key] for key in sorted(found))
