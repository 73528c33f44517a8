"""EDGE. The hub's own certificate and the authority that signs agents': kept in a Secret, told in a ConfigMap.

Agents mount the ConfigMap, so that they know whom to believe. Until the Secret was read a certificate that nobody
knows is served, so that the ports are there from the start and agents find the hub not ready instead of away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from admission.certificates.authority import Bundle, issue
from admission.certificates.secret import CertificateSecret, SecretApi
from topology.clock import utc_now
from topology.kube.errors import ApiError, ApiFailure

if TYPE_CHECKING:
    from topology.hub.server import Parts

log = logging.getLogger(__name__)

KEY: Final = "ca.crt"
EVERY_S: Final = 60.0
AGAIN_S: Final = 5.0


class HubCertificate:
    """`names` are those under which agents call the hub."""

    def __init__(self, api: SecretApi, namespace: str, secret: str, config_map: str, names: Sequence[str]) -> None:
        self._api, self._namespace, self._config_map = api, namespace, config_map
        self._secret = CertificateSecret(api, namespace, secret, names, "hub")
        self._collection = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._unknown = issue(names, utc_now(), authority="isochrone-hub-not-ready")
        self._bundle: Bundle | None = None

    def bundle(self) -> Bundle | None:
        """The authority's, None until it was read."""
        return self._bundle

    def parts(self) -> Parts:
        """For TLS: the hub's key and certificate, and the authorities whose agents are believed."""
        bundle = self._bundle or self._unknown
        return bundle.key, bundle.certificate, bundle.ca

    async def refresh(self) -> None:
        """The Secret's certificate, made or replaced if due, told to agents, then in use. Raises ApiFailure.

        Told first: a certificate of a new authority would be of no use to agents that do not know it.
        """
        bundle = await self._secret.current()
        await self._report(bundle.ca.decode())
        if bundle != self._bundle:
            log.info("hub certificate read from Secret %s", self._secret)
        self._bundle = bundle

    async def _report(self, ca: str) -> None:
        path = f"{self._collection}/{quote(self._config_map, safe='')}"
        try:
            found = msgspec.json.decode(await self._api.get(path))
        except ApiError as error:
            if not error.not_found:
                raise
            labels = {"app.kubernetes.io/name": "isochrone", "app.kubernetes.io/component": "hub"}
            meta = {"name": self._config_map, "namespace": self._namespace, "labels": labels}
            made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {KEY: ca}}
            await self._api.create(self._collection, made)
            return
        if (found.get("data") or {}).get(KEY) != ca:
            body = {**found, "data": {**(found.get("data") or {}), KEY: ca}}
            await self._api.request("PUT", path, body=msgspec.json.encode(body))

    async def run(self) -> None:
        """Looks every minute, and every five seconds until the first look succeeded, until cancelled."""
        while True:
            try:
                await self.refresh()
            except ApiFailure as failure:
                log.warning("hub certificate: %s", failure)
            await asyncio.sleep(EVERY_S if self._bundle is not None else AGAIN_S)
