"""The readers on real outputs (ISOCHRONE_DATA, or ../shared/data): every file is read or refused, values by hand."""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path

import pytest

from topology.bad_input import BadInput
from topology.reach.measurement import Direction, Measurement, Readout, Scope
from topology.readers.measurements import read_measurements

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("ISOCHRONE_DATA") or ROOT.parent / "shared" / "data") / "nccl"
needs_data = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no measured outputs in {FOLDER} (set ISOCHRONE_DATA)")


def text_of(name: str) -> str:
    raw = (FOLDER / name).read_bytes()
    return (gzip.decompress(raw) if name.endswith(".gz") else raw).decode(errors="replace")


@cache
def read(name: str) -> Readout:
    return read_measurements(text_of(name), name)


def at(name: str, size_bytes: int, **fields: object) -> Measurement:
    found = [
        p for p in read(name).pairs if p.size_bytes == size_bytes and all(getattr(p, k) == v for k, v in fields.items())
    ]
    return found[0]


@needs_data
def test_every_file_is_read_or_refused() -> None:
    names = sorted(p.name for p in FOLDER.iterdir())
    assert len(names) == 38
    refused = {}
    for name in names:
        try:
            assert read(name).pairs or read(name).groups
        except BadInput as bad:
            refused[name] = str(bad)
    parquet = [name for name in names if name.endswith(".parquet")]
    assert sorted(refused) == sorted([*parquet, "superbench_nvbandwidth_results.log"])
    assert all(refused[name].startswith("line 1 is 'PAR1'; Parquet is binary") for name in parquet)
    assert refused["superbench_nvbandwidth_results.log"].startswith("line 11 is 'memcpy CE CPU(row) -> GPU(column)")


@needs_data
def test_sendrecv_between_two_a40() -> None:
    log = read("sendrecv_2node_a40.log")
    assert [(p.size_bytes, p.mean_us) for p in log.pairs] == [
        (256, 34.24),
        (512, 34.24),
        (1024, 34.24),
        (2048, 31.58),
        (4096, 30.74),
    ]
    assert {(str(p.a), str(p.b), p.count, p.scope) for p in log.pairs} == {
        ("node-a/GPU0", "node-b/GPU0", 20, Scope.BETWEEN_NODES)
    }
    assert log.warnings[0].startswith("line 15: a row that is cut")


@needs_data
@pytest.mark.parametrize(
    ("name", "operation", "ranks", "sizes", "first_us", "last_bus"),
    [
        ("allreduce_gb200_nvl72_rack.log", "all_reduce", 0, 5, 1806.7, 834_570.0),
        ("deepops_netop_2node_allreduce.log", "all_reduce", 0, 30, 38.63, 188_530.0),
        ("deepops_roce100g_4node_allreduce.log", "all_reduce", 0, 29, 2193.5, 22_920.0),
        ("superbench_nccl_allreduce.log", "all_reduce", 8, 32, 34.73, 235_260.0),
        ("superbench_nccl_alltoall.log", "alltoall", 8, 29, 89.0, 224_310.0),
        ("superbench_nccl_allgather.log", "all_gather", 8, 29, 35.03, 223_390.0),
    ],
)
def test_collectives_are_kept_for_the_group(
    name: str, operation: str, ranks: int, sizes: int, first_us: float, last_bus: float
) -> None:
    groups = read(name).groups
    assert not read(name).pairs
    assert (len(groups), groups[0].operation, groups[0].ranks) == (sizes, operation, ranks)
    assert groups[0].us == first_us
    assert groups[-1].bus_bytes_per_us == pytest.approx(last_bus)


@needs_data
@pytest.mark.parametrize(
    ("name", "size", "p50", "p99", "p999", "count", "direction"),
    [
        ("ib_read_lat_ib_mlx4.log", 2, 1.79, 1.88, 6.12, 1000, Direction.ROUND_TRIP),
        ("ib_read_lat_roce_mlx5_host_and_pod.log", 2, 2.69, 2.75, 5.5, 1000, Direction.ROUND_TRIP),
        ("ib_read_lat_roce_sriov_pod.log", 2, 7.04, 7.38, 16.81, 1000, Direction.ROUND_TRIP),
        ("ib_send_lat_ud_ib_mlx5.log", 32, 0.84, 1.31, 29.77, 1000, Direction.ONE_WAY),
        ("ib_write_lat_ib_mlx4.log", 2, 1.11, 1.19, 2.05, 1000, Direction.ONE_WAY),
        ("ib_write_lat_softroce_rxe.log", 64, 193.75, 219.13, 219.13, 5, Direction.ONE_WAY),
        ("send_lat_efa_srd.log", 2, 15.78, 22.37, 1210.34, 1000, Direction.ONE_WAY),
    ],
)
def test_perftest_rows(
    name: str, size: int, p50: float, p99: float, p999: float, count: int, direction: Direction
) -> None:
    row = at(name, size)
    assert (row.p50_us, row.p99_us, row.p999_us, row.count, row.direction) == (p50, p99, p999, count, direction)
    assert row.reach_us == p99


@needs_data
def test_osu_logs() -> None:
    assert at("osu_ib_2node_no_gdr.log", 65536).mean_us == 1197.14
    assert at("osu_ib_2node_gdr_gdrcopy.log", 65536).mean_us == 18.42
    assert at("osu_gh200_slingshot_2node_ompi.log", 65536).mean_us == 9.56
    assert at("osu_gh200_slingshot_2node_clariden_DD.log", 65536).mean_us == 20.84
    oci = read("osu_a100_oci_intranode_and_2node.log").pairs
    assert [(p.size_bytes, p.mean_us, p.bytes_per_us, p.scope.value) for p in oci] == [
        (1, 2.5, None, "same node"),
        (268435456, None, 279568.26, "same node"),
        (1, 3.89, None, "between nodes"),
        (268435456, None, 11962.21, "between nodes"),
    ]


@needs_data
def test_matrices_and_copies() -> None:
    bridge = read("p2p_4gpu_nvbridge_pairs_latency.log").pairs
    peer = {(p.a.gpu, p.b.gpu): p.mean_us for p in bridge if p.mean_us and p.transport == "GPU peer to peer"}
    assert (len(peer), peer[0, 1], peer[3, 2], peer[0, 2]) == (12, 2.25, 2.32, 19.85)
    host = {(p.a.gpu, p.b.gpu): p.mean_us for p in bridge if p.mean_us and p.transport == "through host memory"}
    assert host[0, 1] == 21.89
    assert all(p.direction is Direction.BOTH_WAYS and p.reach_us is None for p in bridge if p.bytes_per_us)
    assert at("p2p_4gpu_iommu_pcie_latency.log", 4, line=11).mean_us == 16.3
    assert at("p2p_2x5090_no_p2p_latency.log", 4).mean_us == 12.76
    copies = read("superbench_gpu_copy_bw_performance.log").pairs
    assert [p.bytes_per_us for p in copies if p.direction is Direction.ONE_WAY][:2] == [258_397.0, 279_287.0]
    assert at("superbench_ib_loopback_all_sizes.log", 8388608).bytes_per_us == pytest.approx(23240.68 * 1.048576)


@needs_data
@pytest.mark.parametrize(
    ("name", "same", "between"),
    [
        ("vidur_a100_dgx_send_recv.csv.gz", 8.0, 24.0),
        ("vidur_a100_pairwise_nvlink_send_recv.csv.gz", 4.0, 12.0),
        ("vidur_a40_pairwise_nvlink_send_recv.csv.gz", 4.0, 21.0),
        ("vidur_h100_dgx_send_recv.csv.gz", 5.0, 17.0),
    ],
)
def test_profiled_send_recv(name: str, same: float, between: float) -> None:
    assert len(read(name).pairs) == 1988
    assert at(name, 2048, scope=Scope.SAME_NODE).p50_us == pytest.approx(same)
    assert at(name, 2048, scope=Scope.BETWEEN_NODES).p50_us == pytest.approx(between)
