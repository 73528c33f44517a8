"""A thin asynchronous client of the API server: bytes out, bytes in.

It decides how a request is authenticated, bounded, retried, and which error it becomes. It must never know what the
objects mean. Configuration and login come from `kubernetes.aio.config`; requests go over our own aiohttp session,
because the generated client validates every object (150 us and more for a pod that msgspec reads in 3).

1. Every try has a limit, every call a fixed number of tries, every answer a greatest size.
2. A write is repeated only if repeating cannot do harm: the server refused it (429), it was never sent, or it says
   the same thing twice (apply, merge patch, delete).
3. Credentials are read again every minute in the background, and at once after a 401.
"""

from __future__ import annotations

import asyncio
import random  # noqa: TID251  # an edge: retries of many clients must not march in step
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from topology.clock import monotonic_s
from topology.kube.access import KubeAccess
from topology.kube.errors import ApiError, ApiFailure, ApiUnreachable, refused, unreachable
from topology.kube.gathering import Gathering

__all__ = ["ApiError", "ApiFailure", "ApiUnreachable", "KubeApi", "Retry"]

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"  # JSON is YAML

_TRIES: Final = 3
_BRIEF: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_PAUSE_FIRST_S: Final = 0.2
_PAUSE_CAP_S: Final = 2.0
_RETRY_AFTER_CAP_S: Final = 10.0  # a server that asks for more gets its wish by our giving up
_CONNECT_S: Final = 10.0
_LINE_CAP_BYTES: Final = 16 * 2**20  # etcd refuses objects over 1.5 MiB; a line without end is no watch


class Retry(IntEnum):
    """How often a call may be repeated; each level includes the ones before it."""

    REFUSED = 0  # only what the server turned away with 429: nothing was done
    UNSENT = 1  # also what never left this machine
    REPEATABLE = 2  # also lost answers and 5xx: doing it twice is the same as once


class KubeApi:
    """One API server as one user. Belongs to the event loop it was made in; close it, or use `async with`."""

    def __init__(
        self,
        access: KubeAccess,
        *,
        connections: int = 32,
        user_agent: str = "isochrone",
        max_response_bytes: int = 64 * 2**20,
        rng: random.Random | None = None,
    ) -> None:
        self._access, self._max_bytes = access, max_response_bytes
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not secrecy
        # No compression: on a cluster network gzip costs both sides more than it saves (kubectl --disable-compression).
        headers = {"Accept": JSON, "Accept-Encoding": "identity", "User-Agent": user_agent}

        def session(limit: int, *, keep: bool) -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(limit=limit, force_close=not keep, socket_factory=_watched_socket)
            return aiohttp.ClientSession(
                connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=2**21
            )

        self._session = session(connections, keep=True)
        # Watches hold a connection for minutes; in the same pool a few of them would starve the writes.
        self._watch_session = session(0, keep=False)

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        connections: int = 32,
        user_agent: str = "isochrone",
        max_response_bytes: int = 64 * 2**20,
        rng: random.Random | None = None,
        named: str = "kubeconfig",
    ) -> KubeApi:
        """Reads the configuration (argument, $KUBECONFIG, in-cluster, ~/.kube/config: the first there is).

        Does not talk to the server yet. Raises BadInput if there is no configuration or it cannot be used.
        """
        access = await KubeAccess.load(kubeconfig, named=named)
        return cls(
            access, connections=connections, user_agent=user_agent, max_response_bytes=max_response_bytes, rng=rng
        )

    async def close(self) -> None:
        """Closes all connections; requests under way fail."""
        await self._access.close()
        await self._session.close()
        await self._watch_session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        retry: Retry = Retry.REFUSED,
        brief: bool = False,
    ) -> bytes:
        """The body of a 2xx answer. `path` starts with `/`; `timeout_s` bounds each try, of which there are at most 3.

        `brief` asks for the answer's metadata alone and for no warnings about unknown fields: nobody encodes, sends and
        reads a pod that is not looked at, and the server decodes the patched object once and not twice.
        Raises ApiError for any other status and ApiUnreachable if no (whole) answer came.
        """
        renewed = False
        for attempt in range(1, _TRIES + 1):
            try:
                return await self._once(method, path, body, content_type, params, timeout_s, brief)
            except (ApiError, ApiUnreachable) as error:
                if attempt == _TRIES:
                    raise
                if isinstance(error, ApiError) and error.status == 401 and not renewed:
                    renewed = True
                    await self._access.renew_now()
                    continue
                asked_s = _repeat_after_s(error, retry)
                if asked_s is None:
                    raise
            await asyncio.sleep(asked_s + self._jitter_s(attempt))
        raise AssertionError("the last try returns or raises")

    async def get(self, path: str, *, params: Mapping[str, str] | None = None, timeout_s: float = 10.0) -> bytes:
        """GET with retries. Raises as `request`."""
        return await self.request("GET", path, params=params, timeout_s=timeout_s, retry=Retry.REPEATABLE)

    async def create(self, path: str, obj: Any, *, timeout_s: float = 10.0) -> bytes:
        """POST to a collection; the created object. Not repeated once it may have arrived. Raises as `request`."""
        return await self.request("POST", path, body=msgspec.json.encode(obj), timeout_s=timeout_s, retry=Retry.UNSENT)

    async def apply(
        self,
        path: str,
        obj: Any,
        *,
        field_manager: str = "isochrone",
        force: bool = True,
        timeout_s: float = 10.0,
        brief: bool = False,
    ) -> bytes:
        """Server-side apply; the object as it is now. `obj` needs apiVersion, kind and name. Raises as `request`."""
        return await self.request(
            "PATCH",
            path,
            body=msgspec.json.encode(obj),
            content_type=APPLY_PATCH,
            params={"fieldManager": field_manager, "force": "true" if force else "false"},
            timeout_s=timeout_s,
            retry=Retry.REPEATABLE,
            brief=brief,
        )

    async def patch_json(
        self,
        path: str,
        ops: Sequence[Mapping[str, Any]],
        *,
        subresource: str = "",
        timeout_s: float = 10.0,
        retry: Retry = Retry.UNSENT,
        brief: bool = False,
    ) -> bytes:
        """RFC 6902 operations; the object as it is now. A `test` that does not hold is ApiError with `.invalid`.

        After a lost answer it is not repeated (its own `test` would fail) unless `retry` says it may.
        """
        path = f"{path}/{subresource}" if subresource else path
        return await self.request(
            "PATCH",
            path,
            body=msgspec.json.encode(ops),
            content_type=JSON_PATCH,
            timeout_s=timeout_s,
            retry=retry,
            brief=brief,
        )

    async def patch_merge(
        self,
        path: str,
        value: Mapping[str, Any],
        *,
        subresource: str = "",
        timeout_s: float = 10.0,
        brief: bool = False,
    ) -> bytes:
        """RFC 7386 merge patch (None deletes a key); the object as it is now. Raises as `request`."""
        path = f"{path}/{subresource}" if subresource else path
        return await self.request(
            "PATCH",
            path,
            body=msgspec.json.encode(value),
            content_type=MERGE_PATCH,
            timeout_s=timeout_s,
            retry=Retry.REPEATABLE,
            brief=brief,
        )

    async def delete(
        self, path: str, *, uid: str | None = None, resource_version: str = "", timeout_s: float = 10.0
    ) -> bool:
        """True if the server accepted; False if that object (of that UID and version, if given) is gone already.

        Raises as `request` for anything else.
        """
        wanted = ({"uid": uid} if uid else {}) | ({"resourceVersion": resource_version} if resource_version else {})
        body = msgspec.json.encode({"preconditions": wanted}) if wanted else None
        try:
            await self.request("DELETE", path, body=body, timeout_s=timeout_s, retry=Retry.REPEATABLE)
        except ApiError as error:
            if error.not_found or (wanted and error.conflict):
                return False
            raise
        return True

    async def watch_lines(
        self, path: str, *, params: Mapping[str, str], silence_s: float, gathering: Gathering | None = None
    ) -> AsyncGenerator[list[bytes], None]:
        """The complete lines of one watch, those that arrived together in one list, until the server ends it.

        After each list the connection is left alone as `gathering` says: lines that come meanwhile wait in the kernel
        and are one list. The first line after a silence never waits.
        The first list is empty and says that the server has accepted: from then on, silence means no news.
        The last line counts only with its newline. Raises ApiError if the watch is refused, ApiUnreachable if it is
        cut or nothing at all is heard for `silence_s`. Wrap it in `contextlib.aclosing`. Never retried here.
        """
        self._access.renew_if_due()
        request = f"WATCH {path}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silence_s)
        query = {**params, "watch": "true"}
        try:
            async with self._watch_session.get(
                self._access.base + path, params=query, timeout=timeout, allow_redirects=False, **self._access.options()
            ) as answer:
                if answer.status != 200:
                    raise refused(request, answer, await self._read(request, answer))
                yield []
                rest, resumed_s = b"", monotonic_s()
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
                    if len(rest) > _LINE_CAP_BYTES:
                        raise ApiError(200, "ResponseTooLarge", "a line of the watch does not end", request=request)
                    if not lines:
                        continue
                    waited_s = monotonic_s() - resumed_s
                    yield lines
                    if gathering is not None and (connection := answer.connection) is not None:
                        transport = connection.transport
                        if transport is not None:
                            transport.pause_reading()
                            await asyncio.sleep(gathering.pause_s(waited_s))
                            transport.resume_reading()
                    resumed_s = monotonic_s()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(request, error, silence_s) from error

    async def _once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        content_type: str,
        params: Mapping[str, str] | None,
        timeout_s: float,
        brief: bool,
    ) -> bytes:
        self._access.renew_if_due()
        request = f"{method} {path}"
        options = self._access.options()
        if brief:
            options["headers"]["Accept"] = _BRIEF
            params = {**(params or {}), "fieldValidation": "Ignore"}
        if body is not None:
            options["headers"]["Content-Type"] = content_type
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, _CONNECT_S))
        try:
            # No redirects: the token must not follow to another host.
            async with self._session.request(
                method,
                self._access.base + path,
                data=body,
                params=params,
                timeout=timeout,
                allow_redirects=False,
                **options,
            ) as answer:
                content = await self._read(request, answer)
                if 200 <= answer.status < 300:
                    return content
                raise refused(request, answer, content)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(request, error, timeout_s) from error

    async def _read(self, request: str, answer: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for chunk in answer.content.iter_any():
            size += len(chunk)
            if size > self._max_bytes:
                message = f"the answer is larger than {self._max_bytes} bytes; ask for less at a time"
                raise ApiError(answer.status, "ResponseTooLarge", message, request=request)
            parts.append(chunk)
        return b"".join(parts)

    def _jitter_s(self, attempt: int) -> float:
        return self._rng.uniform(0.0, min(_PAUSE_CAP_S, _PAUSE_FIRST_S * 2.0**attempt))


def _repeat_after_s(error: ApiError | ApiUnreachable, retry: Retry) -> float | None:
    """How long the server wants us to wait before the call is repeated; None if it must not be."""
    if isinstance(error, ApiError):
        asked_s = error.retry_after_s or 0.0
        again = error.status == 429 or (error.status >= 500 and retry >= Retry.REPEATABLE)
        return asked_s if again and asked_s <= _RETRY_AFTER_CAP_S else None
    return 0.0 if retry >= (Retry.REPEATABLE if error.sent else Retry.UNSENT) else None


def _watched_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket whose kernel notices within a minute that the other end is gone, even if nobody writes."""
    family, kind, proto = address[0], address[1], address[2]
    made = socket.socket(family, kind, proto)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # Linux names; elsewhere the system's own timing stays
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    return made
