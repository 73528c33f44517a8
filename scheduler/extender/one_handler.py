"""EDGE. A listener with one handler: aiohttp's server without its application (routes, middlewares, signals).

The application takes a sixth of the time of a small call. Decides what it would have done for the handler besides
calling it: answering `Expect`. It must never know what is served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import HttpVersion11, hdrs, web

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def server_of(handle: Handler, **settings: Any) -> web.Server:
    """The protocol factory for a listener, whose every request goes to `handle`; `settings` are the connections', as
    `web.AppRunner` takes them. Accesses are not logged."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if hdrs.EXPECT in request.headers:
            await _tell_to_send(request)
        return await handle(request)

    return web.Server(answer, access_log=None, **settings)


def arrived(request: web.BaseRequest) -> bytes | None:
    """The body if all of it is here already, as one of a few kilobytes is: then there is nothing to wait for."""
    content = request.content
    return content.read_nowait() if content.is_eof() and content.exception() is None else None


async def _tell_to_send(request: web.BaseRequest) -> None:
    """The caller keeps its body back until it hears that it is wanted (RFC 9110, section 10.1.1)."""
    if request.version != HttpVersion11:
        return
    expected = request.headers[hdrs.EXPECT]
    if expected.lower() != "100-continue":
        raise web.HTTPExpectationFailed(text=f"Expect is {expected[:80]!r}; use '100-continue' or leave it out\n")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer itself has not begun
