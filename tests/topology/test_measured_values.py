"""Measured curves: sizes, ages and statistics, by hand."""

from __future__ import annotations

import pytest

from topology.measured.store import MeasurementStore
from topology.reach.measured_values import NODE, Curve, MeasuredPlace, Sample, curve_of, sample_of
from topology.reach.measurement import Direction, Measurement

NOW = 1_000_000.0
KIB = 1024


def sample(size: int, us: float, *, age: float = 0.0, fresh: float = 100.0, transport: str = "tcp") -> Sample:
    return Sample(size, us, "p99", 1000, NOW - age, fresh, transport)


def curve(*samples: Sample) -> Curve:
    found = curve_of(samples, None, NOW)
    assert found is not None
    return found


def test_between_two_sizes_it_is_latency_and_bandwidth() -> None:
    # 20 us at 1,000 bytes and 30 us at 101,000 bytes: 19.9 us and 10,000 bytes a microsecond
    line = curve(sample(1000, 20.0), sample(101_000, 30.0))
    assert line.us(51_000) == pytest.approx(25.0)
    assert line.us(1000) == 20.0
    assert line.us(1) == 20.0  # a smaller message takes no longer, and how much less nobody measured
    assert line.us(201_000) == 30.0  # whoever asks continues it, as the model grows
    assert line.nearest(60_000).size_bytes == 101_000


def test_a_measured_bandwidth_continues_it() -> None:
    rate = Sample(8 * 2**20, 0.0, "", 5, NOW, 100.0, "tcp", bytes_per_us=5000.0)
    assert curve(sample(1000, 20.0), rate).us(11_000) == pytest.approx(22.0)
    assert curve_of([rate], None, NOW) is None  # alone it says nothing of one message


@pytest.mark.parametrize(
    ("age", "weight"), [(-50.0, 1.0), (0.0, 1.0), (100.0, 1.0), (125.0, 0.75), (150.0, 0.5), (200.0, 0.0), (900.0, 0.0)]
)
def test_stale_values_lose_weight(age: float, weight: float) -> None:
    assert sample(1, 1.0, age=age).weight(NOW) == weight


def test_of_one_size_the_slowest_counts_and_what_is_fresh_before_what_fades() -> None:
    both = curve(sample(64 * KIB, 30.0), sample(64 * KIB, 50.0, age=90))
    assert both.us(64 * KIB) == 50.0  # two directions, say
    late = curve(sample(64 * KIB, 30.0), sample(64 * KIB, 5000.0, age=101), sample(KIB, 1.0, age=199))
    assert (late.us(64 * KIB), late.us(KIB), late.weight) == (30.0, 30.0, 1.0)
    assert curve_of([sample(KIB, 1.0, age=200)], None, NOW) is None


def test_another_transport_is_another_path() -> None:
    samples = [sample(KIB, 80.0, transport="tcp"), sample(KIB, 20.0, transport="rdma"), sample(KIB, 30.0, transport="")]
    over_rdma = curve_of(samples, frozenset(["", "rdma"]), NOW)
    assert over_rdma is not None
    assert over_rdma.us(KIB) == 30.0
    assert curve_of(samples[:1], frozenset(["", "rdma"]), NOW) is None


def test_a_sample_keeps_what_it_rests_on() -> None:
    read = Measurement(65536, p50_us=20.0, count=50, transport="RDMA")
    assert sample_of(read, NOW, 60.0) == Sample(65536, 30.0, "p50 x1.5", 50, NOW, 60.0, "rdma")
    both = Measurement(65536, bytes_per_us=9.0, direction=Direction.BOTH_WAYS)
    assert sample_of(both, NOW, 60.0) is None


def test_the_store_is_bounded_and_the_later_measurement_stays() -> None:
    store = MeasurementStore(max_pairs=2)
    n1, n2, n3, n4 = (MeasuredPlace(NODE, f"n{i}") for i in range(1, 5))
    store.add(n1, n2, [sample(KIB, 30.0)])
    store.add(n1, n2, [sample(KIB, 10.0, age=5)])  # came later, was measured earlier
    store.add(n2, n1, [sample(KIB, 40.0)])
    assert store.both_ways() == {(n1, n2): (sample(KIB, 30.0), sample(KIB, 40.0))}
    store.add(n2, n3, [sample(KIB, 1.0)])
    store.add(n3, n4, [sample(KIB, 1.0)])
    assert (len(store), store.dropped) == (2, 1)  # the pair that was not heard of for longest went
    store.add(n3, n4, [sample(size, 1.0) for size in range(1, 100)])
    assert len(store.both_ways()[n3, n4]) == 16
    before = store.version
    store.forget_node("n4")
    assert (len(store), store.version) == (1, before + 1)
    store.expire(NOW + 200)
    assert len(store) == 0
