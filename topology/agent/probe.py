"""EDGE. Probes between agents: one page each way over a warm TCP connection, and the side that answers.

Plain sockets in threads, since an event loop's own turns would be a good part of what is measured. A round is a ping, a
push and a pull; a few rounds go back to back, then a bucket of bytes says how long to wait. What is measured is host
memory to host memory through this process, so it is an upper reading by some tens of microseconds. RDMA is the matter
of topology/agent/rdma_probe.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import threading
import time  # an edge: what a message took is what it measures
from collections.abc import Callable
from typing import Final

from topology.agent.rdma_probe import RdmaProbe
from topology.agent.settings import host_port
from topology.bad_input import BadInput
from topology.clock import monotonic_s, wall_time_s
from topology.facts import agent_pb2 as wire
from topology.facts.report import ReachSample
from topology.measured.probe_stats import LINK_SHARE, WARM_ROUNDS, ProbeSummary, Round, of_rounds
from topology.token_bucket import TokenBucket

log = logging.getLogger(__name__)

MAGIC: Final = b"ISOP1"
_HELLO: Final = struct.Struct("!5sI")  # magic, page size
_ASK: Final = struct.Struct("!B")
PING, PUSH, PULL = 1, 2, 3
ANSWER: Final = b"\x06"
MAX_SIZE: Final = 8 * 2**20
MAX_COUNT: Final = 1000
MAX_ROUNDS: Final = 4 * (MAX_COUNT + WARM_ROUNDS)  # questions that one connection may ask: three a round, and some
MAX_CONNECTIONS: Final = 4
SILENT_S: Final = 30.0
TOGETHER: Final = 4
"""Rounds back to back: the first after a pause wakes the connection and is not counted."""
LIMIT_S: Final = 100.0
DEFAULT_LINK_BYTES_PER_S: Final = 125e6  # 1 Gb/s, where nobody knows better
RDMA, TCP = "rdma", "tcp"


def measure(host: str, port: int, size: int, count: int, link_bytes_per_s: float) -> ProbeSummary | None:
    """Probes one peer; blocks as LINK_SHARE wants, at most LIMIT_S. Raises OSError if it does not answer."""
    until = monotonic_s() + LIMIT_S
    turn_bytes = (TOGETHER + 1) * 2 * size
    bucket = TokenBucket(link_bytes_per_s * LINK_SHARE, turn_bytes, monotonic_s())
    page, into = bytes(size), bytearray(size)
    rounds: list[Round] = []
    with socket.create_connection((host, port), timeout=SILENT_S) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(_HELLO.pack(MAGIC, size))
        while len(rounds) < count + WARM_ROUNDS and monotonic_s() < until:
            wait_s = bucket.take(monotonic_s(), turn_bytes)
            if monotonic_s() + wait_s > until:
                break
            time.sleep(wait_s)
            _round(peer, page, into)
            rounds += [_round(peer, page, into) for _ in range(TOGETHER)]
    return of_rounds(rounds)


def _round(peer: socket.socket, page: bytes, into: bytearray) -> Round:
    began = time.perf_counter()
    peer.sendall(_ASK.pack(PING))
    _read(peer, memoryview(into)[:1])
    pinged = time.perf_counter()
    peer.sendall(_ASK.pack(PUSH) + page)
    _read(peer, memoryview(into)[:1])
    pushed = time.perf_counter()
    peer.sendall(_ASK.pack(PULL))
    _read(peer, memoryview(into))
    pulled = time.perf_counter()
    return Round((pinged - began) * 1e6, (pushed - pinged) * 1e6, (pulled - pushed) * 1e6)


def _read(peer: socket.socket, into: memoryview) -> None:
    while into:
        got = peer.recv_into(into)
        if got == 0:
            raise ConnectionError("the peer hung up")
        into = into[got:]


class ProbeServer:
    """Answers probes of other agents: at most MAX_CONNECTIONS at a time, each for a bounded number of questions."""

    def __init__(self, listen: str) -> None:
        host, port = host_port(listen, "ISOCHRONE_PROBE_LISTEN")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        except OSError as error:
            allowed = f"it must be an address of this node that is free: {error.strerror}"
            raise BadInput("ISOCHRONE_PROBE_LISTEN", listen, allowed) from None
        self.port: int = self._socket.getsockname()[1]
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the listener and every connection."""
        for each in (self._socket, *list(self._open)):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join(timeout=5.0)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            if not self._free.acquire(blocking=False):
                peer.close()
                continue
            self._open.add(peer)
            threading.Thread(target=self._serve, args=(peer,), name="probe", daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer:
                _answer(peer)
        except OSError:
            pass  # the other side went away, or was silent for too long
        finally:
            self._open.discard(peer)
            self._free.release()


def _answer(peer: socket.socket) -> None:
    """One connection until it ends. A peer that speaks something else is hung up on."""
    peer.settimeout(SILENT_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = bytearray(_HELLO.size)
    _read(peer, memoryview(head))
    magic, size = _HELLO.unpack(head)
    if magic != MAGIC or not 1 <= size <= MAX_SIZE:
        return
    page, into, demand = bytes(size), memoryview(bytearray(size)), memoryview(bytearray(1))
    for _ in range(MAX_ROUNDS):
        _read(peer, demand)
        if demand[0] == PUSH:
            _read(peer, into)
        elif demand[0] not in (PING, PULL):
            return
        peer.sendall(page if demand[0] == PULL else ANSWER)


class ProbeRunner:
    """Carries out the hub's orders, one at a time; `report` gets each sample. The link's rate is read at each probe."""

    def __init__(
        self,
        report: Callable[[ReachSample], None],
        link_bytes_per_s: Callable[[], float | None],
        rdma: RdmaProbe | None = None,
    ) -> None:
        self._report, self._rdma = report, rdma
        self._link = link_bytes_per_s
        self._orders: asyncio.Queue[wire.ProbeOrder] = asyncio.Queue(maxsize=16)
        self._logged_rdma = False
        self.made = 0
        self.failed = 0

    def take(self, orders: wire.ProbeOrders) -> None:
        """Orders from the hub; beyond sixteen that wait, more are dropped: the hub asks again."""
        for order in orders.orders[:16]:
            if order.transport == RDMA and self._rdma is None:
                if not self._logged_rdma:
                    log.info("RDMA is not probed: no program is named for it")
                    self._logged_rdma = True
                continue
            if order.serve:
                if order.transport == RDMA and self._rdma is not None:
                    self._rdma.serve(order)
                continue
            if not self._orders.full():
                self._orders.put_nowait(order)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.probe(await self._orders.get())

    async def probe(self, order: wire.ProbeOrder) -> ReachSample | None:
        """One order; None, and a line in the log, if it cannot be carried out."""
        size, count = order.size_bytes, min(order.count or 100, MAX_COUNT)
        try:
            if order.transport == RDMA and self._rdma is not None:
                found: ProbeSummary | None = await self._rdma.measure(order)
            else:
                host, port = host_port(order.address, "address")
                if not 1 <= size <= MAX_SIZE:
                    raise BadInput("size_bytes", size, f"use 1 to {MAX_SIZE}")
                rate = self._link() or DEFAULT_LINK_BYTES_PER_S
                found = await asyncio.to_thread(measure, host, port, size, count, rate)
        except (OSError, BadInput) as error:
            self.failed += 1
            log.info("probe of %s at %s: %s", order.peer, order.address, error or "it took too long")
            return None
        if found is None:
            self.failed += 1
            return None
        sample = ReachSample(
            peer=order.peer,
            size_bytes=size,
            p50_us=found.p50_us,
            p99_us=found.p99_us,
            p999_us=found.p999_us,
            count=found.count,
            transport=RDMA if order.transport == RDMA else TCP,
            measured_at_s=wall_time_s(),
        )
        self.made += 1
        self._report(sample)
        return sample
