"""The fit of a link row, on made-up points with a known answer; and the table against the public logs."""

from __future__ import annotations

import numpy as np
import pytest

from docs.update_links import derive
from e2e.bench.link_fit import errors, fit
from e2e.bench.measured_logs import LOGS, Points
from e2e.bench.reach import measure
from e2e.bench.report import NotHere
from topology.reach.link_rows import LinkRow
from topology.reach.links import LinkKind


def points(sizes: list[int], times: list[float], p99: list[float | None] | None = None) -> Points:
    return Points(LOGS[0], tuple(sizes), tuple(times), tuple(p99 or [None] * len(sizes)))


def test_a_line_is_found_and_an_outlier_does_not_pull_it() -> None:
    sizes = [2**k for k in range(10, 27)]
    times = [20.0 + size / 10_000 for size in sizes]
    times[3] *= 40  # a first message
    found = fit([points(sizes, times)], None)
    assert found.latency_us == pytest.approx(20, rel=0.01)
    assert found.bytes_per_us == pytest.approx(10_000, rel=0.01)


def test_small_messages_say_nothing_about_bandwidth() -> None:
    found = fit([points([2, 64, 256], [15.0, 15.0, 15.1])], 38_200.0)
    assert found.latency_us == pytest.approx(15.0, rel=0.01)
    assert found.bytes_per_us == 38_200.0


def test_errors_are_against_p99_where_the_log_has_it() -> None:
    row = LinkRow(LinkKind.RDMA, 10.0, 1000.0, 1.5, 0.0, "by hand")
    # 10 + 1 us against 22 us: half; 15 + 1 us against a p99 of 20 us: a fifth
    found = errors(row, points([1000, 1000], [22.0, 11.0], [None, 20.0]))
    assert np.allclose(found, [0.5, 0.2])


def test_the_table_is_what_the_public_logs_say_and_near_enough() -> None:
    try:
        derived = derive()
    except NotHere as reason:
        pytest.skip(str(reason))
    assert [each.hardware.name for each in derived if not each.same] == []
    figures = {each.figure: each for part in measure() for each in part}
    for name in ("median error percent", "wrong side of 1 ms"):
        assert figures[name].verdict == "met"
