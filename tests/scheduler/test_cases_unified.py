"""Case files of kind `unified`: a GPU whose memory is the CPU's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from scheduler.explain.wording import counts
from scheduler.extender.decide import decide
from tests.scheduler.case_files import of_kind
from tests.scheduler.clusters import node, pod
from topology.cluster.state import ClusterState
from topology.facts import report as f
from topology.gpus.gpu_request import whole_gpus
from topology.gpus.request import readable_gpus
from topology.labels import GPU_PRODUCT
from topology.objects import Container, PodSpec, Resources


@pytest.mark.parametrize("case", of_kind("unified"))
def test_a_case_of_unified_memory(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    state = ClusterState()
    equivalent = {"gpus": 1, "zone": "z", "spine": "s", "leaf": "l"}  # the second has room for a partner
    for name in ("n1", "n2"):
        state.apply_nodes([(None, node(name, labels={GPU_PRODUCT: given["product"]}, **equivalent))])  # type: ignore[arg-type]
    reported = f.NodeState(
        collected_at_s=0.0,
        topology_generation=1,
        nvml=f.NvmlState.OK,
        system_memory_total_bytes=given["system_memory_gib"] * 2**30,
    )
    facts = f.NodeFacts(
        state=reported,
        gpus=(f.Gpu(uuid="GPU-0", index=0, name="NVIDIA GB10"),),
        memory=(f.Memory(uuid="GPU-0", kind=f.MemoryKind.UNIFIED),),
    )
    for name in ("n1", "n2"):
        state.apply_facts(name, None, facts)
    snapshot = state.snapshot(0.0, 0.0)
    assert snapshot.gpus.memory_mib.tolist() == [[expect["gpu_memory_mib"]]] * 2
    whole = replace(pod("d", "decode", 1), gpu=whole_gpus(1))
    [best] = decide(whole, snapshot, ("n1",)).decision.ranked
    assert best.node == expect["placed"]
    points = {part.name: part.points for part in best.parts}
    assert points["fragmentation"] == expect["fragmentation"]
    assert all(math.isfinite(each) for each in points.values())
    spec = PodSpec(containers=(Container(name="c", resources=Resources(limits={"nvidia.com/gpu": 1})),))
    asked, problem = readable_gpus(spec, {"isochrone.dev/gpu-memory": "60Gi"})
    assert problem is None
    sized = replace(pod("d", "decode", 1), spec=spec, gpu=asked)
    assert counts(decide(sized, snapshot, ("n1",)).decision) == expect["with_60_gib"]
