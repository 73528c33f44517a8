"""EDGE: `/livez`, `/readyz` and `/metrics` of an agent, in as little memory as three answers need.

Decides how long and how large a request may be. It must never know what the metrics mean. (aiohttp alone would take
14 MB of the 60 MB that an agent may have.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from topology.agent.settings import PREFIX, host_port
from topology.bad_input import BadInput

LIMIT_S: Final = 5.0
_LONGEST: Final = 8192  # of a request's head
_MOST: Final = 16  # at once


class AgentHttp:
    """`why_dead` and `why_not_ready` say "" while all is well."""

    def __init__(
        self, registry: CollectorRegistry, why_dead: Callable[[], str], why_not_ready: Callable[[], str]
    ) -> None:
        self._registry, self._why_dead, self._why_not_ready = registry, why_dead, why_not_ready
        self._open = 0

    @contextlib.asynccontextmanager
    async def listening(self, where: str) -> AsyncIterator[tuple[str, int]]:
        """Serves while the context lasts; yields the address. Raises BadInput for one that cannot be used."""
        host, port = host_port(where, PREFIX + "HEALTH_LISTEN")
        try:
            server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST)
        except OSError as error:
            raise BadInput(PREFIX + "HEALTH_LISTEN", where, f"it cannot be used: {error.strerror}") from None
        try:
            host, port, *_ = server.sockets[0].getsockname()
            yield str(host), int(port)
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= _MOST:
                async with asyncio.timeout(LIMIT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    status, kind, body = self._answer(head)
                    top = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    writer.write(top.encode() + b"Connection: close\r\n\r\n" + body)
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked went away, or sent no HTTP
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, head: bytes) -> tuple[str, str, bytes]:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", "text/plain", b"use GET\n"
        if path == b"/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
        why = {b"/livez": self._why_dead, b"/readyz": self._why_not_ready}.get(path)
        if why is None:
            return "404 Not Found", "text/plain", b"there is /livez, /readyz and /metrics\n"
        said = why()
        return ("503 Service Unavailable" if said else "200 OK"), "text/plain", f"{said or 'ok'}\n".encode()
