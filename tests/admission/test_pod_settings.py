"""Every setting, its default, and one sentence for each wrong value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.recognition.pod_settings import PodSettings, read_settings
from topology import labels

KEYS = [labels.REACH, labels.REACH_SIZE, labels.REACH_MODE, labels.PAIRING, labels.MIN_PREFILL, labels.MIN_DECODE]


def test_defaults_depend_on_who_asked() -> None:
    assert read_settings(None, requests=True) == (PodSettings(1000.0, 65536, "required", "all", None, None), ())
    assert read_settings({}, requests=False) == (PodSettings(1000.0, 65536, "preferred", "all", None, None), ())


def test_everything_that_is_said_counts() -> None:
    output = {
        "isochrone.dev/reach": "1.5ms",
        "isochrone.dev/reach-size": "8Mi",
        "isochrone.dev/reach-mode": "preferred",
        "isochrone.dev/pairing": "nearest",
        "isochrone.dev/min-prefill": "2",
        "isochrone.dev/min-decode": "9999",
    }
    settings, wrong = read_settings(output, requests=True)
    assert settings == PodSettings(1500.0, 8 * 2**20, "preferred", "nearest", 2, 9999)
    assert wrong == ()


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("reach", "1", 'use a duration such as "1ms", "100us" or "1.5ms", above 0 and at most 60s'),
        ("reach-size", "0", 'use a size such as "64Ki" or "8Mi", at least 1 byte and at most 1Ti'),
        ("reach-mode", "require", 'use "required" or "preferred". Did you mean "required"?'),
        ("reach-mode", "", 'use "required" or "preferred"'),
        ("pairing", "ALL", 'use "all" or "nearest". Did you mean "all"?'),
        ("min-prefill", "0", "use a whole number from 1 to 9999"),
        ("min-decode", "two", "use a whole number from 1 to 9999"),
        ("min-decode", "²", "use a whole number from 1 to 9999"),
        ("min-decode", "10000", "use a whole number from 1 to 9999"),
    ],
)
def test_one_sentence_for_a_wrong_value(key: str, value: str, sentence: str) -> None:
    settings, wrong = read_settings({f"isochrone.dev/{key}": value}, requests=True)
    assert [str(error) for error in wrong] == [f"isochrone.dev/{key} is {value!r}; {sentence}"]
    assert settings == read_settings({}, requests=True)[0]


def test_all_wrong_values_are_told_at_once() -> None:
    _, wrong = read_settings(dict.fromkeys(KEYS, "?"), requests=True)
    assert [error.field for error in wrong] == KEYS


@given(st.dictionaries(st.sampled_from(KEYS), st.text(max_size=30)), st.booleans())
def test_any_text_gives_settings(given: dict[str, str], requests: bool) -> None:
    settings, _ = read_settings(given, requests)
    assert settings.reach_us > 0
    assert settings.reach_size_bytes > 0
