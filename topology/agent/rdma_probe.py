"""EDGE. A probe over RDMA: perftest's own program, run once on either side when the hub says so.

There is no RDMA library for Python to lean on, so the program that administrators measure with does it, where it is
installed: `ib_write_lat`, or what `ISOCHRONE_RDMA_PROBE` names. It decides how long the program may run, how much it
may say, and how long it rests afterwards, so that pages take no more than a thousandth of the link over the whole. It
must never decide who probes whom.

Public sources: perftest man page (options -d, -i, -s, -n, -p, -F; at least 5 iterations; write and send latencies are
half a ping-pong, connection set-up left out).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
from collections.abc import Callable
from typing import Final

from topology.agent.settings import AgentSettings, host_port
from topology.bad_input import BadInput
from topology.clock import monotonic_s
from topology.facts import agent_pb2 as wire
from topology.facts.report import Nic, NodeFacts
from topology.measured.probe_stats import ENOUGH_FOR_P99, LINK_SHARE, ProbeSummary

log = logging.getLogger(__name__)

BYTES_PER_MBIT: Final = 125_000.0
MAX_SIZE: Final = 8 * 2**20
MOST_ITERATIONS: Final = 1000
LEAST_ITERATIONS: Final = 5  # perftest's own
REST_LIMIT_S: Final = 60.0  # a probe sends no more than what a thousandth of the link carries in this time
SERVE_LIMIT_S: Final = 45.0
RUN_LIMIT_S: Final = 20.0
MEET_LIMIT_S: Final = 15.0  # for the other side's program to be there
AGAIN_S: Final = 0.5
MOST_OUTPUT: Final = 256 * 1024


class RdmaProbe:
    """`facts` are the node's newest. Both sides use the first RDMA device by name that has an active port."""

    def __init__(self, settings: AgentSettings, facts: Callable[[], NodeFacts | None]) -> None:
        """Raises BadInput for a command that cannot be read."""
        try:
            self._command = shlex.split(settings.rdma_probe)
        except ValueError as error:
            raise BadInput("ISOCHRONE_RDMA_PROBE", settings.rdma_probe, f"it is no command: {error}") from None
        if ":" in settings.probe_host:
            self._command += ["--ipv6-addr"] * bool(self._command)  # perftest's own default is IPv4
        self._port, self._facts = settings.rdma_port, facts
        self._serving: asyncio.Task[str] | None = None

    def port(self) -> int | None:
        """Where this node's program can be met: there is one, and a device for it. Else None."""
        there = bool(self._command) and os.access(self._command[0], os.X_OK)
        return self._port if there and _device(self._facts()) is not None else None

    def serve(self, order: wire.ProbeOrder) -> None:
        """Starts the program for one peer to meet; one at a time, for a bounded time."""
        if self._serving is not None and not self._serving.done():
            log.info("RDMA probe for %s: another is under way", order.peer)
            return
        self._serving = asyncio.ensure_future(self._serve(order))

    async def close(self) -> None:
        """Ends the program, if it runs."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])

    async def measure(self, order: wire.ProbeOrder) -> ProbeSummary:
        """Meets the peer's program and rests. Raises BadInput, OSError or TimeoutError, in words, if that fails."""
        host, port = host_port(order.address, "address")
        arguments, count, rate = self._arguments(order, port)
        until = monotonic_s() + MEET_LIMIT_S
        while True:
            began = monotonic_s()
            try:
                output = await self._run([*arguments, host], RUN_LIMIT_S)
                break
            except OSError:
                if monotonic_s() > until:
                    raise
                await asyncio.sleep(AGAIN_S)  # the other side is not there yet
        found = _summary(output, order.size_bytes)
        sent = 2 * order.size_bytes * count
        await asyncio.sleep(max(0.0, sent / (rate * LINK_SHARE) - (monotonic_s() - began)))
        return found

    async def _serve(self, order: wire.ProbeOrder) -> str:
        try:
            arguments, _, _ = self._arguments(order, self._port)
            return await self._run(arguments, SERVE_LIMIT_S)
        except (OSError, BadInput, TimeoutError) as error:
            log.info("RDMA probe for %s: %s", order.peer, error or "nobody came")
            return ""

    def _arguments(self, order: wire.ProbeOrder, port: int) -> tuple[list[str], int, float]:
        """The command, how many pages it sends each way, and the link's bytes a second."""
        found = _device(self._facts())
        if not self._command or found is None:
            raise BadInput("transport", order.transport, "this node has no program or no device for it")
        nic, number, mbps = found
        if not 1 <= order.size_bytes <= MAX_SIZE:
            raise BadInput("size_bytes", order.size_bytes, f"use 1 to {MAX_SIZE}")
        rate = mbps * BYTES_PER_MBIT
        most = int(REST_LIMIT_S * rate * LINK_SHARE / (2 * order.size_bytes))
        count = max(LEAST_ITERATIONS, min(order.count or ENOUGH_FOR_P99, MOST_ITERATIONS, most))
        options = ["-d", nic.name, "-i", number, "-s", order.size_bytes, "-n", count, "-p", port]
        return [*self._command, "-F", *map(str, options)], count, rate

    async def _run(self, arguments: list[str], limit_s: float) -> str:
        """What the program says. Raises OSError if it fails, TimeoutError if it takes longer; it is ended then."""
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.defpath, "LC_ALL": "C"},  # nothing of ours is handed on
        )
        try:
            async with asyncio.timeout(limit_s):
                assert process.stdout is not None, "asked for"
                output = b""
                while len(output) <= MOST_OUTPUT and (more := await process.stdout.read(65536)):
                    output += more
                if len(output) > MOST_OUTPUT:
                    raise OSError(f"{arguments[0]} says more than {MOST_OUTPUT} bytes")
                code = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        text = output.decode("utf-8", "replace")
        if code:
            last = " ".join(text.split())[-200:]
            raise OSError(f"{arguments[0]} ended with {code}: {last}")
        return text


def _device(facts: NodeFacts | None) -> tuple[Nic, int, int] | None:
    """The first RDMA device with an active port whose rate is known: device, port, megabits a second."""
    nics = sorted((nic for nic in facts.nics if nic.rdma), key=lambda nic: nic.name) if facts is not None else []
    for nic in nics:
        for port in nic.ports:
            if port.active and port.rate_mbps:
                return nic, port.port, port.rate_mbps
    return None


def _summary(text: str, size: int) -> ProbeSummary:
    """The one row of the program's table. Raises BadInput."""
    from topology.reach.measurement import TAIL, Direction
    from topology.readers.perftest import read_perftest  # read only where a probe was made

    rows = [row for row in read_perftest(text, "ib_write_lat").pairs if row.size_bytes == size and row.p50_us]
    if len(rows) != 1 or rows[0].p50_us is None or rows[0].count is None:
        raise BadInput("the program's answer", f"{len(rows)} rows", f"one row of {size} bytes with its typical time")
    row = rows[0]
    # A read is timed there and back; it stands whole, as an upper bound.
    p50, count = rows[0].p50_us, rows[0].count
    if row.p99_us is None or (count < ENOUGH_FOR_P99 and row.direction is not Direction.UNKNOWN):
        return ProbeSummary(p50, p50 * TAIL, max(row.max_us or 0.0, p50 * TAIL), count, "p50")
    return ProbeSummary(p50, max(p50, row.p99_us), max(p50, row.p99_us, row.p999_us or 0.0), count)
