"""Public cases about the webhook's life, each as a short story played against real servers."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from admission.settings import WebhookSettings
from tests.admission.pods import raw_pod
from tests.admission.running import LOOPBACK, NAME, OURS, Running, fresh, review_of, running, write
from tests.topology.list_watch_server import LIMIT_S, until
from topology.environment import load

CALLS = 120


async def ready(replica: Running) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        return (await replica.health("/readyz"))[0] == 200
    return False


async def test_c152_a_replica_that_is_rolled_loses_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replicas, a new connection for every call, and one of them is stopped in the middle. Whoever asks looks at
    readiness now and then, as endpoints do, and so goes on asking the one that stops for a while. Every call is
    answered; no replica opens a connection of its own; each counts how long it took, by what came of it."""
    written = fresh()
    write(written, tmp_path)

    def outwards(*_: Any, **__: Any) -> Any:
        raise AssertionError("a webhook has nobody to ask")

    settings = load(WebhookSettings, listen=LOOPBACK, health_listen=LOOPBACK, cert_dir=str(tmp_path), drain="500ms")
    async with running(settings, written.ca) as first, running(settings, written.ca) as second:
        monkeypatch.setattr("topology.kube.api.KubeApi.request", outwards)
        both, endpoints = [first, second], [first, second]
        answers: list[tuple[int, Any]] = []

        async def read() -> None:
            while True:
                endpoints[:] = [replica for replica in both if await ready(replica)]
                await asyncio.sleep(0.1)

        async def call(number: int) -> None:
            replica = endpoints[number % len(endpoints)]
            url = f"https://127.0.0.1:{replica.at.admission.port}/mutate/labelled"
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
                session.post(
                    url,
                    data=review_of(raw_pod(labels=OURS)),
                    headers={"Content-Type": "application/json"},
                    ssl=replica.trust,
                    server_hostname=NAME,
                ) as answer,
            ):
                answers.append((answer.status, await answer.json()))

        looking = asyncio.create_task(read())
        try:
            for number in range(CALLS):
                if number == CALLS // 3:
                    first.stop.set()
                await call(number)
                if number == CALLS // 2:
                    await until(lambda: endpoints == [second])
        finally:
            looking.cancel()
        assert [status for status, _ in answers] == [200] * CALLS
        assert all(body["response"]["allowed"] and body["response"]["patch"] for _, body in answers)
        metrics = (await second.health("/metrics"))[1]
        assert 'isochrone_admission_reviews_total{entry="labelled",result="tagged"}' in metrics
        assert "isochrone_admission_duration_seconds_bucket" in metrics


async def test_c152_a_call_that_is_under_way_is_answered_by_a_replica_that_stops(tmp_path: Path) -> None:
    """Its head is here, its body comes when the replica has been told to stop and says that it is not ready."""
    written = fresh()
    write(written, tmp_path)
    body = review_of(raw_pod(labels=OURS))
    settings = load(WebhookSettings, listen=LOOPBACK, health_listen=LOOPBACK, cert_dir=str(tmp_path), drain="300ms")
    async with running(settings, written.ca) as replica:
        port = replica.at.admission.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=replica.trust, server_hostname=NAME)
        head = f"POST /mutate/labelled HTTP/1.1\r\nHost: {NAME}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:10])
        await writer.drain()
        replica.stop.set()
        async with asyncio.timeout(LIMIT_S):
            while await ready(replica):  # noqa: ASYNC110  # another server's answer is no event of ours
                await asyncio.sleep(0.01)
        writer.write(body[10:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
