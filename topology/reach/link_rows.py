"""The link table by hardware: what a link costs where it is known which one it is, fitted to public measurements.

Rules of this file. (1) A row is a typical (median) time, latency + size / bandwidth, and how much longer p99 takes.
(2) The numbers of a row that is not FIXED are the output of `python -m docs.update_links`; a test holds them together.
(3) `links.LINKS` are the coarser rows, for a path of which only the kind is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from topology.reach.links import GB_PER_S, Link, LinkKind
from topology.reach.measurement import TAIL


class Hardware(Enum):
    """Which link it is. The value is the word people read."""

    NVLINK3_SWITCH = "NVLink 3 through NVSwitch"
    NVLINK4_SWITCH = "NVLink 4 through NVSwitch"
    NVLINK3_BRIDGE = "NVLink 3 bridge"
    PCIE_SOCKETS = "PCIe across sockets"
    PCIE_NO_PEER = "PCIe without peer access"
    PCIE_STAGED = "PCIe staged in host memory"
    RDMA_400G = "RDMA 400 Gb/s"
    RDMA_100G = "RDMA 100 Gb/s"
    NETWORK_8GB = "network of 8 GB/s"
    SLINGSHOT = "Slingshot"
    EFA = "EFA"
    RDMA_NO_GPUDIRECT = "RDMA without GPUDirect"
    NETWORK_SLOW = "network of 3 GB/s"
    VERBS = "RDMA between host memories"
    SOFT_ROCE = "software RoCE"


@dataclass(frozen=True, slots=True)
class LinkRow:
    """Typical latency of a small message (us), bandwidth (bytes per us), p99 over typical, where they come from.

    `error_percent` is how far the row is from its logs: per log the median over its sizes, then the median of the logs.
    """

    kind: LinkKind
    latency_us: float
    bytes_per_us: float
    tail: float
    error_percent: float
    source: str

    def typical_us(self, size_bytes: int) -> float:
        """Median one-way time of one message."""
        return self.latency_us + size_bytes / self.bytes_per_us

    def p99_us(self, size_bytes: int) -> float:
        """p99 one-way time of one message: the latency has a tail, the bandwidth has none (their logs agree)."""
        return self.latency_us * self.tail + size_bytes / self.bytes_per_us

    @property
    def link(self) -> Link:
        """The same as a row of `links.LINKS`: p99."""
        return Link(self.latency_us * self.tail, self.bytes_per_us, self.source)


UNSTATED: Final = TAIL

ROWS: Final[dict[Hardware, LinkRow]] = {
    Hardware.NVLINK3_SWITCH: LinkRow(
        LinkKind.NVLINK,
        7.99,
        278 * GB_PER_S,
        UNSTATED,
        22.3,
        "A100 inside a node: NCCL send/recv (vidur), osu_latency and osu_bw (public sample), copies (superbenchmark)",
    ),
    Hardware.NVLINK4_SWITCH: LinkRow(
        LinkKind.NVLINK, 7.27, 361 * GB_PER_S, UNSTATED, 1.7, "H100 inside a node: NCCL send/recv (vidur)"
    ),
    Hardware.NVLINK3_BRIDGE: LinkRow(
        LinkKind.NVLINK,
        2.29,
        288 * GB_PER_S,
        UNSTATED,
        21.4,
        "A100 bridged pairs: NCCL send/recv (vidur), p2pBandwidthLatencyTest (public sample)",
    ),
    Hardware.PCIE_SOCKETS: LinkRow(
        LinkKind.PCIE_SYS,
        18.4,
        11.3 * GB_PER_S,
        UNSTATED,
        7.6,
        "p2pBandwidthLatencyTest across sockets and with the IOMMU on (public samples)",
    ),
    Hardware.PCIE_NO_PEER: LinkRow(
        LinkKind.PCIE_SYS, 12.8, 38.7 * GB_PER_S, UNSTATED, 0.1, "p2pBandwidthLatencyTest, two RTX 5090 (public sample)"
    ),
    Hardware.PCIE_STAGED: LinkRow(
        LinkKind.PCIE_SYS, 2.72, 4.3 * GB_PER_S, UNSTATED, 5.2, "A40 inside a node: NCCL send/recv (vidur)"
    ),
    Hardware.RDMA_400G: LinkRow(
        LinkKind.RDMA, 18.7, 36.5 * GB_PER_S, UNSTATED, 2.8, "two DGX H100: NCCL send/recv (vidur)"
    ),
    Hardware.RDMA_100G: LinkRow(
        LinkKind.RDMA,
        4.23,
        12 * GB_PER_S,
        UNSTATED,
        8.1,
        "osu_latency and osu_bw between GPUs over InfiniBand with GPUDirect and over RoCE 100G (public samples)",
    ),
    Hardware.NETWORK_8GB: LinkRow(
        LinkKind.RDMA, 24.6, 7.72 * GB_PER_S, UNSTATED, 2.0, "two A100 nodes: NCCL send/recv (vidur)"
    ),
    Hardware.SLINGSHOT: LinkRow(
        LinkKind.RDMA,
        11.7,
        24.9 * GB_PER_S,
        UNSTATED,
        22.2,
        "osu_latency between GH200 with two library settings, a factor of two apart (public samples)",
    ),
    Hardware.EFA: LinkRow(
        LinkKind.RDMA,
        15.8,
        38.2 * GB_PER_S,
        1.27,
        1.6,
        "perftest send up to 256 bytes over EFA (public sample); its bandwidth from another public sample",
    ),
    Hardware.RDMA_NO_GPUDIRECT: LinkRow(
        LinkKind.RDMA,
        1190.0,
        9.7 * GB_PER_S,
        UNSTATED,
        416.5,
        "osu_latency with GPUDirect off: 1.2 ms at 64 KiB, 25 us to 1.7 ms from size to size (public sample); no line "
        "fits, so the row is what a 64 KiB page took",
    ),
    Hardware.NETWORK_SLOW: LinkRow(
        LinkKind.TCP,
        30.8,
        2.74 * GB_PER_S,
        UNSTATED,
        22.9,
        "A40 and A100 PCIe nodes: NCCL send/recv (vidur), sendrecv_perf (NVIDIA/nccl-tests#214)",
    ),
    Hardware.VERBS: LinkRow(
        LinkKind.RDMA,
        1.34,
        24.4 * GB_PER_S,
        1.07,
        47.1,
        "perftest between host memories, InfiniBand and RoCE, hosts and pods (public samples); bandwidth of a 200 Gb/s "
        "loopback (superbenchmark)",
    ),
    Hardware.SOFT_ROCE: LinkRow(
        LinkKind.TCP, 194.0, 1.25 * GB_PER_S, 1.13, 0.1, "perftest write over rxe (public sample); 10 Gb/s assumed"
    ),
}
"""Tail: the largest p99 over typical but one in the row's own logs, where they say both; else TAIL."""

FIXED: Final = frozenset({Hardware.RDMA_NO_GPUDIRECT})
"""Rows that are set by hand, with the reason in their source."""
