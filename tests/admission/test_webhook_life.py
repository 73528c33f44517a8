"""How the server starts, waits for its certificate, and stops."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from admission.settings import HostPort, WebhookSettings, load
from admission.webhook.server import Listening, serve
from tests.admission.fake_api import HOOKS, SECRET, FakeApi
from tests.admission.pods import raw_pod
from tests.admission.running import LOOPBACK, Running, fresh, review_of, write
from topology import clock
from topology.bad_input import BadInput
from topology.kube.errors import ApiError


async def test_an_address_in_use_is_one_sentence(tmp_path: Path) -> None:
    write(fresh(), tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = load(
            WebhookSettings, listen=LOOPBACK, health_listen=HostPort("127.0.0.1", port), cert_dir=str(tmp_path)
        )
        with pytest.raises(BadInput, match=rf"^ISOCHRONE_HEALTH_LISTEN is '127.0.0.1:{port}'; it cannot be used: "):
            await serve(settings)


async def test_without_a_certificate_it_says_so_and_stops_when_asked(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = load(
        WebhookSettings, listen=LOOPBACK, health_listen=HostPort("127.0.0.1", port), cert_dir=str(tmp_path), drain="1ms"
    )
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop=stop))
    async with asyncio.timeout(10), aiohttp.ClientSession() as session:
        text = ""
        while "tls.crt" not in text:
            await asyncio.sleep(0.01)
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    assert answer.status == 503
                    text = await answer.text()
        assert text.startswith("certificate: ISOCHRONE_CERT_DIR is ")
        stop.set()
        await task


async def test_its_own_certificate_through_the_api_server(tmp_path: Path) -> None:
    """The path of an installation: Secret made, authority announced, TLS answered under the Service's name."""
    fake = FakeApi()
    fake.configuration(None, None)

    async def call(request: web.Request) -> web.Response:
        try:
            match request.method:
                case "GET":
                    body = await fake.get(request.path)
                case "POST":
                    body = await fake.create(request.path, await request.json())
                case _:
                    body = await fake.patch_json(request.path, await request.json())
        except ApiError as error:
            return web.json_response({"code": error.status, "reason": error.reason}, status=error.status)
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", call)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    kubeconfig.write_bytes(
        msgspec.json.encode(
            {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}], "current-context": "c"}
        )
    )
    settings = load(
        WebhookSettings,
        listen=LOOPBACK,
        health_listen=LOOPBACK,
        kubeconfig=str(kubeconfig),
        cert_secret="cert",
        drain="1ms",
    )
    try:
        stop = asyncio.Event()
        up: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve(settings, up.set_result, stop=stop))
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            at = await up
            announced = fake.objects[HOOKS]["webhooks"][1]["clientConfig"]["caBundle"]
            assert announced == fake.objects[SECRET]["data"]["ca.crt"]
            trust = ssl.create_default_context(cadata=base64.b64decode(announced).decode())
            client = Running(at, session, trust, stop, task)
            assert (await client.post("/mutate/labelled", review_of(raw_pod())))[0] == 200
            stop.set()
            await task
    finally:
        await runner.cleanup()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    write(fresh(), tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "ISOCHRONE_LISTEN": "127.0.0.1:0",
        "ISOCHRONE_HEALTH_LISTEN": f"127.0.0.1:{port}",
        "ISOCHRONE_CERT_DIR": str(tmp_path),
        "ISOCHRONE_DRAIN": "1s",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "admission.cli", "webhook"], env=env, stderr=subprocess.PIPE
    ) as started:
        try:
            yield started, port
        finally:
            started.kill()


def probe(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def test_sigterm_ends_readiness_first_and_then_the_process(process: tuple[subprocess.Popen[bytes], int]) -> None:
    started, port = process
    until = clock.monotonic_s() + 20
    while probe(port, "/readyz") != 200:
        assert clock.monotonic_s() < until
        assert started.poll() is None
    started.send_signal(signal.SIGTERM)
    seen = set()
    while started.poll() is None:
        assert clock.monotonic_s() < until
        seen.add(probe(port, "/readyz"))
    assert 503 in seen
    assert started.returncode == 0
