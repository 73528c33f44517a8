"""What changed between two reports of a node, and the report that follows from a change.

Decides when a change can be told alone: not when the topology's generation grew, for then things may be gone. It must
never know how messages travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from topology.bad_input import BadInput
from topology.facts import agent_pb2 as wire
from topology.facts import wire as facts_wire
from topology.facts.report import Gpu, Memory, Nic, NodeFacts, NvmlState, ReachSample

MOST_REACH: Final = facts_wire.MOST["reach"]

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
    return wire.Delta(
        topology_generation=new.state.topology_generation,
        collected_at_s=new.state.collected_at_s,
        node=None if same_time == old.state else facts_wire.node_message(new.state),
        gpus=[facts_wire.gpu_message(gpu) for gpu in _changed(old.gpus, new.gpus)],
        memory=[facts_wire.memory_message(reading) for reading in _changed(old.memory, new.memory)],
        nics=[facts_wire.nic_message(nic) for nic in _changed(old.nics, new.nics)],
        pods=None if pods_same or new.pods is None else facts_wire.pods_message(new.pods),
        reach=[facts_wire.reach_message(sample) for sample in new.reach],
    )


def apply(facts: NodeFacts, delta: wire.Delta) -> NodeFacts:
    """The facts after a change. Raises BadInput if it is about another topology than these facts."""
    known = facts.state.topology_generation
    if delta.topology_generation != known:
        raise BadInput("topology_generation", delta.topology_generation, f"the last full report had {known}")
    if delta.HasField("node"):
        state = facts_wire.read_node(delta.node)
        if state.topology_generation != known:
            raise BadInput("node.topology_generation", state.topology_generation, "it grows with a full report only")
    else:
        now_s = facts_wire.time_s("collected_at_s", delta.collected_at_s)
        good_at_s = now_s if facts.state.nvml is NvmlState.OK else facts.state.nvml_good_at_s
        state = replace(facts.state, collected_at_s=now_s, nvml_good_at_s=good_at_s)
    return replace(
        facts,
        state=state,
        gpus=_merged("gpus", facts.gpus, [facts_wire.read_gpu(gpu) for gpu in delta.gpus]),
        memory=_merged("memory", facts.memory, [facts_wire.read_memory(m) for m in delta.memory], new_too=True),
        nics=_merged("nics", facts.nics, [facts_wire.read_nic(nic) for nic in delta.nics]),
        pods=facts_wire.read_pods(delta.pods) if delta.HasField("pods") else facts.pods,
        reach=_measured(facts.reach, facts_wire.read_reach(delta.reach)),
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


def _changed(old: Sequence[K], new: Sequence[K]) -> list[K]:
    before = {_key(value): value for value in old}
    return [value for value in new if before.get(_key(value)) != value]


def _merged(field: str, old: tuple[K, ...], new: Sequence[K], *, new_too: bool = False) -> tuple[K, ...]:
    if not new:
        return old
    found = {_key(value): value for value in old}
    for value in new:
        if not new_too and _key(value) not in found:
            raise BadInput(field, _key(value), "a change names what the last full report named")
        found[_key(value)] = value
    if len(found) > facts_wire.MOST[field]:
        raise BadInput(field, f"{len(found)} entries", f"at most {facts_wire.MOST[field]} are taken")
    return tuple(found[key] for key in sorted(found))
