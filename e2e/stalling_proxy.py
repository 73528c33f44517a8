"""A proxy before the API server that holds chosen writes back, so that a test can stop the world between two steps.

It speaks TLS with a certificate of the stack's authority on both sides and passes everything else on at once, watches
too. What is held was read but not forwarded: to the API server it was never sent. It can also do the opposite: pass a
write on and cut the connection before its answer, so that only the API server knows that it was done.
"""

import asyncio
import contextlib
import re
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import CONTROLLER, Isochrone
from e2e.stack.processes import LIMIT_S, wait_until

CHUNK = 64 * 1024
HEAD_LIMIT = 256 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    body: str


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request: path and body are regular expressions that are found somewhere in it."""

    method: str
    path: str
    body: str

    def matches(self, request: Request) -> bool:
        """Whether this is one."""
        return (
            request.method == self.method
            and re.search(self.path, request.path) is not None
            and re.search(self.body, request.body) is not None
        )


NOMINATE = Kind("PATCH", r"/pods/[^/]+/status(\?|$)", "nominatedNodeName")
RELEASE = Kind("PATCH", r"/pods/[^/]+(\?|$)", r'"remove", *"path": *"/spec/schedulingGates')
GROUP = Kind("PATCH", r"/podgroups/[^/]+(\?|$)", "minMember")


@dataclass(slots=True)
class Rule:
    """What is done with one kind of request: the first `let_through` pass, the answers of the next `to_lose` are lost,
    and all others are held if `holds`."""

    kind: Kind
    let_through: int = 0
    to_lose: int = 0
    holds: bool = False
    held: list[Request] = field(default_factory=list)
    lost: list[Request] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    forward: bool = False


class StallingProxy:
    """Runs in a thread of its own; all its methods may be called from the test."""

    def __init__(self, cluster: Cluster) -> None:
        target = urlsplit(cluster.url)
        assert target.hostname is not None
        assert target.port is not None
        self._target = (target.hostname, target.port)
        self._out = ssl.create_default_context(cafile=str(cluster.ca_file))
        pair = cluster.authority.issue("stalling-proxy")
        self._in = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._in.load_cert_chain(pair.certificate, pair.key)
        self.port = cluster.ports.take()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="stalling-proxy", daemon=True)
        self._listening = threading.Event()
        self._stop = asyncio.Event()
        self._rule: Rule | None = None
        self.seen: list[Request] = []
        """Every write that came, held or not."""

    @property
    def url(self) -> str:
        """What a kubeconfig names as its server."""
        return f"https://127.0.0.1:{self.port}"

    def hold(self, kind: Kind, let_through: int = 0) -> None:
        """From now on holds this kind; ends an earlier rule, whose held requests are dropped."""
        self.resume(forward=False)
        self._rule = Rule(kind, let_through, holds=True)

    def lose_answers(self, kind: Kind, count: int) -> Rule:
        """The next so many requests of this kind are done, and nobody hears of it; the rule fills up with them."""
        self.resume(forward=False)
        self._rule = Rule(kind, to_lose=count)
        return self._rule

    def wait_held(self, count: int = 1, limit_s: float = LIMIT_S) -> None:
        """Waits until so many requests are held."""
        rule = self._rule
        assert rule is not None, "nothing is held: call hold first"
        wait_until(lambda: len(rule.held) >= count, limit_s, f"{count} held of {rule.kind}")

    def resume(self, *, forward: bool) -> None:
        """Ends the rule; what was held is passed on, or dropped with its connection as if it had never been sent."""
        rule, self._rule = self._rule, None
        if rule is not None:
            rule.forward = forward
            self._loop.call_soon_threadsafe(rule.opened.set)

    # -- the thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when connections are taken."""
        self._thread.start()
        assert self._listening.wait(LIMIT_S), "the proxy does not listen"

    def close(self) -> None:
        """Ends all connections and the thread."""
        self.resume(forward=False)
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the proxy does not end"

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        connections: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await self._connection(reader, writer)
            except (OSError, EOFError, ssl.SSLError, _Dropped, asyncio.CancelledError):
                return  # one side went away, as connections do, or the proxy ends
            finally:
                connections.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(connected, "127.0.0.1", self.port, ssl=self._in, limit=HEAD_LIMIT)
        async with server:
            self._listening.set()
            await self._stop.wait()
            server.close()
            for task in list(connections):
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._target, ssl=self._out)
        muted = asyncio.Event()
        answers = asyncio.create_task(_copy(up_reader, writer, muted))
        try:
            async for raw, request in _requests(reader):
                if not await self._is_answered(request):
                    muted.set()
                up_writer.write(raw)
                await up_writer.drain()
        finally:
            answers.cancel()
            up_writer.transport.abort()
            await asyncio.gather(answers, return_exceptions=True)

    async def _is_answered(self, request: Request) -> bool:
        """Returns when the request may go on, and whether its answer may come back; raises when it never may go on."""
        if request.method == "GET":
            return True
        self.seen.append(request)
        rule = self._rule
        if rule is None or not rule.kind.matches(request):
            return True
        if rule.let_through > 0:
            rule.let_through -= 1
            return True
        if rule.to_lose > 0:
            rule.to_lose -= 1
            rule.lost.append(request)
            return False
        if rule.holds:
            rule.held.append(request)
            await rule.opened.wait()
            if not rule.forward:
                raise _Dropped
        return True


class _Dropped(Exception):  # noqa: N818 - not an error: what the test asked for
    pass


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, Request]]:
    """Whole requests of one connection, as bytes and read."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        assert "transfer-encoding" not in headers, "the product sends bodies with their length"
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        yield head + body, Request(method, path, body.decode(errors="replace"))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, muted: asyncio.Event) -> None:
    """Answers on their way back. Requests of one connection come one after the other, so muting hits the right one."""
    while (data := await reader.read(CHUNK)) and not muted.is_set():
        writer.write(data)
        await writer.drain()
    # The API server ended the connection, or the answer is to be lost: the client must notice.
    writer.transport.abort()


@contextlib.contextmanager
def between(isochrone: Isochrone) -> Iterator[StallingProxy]:
    """Puts a proxy between the controller, started anew behind it, and the API server; at the end it is gone again."""
    cluster = isochrone.cluster
    proxy = StallingProxy(cluster)
    proxy.start()
    kubeconfig = cluster.kubeconfig.with_name(f"{CONTROLLER}.yaml")
    direct = kubeconfig.read_text()
    kubeconfig.write_text(direct.replace(cluster.url, proxy.url))
    try:
        start_anew(isochrone)
        yield proxy
    finally:
        kubeconfig.write_text(direct)
        proxy.close()
        start_anew(isochrone)


def start_anew(isochrone: Isochrone) -> None:
    """Kills the controller, if it runs, and starts its successor; returns when that one is ready."""
    isochrone.cluster.kill(CONTROLLER)
    isochrone.cluster.restart(CONTROLLER)
    isochrone.wait_ready(isochrone.controller)
