"""Throws damaged texts at every reader: only what it reads or a BadInput may come back. `make fuzz` runs it long.

Each input is a small sample with a few wounds: pieces cut, doubled, swapped, numbers made huge, words of the format
strewn in, lines exchanged, other samples spliced. One seed gives one series, so a failure can be shown again.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tests.topology import samples
from topology.bad_input import BadInput
from topology.graph.export import as_dict, as_dot
from topology.graph.network_map import NetworkMap
from topology.graph.parts import PartKind, Topology
from topology.graph.text import picture
from topology.measured.show import readout_json
from topology.reach.measurement import Readout
from topology.readers import formats
from topology.readers import ibnetdiscover as read_ibnetdiscover
from topology.readers import node_labels as read_labels
from topology.readers import slurm as read_slurm
from topology.readers import topo_matrix as read_topo_matrix
from topology.readers.measurements import read_measurements

HANG_S: Final = 5.0
"""Of CPU. Sixteen small inputs that take longer hang, on whatever machine."""

WORDS: Final = (
    *(
        "GPU0",
        "GPU1",
        "NIC0",
        "X",
        "NV18",
        "NV4NV4",
        "PIX",
        "SYS",
        "SOC",
        "N/A",
        "CPU Affinity",
        "NUMA Affinity",
        "Legend:",
    ),
    *(
        "<cpu",
        "<pci ",
        "</pci>",
        "/>",
        "<gpu dev='0'>",
        "<!DOCTYPE a>",
        "&lt;",
        "&a;",
        "numaid='-1'",
        "class='0x030200'",
    ),
    *("SwitchName=", "Switches=", "Nodes=", "BlockName=", "[1-3]", "[1-999999999]", "a[1-9][1-9]", ",", "\\", "#"),
    *(
        "switches:",
        "blocks:",
        "- switch: sw1",
        "nodes:",
        "*a",
        "&a ",
        "!!int ",
        "? ",
        ": ",
        "---\n",
        "|\n",
        "{",
        "}",
        "[",
        "]",
    ),
    *(
        '"',
        "'",
        "null",
        "true",
        "-1",
        "0",
        "99999999999999999999",
        "1e999",
        "\\u0000",
        "\\ud800",
        "\u2028",
        "é",
        "\t",
        "  ",
    ),
    *(
        "\n",
        "\r\n",
        "\n\n",
        "=",
        "kind: Node\n",
        "kind: HyperNode\n",
        'Ca\t1 "H-b1"',
        'Switch 3 "S-a2"',
        '[1] "S-a1"[1]',
    ),
)

READERS: Final[dict[str, tuple[str, Callable[[str], Topology | Readout]]]] = {
    "topo-matrix": (samples.TOPO_MATRIX, read_topo_matrix.read),
    "nccl-system": (samples.NCCL_SYSTEM, formats._xml),
    "nccl-graph": (samples.NCCL_GRAPH, formats._xml),
    "ibnetdiscover": (samples.IBNETDISCOVER, read_ibnetdiscover.read),
    "slurm": (samples.SLURM, read_slurm.read),
    "topograph": (samples.TOPOGRAPH, formats._yaml),
    "netq": ("".join(line.strip() for line in samples.NETQ.split("\n")), formats._json),
    "netq-compute": (samples.NETQ_COMPUTE, formats._json),
    "labels": (samples.LABELS, read_labels.read),
    "nodes": (samples.NODES, formats._yaml),
    "hypernodes": (samples.HYPERNODES.split("---\n")[1], formats._yaml),
    **{
        f"measured-{name}": (text, partial(read_measurements, name=f"{name}.log"))
        for name, text in samples.MEASURED.items()
    },
    "any": (samples.SLURM, lambda text: formats.read(text.encode("utf-8", "surrogatepass"))),
}
"""Name to the sample it starts from and what reads it; `any` goes through the recognition of formats."""


def damaged(sample: str, chance: random.Random) -> str:
    """The sample with one to four wounds."""
    text = sample
    for _ in range(1 + int(chance.random() ** 2 * 4)):
        size = len(text)
        at = int(chance.random() * (size + 1))
        end = min(size, at + 1 + int(chance.random() ** 3 * 40))
        kind = int(chance.random() * 9)
        if kind == 0:  # cut
            text = text[:at] + text[end:]
        elif kind == 1:  # doubled
            text = text[:end] + text[at:]
        elif kind == 2:  # a word of some format
            text = text[:at] + WORDS[int(chance.random() * len(WORDS))] + text[at:]
        elif kind == 3:  # one that replaces
            text = text[:at] + WORDS[int(chance.random() * len(WORDS))] + text[end:]
        elif kind == 4:  # one character
            text = text[:at] + chr(int(chance.random() * 128)) + text[at + 1 :]
        elif kind == 5:  # the end is lost
            text = text[: size // 2 + at // 2]
        elif kind == 6:  # two lines change places
            lines = text.split("\n")
            one, other = int(chance.random() * len(lines)), int(chance.random() * len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            text = "\n".join(lines)
        elif kind == 7:  # a piece moves
            to = int(chance.random() * (size + 1))
            text = text[:to] + text[at:end] + text[to:]
        else:  # another sample
            names = tuple(samples.ALL)
            text = text[:at] + samples.ALL[names[int(chance.random() * len(names))]][:60] + text[at:]
    return text


def inputs(name: str, count: int, seed: int) -> Iterator[str]:
    """A series of damaged texts for one reader."""
    chance = random.Random(f"{name} {seed}")
    return (damaged(READERS[name][0], chance) for _ in range(count))


def run(name: str, count: int, seed: int) -> tuple[int, int]:
    """How many inputs were read and how many refused; anything else that is raised names its input."""
    read = READERS[name][1]
    good = refused = 0

    def hangs(*_: object) -> None:
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGVTALRM, hangs)
    text = ""
    try:
        for number, text in enumerate(inputs(name, count, seed)):
            if number % 16 == 0:
                signal.setitimer(signal.ITIMER_VIRTUAL, HANG_S)
            try:
                found = read(text)
                good += 1
                if isinstance(found, Readout):
                    json.dumps(readout_json(name, found))
                elif number % 32 == 0:
                    if not all(line.isprintable() for line in picture(found)):
                        raise ValueError("a line of the picture is not printable")
                    json.dumps(as_dict(found))
                    hosts = [part.name for part in found.of_kind(PartKind.HOST)]
                    network = NetworkMap.of(found)
                    for host in hosts[1:]:
                        network.way(hosts[0], host)
                    if len(as_dot(found).splitlines()) != 2 + len(found.parts) + found.graph.number_of_edges():
                        raise ValueError("DOT is not one line for each part and each edge")
            except BadInput as sentence:
                refused += 1
                if "\n" in str(sentence):
                    raise ValueError("the refusal is more than one line") from sentence
    except BaseException as error:
        raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}\n{text!r}") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return good, refused


def main() -> None:
    """`python -m tests.topology.fuzz [COUNT [SEED [READER...]]]`."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for name in sys.argv[3:] or READERS:
        start = time.process_time()
        good, refused = run(name, count, seed)
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        took_s = time.process_time() - start
        print(
            f"{name:<14} {good} read, {refused} refused, {took_s:.2f} s of CPU, peak memory {peak_mib:.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
