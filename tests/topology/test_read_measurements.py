"""Readers of measuring tools: small outputs, values by hand."""

from __future__ import annotations

import pytest

from topology.bad_input import BadInput
from topology.reach.measurement import TAIL, Direction, End, GroupTime, Measurement, Scope
from topology.readers.measurements import read_measurements

SENDRECV = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 65536 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid 77 on      n1 device  0 [0x31] NVIDIA A40
#  Rank  1 Group  0 Pid 78 on      n2 device  3 [0x31] NVIDIA A40
n1:77:81 [0] NCCL INFO Channel 00/0 : 1[3] -> 0[0] [receive] via NET/IB/0/GDRDMA
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float    none      -1    31.00    0.03    0.03      0    30.00    0.03    0.03    N/A
       65536         16384     float    none      -1    42.50    1.54    1.54      0    41.00    1.60    1.60    N/A
       65536         16384     float    none      -1    42.50    1.54    1.54      0    41.00    1.6
"""


def test_sendrecv_between_two_ranks_measures_a_pair() -> None:
    read = read_measurements(SENDRECV, "sendrecv.log")
    assert [(p.size_bytes, p.mean_us, p.count, p.line) for p in read.pairs] == [
        (1024, 31.0, 20, 7),
        (65536, 42.5, 20, 8),
    ]
    pair = read.pairs[0]
    assert (pair.a, pair.b, pair.scope) == (End("n1", 0), End("n2", 3), Scope.BETWEEN_NODES)
    assert (pair.transport, pair.direction) == ("RDMA", Direction.ONE_WAY)
    assert (pair.percentile, pair.reach_us) == ("mean", 31.0 * 1.5)  # a mean is widened to stand for p99
    assert read.warnings == (
        "line 9: a row that is cut or damaged was left out: '65536 16384 float none -1 42.50 1.54 1.54 0 41.00 1.6'",
    )


def test_what_ran_must_be_known_before_a_pair_is_believed() -> None:
    nameless = read_measurements(SENDRECV, "out.log")
    assert not nameless.pairs
    assert len(nameless.groups) == 2
    assert "which operation ran is not said" in nameless.notes[0]
    assert len(read_measurements(SENDRECV, "out.log", "sendrecv").pairs) == 2
    assert len(read_measurements("# Collective test starting: sendrecv_perf\n" + SENDRECV, "x").pairs) == 2
    with pytest.raises(BadInput, match="operation is 'ping'; use one of sendrecv"):
        read_measurements(SENDRECV, "out.log", "ping")


def test_a_collective_measures_no_pair() -> None:
    text = (
        "#   Rank  0 Pid 9 on localhost device  0 [0x00] A100\n#   Rank  1 Pid 9 on localhost device  1 [0x00] A100\n"
        "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
        "           0             0   float             1.63    0.00    0.00    N/A     1.38    0.00    0.00    N/A\n"
        "     1048576         32768   float            20.00   52.43   26.21    N/A    21.00   49.93   24.97    N/A\n"
    )
    read = read_measurements(text, "alltoall.log")
    assert not read.pairs
    assert read.groups == (GroupTime("alltoall", 2, 1048576, 20.0, 26210.0, 5),)
    assert read.notes == (
        "alltoall over 2 ranks measures no pair: sizes, times and bus bandwidth are kept for the group only",
    )


PERFTEST = (
    "                    RDMA_Write Latency Test\n"
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
    "99% percentile[usec]   99.9% percentile[usec]\n"
    "Conflicting CPU frequency values detected: 2400.000000 != 1873.463000. CPU Frequency is not max.\n"
    " 65536       1000          9.10           30.00        9.50   \t   9.60        \t0.10   \t\t11.40    \t\t25.00\n"
)


def test_perftest_latency_keeps_its_percentiles() -> None:
    read = read_measurements(PERFTEST, "x.log")
    assert read.pairs == (
        Measurement(
            65536,
            p50_us=9.5,
            mean_us=9.6,
            p99_us=11.4,
            p999_us=25.0,
            max_us=30.0,
            count=1000,
            transport="RDMA",
            line=4,
        ),
    )
    assert (read.pairs[0].percentile, read.pairs[0].reach_us) == ("p99", 11.4)


@pytest.mark.parametrize(
    ("title", "direction", "note"),
    [
        ("RDMA_Write Latency Test", Direction.ONE_WAY, ""),
        ("Send Latency Test", Direction.ONE_WAY, ""),
        ("RDMA_Read Latency Test", Direction.ROUND_TRIP, "read is a round trip"),
        ("Atomic Latency Test", Direction.ROUND_TRIP, "atomic is a round trip"),
        ("nothing said", Direction.UNKNOWN, "which test ran is not said"),
    ],
)
def test_perftest_says_what_was_timed(title: str, direction: Direction, note: str) -> None:
    read = read_measurements(PERFTEST.replace("RDMA_Write Latency Test", title), "x.log")
    assert read.pairs[0].direction is direction
    assert "".join(read.notes).startswith(note)
    assert read.pairs[0].reach_us == 11.4  # a round trip is taken whole


def test_perftest_bandwidth_is_no_time() -> None:
    text = (
        "#bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
        "65536      2000             23330.56            20000.00                  0.320000\n"
    )
    pair = read_measurements(text, "ib_write_bw.log").pairs[0]
    assert (
        pair.bytes_per_us == 20000 * 1.048576
    )  # its MB are 2^20 bytes: 20,000 of them are 0.32 million pages a second
    assert (pair.reach_us, pair.percentile, pair.direction) == (None, "", Direction.ONE_WAY)


def test_osu_runs_are_told_apart_by_their_labels() -> None:
    text = (
        "# intra-node, over NVLink\n# OSU MPI-CUDA Latency Test v7.5\n# Datatype: MPI_CHAR.\n"
        "# Size       Avg Latency(us)  P50 Tail Lat(us)  P90 Tail Lat(us)  P99 Tail Lat(us)\n"
        "8  2.50  2.40  2.90  4.10\n"
        "# two nodes\n"
        "# OSU MPI-CUDA Bi-Directional Bandwidth Test v7.5\n# Size      Bandwidth (MB/s)\n1048576  23000.5\n"
        "# OSU MPI-CUDA Allreduce Latency Test v7.5\n# Size  Avg Latency(us)\n8  40.1\n"
    )
    read = read_measurements(text)
    assert read.pairs == (
        Measurement(
            8, mean_us=2.5, p50_us=2.4, p99_us=4.1, scope=Scope.SAME_NODE, label="intra-node, over NVLink", line=5
        ),
        Measurement(
            1048576,
            bytes_per_us=23000.5,
            direction=Direction.BOTH_WAYS,
            scope=Scope.BETWEEN_NODES,
            label="two nodes",
            line=9,
        ),
    )
    assert read.notes == ("the Allreduce Latency test measures no pair and was left out",)


def test_a_matrix_gives_pairs_of_different_gpus() -> None:
    text = (
        "P2P=Disabled Latency Matrix (us)\n   GPU     0      1\n     0   2.61  21.89\n     1  11.68   2.72\n"
        "   CPU     0      1\n     0   1.00   2.00\n     1   3.00   4.00\n"
        "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1\n     0 1500.0  258.0\n"
        "     1  257.0\n"
    )
    read = read_measurements(text)
    assert [(p.a.gpu, p.b.gpu, p.mean_us, p.bytes_per_us, p.transport) for p in read.pairs] == [
        (0, 1, 21.89, None, "through host memory"),
        (1, 0, 11.68, None, "through host memory"),
        (0, 1, None, 258000.0, "GPU peer to peer"),
    ]
    assert read.notes == ("the CPU's launch times measure no pair",)
    assert read.warnings == ("line 11: a row that is cut or damaged was left out: '1 257.0'",)


def test_profiled_tables() -> None:
    head = "time_stats.send_recv.min,time_stats.send_recv.max,time_stats.send_recv.mean,time_stats.send_recv.median"
    text = f"{head},num_workers,size,collective,devices_per_node\n0.01,0.02,0.015,0.017,2,2048,send_recv,1\n0.01,0.02\n"
    read = read_measurements(text)
    assert read.pairs == (Measurement(2048, p50_us=17.0, mean_us=15.0, max_us=20.0, scope=Scope.BETWEEN_NODES, line=2),)
    assert read.pairs[0].reach_us == 17.0 * TAIL
    assert len(read.warnings) == 1
    swept = read_measurements("op_name,num_gpus,message_size,latency\nalltoall,2,65536,0.0144\n")
    assert swept.groups == (GroupTime("alltoall", 2, 65536, 14.4, 0.0, 2),)
    copies = read_measurements(
        "gpu0_to_gpu1_write_by_dma 279.5\ngpu0_to_gpu0_by_sm 682\ncpu_to_gpu1_by_dma_under_numa0 26\n"
    )
    assert [(p.a.gpu, p.b.gpu, p.bytes_per_us) for p in copies.pairs] == [(0, 1, 279500.0)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1 is ''; it is no output of nccl-tests, OSU"),
        ("\n\nhello there\n", "line 3 is 'hello there'; it is no output of nccl-tests"),
        ("PAR1\x15\x04", "line 1 is 'PAR1'; Parquet is binary"),
        ("\x00\x01", "the file is 'binary'; give the text"),
        (" #bytes #iterations    t_typical[usec]\n 2  1000  -1\n", "no whole row of a perftest table"),
        ("# OSU MPI Latency Test v7.5\n# Size Latency (us)\n8 nan\n", "no whole row of an osu_latency"),
        (
            "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n   0\n 0  369.36\n",
            "line 1 is 'memcpy CE CPU.*; copies between host and GPU measure no pair of GPUs",
        ),
    ],
)
def test_what_measures_nothing_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence) as refused:
        read_measurements(text)
    assert "\n" not in str(refused.value)


def test_nvbandwidth_between_gpus() -> None:
    text = (
        "Running device_to_device_memcpy_read_ce.\n"
        "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n           0         1\n 0       N/A    276.07\n"
        " 1    276.36       N/A\n\nSUM device_to_device_memcpy_read_ce 552.43\n\n"
        "memcpy CE GPU(row) <-> GPU(column) bandwidth (GB/s)\n           0         1\n 0       N/A    500.00\n"
    )
    read = read_measurements(text)
    assert [(p.a.gpu, p.b.gpu, p.bytes_per_us, p.direction) for p in read.pairs] == [
        (1, 0, 276_070.0, Direction.ONE_WAY),  # the row reads from the column
        (0, 1, 276_360.0, Direction.ONE_WAY),
        (0, 1, 500_000.0, Direction.BOTH_WAYS),
    ]
    assert not read.warnings
