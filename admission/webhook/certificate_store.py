"""EDGE. Where the webhook's certificate comes from: a folder that somebody else fills, or a Secret that we keep.

Decides who makes, replaces and announces the certificate. Replicas agree through the Secret alone: the first to
create it wins, the others read it. It must never know what a certificate consists of, nor what is served.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import logging
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from admission.webhook.certificates import Bundle, ServingCertificate, issue, why_replace
from topology import clock
from topology.bad_input import BadInput
from topology.kube.errors import ApiError, ApiFailure

log = logging.getLogger(__name__)

_TRIES: Final = 5  # other replicas renew and apply at the same moment
_KEYS: Final = {"certificate": "tls.crt", "key": "tls.key", "ca": "ca.crt", "ca_key": "ca.key"}


class Api(Protocol):
    """The part of the Kubernetes client that is needed here."""

    async def get(self, path: str) -> bytes: ...

    async def create(self, path: str, obj: Any) -> bytes: ...

    async def request(self, method: str, path: str, *, body: bytes | None = None) -> bytes: ...

    async def patch_json(self, path: str, ops: Sequence[Mapping[str, Any]]) -> bytes: ...


class Source(Protocol):
    """Where a certificate comes from. `every_s`: how often to look."""

    every_s: float

    async def refresh(self, serving: ServingCertificate) -> None:
        """Brings the newest certificate into use."""


class Folder:
    """tls.crt and tls.key in a folder, as cert-manager or a mounted Secret leave them; read again when they change."""

    every_s = 10.0

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def refresh(self, serving: ServingCertificate) -> None:
        """Raises BadInput if the files are not there or do not fit each other."""
        pair = await asyncio.to_thread(self._read)
        try:
            if serving.load(*pair):
                log.info("certificate read from %s", self._path)
        except ssl.SSLError as error:
            raise BadInput("ISOCHRONE_CERT_DIR", str(self._path), f"its pair is unusable: {error}") from None

    def _read(self) -> tuple[bytes, bytes]:
        try:
            return (self._path / "tls.crt").read_bytes(), (self._path / "tls.key").read_bytes()
        except OSError as error:
            allowed = f"it must hold tls.crt and tls.key: {error.strerror} ({error.filename})"
            raise BadInput("ISOCHRONE_CERT_DIR", str(self._path), allowed) from None


class Secret:
    """A certificate of our own, kept in a Secret, its authority written into the webhook configuration."""

    every_s = 60.0

    def __init__(self, api: Api, namespace: str, secret: str, configuration: str, names: Sequence[str]) -> None:
        self._api, self._names = api, tuple(names)
        self._collection = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets"
        self._namespace, self._secret = namespace, secret
        self._path = f"{self._collection}/{quote(secret, safe='')}"
        kinds = "/apis/admissionregistration.k8s.io/v1"
        self._configuration = f"{kinds}/mutatingwebhookconfigurations/{quote(configuration, safe='')}"
        self._validating = f"{kinds}/validatingwebhookconfigurations/{quote(configuration, safe='')}"

    async def refresh(self, serving: ServingCertificate) -> None:
        """The Secret's certificate, replaced if due, announced, then in use. Raises ApiFailure.

        Announced first: a leaf of a new authority that the API server does not know yet would be of no use. When
        there is nothing to serve yet, it is taken into use even if it could not be announced.
        """
        bundle = await self._current()
        try:
            await self._announce(bundle.ca, self._configuration)
            await self._announce_validating(bundle.ca)
        except ApiFailure:
            if not serving.ready:
                serving.load(bundle.certificate, bundle.key)
            raise
        if serving.load(bundle.certificate, bundle.key):
            log.info("certificate read from Secret %s/%s", self._namespace, self._secret)

    async def _current(self) -> Bundle:
        for _ in range(_TRIES):
            found = await self._read()
            previous = _bundle(found) if found else None
            now = datetime.datetime.fromtimestamp(clock.wall_time_s(), datetime.UTC)
            reason = why_replace(previous, self._names, now) if previous else "there is none"
            if previous and not reason:
                return previous
            made = issue(self._names, now, previous)
            if await self._write(made, found):
                log.info("certificate made, because of the old one: %s", reason)
                return made
        raise ApiError(409, "Conflict", f"Secret {self._secret} is changed by somebody else all the time")

    async def _read(self) -> dict[str, Any] | None:
        try:
            found = msgspec.json.decode(await self._api.get(self._path))
        except ApiError as error:
            if error.not_found:
                return None
            raise
        return found if isinstance(found, dict) else None

    async def _write(self, bundle: Bundle, found: Mapping[str, Any] | None) -> bool:
        """False if somebody else was faster: then theirs counts."""
        data = {key: base64.b64encode(getattr(bundle, field)).decode() for field, key in _KEYS.items()}
        try:
            if found is None:
                labels = {"app.kubernetes.io/name": "isochrone", "app.kubernetes.io/component": "webhook"}
                meta = {"name": self._secret, "namespace": self._namespace, "labels": labels}
                wanted = {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": meta,
                    "type": "kubernetes.io/tls",
                    "data": data,
                }
                await self._api.create(self._collection, wanted)
            else:  # the resourceVersion in it makes this fail if it changed meanwhile
                body = {**found, "data": {**(found.get("data") or {}), **data}}
                await self._api.request("PUT", self._path, body=msgspec.json.encode(body))
        except ApiError as error:
            if error.status == 409 or (error.not_found and found is not None):
                return False
            raise
        return True

    async def _announce_validating(self, ca: bytes) -> None:
        """The validating part may be left out of an installation, or not be ours to change: tagging goes on."""
        try:
            await self._announce(ca, self._validating)
        except ApiError as error:
            if error.not_found:
                return
            if error.status != 403:
                raise
            log.warning("validating webhook configuration: %s", error)

    async def _announce(self, ca: bytes, configuration: str) -> None:
        """Writes the authority into every entry of the configuration that does not have it, and nothing else."""
        bundle = base64.b64encode(ca).decode()
        for last in (False, False, True):
            hooks = msgspec.json.decode(await self._api.get(configuration)).get("webhooks") or []
            ops = []
            for index, hook in enumerate(hooks):
                if hook.get("clientConfig", {}).get("caBundle") != bundle:
                    ops.append({"op": "test", "path": f"/webhooks/{index}/name", "value": hook.get("name")})
                    ops.append({"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle})
            if not ops:
                return
            try:
                await self._api.patch_json(configuration, ops)
                log.info("authority written into %d webhook entries", len(ops) // 2)
                return
            except ApiError as error:
                if last or not (error.invalid or error.conflict):
                    raise


async def keep(
    source: Source,
    serving: ServingCertificate,
    loaded: asyncio.Event,
    *,
    first_pause_s: float = 1.0,
    last_pause_s: float = 15.0,
) -> None:
    """Looks for a newer certificate for ever; a failure is said, shown by readiness if it matters, and tried again."""
    failed_s = first_pause_s
    while True:
        pause_s = failed_s
        failed_s = min(failed_s * 2, last_pause_s)
        try:
            await source.refresh(serving)
            serving.problem, pause_s, failed_s = "", source.every_s, first_pause_s
        except (ApiFailure, BadInput, OSError) as error:  # ssl.SSLError is an OSError
            serving.problem = str(error)
            log.warning("certificate: %s", error)
        except Exception:  # a bug here must not end the renewal for good
            serving.problem = "internal error, see the log"
            log.exception("certificate")
        if serving.ready:
            loaded.set()
        await asyncio.sleep(pause_s)


def _bundle(found: Mapping[str, Any]) -> Bundle | None:
    data = found.get("data")
    try:
        parts = {field: base64.b64decode(data[key], validate=True) for field, key in _KEYS.items()} if data else None
    except (KeyError, TypeError, binascii.Error):
        return None
    return Bundle(**parts) if parts else None
