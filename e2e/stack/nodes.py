"""Node objects of a GPU cluster that exists on paper: pure functions, KWOK plays the kubelet."""

from collections.abc import Iterator, Mapping
from typing import Any

REGION = "region-1"
LEAF = "network.topology.nvidia.com/leaf"
SPINE = "network.topology.nvidia.com/spine"
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"

GPU_PRODUCT = "NVIDIA-H100-80GB-HBM3"
GPU_MEMORY_MIB = 81_559


def gpu_node(
    name: str,
    zone: str,
    leaf: str,
    gpus: int = 8,
    cpu: str = "128",
    memory: str = "1Ti",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    hostname_label: bool = True,
) -> dict[str, Any]:
    """One H100 machine below a leaf switch of a zone; each zone has one spine.

    `labels` win over what is rendered; `hostname_label=False` leaves out the label that a plan needs.
    """
    shown = {
        "topology.kubernetes.io/region": REGION,
        ZONE: zone,
        LEAF: leaf,
        SPINE: f"spine-{zone}",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
    }
    if hostname_label:
        shown[HOSTNAME] = name
    resources = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    if gpus:
        shown |= {
            "nvidia.com/gpu.product": GPU_PRODUCT,
            "nvidia.com/gpu.memory": str(GPU_MEMORY_MIB),
            "nvidia.com/gpu.count": str(gpus),
        }
        resources[GPU] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": shown | dict(labels or {})},
        "status": {"capacity": resources, "allocatable": resources},
    }


def zone_name(index: int) -> str:
    """`zone-a`, `zone-b`, ... then `zone-26`."""
    return f"zone-{chr(ord('a') + index)}" if index < 26 else f"zone-{index}"


def places(nodes: int, zones: int, leaves_per_zone: int) -> Iterator[tuple[str, str]]:
    """Zone and leaf of each node: neighbours in number are neighbours in the network."""
    leaves = zones * leaves_per_zone
    for index in range(nodes):
        leaf = index * leaves // nodes
        zone = zone_name(leaf // leaves_per_zone)
        yield zone, f"leaf-{zone.removeprefix('zone-')}{leaf % leaves_per_zone}"


def grid(
    nodes: int = 16, zones: int = 4, leaves_per_zone: int = 2, gpus: int = 8, hostname_label: bool = True
) -> list[dict[str, Any]]:
    """Nodes spread evenly: `gpu-000` ... in four zones of two leaves each, unless told otherwise."""
    width = max(3, len(str(max(nodes - 1, 0))))
    return [
        gpu_node(f"gpu-{index:0{width}d}", zone, leaf, gpus=gpus, hostname_label=hostname_label)
        for index, (zone, leaf) in enumerate(places(nodes, zones, leaves_per_zone))
    ]
