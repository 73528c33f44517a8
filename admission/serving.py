"""EDGE: how a process of ours serves: listeners with limits, probes and metrics, a clean stop on a signal.

Decides when a server is up and how long it may take to go down. It must never know what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from admission.settings import HostPort
from scheduler.extender.one_handler import Handler, server_of
from topology.bad_input import BadInput

STOP_LIMIT_S: Final = 10.0
HANDSHAKE_LIMIT_S: Final = 5.0
KEEP_ALIVE_S: Final = 120.0  # above the API server's own 90 s, so that it is the one that closes

Checks = Callable[[], Mapping[str, str]]
"""Name of a readiness check to why it fails, empty while it holds."""


def health_app(registry: CollectorRegistry, checks: Checks, notes: Callable[[], list[str]] = list) -> web.Application:
    """`/livez` (the process alone), `/readyz` (`?verbose` lists the checks and `notes`), `/metrics`."""

    async def livez(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        said = checks()
        ready = not any(said.values())
        lines = [f"[{'-' if why else '+'}] {name} {why or 'ok'}" for name, why in said.items()] + notes()
        short = "ok" if ready else "; ".join(f"{name}: {why}" for name, why in said.items() if why)
        text = "\n".join(lines) if "verbose" in request.query else short
        return web.Response(text=text + "\n", status=200 if ready else 503)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


@contextlib.asynccontextmanager
async def listening(
    what: web.Application | Handler, where: HostPort, setting: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HostPort]:
    """Serves an application, or one handler for all requests, while the context lasts; yields the address with the
    port that the system chose.

    Raises BadInput naming `ISOCHRONE_<setting>` for an address that cannot be used.
    """
    runner: web.AppRunner | web.ServerRunner
    if isinstance(what, web.Application):
        runner = web.AppRunner(what, access_log=None, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=STOP_LIMIT_S)
    else:
        runner = web.ServerRunner(server_of(what, keepalive_timeout=KEEP_ALIVE_S), shutdown_timeout=STOP_LIMIT_S)
    await runner.setup()
    try:
        loop, serve = asyncio.get_running_loop(), runner.server
        assert serve is not None, "set up above"
        # Not a TCPSite: it leaves half a handshake a minute, and 3,000 of them cost a webhook 700 MB.
        limit_s = HANDSHAKE_LIMIT_S if tls is not None else None
        try:
            listener = await loop.create_server(
                serve, where.host, where.port, ssl=tls, backlog=128, ssl_handshake_timeout=limit_s
            )
        except OSError as error:
            raise BadInput(f"ISOCHRONE_{setting}", str(where), f"it cannot be used: {error.strerror}") from None
        try:
            host, port, *_ = listener.sockets[0].getsockname()
            yield HostPort(str(host), int(port))
        finally:
            listener.close()
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def background(work: Awaitable[None]) -> AsyncIterator[asyncio.Future[None]]:
    """Runs `work` while the context lasts; cancelled at its end, and waited for with a limit."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=STOP_LIMIT_S)


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set the event while the context lasts."""
    loop = asyncio.get_running_loop()
    taken = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Only a main thread may take signals; tests run servers elsewhere.
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, stop.set)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
