"""The webhook as it runs: its own process on one core, TLS, admission reviews over connections that stay open.

Two parts. At a steady 200 reviews a second, each sent at its moment whatever became of the ones before, the time from
that moment to the answer. Then as many as it takes from a few connections, against the processor time that the process
used: reviews a second for each core. The pods are of five kinds, each with its own name, as a controller makes them.
In the first part both processes go before others on the machine where the system allows it (real-time, lowest rank),
for neighbours would decide the figure otherwise; together they use a fifth of a core there.

`SECONDS=5` shortens both parts.
"""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from admission.certificates.authority import issue
from e2e.bench.cpu import Meter
from e2e.bench.report import Figure, Goal, matrix
from e2e.bench.reviews import reviews
from e2e.bench.sizes import counted

NAME: Final = "isochrone-webhook.isochrone-system.svc"
RATE: Final = 200
CONNECTIONS: Final = 8
WARM: Final = 400
READY_LIMIT_S: Final = 30.0
WEBHOOK: Final = "webhook"


def measure() -> Iterator[list[Figure]]:
    """`p99 ms` and `requests per core per s`."""
    seconds = counted("SECONDS", 20)
    with tempfile.TemporaryDirectory() as folder, _served(Path(folder)) as (process, port, trust):
        yield asyncio.run(_measured(process.pid, port, trust, seconds))


@contextmanager
def _served(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, ssl.SSLContext]]:
    """`isochrone webhook` with a certificate of its own, pinned to the last core; this process keeps off it."""
    bundle = issue((NAME,), datetime.now(UTC))
    (folder / "tls.crt").write_bytes(bundle.certificate)
    (folder / "tls.key").write_bytes(bundle.key)
    port, health = _free_ports()
    settings = {
        "ISOCHRONE_LISTEN": f"127.0.0.1:{port}",
        "ISOCHRONE_HEALTH_LISTEN": f"127.0.0.1:{health}",
        "ISOCHRONE_CERT_DIR": str(folder),
        "ISOCHRONE_DRAIN": "1ms",
        "ISOCHRONE_LOG_LEVEL": "warning",
    }
    cores = sorted(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-m", "admission.cli", "webhook"], env={**os.environ, **settings})
    try:
        os.sched_setaffinity(process.pid, {cores[-1]})
        os.sched_setaffinity(0, set(cores[:-1]) or {cores[-1]})
        yield process, port, ssl.create_default_context(cadata=bundle.ca.decode())
    finally:
        os.sched_setaffinity(0, set(cores))
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


async def _measured(pid: int, port: int, trust: ssl.SSLContext, seconds: int) -> list[Figure]:
    await _ready(port, trust)
    connections = [await Connection.open(port, trust) for _ in range(CONNECTIONS)]
    requests = _requests(max(RATE * seconds, 20_000))
    await _closed(connections, requests[:WARM])
    spent = Meter({WEBHOOK: pid})
    with _before_others(pid, os.getpid()) as first:
        latencies = await _paced(connections, requests[: RATE * seconds])
    paced = spent.read()
    spent = Meter({WEBHOOK: pid})
    began = time.monotonic()
    answered = await _closed(connections, requests, seconds)
    wall_s, used = time.monotonic() - began, spent.read()
    for each in connections:
        each.writer.close()
    per_core = answered / max(used.by_process[WEBHOOK], 1e-9)
    rows = [
        ("p50 ms", f"{_percentile(latencies, 0.5):.2f}"),
        ("p90 ms", f"{_percentile(latencies, 0.9):.2f}"),
        ("p99 ms", f"{_percentile(latencies, 0.99):.2f}"),
        ("longest ms", f"{latencies[-1]:.2f}"),
        ("its core's part at 200/s", f"{paced.by_process[WEBHOOK] / paced.wall_s:.3f}"),
        ("reviews/s by the clock", f"{answered / wall_s:.0f}"),
        ("others on the machine, then", f"{paced.others_share:.2f}, {used.others_share:.2f}"),
    ]
    matrix("webhook", ("", "value"), rows)
    sent = f"{len(latencies)} reviews at {RATE}/s over {CONNECTIONS} TLS connections, from the moment of each"
    others = f"others used {paced.others_share:.0%} of the machine" + (", went before them" if first else "")
    cpu = f"{answered} reviews, processor time of the process"
    return [
        Figure("p99 ms", _percentile(latencies, 0.99), "ms", Goal("<=", 5.0), source=f"{sent}; {others}"),
        Figure("requests per core per s", per_core, "1/s", Goal(">=", 2000.0), source=cpu),
    ]


@contextmanager
def _before_others(*pids: int) -> Iterator[bool]:
    """Real-time scheduling of these processes while the context lasts; False where that is not allowed."""
    try:
        for pid in pids:
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        for pid in pids:
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def _percentile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _requests(count: int) -> list[bytes]:
    """Whole HTTP requests, every pod with a name of its own."""
    kinds = reviews()
    found = []
    for number in range(count):
        path, body = kinds[number % len(kinds)]
        body = body.replace(b'"chat-7459345bb-"', b'"chat-7459345bb-","name":"chat-7459345bb-%06d"' % number)
        head = f"POST {path}?timeout=3s HTTP/1.1\r\nHost: {NAME}\r\nContent-Type: application/json\r\n"
        found.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return found


class Connection:
    """One connection that stays open; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, trust: ssl.SSLContext) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=NAME))

    async def ask(self, request: bytes) -> None:
        """Sends and reads the whole answer; anything but 200 is an error."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        at = lower.index(b"content-length:") + 15
        body = await self.reader.readexactly(int(lower[at : lower.index(b"\r\n", at)]))
        if not head.startswith(b"HTTP/1.1 200") or b'"allowed":true' not in body:
            raise ValueError(f"the webhook answered {head[:60]!r} {body[:200]!r}")


async def _ready(port: int, trust: ssl.SSLContext) -> None:
    until = time.monotonic() + READY_LIMIT_S
    while True:
        try:
            connection = await Connection.open(port, trust)
        except OSError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.05)
        else:
            connection.writer.close()
            return


async def _paced(connections: Sequence[Connection], requests: Sequence[bytes]) -> list[float]:
    """Milliseconds from the moment when each was due, in order of length. A busy connection makes the next one wait."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for each in connections:
        free.put_nowait(each)
    found: list[float] = []
    began = time.monotonic() + 0.1

    async def one(due: float, request: bytes) -> None:
        connection = await free.get()
        await connection.ask(request)
        found.append((time.monotonic() - due) * 1e3)
        free.put_nowait(connection)

    running: set[asyncio.Task[None]] = set()
    for number, request in enumerate(requests):
        due = began + number / RATE
        await asyncio.sleep(due - time.monotonic())
        # The sender's own lateness is not the webhook's.
        task = asyncio.create_task(one(max(due, time.monotonic()), request))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return sorted(found)


async def _closed(connections: Sequence[Connection], requests: Sequence[bytes], limit_s: float = 60.0) -> int:
    """Every connection asks again as soon as it has its answer; how many were answered."""
    left = deque(requests)
    until = time.monotonic() + limit_s
    answered = 0

    async def worker(connection: Connection) -> None:
        nonlocal answered
        while left and time.monotonic() < until:
            await connection.ask(left.popleft())
            answered += 1

    await asyncio.gather(*(worker(each) for each in connections))
    return answered
