"""A topology file in a running controller's state: it counts, a wrong one changes nothing, and it is read once."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path

import pytest

from admission.controller.topology_watch import TopologyWatch
from tests.scheduler.clusters import node
from topology.cluster.state import ClusterState

SLURM = b"SwitchName=l1 Nodes=n[1-2]\nSwitchName=l2 Nodes=n3\nSwitchName=s1 Switches=l[1-2]\n"


def leaves(state: ClusterState) -> list[str]:
    return [chain.leaf for chain in state.table().chains]


async def test_a_file_counts_and_a_wrong_one_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, file, reported = ClusterState(), tmp_path / "topology", list[int]()
    state.apply_nodes([(None, node(name)) for name in ("n1", "n2", "n3")])
    watch = TopologyWatch(str(file), state, lambda: reported.append(1))
    assert not await watch.read()  # it may come later
    file.write_bytes(SLURM)
    assert await watch.read()
    assert not await watch.read()
    assert leaves(state) == ["//l1", "//l1", "//l2"]
    with caplog.at_level(logging.WARNING):
        file.write_bytes(SLURM + b"SwitchName=l3 Nodes=n3\n")
        assert not await watch.read()
        assert not await watch.read()
        file.write_bytes(b"GPU0 NIC0\nGPU0 X PIX\nNIC0 PIX X\n")  # a machine says nothing about a network
        assert not await watch.read()
    assert len(caplog.messages) == 2
    assert "what was read before stays" in caplog.messages[0]
    assert "line 4" in caplog.messages[0]
    assert leaves(state) == ["//l1", "//l1", "//l2"]
    file.write_bytes(gzip.compress(SLURM.replace(b"n3", b"n[3-4]")))
    assert await watch.read()
    assert watch.problem == ""
    file.unlink()
    assert await watch.read()
    assert leaves(state) == ["", "", ""]
    assert len(reported) == 3


async def test_a_folder_in_place_of_a_file_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = TopologyWatch(str(tmp_path), ClusterState(), lambda: None)
    for _ in range(3):
        assert not await watch.read()
    assert len(caplog.messages) == 1
    assert not await TopologyWatch("", ClusterState(), lambda: None).read()
