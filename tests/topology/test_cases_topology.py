"""Case files of kind `topology`, `topology-facts` and `topology-relist`: public reports about discovered topologies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler.case_files import of_kind
from tests.topology.test_readers import links
from topology.cluster.agent_gpus import agent_gpus
from topology.cluster.snapshot import NodeTable
from topology.cluster.state import ClusterState
from topology.facts.report import (
    Distance,
    Gpu,
    GpuPair,
    Mig,
    MigInstance,
    Nic,
    NodeFacts,
    NodeState,
    NvLink,
    NvmlState,
    Remote,
)
from topology.graph.network_map import domain_chains
from topology.graph.of_facts import of_facts, overridden
from topology.graph.parts import PartKind
from topology.labels import GPU_PRODUCT, LEAF
from topology.objects import Metadata, Node, NodeStatus
from topology.reach.domains import chain_of
from topology.readers.formats import read
from topology.readers.node_labels import of_cluster


@pytest.mark.parametrize("case", of_kind("topology"))
def test_a_topology_case(case: dict[str, Any]) -> None:
    topology, expect = read(case["input"]["file"].encode()), case["expect"]
    assert set(expect.get("links", ())) <= links(topology)
    assert list(topology.warnings) == expect["warnings"]
    if "numa" in expect:
        assert [gpu.numa for gpu in topology.of_kind(PartKind.GPU)] == expect["numa"]
    if "domains" in expect:
        groups: dict[str, list[str]] = {}
        for host in topology.of_kind(PartKind.HOST):
            groups.setdefault(host.domain, []).append(host.name)
        assert sorted(groups.values()) == expect["domains"]
        by_chain: dict[str, list[str]] = {}
        for name, chain in domain_chains(topology).items():  # what scoring gets groups the nodes alike
            by_chain.setdefault(chain.fabric, []).append(name)
        assert sorted(by_chain.values()) == expect["domains"]


@pytest.mark.parametrize("case", of_kind("topology-facts"))
def test_a_case_of_facts(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    link = [NvLink(link=n, active=True, remote=Remote.SWITCH) for n in range(given["nvlinks_to_switch"])]
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{index}",
            index=index,
            bus_id=f"0000:00:{4 + index:02x}.0",
            numa_node=given["numa"],
            pci_path=(given["root"], f"0000:00:{4 + index:02x}.0"),
            nvlinks=tuple(link),
        )
        for index in given["gpus"]
    )
    nics = tuple(
        Nic(
            name=name,
            rdma=True,
            bus_id=f"0000:00:{10 + at:02x}.0",
            numa_node=given["numa"],
            pci_path=(given["root"], f"0000:00:{10 + at:02x}.0"),
            gpus=tuple((gpu.uuid, Distance.PHB) for gpu in gpus),
        )
        for at, name in enumerate(given["nics"])
    )
    state = NodeState(collected_at_s=0, topology_generation=1, nvml=NvmlState.OK)
    pairs = (GpuPair(a="GPU-0", b="GPU-1", distance=Distance.PHB),)
    seen = of_facts("n1", NodeFacts(state=state, gpus=gpus, nics=nics, pairs=pairs))
    assert links(seen) == set(expect["links"])
    assert list(seen.warnings) == expect["warnings"]
    mended = overridden(seen, read(given["override"]["file"].encode()), given["override"]["name"])
    assert links(mended) == set(expect["overridden"])
    assert list(mended.warnings[:-1]) == [*expect["warnings"], *expect.get("differ", ())]
    assert mended.warnings[-1] == expect["said"]


@pytest.mark.parametrize("case", of_kind("topology-mig"))
def test_a_case_of_mig(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    link = NvLink(link=0, active=True, remote=Remote.SWITCH, remote_bus_id=given["switch"])
    gpus = tuple(
        Gpu(uuid=f"GPU-{i}", index=i, bus_id=f"0000:0{i}:00.0", nvlinks=(link,), mig=_mig(entry.get("mig")))
        for i, entry in enumerate(given["gpus"])
    )
    state = NodeState(collected_at_s=0, topology_generation=1, nvml=NvmlState.OK)
    facts = NodeFacts(state=state, gpus=gpus)
    seen = of_facts("n1", facts)
    assert {part.name: part.inside for part in seen.of_kind(PartKind.MIG)} == expect["instances"]
    assert [f"{at.a} {at.b} {at.kind}" for at in seen.links if at.kind.startswith("NV")] == expect["nvlinks"]
    assert list(seen.warnings) == expect["warnings"]
    labels = {GPU_PRODUCT: given["product"]}
    table = NodeTable(
        [Node(metadata=Metadata(name="n1", labels=labels), status=NodeStatus(allocatable=given["allocatable"]))],
        devices={"n1": agent_gpus(facts)},
    )
    devices = table.gpus_of(0)
    assert sum(devices.healthy) == len(devices.memory_mib) == expect["whole_cards"]
    assert dict(devices.instances) == expect["offered"]
    assert devices.uuids == ("GPU-2",)


def _mig(instances: list[dict[str, Any]] | None) -> Mig | None:
    if instances is None:
        return None
    found = tuple(
        MigInstance(gpu_instance_id=i["id"], profile=i["profile"], start_slice=i["start"], size_slices=4)
        for i in instances
    )
    return Mig(enabled=True, instances=found)


@pytest.mark.parametrize("case", of_kind("topology-relist"))
def test_a_case_of_lists(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    state, before = ClusterState(), dict[str, Node]()
    for listed, hosts, value in zip(given["listed"], expect["hosts"], expect["links"], strict=True):
        nodes = [Node(metadata=Metadata(name=name, labels={LEAF: given["leaf"]})) for name in listed]
        topology = of_cluster(nodes)
        assert [host.name for host in topology.of_kind(PartKind.HOST)] == hosts
        assert {link for link in links(topology) if link.endswith("hop")} == set(value)
        assert domain_chains(topology) == {node.metadata.name: chain_of(node, {}) for node in nodes}
        # What scoring looks at, from the differences that an informer makes of a list.
        now = {node.metadata.name: node for node in nodes}
        state.apply_nodes([(before.get(name), now.get(name)) for name in sorted(before.keys() | now.keys())])
        before = now
        assert [node.metadata.name for node in state.table().nodes] == hosts
