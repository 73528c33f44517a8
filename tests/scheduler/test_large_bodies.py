"""Large bodies: the same answers, and a connection that is where it should be afterwards."""

from __future__ import annotations

import asyncio
import io
import json
import zlib
from collections.abc import AsyncGenerator

import pytest

from scheduler.extender import server as extender
from tests.scheduler.volcano import Cluster, Running, body_of, node_info_json, node_json, pod_json, running, task_json
from tests.topology.list_watch_server import LIMIT_S

NODES = [node_json(f"n{i}") for i in range(40)]
POD = pod_json("d-0", "decode")


def call(padding: int) -> bytes:
    infos = [node_info_json(node, tasks=3, padding=padding) for node in NODES]
    return body_of(task=task_json(POD), nodes=infos)


SMALL, LARGE = call(10), call(20_000)
NAMES = {node["metadata"]["name"] for node in NODES}


@pytest.fixture
async def server() -> AsyncGenerator[Running, None]:
    async with running(Cluster(NODES)) as made:
        yield made


def scored(status: int, answer: bytes) -> bool:
    return status == 200 and set(json.loads(answer)["nodeScore"]) == NAMES


async def test_small_and_large_bodies_take_turns_on_one_connection(server: Running) -> None:
    assert len(SMALL) < 2**18 < len(LARGE)
    for body in (LARGE, SMALL, LARGE, LARGE, SMALL):
        assert scored(*await server.post("prioritize", body))


async def test_bodies_of_megabytes_at_once(server: Running) -> None:
    huge = LARGE + b" " * (4 * 2**20 + 1 - len(LARGE))
    answers = await asyncio.gather(*(server.post("prioritize", huge) for _ in range(3)))
    assert all(scored(*answer) for answer in answers)


async def test_what_follows_a_large_body_is_the_next_call(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = b"POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    for body in (LARGE, SMALL, LARGE):
        writer.write(head % len(body) + body)  # all at once: nobody waits for an answer
    for _ in range(3):
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        assert answer.startswith(b"HTTP/1.1 200")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert scored(200, await reader.readexactly(length))
    writer.close()
    await writer.wait_closed()


async def test_a_connection_cut_in_a_large_body_harms_nobody(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for sent in (len(LARGE) // 2, len(LARGE) - 1):
        _, writer = await asyncio.open_connection(host, int(port))
        head = "POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(LARGE)}\r\n\r\n".encode() + LARGE[:sent])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert scored(*await server.post("prioritize", LARGE))
    assert len(server.decisions) == 1


async def test_a_large_body_that_stops_is_told_so(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = "POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with monkeypatch.context() as impatient:  # not for the call afterwards
        impatient.setattr(extender, "_BODY_LIMIT_S", 0.1)
        writer.write(f"{head}Content-Length: {len(LARGE)}\r\n\r\n".encode() + LARGE[:-9])
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    assert answer.startswith(b"HTTP/1.1 408")
    writer.close()
    await writer.wait_closed()
    assert scored(*await server.post("prioritize", LARGE))


async def test_a_compressed_body_is_unpacked(server: Running) -> None:
    packed = zlib.compress(LARGE)
    headers = {"Content-Type": "application/json", "Content-Encoding": "deflate"}
    async with server.client.post(f"{server.url}/prioritize", data=io.BytesIO(packed), headers=headers) as answer:
        assert scored(answer.status, await answer.read())
