"""Writes the tables and outputs of docs/topology.md from the code; `--check` only says whether they are up to date."""

from __future__ import annotations

import json
from pathlib import Path

from docs.marked_page import keep
from topology.graph.export import as_dict
from topology.graph.text import picture, summary
from topology.reach.label_schemes import NVLINK_DOMAINS, SCHEMES
from topology.readers.formats import read

PAGE = Path(__file__).with_name("topology.md")

MATRIX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tSYS\tSYS\tPXB\t0-31\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tSYS\tPXB\t0-31\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV8\tSYS\t32-63\t1\t\tN/A
GPU3\tSYS\tSYS\tNV12\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X

NIC Legend:

  NIC0: mlx5_0
"""

SLURM = """\
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=leaf1 Nodes=gpu[001-002]
SwitchName=leaf2 Nodes=gpu[003-040]
BlockName=rack1 Nodes=gpu[001-002]
"""


FABRIC = """\
Switch\t3 "S-a1"\t\t# "MF0;leaf1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-b1"[1](b1)\t\t# "gpu001 mlx5_0" lid 5 4xNDR
[2]\t"S-c1"[1]\t\t# "MF0;spine1:MQM9700/U1" lid 3 4xNDR
[3]\t"S-c1"[2]\t\t# "MF0;spine1:MQM9700/U1" lid 3 4xNDR
[4]\t"S-c2"[1]\t\t# "MF0;spine2:MQM9700/U1" lid 4 4xNDR

Switch\t3 "S-a2"\t\t# "MF0;leaf2:MQM9700/U1" enhanced port 0 lid 2 lmc 0
[1]\t"H-b2"[1](b2)\t\t# "gpu002 mlx5_0" lid 6 4xNDR
[2]\t"S-c1"[3]\t\t# "MF0;spine1:MQM9700/U1" lid 3 4xNDR
[3]\t"S-c2"[2]\t\t# "MF0;spine2:MQM9700/U1" lid 4 4xNDR
"""


def labels() -> list[str]:
    """One row a scheme, one a key for NVLink domains."""
    rows = ["| scheme | nearest tier first |", "|---|---|"]
    rows += [f"| {scheme.name} | {', '.join(f'`{key}`' for key in scheme.tiers)} |" for scheme in SCHEMES]
    return [*rows, f"| NVLink domain | {', '.join(f'`{key}`' for key in NVLINK_DOMAINS)} |"]


def shown(text: str) -> list[str]:
    """What `isochrone topology show` draws."""
    return ["```", *picture(read(text.encode())), "```"]


def imported(text: str) -> list[str]:
    """What `isochrone topology import` says, and its JSON: of nodes, edges and the lists before them one each."""
    topology = read(text.encode())
    value = as_dict(topology)
    brief = {key: each[:1] if isinstance(each, list) else each for key, each in value.items()}
    warnings = [f"warning: {warning}" for warning in topology.warnings]
    return ["```", summary(topology), *warnings, "```", "", "```json", json.dumps(brief, indent=2), "```"]


if __name__ == "__main__":
    raise SystemExit(
        keep(
            PAGE,
            {
                "labels": labels(),
                "show": shown(MATRIX),
                "import": imported(MATRIX),
                "cluster": shown(SLURM),
                "fabric": shown(FABRIC),
            },
        )
    )
