"""EDGE: what every process of ours has beside its work: probes and metrics, tasks that end with it, a stop on a signal.

Decides what probes say and how long a task may take to end. It must never know what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from topology.http_server import STOP_LIMIT_S

Checks = Callable[[], Mapping[str, str]]
"""Name of a readiness check to why it fails, empty while it holds."""


def health_app(registry: CollectorRegistry, checks: Checks, notes: Callable[[], list[str]] = list) -> web.Application:
    """`/livez` (the process alone), `/readyz` (`?verbose` lists the checks and `notes`), `/metrics`."""

    async def livez(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        value = checks()
        ready = not any(value.values())
        lines = [f"[{'-' if why else '+'}] {name} {why or 'ok'}" for name, why in value.items()] + notes()
        short = "ok" if ready else "; ".join(f"{name}: {why}" for name, why in value.items() if why)
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
