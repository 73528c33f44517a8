"""EDGE. Reads a large body from the socket straight into its place, past the framework's three copies of it.

Decides when that may be done and what the framework is told of it. It must never know what a body says.

While the body comes, the connection's bytes belong to a protocol of ours that offers the place itself as the buffer
(asyncio.BufferedProtocol). The framework's parser counts the bytes of a body and looks at none, so afterwards it is fed
as many zeros, a block at a time: it ends where it would have ended. 1.7 MB take 0.35 ms this way, 1.1 ms through it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from scheduler.extender.body_room import Room

_WORTH_BYTES: Final = 2**18
FIRST_BYTES: Final = 2**14
"""For `read_at_once`, between two calls."""

WHOLE_BYTES: Final = 2**18
"""For `read_at_once`, while a body goes through the framework: asyncio's own value."""

_ZEROS: Final = bytes(2**16)


def read_at_once(request: web.BaseRequest, most_bytes: int) -> None:
    """The most that the framework reads at once from now on. With little, the rest of the next large body is still on
    the socket when its handler begins. Where the transport has no such setting, less of a body is read straight."""
    transport = request.transport
    if transport is not None and hasattr(transport, "max_size"):  # asyncio's own: what one recv asks for
        transport.max_size = most_bytes


def may_read_straight(request: web.BaseRequest, arrived_bytes: int, most_piled_bytes: int) -> bool:
    """Whether the rest of the body is a plain run of announced bytes, and large.

    `most_piled_bytes` is what the framework piles up before it stops parsing: with less than that it has parsed all
    that came, and the next byte on the socket is the body's next.
    """
    announced = request.content_length
    if announced is None or "Content-Encoding" in request.headers or request.transport is None:
        return False
    return arrived_bytes <= most_piled_bytes and announced - arrived_bytes >= _WORTH_BYTES


async def read_straight(request: web.BaseRequest, room: Room) -> None:
    """The rest of the body into its room. Raises OSError if the connection ends before it."""
    transport, framework = request.transport, request.protocol
    assert transport is not None
    assert request.content_length is not None
    place = room.rest(request.content_length - room.size)
    ours = _Straight(framework, transport, place)
    transport.set_protocol(ours)
    try:
        await ours.arrived
    finally:
        if not transport.is_closing():
            transport.set_protocol(framework)
            _count(request, framework, ours.size)
    room.size += ours.size


def _count(request: web.BaseRequest, framework: RequestHandler, size: int) -> None:
    """Lets the framework's parser count the bytes that it did not see."""
    while size > 0:
        framework.data_received(_ZEROS[:size])
        request.content.read_nowait()
        size -= len(_ZEROS)


class _Straight(asyncio.BufferedProtocol):
    """Fills the place, and hands everything else on to the framework."""

    def __init__(self, framework: RequestHandler, transport: asyncio.Transport, place: memoryview) -> None:
        self._framework, self._transport, self._place = framework, transport, place
        self.size = 0
        self.arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._place[self.size :]

    def buffer_updated(self, nbytes: int) -> None:
        self.size += nbytes
        if self.size == len(self._place):
            # At once: the next bytes on the socket are the next call's.
            self._transport.set_protocol(self._framework)
            if not self.arrived.done():
                self.arrived.set_result(None)

    def eof_received(self) -> None:
        self._framework.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._framework.connection_lost(exc)
        if not self.arrived.done():
            self.arrived.set_exception(ConnectionResetError("the connection ended before the body"))

    def pause_writing(self) -> None:
        self._framework.pause_writing()

    def resume_writing(self) -> None:
        self._framework.resume_writing()
