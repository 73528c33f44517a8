"""How moments are written for the API server."""

from __future__ import annotations

import pytest

from topology.clock import monotonic_s, parse_rfc3339_s, rfc3339_micro, rfc3339_seconds, wall_time_s


def test_both_forms_are_utc_and_come_back() -> None:
    assert rfc3339_seconds(1_700_000_000.75) == "2023-11-14T22:13:20Z"
    assert rfc3339_micro(1_700_000_000.75) == "2023-11-14T22:13:20.750000Z"
    assert rfc3339_micro(1_700_000_000) == "2023-11-14T22:13:20.000000Z"  # MicroTime always has six digits
    assert parse_rfc3339_s("2023-11-14T22:13:20Z") == 1_700_000_000
    assert parse_rfc3339_s("2023-11-14T23:13:20.750000+01:00") == 1_700_000_000.75


@pytest.mark.parametrize("text", ["", "yesterday", "2023-11-14T22:13:20"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_rfc3339_s(text)


def test_the_clocks_go_forward() -> None:
    assert monotonic_s() <= monotonic_s()
    assert wall_time_s() > 1_700_000_000
