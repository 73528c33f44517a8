"""The graph of one node from what its agent reports, and a topology file that fills in what a guest hides.

NVLink comes first, PCIe where there is none; what nobody knows is `unknown`. Instances of a GPU in MIG mode are inside
it. A machine that shows every device directly
under one root complex and no NUMA node is a virtual one: its tree is made up, so its PCIe distances are not believed
(NVIDIA/nccl#326), while its NVLinks are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from topology.facts.nvlinks import nvlink_pairs
from topology.facts.pci_paths import distance
from topology.facts.report import Distance, Gpu, Health, Nic, NodeFacts, Remote
from topology.graph.link_types import PCIE_TYPES, PIX, UNKNOWN, agreed, nvlink, nvlinks
from topology.graph.parts import GraphPart, PartKind, Topology, TopologyBuilder

SOURCE = "agent"


def of_facts(node: str, facts: NodeFacts) -> Topology:
    """GPUs by their index (GPU0), adapters by name, under root complex, NUMA node and host."""
    build = TopologyBuilder(SOURCE)
    domains = {gpu.fabric.domain if gpu.fabric else None for gpu in facts.gpus}
    key = domains.pop() if len(domains) == 1 else None
    build.part(GraphPart(node, PartKind.HOST, domain=f"{key[0]}.{key[1]}" if key else ""))
    names = gpu_names(facts.gpus)
    for gpu in facts.gpus:
        inside = _above(node, gpu, build)
        build.part(GraphPart(names[gpu.uuid], PartKind.GPU, inside, numa=gpu.numa_node, device=gpu.bus_id or ""))
        _mig_instances(gpu, names[gpu.uuid], build)
        if gpu.health is Health.LOST:
            build.warn(f"{names[gpu.uuid]} is lost: what it is joined to is from before")
    for nic in facts.nics:
        build.part(
            GraphPart(nic.name, PartKind.NIC, _above(node, nic, build), numa=nic.numa_node, device=nic.bus_id or "")
        )
    _nvlinks(node, [gpu for gpu in facts.gpus if not _split(gpu)], names, build)
    _pcie(facts, names, build)
    return build.build()


def gpu_names(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Names of GPUs in the graph, by UUID: `GPU0` by the index, the UUID where the index is not known or not unique."""
    indexes = [gpu.index for gpu in gpus]
    return {
        gpu.uuid: f"GPU{gpu.index}" if gpu.index is not None and indexes.count(gpu.index) == 1 else gpu.uuid
        for gpu in gpus
    }


def _mig_instances(gpu: Gpu, name: str, build: TopologyBuilder) -> None:
    """The instances inside a GPU in MIG mode."""
    for instance in gpu.mig.instances if _split(gpu) and gpu.mig is not None else ():
        inside = f"{name} instance {instance.gpu_instance_id}"
        build.part(GraphPart(inside, PartKind.MIG, name, numa=gpu.numa_node, device=instance.uuid or ""))


def _split(gpu: Gpu) -> bool:
    """In MIG mode, where neither the GPU nor its instances can reach another GPU by NVLink or PCIe (NVIDIA MIG User
    Guide, "Application Considerations": no peer to peer)."""
    return gpu.mig is not None and gpu.mig.enabled


def _above(node: str, device: Gpu | Nic, build: TopologyBuilder) -> str:
    """The root complex, the NUMA node or the host that a device is inside, made when it is first met."""
    inside = node
    if device.numa_node is not None:
        inside = f"NUMA {device.numa_node}"
        build.part(GraphPart(inside, PartKind.NUMA, node, numa=device.numa_node))
    if len(device.pci_path) > 1:
        root = device.pci_path[0]
        if root not in build.parts:
            build.part(GraphPart(root, PartKind.PCI_ROOT, inside, numa=device.numa_node))
        return root
    return inside


def _nvlinks(node: str, gpus: Sequence[Gpu], names: dict[str, str], build: TopologyBuilder) -> None:
    for pair in nvlink_pairs(gpus):
        build.link(names[pair.a], names[pair.b], nvlink(pair.links))
    for gpu in gpus:
        to_switch: dict[str, int] = {}
        for link in gpu.nvlinks:
            if link.active and link.remote is Remote.SWITCH and link.remote_bus_id:
                to_switch[link.remote_bus_id] = to_switch.get(link.remote_bus_id, 0) + 1
        for switch, count in to_switch.items():
            build.part(GraphPart(switch, PartKind.NVSWITCH, node))
            build.link(names[gpu.uuid], switch, nvlink(count))


def _pcie(facts: NodeFacts, names: dict[str, str], build: TopologyBuilder) -> None:
    made_up = _made_up([*facts.gpus, *facts.nics])
    if made_up:
        build.warn(
            "every device is directly under one root complex and no NUMA node is known: PCIe distances are unknown"
        )
    value: dict[tuple[str, str], Distance | None] = {}
    for pair in facts.pairs:
        value[names[pair.a], names[pair.b]] = pair.distance
    for nic in facts.nics:
        value.update({(names[uuid], nic.name): far for uuid, far in nic.gpus if uuid in names})
    for one, other in combinations(facts.nics, 2):
        far = distance(one.pci_path, other.pci_path, one.numa_node, other.numa_node)
        value[one.name, other.name] = far
    devices = [*names.values(), *(nic.name for nic in facts.nics)]
    for a, b in combinations(devices, 2):
        if not build.linked(a, b):
            far = value.get((a, b)) or value.get((b, a))
            build.link(a, b, UNKNOWN if made_up or far is None else PIX if far is Distance.SAME else far.value)


def _made_up(devices: Sequence[Gpu | Nic]) -> bool:
    placed = [device for device in devices if device.pci_path]
    flat = len(placed) > 1 and all(len(device.pci_path) == 2 for device in placed)
    return flat and len({device.pci_path[0] for device in placed}) == 1 and all(d.numa_node is None for d in placed)


def joined(cluster: Topology, machine: Topology, node: str) -> Topology:
    """Where a node stands, as its labels say, with what its agent sees inside it; of a domain that both name the label
    counts, as everywhere."""
    build, here = TopologyBuilder(f"{cluster.source} and {machine.source}"), {part.name: part for part in machine.parts}
    for part in cluster.parts:
        if part.kind in (PartKind.GPU, PartKind.NIC) and part.inside == node:
            continue  # labels only count them
        build.part(replace(part, domain=part.domain or here[node].domain) if part.name == node else part)
    for part in machine.parts:
        if part.name != node:
            build.part(part)
    for link in (*machine.links, *cluster.links):
        if link.a in build.parts and link.b in build.parts and not build.linked(link.a, link.b):
            build.link(link.a, link.b, link.kind, count=link.count)
    for warning in (*cluster.warnings, *machine.warnings):
        build.warn(warning)
    return build.build()


def _matched(seen: Topology, file: Topology) -> dict[str, str | None]:
    """The file's name of each part that was seen: by PCI address, else by name; None where it has none."""
    there = {key: part.name for part in file.parts for key in (part.device, part.name) if key}
    return {part.name: there.get(part.device) or there.get(part.name) for part in seen.parts}


def _contradicts(seen: str, stated: str) -> bool:
    """Whether a file's link says otherwise than what was seen; a path over PCIe beside NVLinks contradicts nothing."""
    besides = bool(nvlinks(seen)) and not nvlinks(stated)
    return UNKNOWN not in (seen, stated) and stated != seen and not besides


def overridden(seen: Topology, file: Topology, name: str) -> Topology:
    """What was seen, with PCIe distances from a topology file where nothing is known.

    Devices are matched by PCI address, else by name. What was seen comes first: the file never takes an NVLink away and
    never changes a distance that was seen. What it adds, and where it says otherwise, is said in a warning that names
    it; `N/A` in it is no statement.
    """
    match = _matched(seen, file)
    link_types = {(link.a, link.b): link.kind for link in file.links}
    build = TopologyBuilder(seen.source)
    for part in seen.parts:
        build.part(part)
    filled, differ = 0, list[str]()
    for link in seen.links:
        ends = match[link.a] or "", match[link.b] or ""
        reported = link_types.get(ends) or link_types.get((ends[1], ends[0])) or UNKNOWN
        use = link.kind == UNKNOWN and reported in PCIE_TYPES
        filled += use
        build.link(link.a, link.b, (agreed(link.kind, reported) or link.kind) if use else link.kind, count=link.count)
        if _contradicts(link.kind, reported):
            differ.append(
                f"{link.a} to {link.b} is {reported} in {name}; {link.kind} is taken, as {seen.source} sees it"
            )
    for warning in (*seen.warnings, *differ):
        build.warn(warning)
    unmatched = [p.name for p in seen.of_kind(PartKind.GPU) if match[p.name] is None]
    build.warn(_filled_in(filled, name, unmatched))
    return build.build()


def _filled_in(count: int, file: str, unmatched: Sequence[str]) -> str:
    unknown = f"; it does not know {', '.join(unmatched[:4])}" if unmatched else ""
    return f"{count} PCIe distances are from {file}{unknown}"
