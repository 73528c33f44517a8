"""MIG instances where an agent sees them: case files of kind `mig-seen`, and what is in use by whose word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler.evaluate.mig_cost import mig_cost
from tests.scheduler.case_files import of_kind
from tests.scheduler.clusters import READY
from topology.cluster.agent_gpus import agent_gpus
from topology.cluster.state import ClusterState
from topology.facts import report as f
from topology.gpus.mig_seen import SeenMig, seen_mig
from topology.gpus.roots import gpus_in_use
from topology.labels import GPU_PRODUCT, HOSTNAME
from topology.objects import Metadata, Node, NodeStatus

MIB = 2**20


def facts(name: str, given: list[dict[str, Any]], product: str, each_mib: int) -> f.NodeFacts:
    uuids = [f"MIG-{name}-{i}" for i in range(len(given))]
    instances = tuple(
        f.MigInstance(gpu_instance_id=i, uuid=uuid, profile=at["profile"], start_slice=at["start"], size_slices=1)
        for i, (uuid, at) in enumerate(zip(uuids, given, strict=True))
    )
    holdings = tuple(
        f.Holding(
            namespace="x",
            pod=f"p{i}",
            container="c",
            resource=f"nvidia.com/mig-{at['profile']}",
            device_ids=(uuid,),
        )
        for i, (uuid, at) in enumerate(zip(uuids, given, strict=True))
        if at.get("held")
    )
    parent = f.Memory(uuid=f"GPU-{name}", kind=f.MemoryKind.SUM_OF_MIG, total_bytes=each_mib * len(given) * MIB)
    return f.NodeFacts(
        state=f.NodeState(collected_at_s=0.0, topology_generation=1, nvml=f.NvmlState.OK),
        gpus=(f.Gpu(uuid=f"GPU-{name}", index=0, name=product, mig=f.Mig(enabled=True, instances=instances)),),
        memory=(parent, *(f.Memory(uuid=uuid, total_bytes=each_mib * MIB) for uuid in uuids)),
        pods=f.PodDevices(collected_at_s=0.0, holdings=holdings),
    )


@pytest.mark.parametrize("case", of_kind("mig-seen"))
def test_a_case_of_instances_seen(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    state = ClusterState()
    for name, instances in given["nodes"].items():
        offered: dict[str, str | int | float] = {"pods": 110}
        for at in instances:
            key = f"nvidia.com/mig-{at['profile']}"
            offered[key] = int(offered.get(key, 0)) + 1
        labels = {HOSTNAME: name, GPU_PRODUCT: given["product"].replace(" ", "-")}
        status = NodeStatus(allocatable=offered, conditions=READY)
        state.apply_nodes([(None, Node(metadata=Metadata(name=name, labels=labels), status=status))])
        for i, at in enumerate(instances):
            if at.get("held"):
                state.assume(f"{name}-{i}", name, {f"nvidia.com/mig-{at['profile']}": 1})
        if given.get("agents", True):
            reported = facts(name, instances, given["product"], given["instance_mib"])
            state.apply_facts(name, None, reported)
            assert agent_gpus(reported).usable_mib == (expect["parent_mib"],)
    snapshot, names = state.snapshot(0.0, 0.0), list(given["nodes"])
    added = mig_cost(snapshot, np.arange(len(names)), (given["asks"],), given["mix"]).tolist()
    assert dict(zip(names, added, strict=True)) == expect["added"]
    assert names[int(np.argmin(added))] == expect["best"]


def seen(*instances: tuple[str, int], name: str = "n") -> SeenMig:
    reported = facts(name, [{"profile": p, "start": s} for p, s in instances], "NVIDIA A100-SXM4-80GB", 9856)
    found = seen_mig(reported.gpus, {})
    assert found is not None
    return found


def test_what_the_kubelet_names_is_in_use_first_and_then_the_lowest_place() -> None:
    mig = seen(("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4))

    def places(in_use: tuple[str, ...], held: dict[str, int]) -> list[int]:
        return [each.start for gpu in mig.used(in_use, held) for each in gpu]

    assert places(("MIG-n-1",), {"1g.10gb": 1}) == [1]
    assert places(("MIG-n-1",), {"1g.10gb": 2}) == [0, 1]  # one is planned and not there yet
    assert places((), {"1g.10gb": 1, "3g.40gb": 1}) == [0, 4]
    assert places(("MIG-n-1",), {}) == []  # its pod is gone
    assert places((), {"1g.10gb.me": 9}) == [0, 1]  # more is held than there is; suffixes are left aside


def test_only_an_idle_instance_can_be_had() -> None:
    mig = seen(("1g.10gb", 0), ("3g.40gb", 4))
    mix = (("3g.40gb", 1.0),)
    assert mig.added((), {"1g.10gb": 1}, "1g.10gb", mix) is None
    assert mig.added((), {}, "2g.20gb", mix) is None
    # A 3g at 4 on an empty card: one of two stays, of 4 free slices one could be: nothing is lost.
    assert mig.added((), {}, "3g.40gb", mix) == 0.0


def test_what_the_driver_does_not_show_is_not_made_up() -> None:
    reported = facts("n", [{"profile": "1g.10gb", "start": None}], "NVIDIA A100-SXM4-80GB", 9856)
    assert seen_mig(reported.gpus, {}) is None
    assert seen_mig(facts("n", [], "NVIDIA X", 0).gpus, {}) is None
    whole = (f.Gpu(uuid="GPU-1", name="NVIDIA A100-SXM4-80GB", mig=f.Mig(enabled=False)),)
    assert seen_mig(whole, {}) is None
    lost = tuple(replace(gpu, health=f.Health.LOST) for gpu in reported.gpus)
    assert seen_mig(lost, {}) is None
    # Of a size that the name does not say the memory tells: A100 40 GB has 1g.5gb.
    forty = f.Gpu(uuid="GPU-1", name="NVIDIA A100-SXM4", mig=f.Mig(enabled=True))
    found = seen_mig((forty,), {"GPU-1": 40960})
    assert found is not None
    assert found.device.name == "A100-40GB"


def test_instances_in_use_are_named_by_their_uuid() -> None:
    reported = facts(
        "n",
        [{"profile": "1g.10gb", "start": 0, "held": True}, {"profile": "1g.10gb", "start": 1}],
        "NVIDIA A100-SXM4-80GB",
        9856,
    )
    assert gpus_in_use(reported) == ("MIG-n-0",)
