"""EDGE. The topology of the machine that this process runs on: one look through NVML and sysfs.

The same readers as the agent's, without an agent, a kubelet or a cluster.
"""

from __future__ import annotations

import platform

from topology.agent.nvml_reader import NvmlReader
from topology.agent.sysfs_reader import SysfsReader
from topology.bad_input import BadInput
from topology.clock import wall_time_s
from topology.facts.report import NodeFacts, NodeState, NvmlState
from topology.graph.of_facts import of_facts
from topology.graph.parts import Topology


def topology_here(sys_root: str = "/sys", proc_root: str = "/proc") -> Topology:
    """GPUs, adapters and what joins them. Raises BadInput where NVML does not answer."""
    now_s = wall_time_s()
    reader = NvmlReader()
    try:
        seen = reader.read(now_s)
    finally:
        reader.close()
    if seen.state is not NvmlState.OK or seen.skipped:
        raise BadInput("--here", seen.problem or seen.skipped or seen.state.value, "NVIDIA's driver must answer here")
    host = SysfsReader(sys_root, proc_root).read(seen.gpus, seen.pairs)
    state = NodeState(collected_at_s=now_s, topology_generation=0, nvml=seen.state)
    return of_facts(platform.node(), NodeFacts(state=state, gpus=host.gpus, pairs=host.pairs, nics=host.nics))
