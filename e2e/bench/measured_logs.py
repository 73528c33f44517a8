"""Which public output measures which hardware (the files of ISOCHRONE_DATA/nccl), and its points: size, microseconds.

Rules of this file. (1) A log is one path of one machine; a file with several paths is several logs. (2) One point an
octave of sizes, so that a table with 994 sizes weighs no more than one with 20. (3) Median where there is one, else the
mean. A read is a round trip and counts half; a stream of 16 MiB and more counts as the time of one message.
"""

from __future__ import annotations

import gzip
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topology.reach.link_rows import Hardware
from topology.reach.measurement import Direction, Measurement, Scope
from topology.readers.measurements import read_measurements

STREAM_BYTES: Final = 16 * 2**20
_BRIDGED: Final = ({0, 1}, {2, 3})


@dataclass(frozen=True, slots=True)
class Log:
    """`file` and which of its values; what they measure."""

    name: str
    file: str
    hardware: Hardware
    wanted: Callable[[Measurement], bool] = lambda _: True


@dataclass(frozen=True, slots=True)
class Points:
    """A log's points, ascending sizes. `p99_us` is None where the log does not say it."""

    log: Log
    size_bytes: tuple[int, ...]
    typical_us: tuple[float, ...]
    p99_us: tuple[float | None, ...]


def _same(value: Measurement) -> bool:
    return value.scope is Scope.SAME_NODE


def _between(value: Measurement) -> bool:
    return value.scope is Scope.BETWEEN_NODES


def _pair(value: Measurement) -> bool:
    return value.mean_us is not None and value.transport == "GPU peer to peer"


def _profile(name: str) -> str:
    return f"vidur_{name}_send_recv.csv.gz"


LOGS: Final = (
    Log("send/recv, A100 inside a DGX", _profile("a100_dgx"), Hardware.NVLINK3_SWITCH, _same),
    Log("osu, A100 inside a node", "osu_a100_oci_intranode_and_2node.log", Hardware.NVLINK3_SWITCH, _same),
    Log("copies, A100 inside a node", "superbench_gpu_copy_bw_performance.log", Hardware.NVLINK3_SWITCH),
    Log("send/recv, H100 inside a DGX", _profile("h100_dgx"), Hardware.NVLINK4_SWITCH, _same),
    Log("send/recv, A100 bridged pair", _profile("a100_pairwise_nvlink"), Hardware.NVLINK3_BRIDGE, _same),
    Log(
        "matrix, bridged pairs",
        "p2p_4gpu_nvbridge_pairs_latency.log",
        Hardware.NVLINK3_BRIDGE,
        lambda v: _pair(v) and {v.a.gpu, v.b.gpu} in _BRIDGED,
    ),
    Log(
        "matrix, across sockets",
        "p2p_4gpu_nvbridge_pairs_latency.log",
        Hardware.PCIE_SOCKETS,
        lambda v: _pair(v) and {v.a.gpu, v.b.gpu} not in _BRIDGED,
    ),
    Log("matrix, PCIe with IOMMU", "p2p_4gpu_iommu_pcie_latency.log", Hardware.PCIE_SOCKETS),
    Log("matrix, no peer access", "p2p_2x5090_no_p2p_latency.log", Hardware.PCIE_NO_PEER),
    Log("send/recv, A40 inside a node", _profile("a40_pairwise_nvlink"), Hardware.PCIE_STAGED, _same),
    Log("send/recv, two DGX H100", _profile("h100_dgx"), Hardware.RDMA_400G, _between),
    Log("osu, InfiniBand, GPUDirect", "osu_ib_2node_gdr_gdrcopy.log", Hardware.RDMA_100G),
    Log("osu, RoCE 100G", "osu_a100_oci_intranode_and_2node.log", Hardware.RDMA_100G, _between),
    Log("send/recv, two A100 DGX", _profile("a100_dgx"), Hardware.NETWORK_8GB, _between),
    Log("osu, Slingshot, library default", "osu_gh200_slingshot_2node_clariden_DD.log", Hardware.SLINGSHOT),
    Log("osu, Slingshot, tuned", "osu_gh200_slingshot_2node_ompi.log", Hardware.SLINGSHOT),
    Log("send, EFA", "send_lat_efa_srd.log", Hardware.EFA),
    Log("osu, InfiniBand, no GPUDirect", "osu_ib_2node_no_gdr.log", Hardware.RDMA_NO_GPUDIRECT),
    Log("send/recv, A100 pairs, slow network", _profile("a100_pairwise_nvlink"), Hardware.NETWORK_SLOW, _between),
    Log("send/recv, A40 pairs, slow network", _profile("a40_pairwise_nvlink"), Hardware.NETWORK_SLOW, _between),
    Log("sendrecv_perf, two A40 nodes", "sendrecv_2node_a40.log", Hardware.NETWORK_SLOW),
    Log("read, InfiniBand", "ib_read_lat_ib_mlx4.log", Hardware.VERBS),
    Log("read, RoCE, host", "ib_read_lat_roce_mlx5_host_and_pod.log", Hardware.VERBS, lambda v: v.line == 2),
    Log("read, RoCE, pod", "ib_read_lat_roce_mlx5_host_and_pod.log", Hardware.VERBS, lambda v: v.line > 2),
    Log("read, RoCE, SR-IOV pod", "ib_read_lat_roce_sriov_pod.log", Hardware.VERBS),
    Log("send, InfiniBand datagram", "ib_send_lat_ud_ib_mlx5.log", Hardware.VERBS),
    Log("write, InfiniBand", "ib_write_lat_ib_mlx4.log", Hardware.VERBS),
    Log("write, software RoCE", "ib_write_lat_softroce_rxe.log", Hardware.SOFT_ROCE),
)
"""Files that are not here measure no pair (collectives, copies with the host), one host alone (the loopback), or are
Parquet, for which the project has no reader."""


def points_of(log: Log, folder: Path) -> Points:
    """The points of one log; of equally near sizes in an octave the median."""
    octaves: dict[int, list[tuple[float, int, float, float | None]]] = {}
    for size, us, p99 in _times(log, folder):
        octave = round(math.log2(size))
        octaves.setdefault(octave, []).append((abs(size - 2.0**octave), size, us, p99))
    nearest = []
    for octave in sorted(octaves):
        least = min(octaves[octave])[0]
        same = [point for point in octaves[octave] if point[0] == least]
        tails = [p99 for _, _, _, p99 in same if p99 is not None]
        nearest.append((same[0][1], statistics.median(us for _, _, us, _ in same), max(tails, default=None)))
    sizes, typical, tail = zip(*nearest, strict=True)
    return Points(log, sizes, typical, tail)


def _times(log: Log, folder: Path) -> Iterator[tuple[int, float, float | None]]:
    raw = (folder / log.file).read_bytes()
    text = (gzip.decompress(raw) if log.file.endswith(".gz") else raw).decode(errors="replace")
    for value in read_measurements(text, log.file).pairs:
        if not log.wanted(value) or value.direction is Direction.BOTH_WAYS:
            continue
        half = 2 if value.direction is Direction.ROUND_TRIP else 1
        if value.typical_us is not None:
            yield value.size_bytes, value.typical_us / half, None if value.p99_us is None else value.p99_us / half
        elif value.bytes_per_us and value.size_bytes >= STREAM_BYTES:
            yield value.size_bytes, value.size_bytes / value.bytes_per_us, None
