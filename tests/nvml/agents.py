"""Agent processes on made-up machines: the real command, the real pynvml, a real (if empty) GPU library."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.nvml.library import ROOT, build, environment

LIMIT_S = 60.0


@dataclass
class AgentProcess:
    """One agent; `port` of its health endpoint."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def get(self, path: str) -> tuple[int, str]:
        """An answer of its health endpoint."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=LIMIT_S) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """One sample by its name and labels as they are printed."""
        lines = dict(line.rsplit(" ", 1) for line in self.get("/metrics")[1].splitlines() if not line.startswith("#"))
        return float(lines[name])

    def rss_mib(self) -> float:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


@contextlib.contextmanager
def agent_process(folder: Path, node: str, settings: Mapping[str, str]) -> Iterator[AgentProcess]:
    """`isochrone agent` on the machine written to `folder` (see profiles.write), until the context ends."""
    log = folder / f"{node}.log"
    given = environment(build(), folder) | {
        "ISOCHRONE_NODE_NAME": node,
        "ISOCHRONE_SYS_ROOT": str(folder / "sys"),
        "ISOCHRONE_PROC_ROOT": str(folder / "proc"),
        "ISOCHRONE_POD_RESOURCES": str(folder / "k.sock"),
        "ISOCHRONE_HEALTH_LISTEN": "127.0.0.1:0",
        **settings,
    }
    command = [sys.executable, "-m", "admission.cli", "agent"]
    with open(log, "w") as output:
        process = subprocess.Popen(command, env=given, cwd=ROOT, stdout=output, stderr=output, text=True)
    try:
        yield AgentProcess(process, _port(process, log), log)
    finally:
        process.terminate()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(LIMIT_S)


def _port(process: subprocess.Popen[str], log: Path) -> int:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        for line in log.read_text().splitlines():
            if "health on 127.0.0.1:" in line:
                return int(line.rsplit(":", 1)[1])
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError(f"the agent did not start:\n{log.read_text()}")
