"""An API server of a crowd, for a controller to list and watch: `python -m e2e.bench.crowd_server NODES PODS`.

Prints its port and serves until its parent goes. It answers lists page by page, holds every watch open, takes Events,
and says 404 to kinds that it does not have. `POST /churn?rate=1000&seconds=20` sends pod events down the pod watches,
each as a line of its own and evenly, and answers when the last is written.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from aiohttp import web

from e2e.bench.crowd import Crowd, encoded

VERSION: Final = 1_000_000
EMPTY: Final = ("/apis/apps/v1/replicasets", "/apis/apps/v1/statefulsets")
TICK_S: Final = 0.001


class Server:
    """The lists, and the watches that are open."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.lines = crowd.churn(VERSION)
        self.watches: set[web.StreamResponse] = set()

    def app(self) -> web.Application:
        """Every path that a controller asks for."""
        app = web.Application()
        crowd = self.crowd
        app.router.add_get("/api/v1/nodes", self.listing(crowd.nodes, crowd.node))
        app.router.add_get("/api/v1/pods", self.listing(crowd.pods, lambda i: crowd.pod(i, 1 + i), churned=True))
        for path in EMPTY:
            app.router.add_get(path, self.listing(0, crowd.node))
        app.router.add_post("/api/v1/namespaces/{namespace}/events", _taken)
        app.router.add_post("/churn", self.churn)
        return app

    def listing(
        self, count: int, item: Callable[[int], dict[str, Any]], *, churned: bool = False
    ) -> Callable[[web.Request], Any]:
        """Lists and watches one kind."""

        async def answer(request: web.Request) -> web.StreamResponse:
            if request.query.get("watch") == "true":
                return await self._watch(request, churned)
            first, size = int(request.query.get("continue", "0")), int(request.query.get("limit", "0")) or count
            last = min(count, first + size)
            metadata: dict[str, str] = {"resourceVersion": str(VERSION)}
            if last < count:
                metadata["continue"] = str(last)
            items = b",".join(encoded(item(index)) for index in range(first, last))
            body = b'{"metadata":' + encoded(metadata) + b',"items":[' + items + b"]}"
            return web.Response(body=body, content_type="application/json")

        return answer

    async def _watch(self, request: web.Request, churned: bool) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        if churned:
            self.watches.add(answer)
        try:
            await asyncio.sleep(float(request.query.get("timeoutSeconds", "300")))
        finally:
            self.watches.discard(answer)
        return answer

    async def churn(self, request: web.Request) -> web.Response:
        """Sends so many events a second for so many seconds; what a busy moment delayed is caught up."""
        rate, seconds = float(request.query["rate"]), float(request.query["seconds"])
        loop = asyncio.get_running_loop()
        began, sent = loop.time(), 0
        while (passed := loop.time() - began) < seconds:
            for each in islice(self.lines, int(passed * rate) - sent):
                sent += 1
                for watch in self.watches:
                    await watch.write(each)
            await asyncio.sleep(TICK_S)
        return web.Response(text=str(sent))


async def _taken(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(status=201, text="{}", content_type="application/json")


async def serve(crowd: Crowd) -> None:
    """Until the process that started this one is gone."""
    runner = web.AppRunner(Server(crowd).app(), access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        parent = os.getppid()
        while os.getppid() == parent:
            await asyncio.sleep(1)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Crowd(int(sys.argv[1]), int(sys.argv[2]))))
