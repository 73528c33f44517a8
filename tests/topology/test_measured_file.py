"""The file of measured reach and what is imported into it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from topology.bad_input import BadInput
from topology.measured.file import parse_place, read_measured_file, write_measured_file
from topology.measured.importing import samples_of, thinned
from topology.reach.measured_values import LEAF, NODE, MeasuredPlace, Sample
from topology.reach.measurement import End, Measurement, Readout

AT = 1_796_032_800.0  # 2026-11-30T10:00:00Z
N1, N2 = MeasuredPlace(NODE, "n1"), MeasuredPlace(NODE, "n2")
ENTRY: dict[str, Any] = {
    "from": "n1",
    "to": "n2",
    "sizeBytes": 65536,
    "us": 19.1,
    "percentile": "p99",
    "count": 1000,
    "time": "2026-11-30T10:00:00Z",
    "validSeconds": 3600,
    "transport": "rdma",
}


def file_of(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"measured": list(entries)}).encode()


def test_an_entry_is_a_sample_of_a_pair() -> None:
    leaf = {"from": "leaf:l1", "to": "leaf:l2", "sizeBytes": 8, "bytesPerUs": 12.5, "time": "2026-11-30T11:00:00+01:00"}
    assert read_measured_file(file_of(ENTRY, leaf)) == {
        (N1, N2): [Sample(65536, 19.1, "p99", 1000, AT, 3600.0, "rdma")],
        (MeasuredPlace(LEAF, "l1"), MeasuredPlace(LEAF, "l2")): [Sample(8, 0.0, "", None, AT, 30 * 86_400.0, "", 12.5)],
    }


def test_what_is_written_is_read_again() -> None:
    given = {
        (N2, N1): [Sample(9, 4.5, "mean", None, AT, 60.0)],
        (N1, N2): [Sample(8, 0.0, "", 5, AT, 60.0, "tcp", 7.0)],
    }
    text = write_measured_file(given)
    assert read_measured_file(text.encode()) == given
    assert text.splitlines()[1].startswith('  {"from": "n1"')
    assert read_measured_file(write_measured_file({}).encode()) == {}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"us": -1}, r"measured\[0\].us is -1.0; it must be microseconds"),
        ({"us": 0}, r"measured\[0\].us is 0.0; it must be above 0, or bytesPerUs in its place"),
        ({"bytesPerUs": 9}, r"measured\[0\].us is 19.1; it must be above 0, or"),
        ({"sizeBytes": 0}, r"measured\[0\].sizeBytes is 0; it must be from 1"),
        ({"count": 0}, r"measured\[0\].count is 0"),
        ({"transport": "pigeon"}, r"measured\[0\].transport is 'pigeon'; it must be rdma, tcp or left out"),
        ({"time": "2026-11-30T10:00:00"}, r"measured\[0\].time is .*; it must be RFC 3339 with a time zone"),
        ({"validSeconds": 0}, r"measured\[0\].validSeconds"),
        ({"to": "leaf:l1"}, r"measured\[0\].to is 'leaf:l1'; both ends must be of one tier, as 'n1'"),
        ({"from": "rack:l1"}, r"measured\[0\].from is 'rack:l1'; use a node's name, or leaf:"),
        ({"from": ""}, r"measured\[0\].from is ''"),
        ({"extra": 1}, r"the file is 'not measured reach'; .*extra"),
    ],
)
def test_a_wrong_entry_refuses_the_file(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_measured_file(file_of(ENTRY | change))


def test_damaged_files_are_refused_and_nothing_worse() -> None:
    chance, text = random.Random(7), file_of(ENTRY, ENTRY).decode()
    for _ in range(2000):
        start = chance.randrange(len(text))
        damaged = text[:start] + chance.choice(["", "[", "1e400", '"', "\x00", "{" * 50]) + text[start + 3 :]
        try:
            read_measured_file(damaged.encode())
        except BadInput:
            continue


def test_places() -> None:
    assert parse_place("zone:eu-1a", "x") == MeasuredPlace("zone", "eu-1a")
    assert str(parse_place("leaf:l1", "x")) == "leaf:l1"
    assert parse_place("gpu-001", "x") == MeasuredPlace(NODE, "gpu-001")


def value(size: int, us: float, a: str = "", b: str = "") -> Measurement:
    return Measurement(size, End(a), End(b), mean_us=us)


def test_an_import_names_the_ends_where_the_file_does_not() -> None:
    readout = Readout("osu", pairs=(value(65536, 10.0),))
    assert samples_of(readout, (N1, N2), AT, 60.0) == {(N1, N2): [Sample(65536, 15.0, "mean x1.5", None, AT, 60.0)]}
    with pytest.raises(BadInput, match="--from and --to is 'missing'; the file does not say between which nodes"):
        samples_of(readout, None, AT, 60.0)
    named = Readout("nccl-tests", pairs=(value(8, 2.0, "n1", "n2"),))
    assert list(samples_of(named, None, AT, 60.0)) == [(N1, N2)]
    with pytest.raises(BadInput, match="the file is 'nccl-tests'; it measures no pair one way"):
        samples_of(Readout("nccl-tests"), (N1, N2), AT, 60.0)


def test_one_size_an_octave_stays_and_of_one_size_the_slowest() -> None:
    def at(size: int, us: float, rate: float = 0.0) -> Sample:
        return Sample(size, us, "mean", None, AT, 60.0, "", rate)

    given = [
        at(60_000, 9.0),
        at(65_536, 10.0),
        at(65_536, 12.0),
        at(70_000, 99.0),
        at(2**20, 20.0),
        at(2**28, 0.0, 5.0),
    ]
    assert thinned(given) == [at(65_536, 12.0), at(2**20, 20.0), at(2**28, 0.0, 5.0)]
    assert len(thinned([at(2**k, 1.0) for k in range(40)])) == 15
