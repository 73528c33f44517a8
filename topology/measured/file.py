"""The file of imported measurements: what `isochrone reach import --save` writes and the controller reads.

JSON: `{"measured": [{"from", "to", "sizeBytes", "us", "percentile", "count", "time", "validSeconds", "transport"}]}`.
`from` and `to` are node names, or domains as `leaf:NAME`, `spine:NAME`, `zone:NAME`, `fabric:NAME` with the value of
the node label. `us` is the one-way p99 it stands for, and `percentile` says how it came about (`p99`, or `mean x1.5`);
`bytesPerUs` stands in its place for a bandwidth. Pure: text in, values out. Bounded; a wrong entry refuses the whole
file, since half an import would be a lie nobody sees.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from topology.bad_input import BadInput
from topology.measured.store import MAX_PAIRS, Pair
from topology.reach.measured_values import IMPORT_FRESH_S, NODE, RDMA, TCP, TIERS, MeasuredPlace, Sample
from topology.reach.measurement import MAX_SIZE_BYTES, MAX_US

MAX_ENTRIES: Final = 4 * MAX_PAIRS
MAX_FILE_BYTES: Final = 32 * 2**20
MAX_NAME: Final = 253
MAX_FRESH_S: Final = 3650 * 86_400.0


class _Entry(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    from_: str = msgspec.field(name="from")
    to: str
    size_bytes: int
    time: datetime
    us: float = 0.0
    bytes_per_us: float = 0.0
    percentile: str = ""
    count: int | None = None
    valid_seconds: float = IMPORT_FRESH_S
    transport: str = ""


class _MeasuredFile(msgspec.Struct, forbid_unknown_fields=True):
    measured: list[_Entry]


def parse_place(text: str, field: str) -> MeasuredPlace:
    """A node's name, or `TIER:NAME`. Raises BadInput naming `field`."""
    tier, colon, name = text.partition(":")
    place = MeasuredPlace(tier, name) if colon else MeasuredPlace(NODE, text)
    if place.tier not in (NODE, *TIERS) or not 0 < len(place.name) <= MAX_NAME or not place.name.isprintable():
        raise BadInput(field, text, "use a node's name, or leaf:, spine:, zone: or fabric: and a label's value")
    return place


def read_measured_file(content: bytes) -> dict[Pair, list[Sample]]:
    """By directed pair of places. Raises BadInput with one sentence for a file that is no such file."""
    if len(content) > MAX_FILE_BYTES:
        raise BadInput("the file", f"{len(content)} bytes long", f"at most {MAX_FILE_BYTES} are read")
    try:
        entries = msgspec.json.decode(content, type=_MeasuredFile).measured
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput("the file", "not measured reach", str(error)) from None
    if len(entries) > MAX_ENTRIES:
        raise BadInput("measured", f"{len(entries)} entries", f"at most {MAX_ENTRIES} are read")
    found: dict[Pair, list[Sample]] = {}
    for at, entry in enumerate(entries):
        where = f"measured[{at}]"
        pair = parse_place(entry.from_, f"{where}.from"), parse_place(entry.to, f"{where}.to")
        if pair[0].tier != pair[1].tier:
            raise BadInput(f"{where}.to", entry.to, f"both ends must be of one tier, as {entry.from_!r}")
        found.setdefault(pair, []).append(_sample(entry, where))
    return found


def _sample(entry: _Entry, where: str) -> Sample:
    checks = (
        ("sizeBytes", entry.size_bytes, 1 <= entry.size_bytes <= MAX_SIZE_BYTES, f"from 1 to {MAX_SIZE_BYTES}"),
        ("us", entry.us, 0 <= entry.us <= MAX_US, f"microseconds, at most {MAX_US:.0f}"),
        ("bytesPerUs", entry.bytes_per_us, 0 <= entry.bytes_per_us <= 1e9, "bytes per microsecond, at most 1e9"),
        ("us", entry.us, (entry.us > 0) != (entry.bytes_per_us > 0), "above 0, or bytesPerUs in its place"),
        ("count", entry.count, entry.count is None or 0 < entry.count <= 10**12, "from 1 to 1e12, or left out"),
        ("validSeconds", entry.valid_seconds, 1 <= entry.valid_seconds <= MAX_FRESH_S, "from 1 to ten years"),
        ("transport", entry.transport, entry.transport in ("", RDMA, TCP), "rdma, tcp or left out"),
        ("time", str(entry.time), entry.time.tzinfo is not None, "RFC 3339 with a time zone"),
    )
    for field, value, fine, allowed in checks:
        if not fine:
            raise BadInput(f"{where}.{field}", value, f"it must be {allowed}")
    return Sample(
        entry.size_bytes,
        entry.us,
        entry.percentile[:16],
        entry.count,
        entry.time.timestamp(),
        entry.valid_seconds,
        entry.transport,
        entry.bytes_per_us,
    )


def write_measured_file(given: Mapping[Pair, Sequence[Sample]]) -> str:
    """The file's text, sorted by pair and size."""
    entries = [_entry(pair, sample) for pair in sorted(given) for sample in sorted(given[pair], key=_order)]
    lines = ",\n  ".join(json.dumps(entry) for entry in entries)
    return '{"measured": [\n  ' + lines + "\n]}\n"


def merged(
    before: Mapping[Pair, Sequence[Sample]], new: Mapping[Pair, Sequence[Sample]]
) -> dict[Pair, Sequence[Sample]]:
    """`new` in place of what `before` holds of the same directed pairs."""
    return {**before, **new}


def _order(sample: Sample) -> tuple[int, str, float, float]:
    return sample.size_bytes, sample.transport, sample.bytes_per_us, sample.measured_at_s


def _entry(pair: Pair, sample: Sample) -> dict[str, Any]:
    entry: dict[str, Any] = {"from": str(pair[0]), "to": str(pair[1]), "sizeBytes": sample.size_bytes}
    if sample.bytes_per_us > 0:
        entry["bytesPerUs"] = round(sample.bytes_per_us, 3)
    else:
        entry |= {"us": round(sample.reach_us, 3), "percentile": sample.percentile}
    if sample.count is not None:
        entry["count"] = sample.count
    if sample.transport:
        entry["transport"] = sample.transport
    time = datetime.fromtimestamp(sample.measured_at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return entry | {"time": time, "validSeconds": sample.fresh_s}
