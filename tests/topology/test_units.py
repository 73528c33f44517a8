"""Quantities in and out: what is accepted, what is refused with a sentence, and how each is printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.bad_input import BadInput
from topology.units import parse_duration_us, parse_quantity, parse_size_bytes, show_age, show_bytes, show_us


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1ms", 1000.0),
        ("100us", 100.0),
        ("1.5ms", 1500.0),
        ("1ms500us", 1500.0),
        ("250ns", 0.25),
        ("5µs", 5.0),  # the micro sign
        ("5μs", 5.0),  # the Greek letter, which looks the same
        ("60s", 60_000_000.0),
    ],
)
def test_a_duration_is_read_exactly(text: str, us: float) -> None:
    assert parse_duration_us(text, "reach") == us


@pytest.mark.parametrize("text", ["", "1", "0ms", "-1ms", "1 ms", "1msx", "x1ms", "61s", "1h", "1e3us", "NaNms", "1m"])
def test_a_duration_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadInput, match=r"^isochrone\.dev/reach is .*use a duration"):
        parse_duration_us(text, "isochrone.dev/reach")


@pytest.mark.parametrize(
    ("text", "milli", "value"),
    [
        ("4", False, 4),
        (4, False, 4),
        ("500m", True, 500),
        ("500m", False, 1),  # half a GPU is rounded up, as Kubernetes does
        ("0.1", True, 100),
        ("1e3", False, 1000),
        ("1E3", False, 1000),
        ("80Gi", False, 80 * 2**30),
        ("80G", False, 80 * 10**9),
        ("1k", False, 1000),
        ("100n", True, 1),
        ("+2", False, 2),
        (".5", True, 500),
        ("0", False, 0),
    ],
)
def test_a_quantity_is_read_as_kubernetes_reads_it(text: str | int, milli: bool, value: int) -> None:
    assert parse_quantity(text, "cpu", milli=milli) == value


@pytest.mark.parametrize("text", ["", "four", "-1", "1K", "1ki", "1 Gi", "1e999", "9223372036854775808", "nan", "0x10"])
def test_a_quantity_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"^memory is "):
        parse_quantity(text, "memory")


def test_sizes_have_limits() -> None:
    assert parse_size_bytes("64Ki", "reach-size") == 65_536
    assert parse_size_bytes("1Ti", "reach-size") == 2**40
    for text in ("0", "2Ti", "many"):
        with pytest.raises(BadInput, match='use a size such as "64Ki"'):
            parse_size_bytes(text, "reach-size")


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (8.188, "8.19 us"),
        (79.24288, "79.2 us"),
        (99.94, "99.9 us"),
        (99.96, "100 us"),
        (159.24288, "159 us"),
        (999.4, "999 us"),
        (999.6, "1.00 ms"),  # not "1000 us": three digits everywhere
        (1000, "1.00 ms"),
        (2000, "2.00 ms"),
        (9996, "10.0 ms"),
        (99_960, "100 ms"),
        (999_600, "1.00 s"),
        (60_000_000, "60.0 s"),
    ],
)
def test_a_duration_is_shown_with_three_digits(us: float, text: str) -> None:
    assert show_us(us) == text


@given(st.floats(0.1, 60_000_000))
def test_a_shown_duration_is_the_duration(us: float) -> None:
    shown = parse_duration_us(show_us(us).replace(" ", ""), "reach")
    assert abs(shown - us) <= us * 0.006


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (65_536, "64 KiB"),
        (1536, "1.5 KiB"),
        (38 * 2**30, "38.0 GiB"),
        (2**40, "1.0 TiB"),
    ],
)
def test_a_size_is_shown(size: int, text: str) -> None:
    assert show_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0s"), (0.4, "0.4s"), (42.9, "42s"), (119, "119s"), (310, "5m10s"), (7200, "2h0m"), (10_920, "3h2m")],
)
def test_an_age_is_shown(seconds: float, text: str) -> None:
    assert show_age(seconds) == text
