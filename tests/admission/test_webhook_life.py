"""How the server starts, waits for its certificate, and stops."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web

from admission.settings import WebhookSettings
from admission.webhook.server import WebhookAddresses, serve
from tests.admission.fake_api import HOOKS, SECRET, FakeApi
from tests.admission.pods import raw_pod
from tests.admission.running import LOOPBACK, Running, fresh, review_of, write
from tests.topology.list_watch_server import LIMIT_S, until
from topology import clock
from topology.bad_input import BadInput
from topology.environment import load
from topology.kube.errors import ApiError
from topology.units import HostPort


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


async def test_without_a_certificate_it_says_so_and_stops_when_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "admission.webhook.server")
    settings = load(WebhookSettings, listen=LOOPBACK, health_listen=LOOPBACK, cert_dir=str(tmp_path), drain="1ms")
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop=stop))
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
        await until(lambda: bool(caplog.messages))
        where, text = health_of(caplog.text), ""
        while "tls.crt" not in text:
            async with session.get(f"http://{where}/readyz") as answer:
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
        up: asyncio.Future[WebhookAddresses] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve(settings, up.set_result, stop=stop))
        async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
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


def health_of(log: str) -> str:
    """HOST:PORT of the probes, as a webhook tells it when it starts; "" before."""
    found = re.search(r"probes and metrics on (\S+)", log)
    return found[1] if found else ""


@contextlib.contextmanager
def process(folder: Path, drain: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`isochrone webhook`, ready, and where its probes are."""
    write(fresh(), folder)
    settings = {"LISTEN": "127.0.0.1:0", "HEALTH_LISTEN": "127.0.0.1:0", "CERT_DIR": str(folder), "DRAIN": drain}
    env = {**os.environ, **{f"ISOCHRONE_{name}": value for name, value in settings.items()}}
    log = folder / "log"
    with (
        log.open("wb") as sink,
        subprocess.Popen([sys.executable, "-m", "admission.cli", "webhook"], env=env, stderr=sink) as started,
    ):
        try:
            until_s = clock.monotonic_s() + LIMIT_S
            while probe(health_of(log.read_text()), "/readyz") != 200:
                assert clock.monotonic_s() < until_s, log.read_text()
                assert started.poll() is None, log.read_text()
                time.sleep(0.02)
            yield started, health_of(log.read_text())
        finally:
            started.kill()


def probe(where: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{where}{path}", timeout=LIMIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def test_sigterm_ends_readiness_first(tmp_path: Path) -> None:
    with process(tmp_path, "60s") as (started, where):
        started.send_signal(signal.SIGTERM)
        until_s = clock.monotonic_s() + LIMIT_S
        while probe(where, "/readyz") != 503:
            assert clock.monotonic_s() < until_s
        assert started.poll() is None
        assert probe(where, "/livez") == 200


def test_sigterm_ends_the_process_after_its_drain(tmp_path: Path) -> None:
    with process(tmp_path, "1ms") as (started, _):
        started.send_signal(signal.SIGTERM)
        assert started.wait(LIMIT_S) == 0
