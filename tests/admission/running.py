"""A webhook that runs in this event loop, and a client that trusts its certificate."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from admission.certificates.authority import Bundle, issue
from admission.settings import WebhookSettings
from admission.webhook.server import WebhookAddresses, serve
from tests.topology.list_watch_server import LIMIT_S
from topology import clock
from topology.units import HostPort

NAME = "isochrone-webhook.isochrone-system.svc"
LOOPBACK = HostPort("127.0.0.1", 0)
OURS = {"isochrone.dev/phase": "decode", "isochrone.dev/gang": "chat"}


def review_of(content: Any, group: str = "", plural: str = "pods") -> bytes:
    request = {
        "uid": "u1",
        "resource": {"group": group, "version": "v1", "resource": plural},
        "operation": "CREATE",
        "namespace": "team-a",
        "object": content,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def fresh() -> Bundle:
    return issue((NAME,), datetime.datetime.fromtimestamp(clock.wall_time_s(), datetime.UTC))


def write(bundle: Bundle, folder: Path) -> None:
    (folder / "tls.crt").write_bytes(bundle.certificate)
    (folder / "tls.key").write_bytes(bundle.key)


@dataclass
class Running:
    at: WebhookAddresses
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
    up: asyncio.Future[WebhookAddresses] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, up.set_result, stop=stop))
    async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
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
