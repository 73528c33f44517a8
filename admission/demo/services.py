"""EDGE. Isochrone's own services as processes on loopback: started, waited for, ended, their last words kept.

Decides how a service is started and when it counts as ready. It must never know what they do. They are the very
programs that run in a cluster; only addresses and the kubeconfig differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from topology.clock import monotonic_s

READY_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.05
_STOP_LIMIT_S: Final = 5.0
_TAIL_LINES: Final = 25
_FIRST_PORT: Final = 15_000
_PORTS: Final = 17_000
_PORTS_TRIED: Final = 50
_CODE: Final = str(Path(__file__).resolve().parents[2])


class NotReadyError(Exception):
    """A service ended, or did not become ready in time."""


@dataclass(slots=True)
class Service:
    """One running service."""

    name: str
    process: asyncio.subprocess.Process
    port: int
    health_port: int
    log: Path

    def tail(self) -> str:
        """The end of what it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])


class Services:
    """Starts services; `stop` ends them all, whatever happened before."""

    def __init__(self, folder: Path, kubeconfig: str) -> None:
        self._folder, self._kubeconfig = folder, kubeconfig
        self.running: list[Service] = []
        self._last_port = _FIRST_PORT + os.getpid() * _PORTS_TRIED % _PORTS

    async def start(self, name: str, listen: str, more: Mapping[str, str] | None = None) -> Service:
        """Starts `isochrone NAME`; `listen` is the setting that says where it serves."""
        port, health_port = _free_ports(2, self._last_port)
        self._last_port = health_port
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ISOCHRONE_", "KUBE"))}
        ours = {
            listen: f"127.0.0.1:{port}",
            "ISOCHRONE_HEALTH_LISTEN": f"127.0.0.1:{health_port}",
            "ISOCHRONE_KUBECONFIG": self._kubeconfig,
            # The checkout (or the installation) that the demo itself runs from is what is shown.
            "PYTHONPATH": _CODE,
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        log = self._folder / f"{name}.log"
        with log.open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "admission.cli", name),
                env=inherited | ours | dict(more or {}),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )
        service = Service(name, process, port, health_port, log)
        self.running.append(service)
        return service

    async def wait_ready(self, http: aiohttp.ClientSession, limit_s: float = READY_LIMIT_S) -> None:
        """Waits until each says so. Raises NotReadyError."""
        end_s = monotonic_s() + limit_s
        for service in self.running:
            while not await _ready(http, service.health_port):
                if service.process.returncode is not None:
                    raise NotReadyError(f"{service.name} ended with code {service.process.returncode}")
                if monotonic_s() > end_s:
                    raise NotReadyError(f"{service.name} was not ready within {limit_s:g} s")
                await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Asks them to end, and ends those that do not."""
        for service in self.running:
            with contextlib.suppress(ProcessLookupError):
                service.process.terminate()
        for service in self.running:
            try:
                async with asyncio.timeout(_STOP_LIMIT_S):
                    await service.process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    service.process.kill()
                await service.process.wait()


async def _ready(http: aiohttp.ClientSession, port: int) -> bool:
    try:
        async with http.get(f"http://127.0.0.1:{port}/readyz", timeout=aiohttp.ClientTimeout(total=1.0)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _free_ports(count: int, after: int) -> list[int]:
    """Ports above `after` that are free now.

    They lie below those that Linux gives to whoever wants any port, so nobody takes one before its service does; and
    another demo begins its search elsewhere.
    """
    found: list[int] = []
    for port in itertools.islice(itertools.count(after + 1), _PORTS_TRIED):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise NotReadyError(f"no free port among {_PORTS_TRIED} from {after + 1}: end what listens there")
