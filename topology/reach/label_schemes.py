"""Which node labels of which platform name a network domain, nearest tier first, and which one wins.

One table. A node is read by the first scheme that says anything about it, never by a mixture: tiers of two schemes do
not line up. Values are opaque: they are compared and shown, never taken apart (writers store hashes where a name is too
long for a label: NVIDIA/topograph#254).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from topology.labels import ACCELERATOR, CORE, LEAF, NVLINK_CLIQUE, REGION, SPINE, ZONE


@dataclass(frozen=True, slots=True)
class Scheme:
    """Label keys of one platform, from the switch that a node hangs on upwards."""

    name: str
    tiers: tuple[str, ...]
    source: str
    lowest_optional: bool = False  # some machines hang one tier lower than others


SCHEMES: Final[tuple[Scheme, ...]] = (
    Scheme("topograph", (LEAF, SPINE, CORE), "NVIDIA/topograph docs/engines/k8s.md"),
    Scheme(
        "topograph 1",
        tuple(f"fabric.topograph.run/tier-{tier}" for tier in range(3)),
        "docs.nvidia.com/topograph, node labels: tier 0 is nearest",
    ),
    Scheme(
        "EKS",
        tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (4, 3, 2, 1)),
        "docs.aws.amazon.com/eks, network topology labels: layer 1 is the top; 4 exists on some instance types",
        lowest_optional=True,
    ),
    Scheme(
        "GKE",
        ("cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block"),
        "cloud.google.com/kubernetes-engine, topology-aware scheduling",
    ),
    Scheme(
        "OKE",
        (
            "oci.oraclecloud.com/rdma.local_block_id",
            "oci.oraclecloud.com/rdma.network_block_id",
            "oci.oraclecloud.com/rdma.hpc_island_id",
        ),
        "oracle-quickstart/oci-hpc-oke",
    ),
    Scheme("Volcano", ("volcano.sh/hypernode", "volcano.sh/hypercluster"), "volcano-sh/volcano, label discovery"),
    Scheme("Volcano racks", ("volcano.sh/tor",), "volcano-sh/volcano, label discovery"),
)

NVLINK_DOMAINS: Final[tuple[str, ...]] = (
    NVLINK_CLIQUE,  # cluster UUID and clique id in one value: the pair is the key, the clique id alone is not unique
    ACCELERATOR,
    "accelerator.topograph.run/sub-domain",
    "accelerator.topograph.run/domain",
    "topology.k8s.aws/ultraserver-id",
)
"""The first that a node has wins. GPU feature discovery asks the driver; the others are told by somebody."""

_TIER_KEYS: Final = frozenset(key for scheme in SCHEMES for key in scheme.tiers)
_DOMAIN_KEYS: Final = frozenset(NVLINK_DOMAINS)
_AKS: Final = "kubernetes.azure.com/cluster"


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """Where a node's labels put it: leaf, spine, core in `tiers`; an empty text where nothing is said."""

    zone: str = ""
    region: str = ""
    tiers: tuple[str, ...] = ()
    domain: str = ""
    scheme: str = ""


def place_of(labels: Mapping[str, str]) -> LabelPlace:
    """What the labels say. A platform has no label for a fabric (AKS): then zone and region are all there is."""
    zone = labels.get(ZONE, "")
    if _AKS in labels and zone.isdigit():
        zone = ""  # AKS writes the fault domain there when the region has no zones: Microsoft, AKS availability zones
    region = labels.get(REGION, "")
    domain = ""
    if not _DOMAIN_KEYS.isdisjoint(labels):
        domain = next((labels[key] for key in NVLINK_DOMAINS if labels.get(key)), "")
    if not _TIER_KEYS.isdisjoint(labels):
        for scheme in SCHEMES:
            tiers = tuple([labels.get(key, "") for key in scheme.tiers])
            if any(tiers):
                if scheme.lowest_optional and not tiers[0]:
                    tiers = tiers[1:]
                return LabelPlace(zone, region, tiers, domain, scheme.name)
    return LabelPlace(zone, region, (), domain)
