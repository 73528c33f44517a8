"""A real HTTP server on loopback that speaks list and watch, and misbehaves on request.

It keeps the truth (`objects`) and a log of events; faults are commands to the watches that are open, or queued
answers for the requests to come. It knows nothing of our client.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web

from topology.kube.informer import HasMetadata

PATH = "/api/v1/pods"
LIMIT_S = 60.0
"""Of every wait in a test: nothing takes so long, not even on a machine that stands still for seconds."""


class ListWatchServer:
    """Serves PATH. Use `async with`; `kubeconfig` names a file that points at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.oldest = 0  # a watch from before this version gets 410
        self.gone_as_event = False  # 410 as an ERROR event inside a 200, or as a status
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.pages: dict[str, tuple[list[dict[str, Any]], int]] = {}
        self.lists: list[dict[str, str]] = []
        self.probes: list[dict[str, str]] = []  # "have you reached this version?"
        self.watches: list[dict[str, str]] = []
        self.list_answers: deque[Callable[[], web.Response]] = deque()  # instead of the next lists
        self.watch_answers: deque[Callable[[], web.Response]] = deque()
        self.open: set[asyncio.Queue[tuple[str, bytes]]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get(PATH, self._get)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def kubeconfig(self) -> str:
        return write_kubeconfig(self.folder, self.url)

    # --- the truth -----------------------------------------------------------------------------

    def put(self, name: str, *, uid: str = "", **more: Any) -> None:
        """Creates or changes one pod."""
        self.version += 1
        key = f"default/{name}"
        known = self.objects.get(key)
        metadata = {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(self.version),
        }
        self.objects[key] = {"metadata": metadata, **more}
        self._log("ADDED" if known is None else "MODIFIED", self.objects[key])

    def remove(self, name: str) -> None:
        self.version += 1
        gone = self.objects.pop(f"default/{name}")
        self._log("DELETED", {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}})

    def forget_history(self) -> None:
        """Compaction: every older version can no longer be watched from."""
        self.oldest = self.version
        self.history.clear()

    def same_as(self, objects: Mapping[str, HasMetadata]) -> bool:
        """Whether these are exactly our objects, each in its newest version."""
        truth = {key: obj["metadata"]["resourceVersion"] for key, obj in self.objects.items()}
        return {key: obj.metadata.resource_version for key, obj in objects.items()} == truth

    def _log(self, kind: str, obj: dict[str, Any]) -> None:
        self.history.append((self.version, kind, obj))
        self.report("line", line(kind, obj))

    # --- what to do to the open watches ----------------------------------------------------------

    def report(self, what: str, data: bytes = b"") -> None:
        """To every open watch: `line` (write), `cut` (write, then drop it), `end` (clean), `silence` (for ever)."""
        for queue in self.open:
            queue.put_nowait((what, data))

    def bookmark(self) -> None:
        self.report("line", line("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}))

    # --- HTTP ----------------------------------------------------------------------------------

    async def _get(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        if query.get("resourceVersionMatch") == "NotOlderThan":
            self.probes.append(query)
            if int(query["resourceVersion"]) > self.version:
                return status(504, "Timeout", "Too large resource version")
            return self._list({"limit": query["limit"]})
        if query.get("watch") != "true":
            self.lists.append(query)
            return self.list_answers.popleft()() if self.list_answers else self._list(query)
        self.watches.append(query)
        if self.watch_answers:
            return self.watch_answers.popleft()()
        return await self._watch(request, query)

    def _list(self, query: dict[str, str]) -> web.Response:
        token = query.get("continue", "")
        if token and token not in self.pages:
            return gone("the continue token is too old")
        rest, version = self.pages.pop(token) if token else (list(self.objects.values()), self.version)
        limit = int(query.get("limit", "0")) or len(rest) or 1
        metadata = {"resourceVersion": str(version)}
        if len(rest) > limit:
            metadata["continue"] = f"token-{len(self.lists)}"
            self.pages[metadata["continue"]] = (rest[limit:], version)
        return web.json_response({"kind": "PodList", "metadata": metadata, "items": rest[:limit]})

    async def _watch(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        version = int(query["resourceVersion"])
        if version < self.oldest and not self.gone_as_event:
            return gone("too old resource version")
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        if version < self.oldest:
            await answer.write(
                line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
            )
            return answer
        queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        missed = b"".join(line(kind, obj) for at, kind, obj in self.history if at > version)
        self.open.add(queue)
        try:
            if missed:
                await answer.write(missed)
            async with asyncio.timeout(float(query["timeoutSeconds"])):
                while True:
                    what, data = await queue.get()
                    if what == "silence":
                        self.open.discard(queue)
                        await asyncio.sleep(60)
                    if data:
                        await answer.write(data)
                    if what == "end":
                        return answer
                    if what == "cut":
                        assert request.transport is not None
                        await asyncio.sleep(0)
                        request.transport.close()  # without the closing chunk
                        return answer
        except TimeoutError:
            return answer
        except ConnectionError:  # the client left first
            return answer
        finally:
            self.open.discard(queue)


def line(kind: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def status(code: int, reason: str, message: str = "as the test wants", **headers: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers=headers)


def gone(message: str) -> web.Response:
    return status(410, "Expired", message)


def write_kubeconfig(folder: Path, url: str, **user: Any) -> str:
    """A kubeconfig for `url`; `user` is the user section."""
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {key.replace("_", "-"): value for key, value in user.items()}}],
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


@asynccontextmanager
async def running(work: Any) -> AsyncGenerator[asyncio.Task[None], None]:
    """A `run()` coroutine as a task for the length of a block; an error of its own fails the test."""
    task: asyncio.Task[None] = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=LIMIT_S)
        assert done, "it did not stop when cancelled"
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Waits for something that another task brings about."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110  # conditions of tests are not events
            await asyncio.sleep(0.002)
