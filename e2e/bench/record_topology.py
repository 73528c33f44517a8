"""Case files about machines and networks in the behaviour record: graphs of readers, sets of GPUs, quantities."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from e2e.bench.record_values import Data, card_data, ranking_data
from scheduler.evaluate.gpu_fit import gpu_need, gpu_slots, usable_mib
from scheduler.evaluate.mig_cost import mig_cost
from scheduler.extender.decide import decide
from scheduler.model.policy import Policy
from tests.scheduler.clusters import READY, node, pod
from tests.scheduler.gpu_cases import node_from
from tests.topology.test_mig_seen import facts as mig_facts
from tests.topology.test_readers import counts, links
from topology.bad_input import BadInput
from topology.cluster.agent_gpus import agent_gpus
from topology.cluster.snapshot import NodeTable, snapshot_of
from topology.cluster.state import ClusterState
from topology.facts import report as f
from topology.gpus.amounts import read_count
from topology.gpus.gpu_request import GpuRequest, whole_gpus
from topology.gpus.request import readable_gpus
from topology.gpus.sets import GpuLinks, best_set
from topology.graph.network_map import domain_chains
from topology.graph.of_facts import of_facts, overridden
from topology.graph.parts import PartKind, Topology
from topology.labels import DECODE, GPU_PRODUCT, HOSTNAME, LEAF
from topology.objects import Container, Metadata, Node, NodeStatus, PodSpec, Resources
from topology.readers.formats import read
from topology.readers.node_labels import of_cluster
from topology.units import parse_quantity

Case = Mapping[str, Any]


def _graph(topology: Topology) -> Data:
    """Links and parts by name, domains that scoring gets, how many warnings."""
    chains: dict[str, list[str]] = {}
    for name, chain in domain_chains(topology).items():
        chains.setdefault(chain.fabric, []).append(name)
    return {
        "links": sorted(links(topology)),
        "parts": counts(topology),
        "numa": [gpu.numa for gpu in topology.of_kind(PartKind.GPU)],
        "hosts": [[host.name, host.domain] for host in topology.of_kind(PartKind.HOST)],
        "domains": sorted(chains.values()),
        "warnings": len(topology.warnings),
    }


def _topology(given: Case) -> Data:
    return _graph(read(given["file"].encode()))


def _topology_facts(given: Case) -> Data:
    """GPUs and network cards under one root, as an agent sees them, and with a file laid over."""
    link = [f.NvLink(link=n, active=True, remote=f.Remote.SWITCH) for n in range(given["nvlinks_to_switch"])]
    gpus = tuple(
        f.Gpu(
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
        f.Nic(
            name=name,
            rdma=True,
            bus_id=f"0000:00:{10 + at:02x}.0",
            numa_node=given["numa"],
            pci_path=(given["root"], f"0000:00:{10 + at:02x}.0"),
            gpus=tuple((gpu.uuid, f.Distance.PHB) for gpu in gpus),
        )
        for at, name in enumerate(given["nics"])
    )
    pairs = (f.GpuPair(a="GPU-0", b="GPU-1", distance=f.Distance.PHB),)
    seen = of_facts("n1", f.NodeFacts(state=_looked(), gpus=gpus, nics=nics, pairs=pairs))
    mended = overridden(seen, read(given["override"]["file"].encode()), given["override"]["name"])
    return [_graph(seen), _graph(mended)]


def _looked(**more: Any) -> f.NodeState:
    return f.NodeState(collected_at_s=0.0, topology_generation=1, nvml=f.NvmlState.OK, **more)


def _topology_mig(given: Case) -> Data:
    link = f.NvLink(link=0, active=True, remote=f.Remote.SWITCH, remote_bus_id=given["switch"])
    facts = f.NodeFacts(
        state=_looked(),
        gpus=tuple(
            f.Gpu(uuid=f"GPU-{i}", index=i, bus_id=f"0000:0{i}:00.0", nvlinks=(link,), mig=_mig(entry.get("mig")))
            for i, entry in enumerate(given["gpus"])
        ),
    )
    seen, status = of_facts("n1", facts), NodeStatus(allocatable=given["allocatable"])
    made = Node(metadata=Metadata(name="n1", labels={GPU_PRODUCT: given["product"]}), status=status)
    devices = NodeTable([made], devices={"n1": agent_gpus(facts)}).gpus_of(0)
    return {
        "graph": _graph(seen),
        "instances": {part.name: part.inside for part in seen.of_kind(PartKind.MIG)},
        "offered": dict(devices.instances),
        "uuids": list(devices.uuids),
        "healthy": list(devices.healthy),
        "memory_mib": list(devices.memory_mib),
    }


def _mig(instances: list[dict[str, Any]] | None) -> f.Mig | None:
    if instances is None:
        return None
    found = tuple(
        f.MigInstance(gpu_instance_id=i["id"], profile=i["profile"], start_slice=i["start"], size_slices=4)
        for i in instances
    )
    return f.Mig(enabled=True, instances=found)


def _topology_relist(given: Case) -> Data:
    state, before, found = ClusterState(), dict[str, Node](), []
    for listed in given["listed"]:
        nodes = [Node(metadata=Metadata(name=name, labels={LEAF: given["leaf"]})) for name in listed]
        now = {each.metadata.name: each for each in nodes}
        state.apply_nodes([(before.get(name), now.get(name)) for name in sorted(before.keys() | now.keys())])
        before = now
        found.append([_graph(of_cluster(nodes)), [each.metadata.name for each in state.table().nodes]])
    return found


def _mig_seen(given: Case) -> Data:
    """What an instance of a profile takes from the mix on each node."""
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
            state.apply_facts(name, None, mig_facts(name, instances, given["product"], given["instance_mib"]))
    snapshot = state.snapshot(0.0, 0.0)
    lost = mig_cost(snapshot, np.arange(len(given["nodes"])), (given["asks"],), given["mix"])
    return {"lost": lost.tolist(), "cards": card_data(snapshot)}


def _unified(given: Case) -> Data:
    """One pod of a whole GPU and one of 60 GiB, where the GPU's memory is the CPU's."""
    state = ClusterState()
    facts = f.NodeFacts(
        state=_looked(system_memory_total_bytes=given["system_memory_gib"] * 2**30),
        gpus=(f.Gpu(uuid="GPU-0", index=0, name="NVIDIA GB10"),),
        memory=(f.Memory(uuid="GPU-0", kind=f.MemoryKind.UNIFIED),),
    )
    for name in ("n1", "n2"):
        labels = {GPU_PRODUCT: given["product"]}
        state.apply_nodes([(None, node(name, gpus=1, zone="z", spine="s", leaf="l", labels=labels))])
        state.apply_facts(name, None, facts)
    snapshot = state.snapshot(0.0, 0.0)
    spec = PodSpec(containers=(Container(name="c", resources=Resources(limits={"nvidia.com/gpu": 1})),))
    whole = replace(pod("d", DECODE, 1), gpu=whole_gpus(1))
    sized = replace(pod("d", DECODE, 1), spec=spec, gpu=readable_gpus(spec, {"isochrone.dev/gpu-memory": "60Gi"})[0])
    found = [ranking_data(decide(each, snapshot, ("n1",))) for each in (whole, sized)]
    return {"cards": card_data(snapshot), "pods": found}


def _usable(given: Case) -> Data:
    usable = usable_mib(given["total_mib"], given["reserved_mib"])
    register = {"volcano.sh/node-vgpu-register": f"GPU-a,10,{usable},NVIDIA,true,hami-core:"}
    made = node_from({"name": "n1", "have": {"volcano.sh/vgpu-number": 10}, "notes": register})
    need = gpu_need(GpuRequest("Volcano vGPU", memory_mib=given["each_mib"]), DECODE, Policy())
    assert need is not None
    return {"usable_mib": usable, "pods": gpu_slots(snapshot_of([made]).gpus, need).tolist()}


def _gpu_set(given: Case) -> Data:
    count = max(len(given.get(key, ())) for key in ("numa", "free", "rails", "load_milli")) or 4
    pairs = given.get("pairs", {})

    def joined(a: int, b: int) -> str:
        return "X" if a == b else str(pairs.get(f"{min(a, b)}{max(a, b)}", given["others"]))

    known = GpuLinks(
        tuple(tuple(joined(a, b) for b in range(count)) for a in range(count)),
        tuple(given.get("numa", ())),
        tuple(given.get("rails", ())),
        rails_known="rails" in given,
    )
    found = best_set(known, given.get("free", [True] * count), given["count"], given.get("load_milli", ()))
    return None if found is None else {"gpus": list(found.gpus), "with_nic": float(found.nic_share)}


def _quantity(given: list[str]) -> Data:
    return [[_number(parse_quantity, text), _number(read_count, text)] for text in given]


def _number(reader: Callable[[str, str], Any], text: str) -> int | None:
    try:
        return int(reader(text, "field"))
    except BadInput:
        return None


TOPOLOGY_KINDS: Final[Mapping[str, Callable[[Any], Data]]] = {
    "gpu-set": _gpu_set,
    "mig-seen": _mig_seen,
    "quantity": _quantity,
    "topology": _topology,
    "topology-facts": _topology_facts,
    "topology-mig": _topology_mig,
    "topology-relist": _topology_relist,
    "unified": _unified,
    "usable": _usable,
}
"""By kind of case file, from its input."""
