"""One server for `wire`: `python -m e2e.bench.wire_server bare` reads a body and answers `{}`; `ours` is the extender.

Prints its port and serves until its parent goes. The extender knows no cluster yet, so what it does with a scoring call
is to receive it, to decode it, and to answer without an opinion.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from scheduler.extender.decision_cache import DecisionCache
from scheduler.extender.metrics import ExtenderMetrics
from scheduler.extender.server import Extender
from scheduler.extender.wire import MAX_BODY_BYTES
from topology.http_server import listening
from topology.units import HostPort

BARE: Final = "bare"
OURS: Final = "ours"


class _Nothing:
    """A cluster of which nothing is known."""

    def snapshot(self) -> None:
        """Not complete yet."""

    def table(self) -> None:
        """Not complete yet."""

    def gang_pods(self, namespace: str, gang: str) -> tuple[()]:
        """None."""
        return ()


@contextlib.asynccontextmanager
async def _bare() -> AsyncIterator[int]:
    async def receive(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"{}", content_type="application/json")

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/prioritize", receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _ours() -> AsyncIterator[int]:
    extender = Extender(_Nothing(), DecisionCache(), metrics=ExtenderMetrics(CollectorRegistry()))
    async with listening(extender.app(), HostPort("127.0.0.1", 0), "EXTENDER_LISTEN") as where:
        yield where.port


async def serve(kind: str) -> None:
    """Until the process that started this one is gone."""
    async with _bare() if kind == BARE else _ours() as port:
        print(port, flush=True)
        parent = os.getppid()
        while os.getppid() == parent:
            await asyncio.sleep(1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[1]))
