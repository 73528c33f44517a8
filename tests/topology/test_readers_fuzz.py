"""No damaged text does more than be refused, and no hostile one takes much memory."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from tests.topology import samples
from tests.topology.fuzz import READERS, run
from topology.bad_input import BadInput
from topology.readers.formats import read
from topology.readers.hostlist import unfold

FEWER = {"any": 2_000, "netq-compute": 2_000, "nodes": 2_000}  # second forms of what another name fuzzes in full


@pytest.mark.parametrize("name", READERS)
def test_ten_thousand_damaged_texts(name: str) -> None:
    count = FEWER.get(name, 10_000)
    good, refused = run(name, count, seed=1)
    assert good + refused == count
    assert min(good, refused) > count // 50, "the wounds are too deep or too small to test anything"


ALIASES = "switches: {}\nblocks:\n- nodes: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"- nodes: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
ENTITIES = '<!DOCTYPE s [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><system>&b;</system>'
HOSTILE: dict[str, bytes] = {
    "aliases": ALIASES.encode(),
    "entities": ENTITIES.encode(),
    "deep-json": b"[" * 1_000_000,
    "deep-yaml": b"switches: " + b"[" * 100_000,
    "deep-xml": b"<system>" * 100_000,
    "wide-xml": b"<system>" + b"<cpu/>" * 100_000,
    "long-attribute": b'<system a="' + b"x" * 3_000_000 + b'"/>',
    "long-range": b"SwitchName=s Nodes=n[1-999999999]",
    "many-ranges": b"SwitchName=s Nodes=n[1-200][1-200][1-200][1-200]",
    "many-hosts": b"".join(b"SwitchName=s%d Nodes=n%d[1-60000]\n" % (i, i) for i in range(100)),
    "wide-matrix": b"\tGPU0" + b"".join(b"\tGPU%d" % i for i in range(1, 3000)) + b"\nGPU0 X\n",
    "long-line": b"GPU0 GPU1\n" + b"x" * 1_000_000,
    "many-lines": b"GPU0 GPU1\n" + b"\n" * 1_000_000,
    "many-devices": b"".join(b'Switch 1 "S-%x"\n' % i for i in range(70_000)),
    "many-labels": b"".join(b"example.com/k%d=v\n" % i for i in range(50_000)),
    "many-values": b"switches: {}\nblocks: [" + b"a," * 500_000 + b"a]",
    "gzip-bomb": gzip.compress(bytes(100_000_000)),
    "brackets": b"SwitchName=s Nodes=" + b"a[" * 30_000,
    "quotes": b'Switch 1 "S-1" # "' + b'" "' * 600,
}


SLOW = ("many-values", "many-devices", "many-hosts")  # large before they are refused, and tracemalloc makes that slow


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.full] * (name in SLOW)) for name in HOSTILE])
def test_a_hostile_file_is_refused_in_little_memory(name: str) -> None:
    """96 MiB: three copies of the largest file that is read at all."""
    tracemalloc.start()
    try:
        with pytest.raises(BadInput):
            read(HOSTILE[name])
        assert tracemalloc.get_traced_memory()[1] < 96 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_host_list_keeps_zeros_and_multiplies() -> None:
    assert unfold("n[08-10],m[1,3]x,login", 1) == ["n08", "n09", "n10", "m1x", "m3x", "login"]
    assert unfold("r[1-2]n[1-2]", 1) == ["r1n1", "r1n2", "r2n1", "r2n2"]
    assert unfold("[1101-1102]", 1) == ["1101", "1102"]
    for wrong in ("", "a,,b", "a,", "n[1-", "n[]", "n[b]", "n[2-1]", "n[[1]]", "n]1[", "a b"):
        with pytest.raises(BadInput):
            unfold(wrong, 1)


def test_every_sample_is_read() -> None:
    assert all(read(text.encode()).parts for text in samples.ALL.values())
