"""`isochrone topology show --here`: a real process, the real pynvml, the test library, a rendered sysfs tree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.nvml import profiles
from tests.nvml.library import ROOT, build, environment
from tests.nvml.profiles import Machine

VM = """\
<system version="1">
  <cpu numaid="0"><pci busid="ffff:ff:01.0" class="0x060400">
    <pci busid="{first}" class="0x030200"/><pci busid="{second}" class="0x030200"/>
  </pci></cpu>
</system>
"""


def shown(machine: Machine, folder: Path, *arguments: str) -> dict[str, Any]:
    profiles.write(machine, folder)
    roots = {"ISOCHRONE_SYS_ROOT": str(folder / "sys"), "ISOCHRONE_PROC_ROOT": str(folder / "proc")}
    done = subprocess.run(
        [sys.executable, "-m", "admission.cli", "topology", "show", "--here", "-o", "json", *arguments],
        env=environment(build(), folder) | roots,
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def tokens(value: dict[str, Any]) -> dict[frozenset[str], str]:
    return {frozenset((link["a"], link["b"])): link["kind"] for link in value["links"]}


def test_dgx_a100(tmp_path: Path) -> None:
    """Two GPUs and two NICs behind each PCIe switch, two such switches a socket, twelve links to four NVSwitches."""
    value = shown(profiles.dgx_a100(), tmp_path)
    assert [(gpu["name"], gpu["numa"]) for gpu in value["gpus"]] == [(f"GPU{n}", n // 4) for n in range(8)]
    kinds = tokens(value)
    pairs = [kinds[frozenset((f"GPU{a}", f"GPU{b}"))] for a in range(8) for b in range(a + 1, 8)]
    assert pairs == ["NV12"] * 28
    near = [kinds[frozenset(("GPU0", f"mlx5_{n}"))] for n in range(8)]
    assert near == ["PIX", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    switches = [switch["name"] for switch in value["switches"] if switch["kind"] == "nvswitch"]
    assert sorted(switches) == sorted(profiles.SWITCHES)
    assert all(kinds[frozenset(("GPU0", switch))] == "NV3" for switch in switches)
    assert value["warnings"] == []


def test_a_guest_hides_its_tree_and_a_file_fills_it_in(tmp_path: Path) -> None:
    machine = profiles.l40s_pcie()
    machine.gpus, machine.nics = machine.gpus[:2], []
    for n, device in enumerate(machine.gpus):
        device.path, device.numa = ("pci0000:00", f"0000:00:{4 + n:02x}.0"), -1
        machine.nvml[f"gpu.{n}.bus"] = device.bus
    machine.nvml["count"] = 2
    file = tmp_path / "vm.xml"
    file.write_text(VM.format(first=machine.gpus[0].bus, second=machine.gpus[1].bus))
    value = shown(machine, tmp_path, "--override", str(file))
    assert [gpu["numa"] for gpu in value["gpus"]] == [None, None]
    assert tokens(value) == {frozenset(("GPU0", "GPU1")): "PIX"}
    unknown, filled = value["warnings"]
    assert unknown.startswith("every device is directly under one root complex")
    assert filled == f"1 PCIe distances are from {file}"
