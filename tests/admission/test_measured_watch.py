"""The file of measured reach in a running controller's state."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from admission.cli import app
from admission.controller.measured_watch import MeasuredWatch
from tests.scheduler.clusters import node
from topology.bad_input import BadInput
from topology.cluster.state import ClusterState
from topology.facts.report import NodeFacts, NodeState, NvmlState, ReachSample

OSU = "# OSU MPI-CUDA Latency Test v7.5\n# Size       Avg Latency(us)\n65536  400.00\n"
AT = 1_796_032_800.0  # 2026-11-30T10:00:00Z


def state_of() -> ClusterState:
    state = ClusterState()
    state.apply_nodes([(None, node(name, zone="z1", leaf="l1")) for name in ("n1", "n2")])
    return state


def reach_us(state: ClusterState, now_s: float) -> tuple[float, str]:
    table = state.snapshot(now_s, 0.0).table
    found = table.reach.between(0, 1, 65536)
    return round(found.us, 1), found.basis


def test_what_is_imported_counts_and_a_wrong_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, file = tmp_path / "osu.log", tmp_path / "reach.json"
    log.write_text(OSU)
    command = ["reach", "import", str(log), "--save", str(file), "--from", "n1", "--to", "n2"]
    done = CliRunner().invoke(app, [*command, "--time", "2026-11-30T10:00:00Z"], catch_exceptions=False)
    assert done.exit_code == 0
    state = state_of()
    watch = MeasuredWatch(str(file), state, lambda: None)
    assert watch.read()
    assert not watch.read()
    assert reach_us(state, AT + 60) == (600.0, "measured 60s ago")  # a mean of 400 us, widened by 1.5
    file.write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert not watch.read()
        assert not watch.read()
    assert len(caplog.messages) == 1
    assert reach_us(state, AT + 70) == (600.0, "measured 70s ago")
    file.unlink()
    assert watch.read()
    assert reach_us(state, AT + 80) == (79.2, "modelled")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--from", "n1"], "--to is 'missing'; name both ends"),
        (["--from", "n1", "--to", "n2"], "--time is ''; say when it was measured"),
        (["--from", "n1", "--to", "n2", "--time", "2026-11-30T10:00:00Z", "--valid", "soon"], "--valid is 'soon'"),
        (["--time", "2026-11-30T10:00:00Z"], "osu.log: --from and --to is 'missing'"),
    ],
)
def test_what_must_be_said_before_values_are_kept(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "osu.log").write_text(OSU)
    command = ["reach", "import", str(tmp_path / "osu.log"), "--save", str(tmp_path / "reach.json"), *arguments]
    with pytest.raises(BadInput, match=sentence):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert not (tmp_path / "reach.json").exists()


def test_what_agents_measure_counts() -> None:
    state = state_of()
    sample = ReachSample(
        peer="n2", size_bytes=65536, p50_us=50, p99_us=70, p999_us=90, count=50, transport="tcp", measured_at_s=AT
    )
    facts = NodeFacts(
        state=NodeState(collected_at_s=AT, topology_generation=1, nvml=NvmlState.OK, nvidia_peermem=False),
        reach=(sample,),
    )
    state.apply_facts("n1", None, facts)
    assert state.renew_measured(AT + 5)
    assert reach_us(state, AT + 5) == (70.0, "measured 5.0s ago")
    before = state.version
    state.apply_facts("n1", facts, facts)  # told again: nothing new
    assert state.version == before
    assert not state.renew_measured(AT + 20)
