"""EDGE. A certificate of our own and its authority, kept in a Secret.

Decides when it is made anew. Replicas agree through the Secret alone: the first to create it wins, the others read it.
It must never know what a certificate consists of, nor who serves it.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from admission.certificates.authority import Bundle, issue, why_replace
from topology import clock
from topology.kube.errors import ApiError

log = logging.getLogger(__name__)

_TRIES: Final = 5  # other replicas renew and apply at the same moment
_KEYS: Final = {"certificate": "tls.crt", "key": "tls.key", "ca": "ca.crt", "ca_key": "ca.key"}


class SecretApi(Protocol):
    """The part of the Kubernetes client that is needed here."""

    async def get(self, path: str) -> bytes: ...

    async def create(self, path: str, obj: Any) -> bytes: ...

    async def request(self, method: str, path: str, *, body: bytes | None = None) -> bytes: ...


class CertificateSecret:
    """`names` are those of the server, `component` is whose it is: a word for labels and the authority's name."""

    def __init__(self, api: SecretApi, namespace: str, secret: str, names: Sequence[str], component: str) -> None:
        self._api, self._names, self._component = api, tuple(names), component
        self._collection = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets"
        self._namespace, self._secret = namespace, secret
        self._path = f"{self._collection}/{quote(secret, safe='')}"

    def __str__(self) -> str:
        return f"{self._namespace}/{self._secret}"

    async def current(self) -> Bundle:
        """The Secret's certificate, made or replaced if due. Raises ApiFailure."""
        for _ in range(_TRIES):
            found = await self._read()
            previous = _bundle(found) if found else None
            now = clock.utc_now()
            reason = why_replace(previous, self._names, now) if previous else "there is none"
            if previous and not reason:
                return previous
            made = issue(self._names, now, previous, f"isochrone-{self._component}-ca")
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
                labels = {"app.kubernetes.io/name": "isochrone", "app.kubernetes.io/component": self._component}
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


def _bundle(found: Mapping[str, Any]) -> Bundle | None:
    data = found.get("data")
    try:
        parts = {field: base64.b64decode(data[key], validate=True) for field, key in _KEYS.items()} if data else None
    except (KeyError, TypeError, binascii.Error):
        return None
    return Bundle(**parts) if parts else None
