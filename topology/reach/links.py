"""What one link costs: the cited table of link values behind every modelled reach.

Two rules. A row is one-way and p99 for a small message, plus a bandwidth that the message size is divided by; and a
row has a source. Where public figures are medians the row says by what it was widened. These are the rows for a path of
which only the kind is known: deliberate upper readings, since a bound may only rest on what is not too rosy.
`link_rows` has what was fitted to measurements, for a path whose hardware is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LinkKind(Enum):
    """How data travels between two placements, best to worst. The value is the word people read."""

    NVLINK = "NVLink"
    PCIE_SYS = "PCIe across sockets"
    NVLINK_FABRIC = "NVLink fabric"
    RDMA = "RDMA"
    TCP = "TCP"


@dataclass(frozen=True, slots=True)
class Link:
    """One-way p99 latency of a small message (us), bandwidth (bytes per us, i.e. MB/s), and where both come from."""

    latency_us: float
    bytes_per_us: float
    source: str


GB_PER_S = 1000.0  # 1 GB/s is 1,000 bytes per microsecond

LINKS: dict[LinkKind, Link] = {
    LinkKind.NVLINK: Link(
        8.0,
        348 * GB_PER_S,
        "NCCL send/recv of 2 KB over NVSwitch: 5 us on H100, 8 us on A100 (vidur profiles); 348 GB/s at 64 MiB; "
        "the slower of the two stands for p99",
    ),
    LinkKind.PCIE_SYS: Link(
        20.0,
        11.3 * GB_PER_S,
        "CUDA P2P latency matrix across SYS 14 to 20 us, 10.5 to 19.5 us with IOMMU on; 11.3 GB/s through the host "
        "(public samples); the upper end stands for p99",
    ),
    LinkKind.NVLINK_FABRIC: Link(
        10.0,
        348 * GB_PER_S,
        "B200/GB200 two-GPU alltoall 9 to 10 us (aiconfigurator); NVLink bandwidth as inside a node",
    ),
    LinkKind.RDMA: Link(
        22.0,
        35.9 * GB_PER_S,
        "NCCL send/recv of 2 KB across DGX H100 nodes 17 us, 35.9 GB/s (vidur); EFA send 15.8 us typical, 20 to 22 us "
        "at p99 (public sample): 22 us",
    ),
    LinkKind.TCP: Link(
        74.0,
        12.5 * GB_PER_S,
        "kernel stack 10 to 30 us per side (vendor latency article): 2 x 30, plus staging through host memory at both "
        "ends, 2 x 7 us (PCIe alltoall on L40S 7.1 us, aiconfigurator); 100G line rate",
    ),
}
"""The value table. Keys are kinds, not instances: a finer graph arrives with the node agents."""

SWITCH_HOP_US = 0.6
"""One more switch on an RDMA or NVLink path: Ethernet cut-through 0.4 to 0.6 us, InfiniBand below (vendor article)."""

TCP_TIER_US = 40.0
"""A leaf-spine crossing for kernel TCP: two more hops, about one more round trip of 20 to 60 us (same article); taken
as 40 us, because queueing under load is what p99 sees."""

CROSS_ZONE_US = 2000.0
"""An unmeasured path between zones: round trips of 250 to 3,370 us were measured (AWS, best of 50), so the design
counts it as 2 ms, beyond the default bound until somebody measures it."""
