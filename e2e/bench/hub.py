"""How many agents one hub carries: 5,000 streams over loopback, a connection each, a change of each agent every 15 s.

The hub is a process of its own; this one plays the agents with the agents' own client, mTLS and a certificate each.
Then the hub is killed and started again: how long until every agent is back, and how evenly they come.

`AGENTS=500` shortens it, `SECONDS=45` is how long the steady state is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc.aio

from e2e.bench.cpu import Meter
from e2e.bench.report import Figure, Goal
from e2e.bench.sizes import counted
from tests.topology.hub_certificates import Authority
from topology.agent.hub_client import HubClient, credentials
from topology.agent.settings import AgentSettings
from topology.facts import report as f

ROOT: Final = Path(__file__).resolve().parents[2]
EVERY_S: Final = 15.0
LIMIT_S: Final = 300.0
GIB: Final = 2**30


def measure() -> Iterator[list[Figure]]:
    """One part: it starts from nothing once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # 5,000 times the same when the hub is killed
    logging.getLogger("topology.agent.hub_client").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="isochrone-hub-") as folder:
        yield asyncio.run(_measure(counted("AGENTS", 5_000), counted("SECONDS", 45), Path(folder)))


class Server:
    """The hub's process."""

    def __init__(self, tls: Path, port: int = 0) -> None:
        command = [sys.executable, "-m", "e2e.bench.hub_server", str(port), str(tls)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    async def ask(self) -> dict[str, Any]:
        """What it knows."""
        return await asyncio.to_thread(self._ask)

    def _ask(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def rss_mb(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024 / 1e6

    def kill(self) -> None:
        """As a node that dies would."""
        self.process.kill()
        self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


async def _measure(agents: int, seconds: int, folder: Path) -> list[Figure]:
    authority, chance = Authority(), random.Random(7)
    tls = authority.folder(folder / "hub", "hub", "localhost")
    server = Server(tls)
    clients = [_client(n, server.port, chance, authority.folder(folder / str(n), _name(n))) for n in range(agents)]
    tasks = [asyncio.ensure_future(client.run()) for client in clients]
    acks: list[float] = []
    try:
        for n, client in enumerate(clients):
            client.report(_facts(n, 0))
        first_s = await _all_back(server, agents)
        telling = asyncio.ensure_future(_report(clients, seconds + EVERY_S, chance, acks))
        await asyncio.sleep(EVERY_S)
        meter, before = Meter({"hub": server.process.pid}), await server.ask()
        await asyncio.sleep(seconds)
        usage, after, rss = meter.read(), await server.ask(), server.rss_mb()
        await telling
        fresh = int(after["ages"]["fresh"])
        rate = (after["delta"] - before["delta"]) / usage.wall_s
        server.kill()
        server = Server(tls, server.port)
        storm_s, worst = await _storm(server, agents)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=60)
        server.kill()
    others = f"others took {usage.others_share:.0%} of the machine"
    steady = f"{usage.wall_s:.0f} s, {rate:.0f} changes/s, 8 GPUs a node; {others}"
    core = 100 * usage.by_process["hub"] / usage.wall_s
    back = f"hub killed and started again; at most {worst} came back in one second"
    return [
        Figure(
            "agents", fresh, "", Goal(">=", float(agents)), "5,000 on one hub", "fresh at the end of the steady state"
        ),
        Figure("core percent", core, "%", source=steady),
        Figure("rss MB", rss, "MB", source=steady),
        Figure(
            "ack p99 ms", _at(acks, 0.99), "ms", source="client's own share included: it plays all agents on one core"
        ),
        Figure("connect s", first_s, "s", source="all agents from nothing to a full report taken"),
        Figure("reconnect s", storm_s, "s", source=back),
    ]


def _name(number: int) -> str:
    return f"node-{number:05d}"


def _client(number: int, port: int, chance: random.Random, tls: Path) -> HubClient:
    settings = AgentSettings(node_name=_name(number), hub=f"localhost:{port}", tls_dir=str(tls))
    # Without a pool of its own, gRPC would carry all channels of this process over one connection.
    options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    options.append(("grpc.ssl_target_name_override", "localhost"))
    return HubClient(
        settings,
        boot_id="b",
        version="bench",
        chance=chance.random,
        channel=lambda: grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials(str(tls)), options=options),
    )


async def _report(clients: list[HubClient], seconds: float, chance: random.Random, acks: list[float]) -> None:
    """Every agent's memory readings change each EVERY_S, all agents spread over that time; some acks are timed."""
    until = time.monotonic() + seconds
    order = list(range(len(clients)))
    chance.shuffle(order)
    turn = 0
    while time.monotonic() < until:
        turn += 1
        began = time.monotonic()
        for place, n in enumerate(order):
            clients[n].report(_facts(n, turn))
            if place % 50 == 0:
                acks.append(await _acknowledged(clients[n]))
            late_s = began + EVERY_S * place / len(order) - time.monotonic()
            if late_s > 0:
                await asyncio.sleep(late_s)


async def _acknowledged(client: HubClient) -> float:
    """Milliseconds until the hub took the report that was just told."""
    before, began = sum(client.sent.values()), time.perf_counter()
    while sum(client.sent.values()) == before and time.perf_counter() - began < 5:
        await asyncio.sleep(0.001)
    return (time.perf_counter() - began) * 1e3


async def _all_back(server: Server, agents: int) -> float:
    began = time.monotonic()
    while (await server.ask())["ages"]["fresh"] < agents:
        if time.monotonic() - began > LIMIT_S:
            raise ValueError(f"only {(await server.ask())['ages']} of {agents} agents came within {LIMIT_S:.0f} s")
        await asyncio.sleep(0.2)
    return time.monotonic() - began


async def _storm(server: Server, agents: int) -> tuple[float, int]:
    """Seconds until all are back, and the most that came in one second."""
    began, last, worst = time.monotonic(), 0, 0
    while last < agents and time.monotonic() - began < LIMIT_S:
        await asyncio.sleep(1)
        now = int((await server.ask())["ages"]["fresh"])
        worst, last = max(worst, now - last), now
    return time.monotonic() - began, worst


def _facts(number: int, turn: int) -> f.NodeFacts:
    """An 8-GPU node behind switches; the memory of two GPUs changes each turn."""
    base = _BASES.get(number) or _BASES.setdefault(number, _base(number))
    memory = tuple(
        f.Memory(uuid=m.uuid, total_bytes=80 * GIB, reserved_bytes=GIB, used_bytes=(turn if n < 2 else 0) * 2**20)
        for n, m in enumerate(base.memory)
    )
    at_s = 1e9 + turn * EVERY_S
    return replace(base, memory=memory, state=replace(base.state, collected_at_s=at_s, nvml_good_at_s=at_s))


def _base(number: int) -> f.NodeFacts:
    uuids = [f"GPU-{n:08x}-0000-4000-8000-{number:012x}" for n in range(8)]
    path = ("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0")
    near = tuple((uuid, f.Distance.NODE) for uuid in uuids)
    return f.NodeFacts(
        state=f.NodeState(collected_at_s=1e9, topology_generation=1, nvml=f.NvmlState.OK, driver_version="580.105.08"),
        gpus=tuple(
            f.Gpu(uuid=u, index=n, name="NVIDIA H100", bus_id=path[-1], pci_path=path, nvlinks=_LINKS)
            for n, u in enumerate(uuids)
        ),
        memory=tuple(f.Memory(uuid=uuid) for uuid in uuids),
        pairs=tuple(f.GpuPair(a=a, b=b, distance=f.Distance.SYS) for i, a in enumerate(uuids) for b in uuids[i + 1 :]),
        nics=tuple(f.Nic(name=f"mlx5_{n}", rdma=True, pci_path=path, gpus=near) for n in range(8)),
    )


_BASES: dict[int, f.NodeFacts] = {}
_LINKS: Final = tuple(
    f.NvLink(
        link=n, active=True, version="4.0", speed_mbps=212_496, remote=f.Remote.SWITCH, remote_bus_id="0000:c4:00.0"
    )
    for n in range(18)
)


def _at(values: list[float], part: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(part * len(ranked)))]
