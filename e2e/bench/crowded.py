"""`isochrone controller` beside an API server of a crowd, both as processes of their own, and what it uses."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.bench.cpu import of_process
from e2e.stack.build import CHECKOUT
from e2e.stack.ports import Ports

READY_LIMIT_S: Final = 300.0
REST_S: Final = 1.0
REST_SHARE: Final = 0.03
"""A process that used at most this part of a core for a second has done what it had to do."""

_KUBECONFIG: Final = """\
apiVersion: v1
kind: Config
current-context: crowd
contexts: [{{name: crowd, context: {{cluster: crowd, user: crowd}}}}]
clusters: [{{name: crowd, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: crowd, user: {{}}}}]
"""


@dataclass(frozen=True, slots=True)
class Crowded:
    """The controller's process, and where its API server listens."""

    pid: int
    server_port: int

    def memory_bytes(self, field: str = "VmRSS") -> int:
        """What the kernel counts: VmRSS now, VmHWM at its highest."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.M)
        assert found is not None
        return int(found[1]) * 1024

    def cpu_s(self) -> float:
        """User and system seconds so far."""
        return of_process(self.pid)

    def churn(self, rate: float, seconds: float) -> int:
        """Has so many pod events a second sent for so long; the number sent."""
        url = f"http://127.0.0.1:{self.server_port}/churn?rate={rate:g}&seconds={seconds:g}"
        request = urllib.request.Request(url, method="POST")
        with urllib.request.urlopen(request, timeout=seconds + 60) as answer:
            return int(answer.read())

    def rest(self, limit_s: float = READY_LIMIT_S) -> None:
        """Waits until the controller has nothing to do."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            before = self.cpu_s()
            time.sleep(REST_S)
            if self.cpu_s() - before <= REST_SHARE * REST_S:
                return
        raise TimeoutError(f"the controller still works after {limit_s:g} s")


@contextlib.contextmanager
def crowded(nodes: int, pods: int) -> Iterator[Crowded]:
    """The controller once it has listed everything and looked through it. Both processes end with the context."""
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    with contextlib.ExitStack() as stack:
        ports = Ports()
        stack.callback(ports.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="isochrone-crowd-")))
        server = [sys.executable, "-m", "e2e.bench.crowd_server", str(nodes), str(pods)]
        serving = stack.enter_context(_started(server, env))
        assert serving.stdout is not None
        port = int(serving.stdout.readline())
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(_KUBECONFIG.format(port=port))
        health = ports.take()
        env |= {
            "ISOCHRONE_KUBECONFIG": str(kubeconfig),
            "ISOCHRONE_HEALTH_LISTEN": f"127.0.0.1:{health}",
            "ISOCHRONE_EXTENDER_LISTEN": f"127.0.0.1:{ports.take()}",
        }
        running = stack.enter_context(_started([sys.executable, "-m", "admission.cli", "controller"], env))
        _wait_ready(running, health)
        found = Crowded(running.pid, port)
        found.rest()
        yield found


@contextlib.contextmanager
def _started(argv: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _wait_ready(process: subprocess.Popen[str], port: int) -> None:
    until = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the controller ended with {process.returncode}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
            return
        time.sleep(0.2)
    raise TimeoutError(f"the controller was not ready within {READY_LIMIT_S:g} s")
