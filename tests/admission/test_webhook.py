"""The server over real sockets with real TLS: what it answers, refuses, counts, and how it starts and stops."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import io
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from admission import review
from admission.certificates import Bundle, issue
from admission.settings import HostPort, WebhookSettings, load
from admission.webhook import MAX_BODY_BYTES, Listening, serve
from tests.admission.fake_api import HOOKS, SECRET, FakeApi
from tests.admission.pods import raw_pod
from topology import clock
from topology.bad_input import BadInput
from topology.kube_errors import ApiError

NAME = "isochrone-webhook.isochrone-system.svc"
LOOPBACK = HostPort("127.0.0.1", 0)
OURS = {"isochrone.dev/phase": "decode", "isochrone.dev/gang": "chat"}


def review_of(pod: Any) -> bytes:
    request = {
        "uid": "u1",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "team-a",
        "object": pod,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def fresh() -> Bundle:
    return issue((NAME,), datetime.datetime.fromtimestamp(clock.wall_time_s(), datetime.UTC))


def write(bundle: Bundle, folder: Path) -> None:
    (folder / "tls.crt").write_bytes(bundle.certificate)
    (folder / "tls.key").write_bytes(bundle.key)


@dataclass
class Running:
    at: Listening
    session: aiohttp.ClientSession
    trust: ssl.SSLContext
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def post(
        self, path: str, body: bytes, *, method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, Any] | str]:
        sent = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        data = io.BytesIO(body) if isinstance(body, bytes) else body
        url = f"https://127.0.0.1:{self.at.admission.port}{path}"
        async with self.session.request(
            method, url, data=data, headers=sent, ssl=self.trust, server_hostname=NAME
        ) as answer:
            text = await answer.text()
            return answer.status, msgspec.json.decode(text) if answer.content_type == "application/json" else text

    async def health(self, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://127.0.0.1:{self.at.health.port}{path}") as answer:
            return answer.status, await answer.text()


@contextlib.asynccontextmanager
async def running(settings: WebhookSettings, ca: bytes) -> AsyncIterator[Running]:
    up: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, up.set_result, stop=stop))
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        both: set[asyncio.Future[Any]] = {up, task}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        trust = ssl.create_default_context(cadata=ca.decode())
        try:
            yield Running(up.result(), session, trust, stop, task)
        finally:
            stop.set()
            await task


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    bundle = fresh()
    write(bundle, tmp_path)
    settings = load(
        WebhookSettings, listen=LOOPBACK, health_listen=LOOPBACK, cert_dir=str(tmp_path), drain="1ms"
    )  # fmt: skip
    async with running(settings, bundle.ca) as up:
        yield up


async def test_the_three_entries_answer(server: Running) -> None:
    for path in ("/mutate/labelled", "/mutate/namespace", "/mutate/recognise?timeout=3s"):
        status, answer = await server.post(path, review_of(raw_pod(OURS)))
        assert status == 200
        assert isinstance(answer, dict)
        assert answer["response"]["uid"] == "u1"
        patch = msgspec.json.decode(base64.b64decode(answer["response"]["patch"]))
        assert {"op": "add", "path": "/spec/schedulingGates/-", "value": {"name": "isochrone.dev/reach"}} in patch


@pytest.mark.parametrize(
    ("path", "body", "method", "headers", "status", "sentence"),
    [
        ("/mutate/labelled", b"{", "POST", {}, 400, "body is '{'; it must be an AdmissionReview: "),
        ("/mutate/labelled", b"\xff", "POST", {}, 400, "body is 'byte 0'; it must be UTF-8"),
        ("/mutate/labelled", b"{}", "POST", {}, 400, "body is ''; it must be of admission.k8s.io/v1"),
        ("/mutate/labelled", b"{}", "GET", {}, 405, "method is 'GET'; use 'POST'"),
        (
            "/mutate/labelled",
            b"{}",
            "POST",
            {"Content_Type": "text/plain"},
            415,
            "Content-Type is 'text/plain'; use 'application/json'",
        ),
        ("/mutate", b"{}", "POST", {}, 404, "path is '/mutate'; use POST to one of /mutate/labelled, "),
        ("/", b"", "GET", {}, 404, "path is '/'; use POST to one of /mutate/labelled, "),
        (
            "/mutate/labelled",
            b" " * (MAX_BODY_BYTES + 1),
            "POST",
            {},
            413,
            f"body is {MAX_BODY_BYTES + 1} bytes; at most {MAX_BODY_BYTES} bytes are read",
        ),
    ],
)
async def test_bad_requests_are_told_in_one_sentence(
    server: Running, path: str, body: bytes, method: str, headers: dict[str, str], status: int, sentence: str
) -> None:
    got, text = await server.post(path, body, method=method, **headers)
    assert got == status
    assert isinstance(text, str)
    assert text.startswith(sentence)
    assert text.count("\n") == 1


async def test_a_body_without_a_length_is_limited_too(server: Running) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * 2**20

    status, text = await server.post("/mutate/labelled", chunks())  # type: ignore[arg-type]
    assert (status, text) == (413, f"body is larger; at most {MAX_BODY_BYTES} bytes are read\n")


async def test_a_large_pod_is_read(server: Running) -> None:
    status, answer = await server.post("/mutate/labelled", review_of(raw_pod(OURS, {"big": "x" * 1_400_000})))
    assert status == 200
    assert isinstance(answer, dict)
    assert answer["response"]["patchType"] == "JSONPatch"


async def test_a_bug_allows_the_pod_and_is_counted(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(review, "tag", broken)
    status, answer = await server.post("/mutate/labelled", review_of(raw_pod(OURS)))
    assert status == 200
    assert isinstance(answer, dict)
    assert answer["response"] == {
        "uid": "u1",
        "allowed": True,
        "warnings": ["Isochrone failed on this pod and left it alone; its log says why"],
    }
    _, text = await server.health("/metrics")
    assert 'isochrone_admission_reviews_total{entry="labelled",result="failed"} 1.0' in text


async def test_metrics_and_probes(server: Running) -> None:
    await server.post("/mutate/labelled", review_of(raw_pod(OURS)))
    await server.post("/mutate/namespace", review_of(raw_pod()))
    await server.post("/mutate/labelled", review_of(raw_pod({"isochrone.dev/phase": "?"})))
    await server.post("/mutate/labelled", b"{")
    _, text = await server.health("/metrics")
    for line in (
        'isochrone_admission_reviews_total{entry="labelled",result="tagged"} 1.0',
        'isochrone_admission_reviews_total{entry="namespace",result="untouched"} 1.0',
        'isochrone_admission_reviews_total{entry="labelled",result="refused"} 1.0',
        'isochrone_admission_reviews_total{entry="labelled",result="failed"} 1.0',
        'isochrone_admission_reviews_total{entry="recognise",result="tagged"} 0.0',
        "isochrone_admission_duration_seconds_count 3.0",
        "isochrone_build_info{version=",
    ):
        assert line in text
    assert await server.health("/livez") == (200, "ok\n")
    assert await server.health("/readyz") == (200, "ok\n")
    assert await server.health("/readyz?verbose") == (200, "[+] certificate ok\n[+] serving ok\n")


async def test_a_stranger_is_not_talked_to_without_tls(server: Running) -> None:
    with pytest.raises(aiohttp.ClientError):
        async with server.session.post(f"http://127.0.0.1:{server.at.admission.port}/mutate/labelled", data=b"{}"):
            pass


async def test_many_at_once(server: Running) -> None:
    body = review_of(raw_pod(OURS))
    answers = await asyncio.gather(*(server.post("/mutate/labelled", body) for _ in range(200)))
    assert {status for status, _ in answers} == {200}


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
