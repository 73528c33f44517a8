"""`nvidia-smi topo -m`: values read by eye from each raw text, then whatever people do to such a text."""

from __future__ import annotations

import pytest

from tests.topology.data_files import data, files
from tests.topology.samples import TOPO_MATRIX as SMALL
from topology.bad_input import BadInput
from topology.graph.parts import PartKind, Topology
from topology.readers.formats import read


def tokens(topology: Topology) -> dict[frozenset[str], str]:
    return {frozenset((link.a, link.b)): link.kind for link in topology.links}


def numa(topology: Topology) -> list[int | None]:
    return [part.numa for part in topology.of_kind(PartKind.GPU)]


# file: GPUs' NUMA nodes; NICs; pairs, read off the raw text with "GPU" and "NIC" left out; warnings
BY_HAND: dict[str, tuple[list[int | None], int, str, int]] = {
    "dgx-a100-8gpu-10nic-8numa": (
        [3, 3, 1, 1, 7, 7, 5, 5],
        10,
        "GPU0-GPU7 NV12, GPU0-NIC0 PXB, GPU0-NIC2 SYS, GPU7-NIC7 PXB, GPU7-NIC8 SYS, NIC8-NIC9 PIX, NIC2-NIC3 PXB",
        0,
    ),
    "hgx-b300-8gpu-9nic-ansi-header": (
        [0, 0, 0, 0, 1, 1, 1, 1],
        9,
        "GPU0-GPU1 NV18, GPU4-NIC4 PXB, GPU4-NIC8 NODE, GPU0-NIC8 SYS, NIC0-NIC1 NODE, NIC3-NIC4 SYS",
        0,
    ),
    "hgx-h100-12nic-glued-columns-truncated": (
        [0, 0, 0, 0, 1, 1, 1, 1],
        12,
        "GPU0-NIC0 PXB, GPU1-NIC3 PXB, GPU5-NIC9 PXB, GPU5-NIC8 NODE, GPU7-NIC11 PXB, NIC0-NIC5 NODE, "
        "NIC0-NIC6 unknown, NIC1-NIC2 unknown",
        6,
    ),
    "v100-sxm2-8gpu-2mlx5-irregular-tabs": (
        [0, 0, 0, 0, 1, 1, 1, 1],
        2,
        "GPU0-GPU1 NV1, GPU0-GPU2 NV2, GPU0-GPU4 SYS, GPU0-GPU7 NV2, GPU0-mlx5_0 NODE, GPU2-mlx5_0 PIX, "
        "GPU6-mlx5_1 PIX, mlx5_0-mlx5_1 SYS",
        0,
    ),
    "v100-sxm2-32g-8gpu-cubemesh-1nic": (
        [0, 0, 0, 0, 1, 1, 1, 1],
        1,
        "GPU0-GPU3 NV2, GPU0-GPU4 NV2, GPU0-GPU5 SYS, GPU5-GPU7 NV1, GPU3-NIC0 NODE, GPU4-NIC0 SYS",
        0,
    ),
    "cloud-v100-8gpu-cubemesh-variant": (
        [None] * 8,
        0,
        "GPU0-GPU6 NV2, GPU2-GPU4 NV1, GPU3-GPU5 NV1, GPU0-GPU7 SYS, GPU6-GPU7 NV1",
        0,
    ),
    "p40-8gpu-soc-values-1mlx5": (
        [None] * 8,
        1,
        "GPU0-GPU3 PIX, GPU0-GPU4 PXB, GPU4-GPU7 PIX, GPU0-mlx5_0 SYS, GPU7-mlx5_0 SYS",
        0,
    ),
    "dgx2-v100-16gpu-10mlx5-truncated": (
        [None] * 16,
        10,
        "GPU0-GPU15 NV6, GPU4-GPU15 NV6, GPU5-GPU6 unknown, GPU0-mlx5_0 PIX, GPU0-mlx5_1 PXB, GPU4-mlx5_2 PIX, "
        "GPU4-mlx5_9 SYS, GPU5-mlx5_0 unknown, mlx5_0-mlx5_1 unknown",
        1,
    ),
    "hgx-8gpu-nvlink-absent-10nic-truncated": (
        [0, 0, 0, 0, 1, 1, None, None],
        10,
        "GPU0-GPU1 SYS, GPU2-NIC2 PIX, GPU5-NIC5 PIX, GPU5-GPU7 SYS, GPU6-GPU7 unknown, GPU6-NIC6 unknown",
        2,
    ),
    "pcie-8gpu-mlx4-truncated": (
        [None] * 8,
        1,
        "GPU0-GPU1 PIX, GPU0-GPU2 PHB, GPU0-mlx4_0 PHB, GPU4-GPU5 PIX, GPU4-mlx4_0 SYS, GPU5-GPU6 unknown, "
        "GPU5-mlx4_0 unknown",
        1,
    ),
    "a100-4gpu-nv4-1nic-slurm-cpus": ([None] * 4, 1, "GPU0-GPU3 NV4, GPU0-NIC0 SYS, GPU3-NIC0 PHB", 4),
    "a100x4-delta-mlx5-reverse-numa": ([3, 2, 1, 0], 1, "GPU0-GPU1 NV4, GPU2-mlx5_0 SYS, GPU3-mlx5_0 PHB", 1),
    "hgx-a100-8gpu-2mlx5": (
        [0, 0, 0, 0, 1, 1, 1, 1],
        2,
        "GPU0-GPU7 NV12, GPU0-mlx5_0 PXB, GPU2-mlx5_0 NODE, GPU4-mlx5_1 PXB, GPU7-mlx5_1 NODE, GPU7-mlx5_0 SYS",
        0,
    ),
    "h100-4gpu-nv6-4nic": ([3, 1, 7, 5], 4, "GPU0-GPU1 NV6, GPU0-NIC0 PIX, GPU0-NIC1 SYS, NIC0-NIC3 SYS", 0),
    "h100-1gpu-6nic-container": ([0], 6, "GPU0-NIC1 PIX, GPU0-NIC2 SYS, NIC3-NIC4 PIX, NIC0-NIC5 SYS", 0),
    "titanx-4gpu-mlx4-old": ([0, 0, 1, 1], 2, "GPU0-GPU1 PHB, GPU2-mlx4_1 PHB, GPU2-mlx4_0 SYS", 0),
    "pcie-4gpu-all-sys-one-numa": ([0, 0, 0, 0], 0, "GPU0-GPU3 SYS", 1),
    "pcie-8gpu-6plus2-numa-phb-pairs": (
        [0, 0, 0, 0, 0, 0, 1, 1],
        0,
        "GPU1-GPU2 PHB, GPU3-GPU4 PHB, GPU6-GPU7 PHB, GPU0-GPU1 NODE, GPU5-GPU6 SYS",
        0,
    ),
    "aws-2gpu-pix-header-no-tab": ([0, 0], 0, "GPU0-GPU1 PIX", 0),
    "windows-1gpu-empty-affinity": ([None], 0, "", 0),
    "h100-mig-vm-1gpu-ansi": ([0], 0, "", 0),
    "1gpu-2nic-numa1": ([1], 2, "GPU0-NIC0 NODE, GPU0-NIC1 NODE, NIC0-NIC1 PIX", 0),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_real_text_is_read_as_by_eye(name: str) -> None:
    near, nics, pairs, warnings = BY_HAND[name]
    topology = read(data(f"topo/{name}.txt"))
    assert [part.name for part in topology.of_kind(PartKind.GPU)] == [f"GPU{i}" for i in range(len(near))]
    assert numa(topology) == near
    assert len(topology.of_kind(PartKind.NIC)) == nics
    value = tokens(topology)
    for pair in filter(None, pairs.split(", ")):
        ends, word = pair.split()
        assert value[frozenset(ends.split("-"))] == word, ends
    assert len(topology.warnings) == warnings, topology.warnings
    devices = len(near) + nics
    assert len(topology.links) == devices * (devices - 1) // 2


@pytest.mark.parametrize("name", files("topo"))
def test_every_real_text_is_read(name: str) -> None:
    topology = read(data(name))
    assert topology.source == "nvidia-smi topo -m"
    assert topology.of_kind(PartKind.GPU)


def test_devices_get_their_names_from_the_legend() -> None:
    topology = read(SMALL.encode())
    assert [(nic.name, nic.device) for nic in topology.of_kind(PartKind.NIC)] == [("NIC0", "mlx5_7")]
    assert [(gpu.numa, gpu.cpus) for gpu in topology.of_kind(PartKind.GPU)] == [(0, "0-7"), (1, "8-15")]
    assert topology.warnings == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\tGPU0\tGPU1", "\t\x1b[4mGPU0\tGPU1"),  # underlined header
        ("\tGPU0\tGPU1", "\t[4mGPU0\tGPU1"),  # ... whose escape byte was lost
        ("\tGPU0\tGPU1", "GPU0\tGPU1"),  # no leading tab
        ("\tGPU0\tGPU1", "$ nvidia-smi topo -m\n\tGPU0\tGPU1"),  # the command above
        ("\t", "    "),  # tabs turned into spaces
        ("\n", "\r\n"),  # Windows
        ("\nGPU", "\n    GPU"),  # indented
    ],
)
def test_harmless_changes_change_nothing(old: str, new: str) -> None:
    plain, changed = read(SMALL.encode()), read(SMALL.replace(old, new).encode())
    assert (changed.parts, changed.links, changed.warnings) == (plain.parts, plain.links, ())


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        ("GPU1\tNIC0", "GPU1NIC0", "line 1: GPU1NIC0 is read as GPU1 and NIC0, columns without a gap"),
        ("NV4\tPIX", "NV4PIX", "line 2: NV4PIX is read as NV4 and PIX, columns without a gap"),
        ("NV4\tPIX", "NV4\nPIX", "line 3: joined to the row of GPU0, wrapped there"),
        ("NV4\tPIX", "NV4\tPI\nX", "line 3: joined to the row of GPU0, wrapped there"),
        ("\tNIC0\tCPU", "\n\tNIC0\tCPU", "line 1: the header is wrapped over 2 lines; joined"),
        ("\tNIC0\tCPU", "\tNI\nC0\tCPU", "line 1: the header is wrapped over 2 lines; joined"),
        ("GPU1\tNV4", "GPU1\tNV3", "line 3: GPU1 to GPU0 is NV4 and NV3; NV3 is taken"),
        ("GPU1\tNV4", "GPU1\tN/A", "line 3: GPU1 to GPU0 is NV4 and unknown; NV4 is taken"),
        ("NIC0\tPIX\tSYS\t X \t\t\t\t\n", "", "NIC0 has no row of its own; its links are taken from the other rows"),
    ],
)
def test_what_can_be_read_in_one_way_is_read_with_a_warning(old: str, new: str, warning: str) -> None:
    topology = read(SMALL.replace(old, new, 1).encode())
    assert topology.warnings == (warning,)
    assert numa(topology) == [0, 1]
    assert tokens(topology)[frozenset(("GPU0", "NIC0"))] == "PIX"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("NV4\tPIX", "NV4\tPIZ", "line 2: cell 3 of GPU0 is 'PIZ'; a cell is X, NV1 to NV64, C2C, PIX, PXB,"),
        ("NV4\tPIX", "NV99\tPIX", "line 2: cell 2 of GPU0 is 'NV99'; a cell is"),
        ("NV4\tPIX", "NV4", "line 2: cell 3 of GPU0 is '0-7'; a cell is"),
        ("NV4\tPIX", "NV4\tPIX\tPIX", "line 2: row of GPU0 is 'too long'; the header names 3 columns"),
        ("GPU0\t X ", "GPU0\tSYS", "line 2: GPU0 to GPU0 is 'SYS'; X stands where row and column are the same"),
        ("GPU1\tNV4", "GPU1\tSYS", "line 3: GPU1 to GPU0 is 'SYS'; the other way it is NV4; a matrix is the same"),
        ("GPU1\tNV4", "GPU9\tNV4", "line 3: row is 'GPU9'; the header has no column of that name"),
        ("GPU1\tNV4", "GPU0\tNV4", "line 3: row is 'GPU0'; it is there twice; every device has one row"),
        ("GPU1\tNIC0", "GPU0\tNIC0", "line 1: column is 'GPU0'; it is there twice; every device has one column"),
        ("0-7\t0", "0-7\tzero", "line 2: NUMA affinity of GPU0 is 'zero'; it is a number, a list like 0-3, or N/A"),
        ("0-7\t0", "none\t0", "line 2: CPU affinity of GPU0 is 'none'; it is a list like 0-23,48-71"),
        ("0-7\t0", "0-7\t0\t1\t2", "line 2: row of GPU0 is '0-7 0 1 2 N/A'; behind the cells stand CPU"),
    ],
)
def test_a_damaged_text_is_refused_with_its_line(old: str, new: str, sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(SMALL.replace(old, new, 1).encode())
    assert str(refused.value).startswith(sentence)


def test_a_cut_may_leave_nv1_of_nv18() -> None:
    cut = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV18\tNV18\nGPU1\tNV18\tX\tNV1"
    topology = read(cut.encode())
    assert tokens(topology)[frozenset(("GPU1", "GPU2"))] == "NV1"  # the row is whole: this is what it says
    shorter = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\tX\tNV18\tNV18\tNV18\nGPU1\tNV18\tX\tNV1"
    assert tokens(read(shorter.encode()))[frozenset(("GPU1", "GPU2"))] == "unknown"


def test_what_powershell_writes_is_read() -> None:
    assert read(SMALL.replace("\n", "\r\n").encode("utf-16")).links == read(SMALL.encode()).links


def test_minus_one_is_no_numa_node() -> None:
    assert numa(read(SMALL.replace("0-7\t0", "0-7\t-1").encode())) == [None, 1]


def check_never_wrong(whole: Topology, damaged: str) -> bool:
    """Whether a damaged text is read; if it is, then nothing in it contradicts the whole one."""
    try:
        topology = read(damaged.encode())
    except BadInput:
        return False
    true = tokens(whole)
    for pair, word in tokens(topology).items():
        assert word in ("unknown", true[pair]), pair
    near = {gpu.name: (gpu.numa, gpu.cpus) for gpu in whole.of_kind(PartKind.GPU)}
    for gpu in topology.of_kind(PartKind.GPU):
        assert gpu.numa in (None, near[gpu.name][0])
        assert gpu.cpus in ("", near[gpu.name][1])
    return True


def wrapped(text: str, width: int) -> str:
    """As a terminal of this width shows it, and a mouse copies it."""
    lines = text.expandtabs(8).split("\n")
    return "\n".join(line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width))


def test_a_cut_text_says_less_and_nothing_else() -> None:
    whole = read(SMALL.encode())
    read_anyway = [check_never_wrong(whole, SMALL[:cut]) for cut in range(1, len(SMALL))]
    assert sum(read_anyway) > 100
    assert all(check_never_wrong(whole, wrapped(SMALL, width)) for width in range(20, 70))


@pytest.mark.parametrize("name", files("topo"))
def test_a_real_text_that_is_cut_or_wrapped_is_never_read_wrongly(name: str) -> None:
    text = data(name).decode()
    whole = read(text.encode())
    for cut in range(40, len(text), len(text) // 16):
        check_never_wrong(whole, text[:cut])
    for width in (80, 100, 132):
        if check_never_wrong(whole, wrapped(text, width)):
            assert tokens(read(wrapped(text, width).encode())) == tokens(whole)
