"""EDGE. Where the webhook's certificate comes from: a folder that somebody else fills, or a Secret that we keep.

Decides who announces the certificate, and where. It must never know what a certificate consists of, nor what is served.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from admission.certificates import secret
from admission.webhook.serving_certificate import ServingCertificate
from topology.bad_input import BadInput
from topology.kube.errors import ApiError, ApiFailure

log = logging.getLogger(__name__)


class ConfigurationApi(secret.SecretApi, Protocol):
    """The part of the Kubernetes client that is needed here."""

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

    def __init__(
        self, api: ConfigurationApi, namespace: str, name: str, configuration: str, names: Sequence[str]
    ) -> None:
        self._api, self._stored = api, secret.CertificateSecret(api, namespace, name, names, "webhook")
        kinds = "/apis/admissionregistration.k8s.io/v1"
        self._configuration = f"{kinds}/mutatingwebhookconfigurations/{quote(configuration, safe='')}"
        self._validating = f"{kinds}/validatingwebhookconfigurations/{quote(configuration, safe='')}"

    async def refresh(self, serving: ServingCertificate) -> None:
        """The Secret's certificate, replaced if due, announced, then in use. Raises ApiFailure.

        Announced first: a leaf of a new authority that the API server does not know yet would be of no use. When
        there is nothing to serve yet, it is taken into use even if it could not be announced.
        """
        bundle = await self._stored.current()
        try:
            await self._announce(bundle.ca, self._configuration)
            await self._announce_validating(bundle.ca)
        except ApiFailure:
            if not serving.ready:
                serving.load(bundle.certificate, bundle.key)
            raise
        if serving.load(bundle.certificate, bundle.key):
            log.info("certificate read from Secret %s", self._stored)

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
