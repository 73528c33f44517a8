"""A real HTTP or HTTPS server on loopback that answers what the test says next, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Self

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Answer = Callable[[], web.StreamResponse]


class Seen:
    """One request as it arrived."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self.method, self.path, self.query, self.body = request.method, request.path, dict(request.query), body
        self.headers = dict(request.headers)


class ScriptedServer:
    """Answers every request with the next of `answers`, else with `{}`; None hangs."""

    def __init__(self, folder: Path, tls: ssl.SSLContext | None = None) -> None:
        self.folder, self._tls = folder, tls
        self.answers: deque[Answer | None] = deque()
        self.seen: list[Seen] = []

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        scheme = "https" if self._tls else "http"
        self.port = self._runner.addresses[0][1]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(Seen(request, await request.read()))
        if not self.answers:
            return web.json_response({})
        answer = self.answers.popleft()
        if answer is None:
            await asyncio.sleep(60)
        elif answer is DROP:
            assert request.transport is not None
            request.transport.close()
        else:
            return answer()
        return web.Response()


def DROP() -> web.StreamResponse:
    raise AssertionError("a mark, never called")


def make_certificates(folder: Path) -> ssl.SSLContext:
    """A self-signed server certificate for 127.0.0.1 in `ca.crt`; the context of its server."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "tls.key").write_bytes(key.private_bytes(*pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "tls.key")
    return context
