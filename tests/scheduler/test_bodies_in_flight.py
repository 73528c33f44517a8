"""Memory of bodies that do not end, over real sockets: it follows what arrived, and all together have a limit."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from admission.settings import WebhookSettings
from admission.webhook import server as webhook
from scheduler.extender.wire import MAX_BODY_BYTES
from tests.admission.pods import raw_pod
from tests.admission.running import LOOPBACK, NAME, OURS, fresh, review_of, write
from tests.admission.running import running as webhook_running
from tests.scheduler.volcano import Cluster, node_json, pod_json, prioritize_body, running
from tests.topology.list_watch_server import LIMIT_S
from topology.environment import load

NODES = [node_json(f"n{i}") for i in range(3)]
CALL = prioritize_body(pod_json("d-0", "decode"), NODES)
PIECE = b" " * 2**17


class Caller:
    """A connection that announces a body and sends a part of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def begin(self, path: str, announced_bytes: int, sent_bytes: int) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self.writer.write(f"{head}Content-Length: {announced_bytes}\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):  # an answer before the end closes the connection
            for start in range(0, sent_bytes, len(PIECE)):
                self.writer.write(PIECE[: sent_bytes - start])
                await self.writer.drain()

    async def status(self) -> int:
        return int((await asyncio.wait_for(self.reader.readline(), LIMIT_S)).split()[1])


@contextlib.asynccontextmanager
async def callers(count: int, port: int, trust: ssl.SSLContext | None = None) -> AsyncIterator[list[Caller]]:
    name = NAME if trust else None
    made = [
        Caller(*await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=name)) for _ in range(count)
    ]
    try:
        yield made
    finally:
        for caller in made:
            caller.writer.transport.abort()


async def test_an_announced_length_takes_no_memory() -> None:
    async with running(Cluster(NODES)) as server, callers(2, int(server.url.rsplit(":", 1)[1])) as made:
        tracemalloc.start()
        for caller in made:
            await caller.begin("/prioritize", MAX_BODY_BYTES, 1)
        await asyncio.sleep(0.2)
        assert (await server.post("prioritize", CALL))[0] == 200
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 20 * 2**20


async def test_the_extenders_bodies_together_have_a_limit() -> None:
    limit_bytes = 4 * 2**20
    async with running(Cluster(NODES), max_body_bytes=limit_bytes) as server:
        async with callers(3, int(server.url.rsplit(":", 1)[1])) as made:
            for caller in made[:2]:
                await caller.begin("/prioritize", limit_bytes, limit_bytes * 3 // 8)
            await asyncio.sleep(0.2)
            await made[2].begin("/prioritize", limit_bytes, limit_bytes * 3 // 4)
            assert await made[2].status() == 429
            assert (await server.post("prioritize", CALL))[0] == 200
        await asyncio.sleep(0.2)
        whole = CALL + b" " * (limit_bytes - len(CALL))
        assert (await server.post("prioritize", whole))[0] == 200, "what hung up takes nothing any more"


async def test_the_webhooks_bodies_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topology.http_server.HANDSHAKE_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(webhook, "_BODY_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(webhook, "_IN_FLIGHT_BYTES", 8 * 2**20)
    bundle = fresh()
    write(bundle, tmp_path)
    settings = load(WebhookSettings, listen=LOOPBACK, health_listen=LOOPBACK, cert_dir=str(tmp_path), drain="1ms")
    async with webhook_running(settings, bundle.ca) as up, callers(8, up.at.admission.port, up.trust) as made:
        for caller in made:
            await caller.begin("/mutate/labelled", webhook.MAX_BODY_BYTES, webhook.MAX_BODY_BYTES - 2**19)
        answered = [asyncio.create_task(caller.status()) for caller in made]
        await asyncio.sleep(0.5)
        assert [task.result() for task in answered if task.done()] == [429] * 5
        for task in answered:
            task.cancel()
        assert (await up.post("/mutate/labelled", review_of(raw_pod(OURS))))[0] == 200


async def test_a_body_of_the_webhook_has_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topology.http_server.HANDSHAKE_LIMIT_S", LIMIT_S)
    bundle = fresh()
    write(bundle, tmp_path)
    settings = load(WebhookSettings, listen=LOOPBACK, health_listen=LOOPBACK, cert_dir=str(tmp_path), drain="1ms")
    async with webhook_running(settings, bundle.ca) as up, callers(1, up.at.admission.port, up.trust) as (caller,):
        await caller.begin("/mutate/labelled", 900, 1)
        assert await caller.status() == 408
        assert b"within 1 s; send it at once" in await asyncio.wait_for(caller.reader.readuntil(b"once\n"), LIMIT_S)
