"""Probes over RDMA: our side is real, the program at the very edge is a stand-in that meets its like over TCP and
prints what perftest prints."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.topology.list_watch_server import until
from topology.agent import rdma_probe
from topology.agent.probe import ProbeRunner
from topology.agent.rdma_probe import RdmaProbe
from topology.agent.settings import AgentSettings
from topology.bad_input import BadInput
from topology.environment import load
from topology.facts import agent_pb2 as wire
from topology.facts.report import Nic, NicPort, NodeFacts, NodeState, NvmlState, ReachSample

PROGRAM = """#!{python}
import json, socket, sys
words = sys.argv[1:]
given = {{words[i]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("-") and words[i] != "-F"}}
host = words[-1] if words[-2] == given["-p"] else None
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
{mood}
if host is None:
    with socket.create_server(("127.0.0.1", int(given["-p"]))) as here:
        here.settimeout(60)
        here.accept()[0].close()
else:
    socket.create_connection((host, int(given["-p"])), timeout=5).close()
print("                    RDMA_Write Latency Test")
print(" Dual-port       : OFF          Device         : " + given["-d"])
print(" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
      "99% percentile[usec]   99.9% percentile[usec]")
print(" %s   %s   4.10   19.80   4.50   4.61   0.20   5.90   19.80" % (given["-s"], given["-n"]))
"""


class Side:
    """A node with a program: `log` is what it was called with."""

    def __init__(self, folder: Path, *, mood: str = "", port: int = 0, rate_mbps: int = 100_000) -> None:
        self.log, program = folder / "called", folder / "ib_write_lat"
        program.write_text(PROGRAM.format(python=sys.executable, log=str(self.log), mood=mood))
        program.chmod(0o755)
        ports = (NicPort(port=1, active=False, rate_mbps=1), NicPort(port=2, active=True, rate_mbps=rate_mbps))
        nics = (Nic(name="mlx5_1", rdma=True, ports=ports), Nic(name="eth0", rdma=False, ports=ports))
        state = NodeState(collected_at_s=0, topology_generation=1, nvml=NvmlState.OK)
        self.facts: NodeFacts | None = NodeFacts(state=state, nics=nics)
        settings = AgentSettings(node_name="n", rdma_probe=f"{program} -x 3", rdma_port=port or 18515)
        self.probe = RdmaProbe(settings, lambda: self.facts)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def order(port: int, **given: object) -> wire.ProbeOrder:
    asked = {"peer": "n2", "address": f"127.0.0.1:{port}", "size_bytes": 65536, "count": 100, "transport": "rdma"}
    return wire.ProbeOrder(**asked | given)  # type: ignore[arg-type]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_probe, "AGAIN_S", 0.02)


@pytest.mark.usefixtures("impatient")
async def test_two_sides_meet_and_the_sample_says_rdma(tmp_path: Path) -> None:
    port = free_port()
    side = Side(tmp_path, port=port, rate_mbps=10_000_000)
    reported: list[ReachSample] = []
    runner = ProbeRunner(reported.append, lambda: None, side.probe)
    running = asyncio.create_task(runner.run())
    try:
        runner.take(wire.ProbeOrders(orders=[order(port)]))  # the client comes first and has to wait
        await until(lambda: len(side.calls()) >= 2)
        runner.take(wire.ProbeOrders(orders=[order(port, serve=True, peer="n1")]))
        await until(lambda: bool(reported))
    finally:
        running.cancel()
        await asyncio.wait([running])
        await side.probe.close()
    [sample] = reported
    assert (sample.peer, sample.size_bytes, sample.count, sample.transport) == ("n2", 65536, 100, "rdma")
    assert (sample.p50_us, sample.p99_us, sample.p999_us) == (4.5, 5.9, 19.8)
    options = ["-x", "3", "-F", "-d", "mlx5_1", "-i", "2", "-s", "65536", "-n", "100", "-p", str(port)]
    assert options in side.calls()
    assert [*options, "127.0.0.1"] in side.calls()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("mood", "value"),
    [
        ("raise SystemExit('Unable to find GID')", "ended with 1: Unable to find GID"),
        ("print('x' * 300000)", "says more than 262144 bytes"),
        ("print(' no table'); raise SystemExit(0)", "no whole row of a perftest table"),
    ],
)
async def test_a_program_that_fails_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mood: str, value: str
) -> None:
    monkeypatch.setattr(rdma_probe, "MEET_LIMIT_S", 0.0)
    side = Side(tmp_path, mood=mood)
    with pytest.raises((OSError, BadInput), match=value):
        await side.probe.measure(order(1))


async def test_a_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_probe, "MEET_LIMIT_S", 0.0)
    monkeypatch.setattr(rdma_probe, "RUN_LIMIT_S", 0.5)
    side = Side(tmp_path, mood="import time; time.sleep(600)")
    with pytest.raises(TimeoutError):
        await side.probe.measure(order(1))


async def test_only_one_is_served_at_a_time_and_it_ends_with_the_agent(tmp_path: Path) -> None:
    side = Side(tmp_path, port=free_port())
    side.probe.serve(order(1, serve=True))
    side.probe.serve(order(1, serve=True))
    await until(lambda: bool(side.calls()))
    await side.probe.close()
    assert len(side.calls()) == 1


def test_a_node_can_be_met_only_with_program_and_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(tmp_path, port=4711)
    assert side.probe.port() == 4711
    side.facts = None
    assert side.probe.port() is None
    none = AgentSettings(node_name="n", rdma_probe=str(tmp_path / "nothing"))
    assert RdmaProbe(none, lambda: None).port() is None
    with pytest.raises(BadInput, match=r"ISOCHRONE_RDMA_PROBE is .*it is no command"):
        RdmaProbe(AgentSettings(node_name="n", rdma_probe="'"), lambda: None)
    monkeypatch.setenv("ISOCHRONE_NODE_NAME", "n")
    monkeypatch.setenv("ISOCHRONE_RDMA_PORT", "0")
    with pytest.raises(BadInput, match="ISOCHRONE_RDMA_PORT is '0'; use a port from 1 to 65535"):
        load(AgentSettings)


@pytest.mark.parametrize(
    ("rate_mbps", "asked", "sent"),
    [
        (100_000, 100, 100),
        (100_000, 5000, 1000),
        # A thousandth of 1 Gb/s is 125,000 bytes a second; 60 s of it are 57 pages there and back.
        (1_000, 100, 57),
        (10, 100, 5),  # what perftest takes at least
    ],
)
def test_never_more_pages_than_a_thousandth_of_the_link_carries(
    tmp_path: Path, rate_mbps: int, asked: int, sent: int
) -> None:
    side = Side(tmp_path, rate_mbps=rate_mbps)
    arguments, count, _ = side.probe._arguments(order(1, count=asked), 1)
    assert count == sent
    assert arguments[arguments.index("-n") + 1] == str(sent)


def test_over_ipv6_the_program_is_told_so(tmp_path: Path) -> None:
    side = Side(tmp_path)
    settings = AgentSettings(node_name="n", rdma_probe="/usr/bin/ib_write_lat", probe_host="fd00::2")
    arguments, _, _ = RdmaProbe(settings, lambda: side.facts)._arguments(order(1), 1)
    assert arguments[:3] == ["/usr/bin/ib_write_lat", "--ipv6-addr", "-F"]
    assert "--ipv6-addr" not in side.probe._arguments(order(1), 1)[0]


async def test_it_rests_until_the_pages_are_a_thousandth_of_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, slept = Side(tmp_path, rate_mbps=10), list[float]()

    async def run(arguments: list[str], limit_s: float) -> str:
        return (
            "RDMA_Write Latency Test\n #bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec]\n"
            " 65536 5 1.0 3.0 2.0 2.0\n"
        )

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(side.probe, "_run", run)
    monkeypatch.setattr("topology.agent.rdma_probe.asyncio.sleep", sleep)
    found = await side.probe.measure(order(1, count=5))
    # 5 pages there and back are 655,360 bytes; a thousandth of 10 Mb/s is 1,250 bytes a second: 524 s in all.
    assert 400 < slept[0] <= 524.3
    # Five values have no p99: the typical one widened by 1.5.
    assert (found.p50_us, found.p99_us, found.percentile) == (2.0, 3.0, "p50")
