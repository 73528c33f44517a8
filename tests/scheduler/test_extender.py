"""The server on loopback: what a wrong call gets, what a bug of ours costs, and a recorded conversation, replayed."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry

from scheduler.extender import server as extender
from scheduler.extender.decision_cache import DecisionCache
from scheduler.extender.metrics import ExtenderMetrics
from scheduler.extender.verbs import NEUTRAL, VERBS
from tests.scheduler.volcano import (
    Cluster,
    Running,
    body_of,
    event_body,
    node_json,
    pod_json,
    prioritize_body,
    read_by_go,
    running,
)
from tests.topology.list_watch_server import LIMIT_S
from topology.bad_input import BadInput
from topology.http_server import listening
from topology.labels import REACH_MODE
from topology.objects import Pod
from topology.units import HostPort

NODES = [node_json("n1"), node_json("n2"), node_json("f1", zone="z2", leaf="l9")]
DECODE = pod_json("d-0", "decode")
CALL = prioritize_body(DECODE, NODES)
LIMIT = 200_000


@pytest.fixture
async def server() -> AsyncGenerator[Running, None]:
    cluster = Cluster(NODES, [pod_json("p-0", "prefill", node="n1")])
    async with running(cluster, max_body_bytes=LIMIT) as started:
        yield started


async def scored(server: Running) -> dict[str, float]:
    status, body = await server.post("prioritize", CALL)
    assert status == 200, body
    scores: dict[str, float] = read_by_go("prioritize", body)["nodeScore"]
    return scores


async def test_a_call_is_answered_counted_and_remembered(server: Running) -> None:
    scores = await scored(server)
    assert set(scores) == {"n1", "n2", "f1"}
    assert min(scores, key=scores.__getitem__) == "f1"
    decision = server.decisions.get("uid-d-0")
    assert decision is not None
    assert decision.node_count == 3
    assert server.counted("isochrone_extender_requests_total", verb="prioritize", result="answered") == 1
    assert server.counted("isochrone_decisions_total", verb="prioritize", result="scored") == 1
    assert server.counted("isochrone_extender_duration_seconds_count", verb="prioritize") == 1


@pytest.mark.parametrize("verb", sorted(VERBS))
async def test_every_verb_answers_200_over_one_connection(server: Running, verb: str) -> None:
    body = event_body(DECODE, "n1") if verb.endswith("allocateFunc") else CALL
    for _ in range(3):
        status, answer = await server.post(verb, body)
        assert status == 200
        read_by_go(verb, answer)
    assert server.client.connector is not None
    assert len(getattr(server.client.connector, "_conns")) == 1  # noqa: B009  # kept alive: one connection for all


async def pieces(body: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize(
    ("verb", "body", "content_type", "status", "value"),
    [
        ("prioritize", b"", "application/json", 400, "truncated"),
        ("prioritize", b'{"task":', "application/json", 400, "truncated"),
        ("prioritize", b"[1,2]", "application/json", 400, "Expected `object`"),
        ("allocateFunc", b'{"task":null}', "application/json", 400, "task is 'null'"),
        ("predicate", b"<html>", "application/json", 400, "malformed"),
        ("onSessionClose", b"bye", "application/json", 400, "malformed"),
        ("prioritize", CALL.replace(b"chat", b"\xff\xfe\x00!"), "application/json", 400, "UTF-8"),
        ("prioritize", CALL, "text/plain", 415, "Content-Type is 'text/plain'"),
        ("prioritize", CALL, "application/x-www-form-urlencoded", 415, "use 'application/json'"),
        ("prioritise", CALL, "application/json", 404, "the path is '/prioritise'"),
        ("", CALL, "application/json", 404, "/prioritize"),
        ("prioritize/more", CALL, "application/json", 404, "/prioritize"),
        ("prioritize", b" " * (LIMIT + 1), "application/json", 413, "ISOCHRONE_MAX_BODY"),
        ("prioritize", CALL + b" " * LIMIT, "application/json", 413, "larger than 195.3 KiB"),
    ],
)
async def test_what_is_no_call_gets_one_sentence_and_changes_nothing(
    server: Running, verb: str, body: bytes, content_type: str, status: int, value: str
) -> None:
    await server.post("allocateFunc", event_body(pod_json("p-1", "prefill"), "n2"))
    before = await scored(server)
    got, answer = await server.post(verb, body, content_type)
    error = json.loads(answer)
    assert got == status
    assert list(error) == ["error"]
    assert value in error["error"]
    assert "\n" not in error["error"]
    assert "Traceback" not in error["error"]
    assert await scored(server) == before
    name = verb if verb in VERBS else "unknown"
    assert server.counted("isochrone_extender_requests_total", verb=name, result="rejected") == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_post_is_answered(server: Running, method: str) -> None:
    async with server.client.request(method, f"{server.url}/prioritize") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert json.loads(await response.read()) == {"error": f"the method is '{method}'; use 'POST'"}
    await scored(server)


async def test_a_body_without_a_length_is_measured_as_it_comes(server: Running) -> None:
    assert (await server.post("prioritize", pieces(CALL)))[0] == 200
    assert (await server.post("prioritize", pieces(CALL + b" " * LIMIT)))[0] == 413
    assert (await server.post("onSessionOpen", pieces(b"x" * (3 * LIMIT))))[0] == 200, "never kept, so never too large"
    await scored(server)


async def test_a_complaint_is_logged_once_a_minute(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "scheduler.extender.server")
    for _ in range(3):
        await server.post("prioritize", b" " * (LIMIT + 1))
    (line,) = caplog.messages
    assert "ISOCHRONE_MAX_BODY" in line
    assert server.counted("isochrone_extender_requests_total", verb="prioritize", result="rejected") == 3


async def test_a_body_that_never_comes_is_given_up(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = b"POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"
    with monkeypatch.context() as impatient:  # not for the calls afterwards
        impatient.setattr(extender, "_BODY_LIMIT_S", 0.05)
        writer.write(head + b'{"task"')
        assert b" 408 " in await asyncio.wait_for(reader.readline(), LIMIT_S)
    writer.close()
    await writer.wait_closed()
    await scored(server)


async def test_a_caller_that_hangs_up_costs_nothing(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for sent in (b'{"task"', b""):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"
            + sent
        )
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.transport.abort()
    await asyncio.sleep(0.05)
    await scored(server)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


async def test_a_broken_chunk_is_the_callers_mistake(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        b"POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    writer.write(head + b"zz\r\nnot a length\r\n")
    assert b" 400 " in await asyncio.wait_for(reader.readline(), LIMIT_S)
    writer.close()
    await writer.wait_closed()
    assert server.counted("isochrone_extender_requests_total", verb="prioritize", result="failed") == 0
    await scored(server)


class Broken(Cluster):
    """A view with a bug."""

    def gang_pods(self, namespace: str, gang: str) -> Sequence[Pod]:
        raise ZeroDivisionError("a bug of ours")


async def test_a_bug_of_ours_stops_no_scheduling(caplog: pytest.LogCaptureFixture) -> None:
    async with running(Broken(NODES)) as server:
        for verb, body in (
            ("prioritize", CALL),
            ("allocateFunc", event_body(pod_json("d-0", "decode", annotations={REACH_MODE: "required"}), "n1")),
        ):
            status, answer = await server.post(verb, body)
            assert (status, answer) == (200, NEUTRAL[verb])
            assert server.counted("isochrone_extender_requests_total", verb=verb, result="failed") == 1
    assert "a bug of ours" in caplog.text


async def test_cold_answers_are_counted() -> None:
    cluster = Cluster(NODES)
    cluster.ready = False
    async with running(cluster) as server:
        assert await scored(server) == {"n1": 0, "n2": 0, "f1": 0}
        assert server.counted("isochrone_extender_cold_answers_total") == 1
        assert server.decisions.get("uid-d-0") is None
        cluster.ready = True
        assert len(set((await scored(server)).values())) == 3
        assert server.counted("isochrone_extender_cold_answers_total") == 1


async def test_bodies_that_come_slowly_delay_nobody() -> None:
    async with running(Cluster(NODES)) as server:
        held = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield CALL[:100]
            await held.wait()
            yield CALL[100:]

        slow = [asyncio.create_task(server.post("prioritize", slowly())) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert (await server.post("prioritize", pieces(CALL)))[0] == 200
        assert (await server.post("predicate", body_of(task=None)))[0] == 200
        assert not any(task.done() for task in slow)
        held.set()
        assert [status for status, _ in await asyncio.gather(*slow)] == [200, 200]


async def test_an_address_in_use_is_named(server: Running) -> None:
    port = urlsplit(server.url).port or 0
    another = extender.Extender(Cluster(NODES), DecisionCache(), metrics=ExtenderMetrics(CollectorRegistry()))
    with pytest.raises(BadInput, match="ISOCHRONE_EXTENDER_LISTEN"):
        async with listening(another.app(), HostPort("127.0.0.1", port), "EXTENDER_LISTEN"):
            pass


async def told_to_send(server: Running, expect: str) -> tuple[bytes, bytes]:
    """What comes before a body is sent, and after it, to a caller that waits to be told."""
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: {expect}\r\n"
    writer.write(f"{head}Content-Length: {len(CALL)}\r\n\r\n".encode())
    first = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    writer.write(CALL)
    then = await asyncio.wait_for(reader.readuntil(b"\r\n"), LIMIT_S) if first.startswith(b"HTTP/1.1 100") else b""
    writer.close()
    await writer.wait_closed()
    return first, then


async def test_a_caller_that_waits_to_be_told_is_told_to_send_its_body(server: Running) -> None:
    assert await told_to_send(server, "100-continue") == (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n")


async def test_an_expectation_that_nobody_knows_is_refused(server: Running) -> None:
    first, _ = await told_to_send(server, "coffee")
    assert first.startswith(b"HTTP/1.1 417 ")
    await scored(server)


# --- the recorded conversation -----------------------------------------------------------------


def recorded() -> list[dict[str, Any]]:
    """Between vc-scheduler 1.14.1 / 1.15.1 and an extender, four nodes; not part of the repository."""
    folder = os.environ.get("ISOCHRONE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(folder) / "wire" / "conversation-4nodes.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here; set ISOCHRONE_DATA to the folder that holds wire/")
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


async def test_the_recorded_conversation_replays_without_an_error() -> None:
    conversation = recorded()
    opened = next(turn["request"] for turn in conversation if turn["verb"] == "onSessionOpen")
    cluster = Cluster([info["Node"] for info in opened["Nodes"].values()])
    verbs = set()
    async with running(cluster) as server:
        for turn in conversation:
            verb, request = turn["verb"], turn["request"]
            verbs.add(verb)
            status, body = await server.post(verb, json.dumps(request).encode())
            assert status == 200, body
            answer = read_by_go(verb, body)
            if verb == "prioritize":
                assert set(answer["nodeScore"]) == {node["Name"] for node in request["nodes"]}
                assert len(set(answer["nodeScore"].values())) == len(request["nodes"])
            elif verb == "allocateFunc":
                assert answer["errorMessage"] == "", "no pod in the recording is `required`"
        assert server.counted("isochrone_extender_session_pods") == 0, "the last session closed"
        for verb in verbs:
            assert server.counted("isochrone_extender_requests_total", verb=verb, result="answered") > 0
            assert server.counted("isochrone_extender_requests_total", verb=verb, result="failed") == 0
    assert verbs >= {"prioritize", "allocateFunc", "deallocateFunc", "onSessionOpen", "onSessionClose", "predicate"}
