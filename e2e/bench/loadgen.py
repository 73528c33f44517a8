"""The client of the benchmarks: creates many objects over 16 connections and sees bindings by a watch.

Bare on purpose: bodies are encoded before the clock starts, answers are not parsed, and the watch asks for nothing
but the metadata of pods that have a node.
"""

import asyncio
import contextlib
import itertools
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from e2e.bench.bare import BareRelease
from e2e.bench.bodies import PODS, Post
from e2e.stack.access import Access
from e2e.stack.build import say

T = TypeVar("T")

CONNECTIONS: Final = 16
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
REQUEST_LIMIT_S: Final = 60.0
RELEASED_BY: Final = "isochrone.dev/decision"
"""The annotation that Isochrone writes in the same patch that opens a pod's gate."""
CHECK_S: Final = 1.0
REWATCHES: Final = 100
REPORT_S: Final = 15
NOW: Final = b'{"gracePeriodSeconds":0}'


class RefusedError(RuntimeError):
    """The API server did not create what was asked for."""


class _Meta(msgspec.Struct):
    name: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    resourceVersion: str = ""  # noqa: N815 - Kubernetes' name


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Event(msgspec.Struct):
    type: str
    object: _Object = msgspec.field(default_factory=_Object)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds since the first pod's creation was sent."""

    created_s: float
    """The last creation was answered."""
    bound_s: tuple[float, ...]
    """Each pod got its node, in order."""

    released_s: float | None = None
    """The last pod was let go, counted from the answer to the last creation; None where nobody asked."""

    @property
    def all_bound_s(self) -> float:
        """The last binding."""
        return self.bound_s[-1]

    @property
    def rate(self) -> float:
        """Pods bound per second of the whole run."""
        return len(self.bound_s) / self.all_bound_s


class Client:
    """One API server, 16 connections for writes and one more for the watch."""

    def __init__(self, access: Access, session: aiohttp.ClientSession, watches: aiohttp.ClientSession) -> None:
        self._access, self._session, self._watches = access, session, watches
        self._decode = msgspec.json.Decoder(_Event)

    async def run(
        self,
        namespace: str,
        posts: Sequence[Post],
        limit_s: float,
        *,
        releases: bool = False,
        bare: BareRelease | None = None,
    ) -> Timeline:
        """Creates everything, waits until every pod of it has a node, and says when. The namespace holds no pods.

        With `releases` a second watch sees when the pods carry what a release writes on them. With `bare` this client
        itself lets the gangs go.
        """
        wanted = sum(post.is_pod for post in posts)
        seen: dict[str, float] = {}
        ready, done = asyncio.Event(), asyncio.Event()
        let_go: dict[str, float] = {}
        ready_too, done_too = asyncio.Event(), asyncio.Event()
        beside = [
            asyncio.create_task(self._follow(namespace, seen, wanted, ready, done)),
            asyncio.create_task(self._check(bare)),
            asyncio.create_task(_report(seen, wanted)),
        ]
        if releases:
            beside.append(
                asyncio.create_task(self._follow(namespace, let_go, wanted, ready_too, done_too, RELEASED_BY))
            )
        else:
            ready_too.set()
            done_too.set()

        async def main() -> tuple[float, float]:
            await asyncio.gather(ready.wait(), ready_too.wait())
            times = await self._create(posts, bare)
            await asyncio.gather(done.wait(), done_too.wait())
            return times

        try:
            first, answered = await _first(main(), beside, limit_s)
        except TimeoutError:
            raise TimeoutError(f"{len(seen)} of {wanted} pods have a node after {limit_s:g} s") from None
        released_s = max(let_go.values()) - answered if releases else None
        return Timeline(answered - first, tuple(sorted(at - first for at in seen.values())), released_s)

    async def create(self, posts: Sequence[Post], limit_s: float) -> None:
        """Creates everything and returns when all was answered."""
        await _first(self._create(posts), [asyncio.create_task(self._check())], limit_s)

    async def remove(self, posts: Sequence[Post], limit_s: float) -> None:
        """Deletes what was created, one by one: an order to delete all of them takes too long on a busy machine."""
        work = self._each(posts, lambda post: ("DELETE", f"{post.path}/{post.name}", NOW))
        await _first(work, [asyncio.create_task(self._check())], limit_s)

    async def send(self, method: str, path: str, body: bytes, content_type: str) -> None:
        """One request over one of the 16 connections; its answer is metadata alone, and not read.

        Raises RefusedError for any status but 2xx.
        """
        headers = {"Accept": METADATA_ONLY, "Content-Type": content_type}
        query = {"fieldValidation": "Ignore"}
        url = self._access.url + path
        async with self._session.request(method, url, data=body, headers=headers, params=query) as answer:
            await _accepted(method, path, answer)

    async def _create(self, posts: Sequence[Post], bare: BareRelease | None = None) -> tuple[float, float]:
        """When the first pod was sent, and when the last answer came."""
        began: list[float] = []

        def request(post: Post) -> tuple[str, str, bytes]:
            if post.is_pod and not began:
                began.append(time.monotonic())
            return "POST", post.path, post.body

        await self._each(posts, request, bare)
        return began[0], time.monotonic()

    async def _each(
        self,
        posts: Sequence[Post],
        request: Callable[[Post], tuple[str, str, bytes]],
        bare: BareRelease | None = None,
    ) -> None:
        queue = deque(posts)

        async def worker() -> None:
            while queue:
                post = queue.popleft()
                method, path, body = request(post)
                async with self._session.request(method, self._access.url + path, data=body) as answer:
                    await _accepted(method, path, answer)
                if bare is not None:
                    bare.created(post)

        await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))

    async def _follow(
        self,
        namespace: str,
        seen: dict[str, float],
        wanted: int,
        ready: asyncio.Event,
        done: asyncio.Event,
        annotation: str = "",
    ) -> None:
        """Notes when each pod has a node, or, with an annotation named, when it carries that."""
        url = self._access.url + PODS.format(namespace=namespace)
        async with self._watches.get(url, params={"limit": "1"}) as answer:
            version = msgspec.json.decode(await answer.read(), type=_Object).metadata.resourceVersion
        # The API server ends watches that it thinks slow, most of all on a busy machine: go on where it stopped.
        for _ in range(REWATCHES):
            query = {"watch": "true", "resourceVersion": version}
            if not annotation:
                query["fieldSelector"] = "spec.nodeName!="
            async with self._watches.get(url, params=query, headers={"Accept": METADATA_ONLY}) as answer:
                ready.set()
                async for event in self._events(answer):
                    if event.type == "ERROR":
                        raise RefusedError(f"watch of {namespace}: {event}")
                    version = event.object.metadata.resourceVersion
                    if annotation in event.object.metadata.annotations if annotation else event.type == "ADDED":
                        seen.setdefault(event.object.metadata.name, time.monotonic())
                    if len(seen) >= wanted:
                        done.set()
        raise RefusedError(f"the watch of {namespace} ended {REWATCHES} times")

    async def _events(self, answer: aiohttp.ClientResponse) -> AsyncIterator[_Event]:
        if answer.status != 200:
            raise RefusedError(f"watch: {answer.status} {await answer.text()}")
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield self._decode.decode(line)

    async def _check(self, bare: BareRelease | None = None) -> None:
        while True:
            self._access.check()
            if bare is not None and (error := bare.failed()) is not None:
                raise error
            await asyncio.sleep(CHECK_S)


async def _accepted(method: str, path: str, answer: aiohttp.ClientResponse) -> None:
    text = await answer.read()
    if answer.status >= 300 and not (method == "DELETE" and answer.status == 404):
        raise RefusedError(f"{method} {path}: {answer.status} {text[:500].decode(errors='replace')}")


async def _first(main: Coroutine[Any, Any, T], beside: Sequence[asyncio.Task[None]], limit_s: float) -> T:
    """What `main` returns; raises what any of the endless tasks beside it raises, or TimeoutError. All end here."""
    task = asyncio.create_task(main)
    everyone: list[asyncio.Task[Any]] = [task, *beside]
    try:
        done, _ = await asyncio.wait(everyone, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise TimeoutError
        for each in done:
            each.result()
        return task.result()
    finally:
        for each in everyone:
            each.cancel()
        await asyncio.gather(*everyone, return_exceptions=True)


async def _report(seen: Mapping[str, float], wanted: int) -> None:
    for seconds in itertools.count(REPORT_S, REPORT_S):
        await asyncio.sleep(REPORT_S)
        say(f"  {len(seen)} of {wanted} pods bound after {seconds} s")


@contextlib.asynccontextmanager
async def client(access: Access) -> AsyncIterator[Client]:
    """A client of this cluster's API server as its admin."""
    tls = ssl.create_default_context(cafile=str(access.ca_file))
    headers = {"Authorization": f"Bearer {access.admin_token}", "Content-Type": "application/json"}
    unlimited = aiohttp.ClientTimeout(total=None, sock_connect=10)
    bounded = aiohttp.ClientTimeout(total=REQUEST_LIMIT_S)
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=tls), headers=headers, timeout=bounded
        ) as session,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls), headers=headers, timeout=unlimited, read_bufsize=2**20
        ) as watches,
    ):
        yield Client(access, session, watches)
