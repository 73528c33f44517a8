"""EDGE: an aiohttp application on an address: its limits, its TLS, its end, and how the body of a request arrives.

Decides how long a connection may take for anything, how much memory bodies may take together, and how a body that does
not arrive is answered. It must never know what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Final

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from topology.bad_input import BadInput
from topology.units import HostPort

HANDSHAKE_LIMIT_S: Final = 5.0
KEEP_ALIVE_S: Final = 120.0  # above the 90 s of Go's client, so that it is the one that closes
LINGER_S: Final = 1.0  # what is left of a rejected body is read away this long, so that the caller sees the answer
STOP_LIMIT_S: Final = 10.0
_BACKLOG: Final = 128
_READ_BUFFER_BYTES: Final = 2**18  # read from a connection before a handler takes it; more is memory and no faster


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, where: HostPort, setting: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HostPort]:
    """Serves the application while the context lasts; yields the address with the port that the system chose.

    Raises BadInput naming `ISOCHRONE_<setting>` for an address that cannot be used.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=KEEP_ALIVE_S,
        lingering_time=LINGER_S,
        read_bufsize=_READ_BUFFER_BYTES,
        shutdown_timeout=STOP_LIMIT_S,
    )
    await runner.setup()
    try:
        assert runner.server is not None, "set up above"
        # Not a TCPSite: it leaves half a handshake a minute, and 3,000 of them cost a webhook 700 MB.
        limit_s = HANDSHAKE_LIMIT_S if tls is not None else None
        try:
            listener = await asyncio.get_running_loop().create_server(
                runner.server, where.host, where.port, ssl=tls, backlog=_BACKLOG, ssl_handshake_timeout=limit_s
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


class BodyBudget:
    """Bytes that the unfinished bodies of one listener may take together; whoever would go beyond is answered 429."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.taken_bytes = limit_bytes, 0

    def take(self, size_bytes: int) -> None:
        """Raises web.HTTPException: 429."""
        if self.taken_bytes + size_bytes > self.limit_bytes:
            text = f"bodies that arrive at the moment take more than {self.limit_bytes} bytes together; send it again"
            raise web.HTTPTooManyRequests(text=text)
        self.taken_bytes += size_bytes


async def whole_body(request: web.Request, budget: BodyBudget, limit_s: float, too_large: str) -> bytes | bytearray:
    """The body, of at most the application's `client_max_size` bytes, unpacked.

    Memory follows the bytes that arrived, never the length announced. What is returned is out of the budget: it has to
    be read before the next await. Raises web.HTTPException with one sentence: 413 (`too_large`, with `{size}` filled
    in), 429 beyond the budget, 408 after `limit_s`, 400 for a body that breaks off.
    """
    limit_bytes, announced_bytes, content = request.client_max_size, request.content_length or 0, request.content
    if announced_bytes > limit_bytes:
        text = too_large.format(size=f"{announced_bytes} bytes")
        raise web.HTTPRequestEntityTooLarge(limit_bytes, announced_bytes, text=text)
    if content.is_eof() and content.exception() is None:  # a body of a few kilobytes is here before its handler
        arrived = content.read_nowait()
        if len(arrived) > limit_bytes:
            raise _over(limit_bytes, too_large)
        return arrived
    body = bytearray()  # grows in place: request.read() would copy it once more
    try:
        async with _arriving(limit_s):
            async for piece, _ in content.iter_chunks():
                if len(body) + len(piece) > limit_bytes:
                    raise _over(limit_bytes, too_large)
                budget.take(len(piece))
                body += piece
    finally:
        budget.taken_bytes -= len(body)
    return body


def _over(limit_bytes: int, too_large: str) -> web.HTTPException:
    return web.HTTPRequestEntityTooLarge(limit_bytes, limit_bytes + 1, text=too_large.format(size="larger"))


async def drop_body(request: web.Request, limit_s: float) -> None:
    """Reads a body of any size and keeps nothing of it. Raises web.HTTPException: 408 and 400 as `whole_body`."""
    async with _arriving(limit_s):
        async for _ in request.content.iter_any():
            pass


@contextlib.asynccontextmanager
async def _arriving(limit_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        text = f"the body did not arrive within {limit_s:g} s; send it at once"
        raise web.HTTPRequestTimeout(text=text) from None
    except (OSError, aiohttp.ClientError, web.RequestPayloadError, HttpProcessingError) as error:
        text = f"the body did not arrive whole ({type(error).__name__}); send it again"
        raise web.HTTPBadRequest(text=text) from None
