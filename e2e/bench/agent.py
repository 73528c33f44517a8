"""What a node agent costs: memory and processor at rest, and the time of one collection, on a made-up 8-GPU machine.

The agent is the real command with the real pynvml on a library that answers at once, a kubelet with 100 pods, and a
hub. What a real driver adds to each of some 1,100 calls a collection is not in these figures.

`SECONDS=60` is how long it is watched at rest, `LOOKS=300` the number of collections timed one after the other.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from e2e.bench.cpu import Meter
from e2e.bench.report import Figure, Goal
from e2e.bench.sizes import counted
from tests.nvml import profiles
from tests.nvml.agents import agent_process
from tests.nvml.kubelet import Kubelet, serving
from tests.nvml.library import ROOT, build, environment
from tests.topology.hub_certificates import Authority
from topology.agent.settings import AgentSettings
from topology.hub.server import Hub, listening
from topology.hub.state import HubState

PODS: Final = 100
WARM_S: Final = 20.0
LOOKS = """
import asyncio, sys, time
from topology.agent.collector import Collector
from topology.agent.nvml_reader import NvmlReader
from topology.agent.pod_resources import PodResources
from topology.agent.sysfs_reader import SysfsReader
async def main(folder, looks):
    made = Collector(NvmlReader(), SysfsReader(folder + '/sys', folder + '/proc'), PodResources(folder + '/k.sock'))
    await made.collect()
    for _ in range(looks):
        cpu = time.process_time()
        await made.collect()
        print(made.took_s * 1e3, (time.process_time() - cpu) * 1e3)
        await asyncio.sleep(0.02)
    assert len(made.facts.gpus) == 8 and len(made.facts.pods.holdings) == 100, made.facts.state
    await made.close()
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def measure() -> Iterator[list[Figure]]:
    """Collections one after the other, then the agent at rest."""
    with tempfile.TemporaryDirectory(prefix="isochrone-agent-") as name:
        folder = profiles.write(profiles.hgx_h100(), Path(name))
        yield asyncio.run(_collections(folder, counted("LOOKS", 300)))
        yield asyncio.run(_at_rest(folder, counted("SECONDS", 60)))


def _kubelet() -> Kubelet:
    machine, made = profiles.hgx_h100(), Kubelet()
    made.allocatable = {"nvidia.com/gpu": [machine.uuid(n) for n in range(8)]}
    made.held = {("ml", f"pod-{n}", "engine"): {"nvidia.com/gpu": [machine.uuid(n % 8)]} for n in range(PODS)}
    return made


async def _collections(folder: Path, inspections: int) -> list[Figure]:
    async with serving(_kubelet(), folder / "k.sock"):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", LOOKS, str(folder), str(inspections)],
            env=environment(build(), folder),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
    rows = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    wall, cpu = (sorted(row[column] for row in rows) for column in (0, 1))
    source = f"{inspections} collections, 8 GPUs with 18 links each, 8 NICs, {PODS} pods; the library answers at once"
    return [
        Figure("collection p99 ms", _at(wall, 0.99), "ms", Goal("<=", 100.0), "100 ms for 8 GPUs", source),
        Figure("collection p50 ms", _at(wall, 0.5), "ms", source=source),
        Figure("collection cpu p50 ms", _at(cpu, 0.5), "ms", source="processor time of the process, " + source),
    ]


async def _at_rest(folder: Path, seconds: int) -> list[Figure]:
    known, authority = HubState(), Authority()
    served = authority.folder(folder / "hub-tls", "hub", "localhost")
    async with serving(_kubelet(), folder / "k.sock"), listening(Hub(known), "127.0.0.1", 0, str(served)) as port:
        settings = {
            "ISOCHRONE_HUB": f"127.0.0.1:{port}",
            "ISOCHRONE_HUB_NAME": "localhost",
            "ISOCHRONE_TLS_DIR": str(authority.folder(folder / "agent-tls", "n1")),
        }
        with agent_process(folder, "n1", settings) as agent:
            await asyncio.sleep(WARM_S)
            assert known.nodes() == ["n1"], agent.log.read_text()
            meter = Meter({"agent": agent.process.pid})
            for _ in range(max(1, seconds // 15)):
                await asyncio.sleep(15)
                await asyncio.to_thread(agent.get, "/metrics")  # as Prometheus would
            usage, rss = meter.read(), agent.rss_mib() * 1.048576
    share = 100 * usage.by_process["agent"] / usage.wall_s
    every = f"{AgentSettings(node_name='n1').collect_every_s:g} s"
    source = f"{usage.wall_s:.0f} s at rest, a collection every {every}, connected to a hub over mTLS, scraped"
    return [
        Figure("rss MB", rss, "MB", Goal("<=", 100.0), "100 MB", source),
        Figure("core percent", share, "%", Goal("<=", 1.0), "1 % of a core", source),
    ]


def _at(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))]
