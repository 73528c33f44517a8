"""Where the API server is and how to be let in: address, TLS, token; read again as they change.

It decides which configuration counts and when a credential is read anew. It must never know what is asked of the
server. `kubernetes.aio.config` does the reading (in-cluster token files, kubeconfig, exec plugins, OIDC); it is
imported on first use because it brings the whole generated client along (0.3 s and more).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from topology.bad_input import BadInput
from topology.clock import monotonic_s

log = logging.getLogger(__name__)

RENEW_EVERY_S: Final = 60.0  # the kubelet replaces a token at 80 % of its life, an exec plugin 5 min before expiry
_FORCED_EVERY_S: Final = 5.0  # a server that says 401 to everything must not make us run a plugin per request
_RELOAD_LIMIT_S: Final = 30.0  # exec plugins may ask the network

Reload = Callable[[], Awaitable[Any]]


class KubeAccess:
    """`base` and `options()` are what a request needs. Belongs to one event loop."""

    def __init__(self, settings: Any, reload: Reload, *, in_cluster: bool, renew_every_s: float) -> None:
        self._settings, self._reload, self._every_s = settings, reload, renew_every_s
        self._files: tuple[object, ...] = ()
        self._tls: ssl.SSLContext | bool = True
        self._token = ""
        self._adopt()
        self.base: str = str(settings.host).rstrip("/")
        self._server_name: str | None = settings.tls_server_name or None
        # In a pod the server is always direct: NO_PROXY there often holds address ranges, which Python cannot read.
        self._proxy: str | None = settings.proxy or (None if in_cluster else _environment_proxy(self.base))
        self._due_s = monotonic_s() + renew_every_s
        self._forced_s = 0.0
        self._renewal: asyncio.Task[None] | None = None

    @classmethod
    async def load(
        cls, kubeconfig: str | None = None, *, renew_every_s: float = RENEW_EVERY_S, named: str = "kubeconfig"
    ) -> Self:
        """The first there is of: the argument, $KUBECONFIG, the pod's service account, ~/.kube/config.

        `named` is what the person who gave the argument calls it.

        Raises BadInput if there is none or it cannot be used.
        """
        config: Any = importlib.import_module("kubernetes.aio.config")  # carries no types
        settings: Any = importlib.import_module("kubernetes.aio.client").Configuration()
        field, path = named, kubeconfig or ""
        if not path and (path := os.environ.get("KUBECONFIG", "")):
            field = "KUBECONFIG"
        in_cluster = not path and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
        try:
            reload: Reload
            if in_cluster:
                field, path = "KUBERNETES_SERVICE_HOST", os.environ["KUBERNETES_SERVICE_HOST"]

                async def reload() -> None:
                    config.load_incluster_config(client_configuration=settings)

                await reload()
            else:
                path = path or "~/.kube/config"
                if not _exists(path):
                    raise BadInput(field, path, "no such file; name a kubeconfig that exists, or run inside a pod")
                async with asyncio.timeout(_RELOAD_LIMIT_S):
                    loader: Any = await config.load_kube_config(
                        config_file=path, client_configuration=settings, persist_config=False
                    )

                async def reload() -> None:
                    await loader.load_and_set(settings)

            return cls(settings, reload, in_cluster=in_cluster, renew_every_s=renew_every_s)
        except BadInput:
            raise
        except Exception as error:  # the loader raises whatever YAML, ssl, os or a plugin raises
            raise BadInput(field, path, f"it cannot be used: {' '.join(str(error).split()) or error!r}") from error

    def options(self) -> dict[str, Any]:
        """Keyword arguments for one aiohttp request; a fresh dict with fresh headers."""
        headers = {"Authorization": self._token} if self._token else {}
        made: dict[str, Any] = {"headers": headers, "ssl": self._tls}
        if self._server_name is not None:
            made["server_hostname"] = self._server_name
        if self._proxy is not None:
            made["proxy"] = self._proxy
        return made

    def renew_if_due(self) -> None:
        """Starts reading the credentials again in the background if their time has come; never waits."""
        if monotonic_s() >= self._due_s:
            self._start()

    async def renew_now(self) -> None:
        """After a 401: reads the credentials again and waits for it, unless that was done a moment ago."""
        if monotonic_s() >= self._forced_s:
            self._forced_s = monotonic_s() + _FORCED_EVERY_S
            self._start()
        if self._renewal is not None:
            await asyncio.wait([self._renewal], timeout=_RELOAD_LIMIT_S)

    async def close(self) -> None:
        """Stops a renewal under way."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal], timeout=_RELOAD_LIMIT_S)

    def _start(self) -> None:
        if self._renewal is None or self._renewal.done():
            self._due_s = monotonic_s() + self._every_s
            self._renewal = asyncio.create_task(self._renew(), name="kube-credentials")

    async def _renew(self) -> None:
        try:
            async with asyncio.timeout(_RELOAD_LIMIT_S):
                await self._reload()
            self._adopt()
        except Exception as error:  # the old credentials may well serve on: say so and try again when due
            log.warning("credentials could not be read again, the old ones stay: %s", str(error) or repr(error))

    def _adopt(self) -> None:
        settings = self._settings
        # The in-cluster loader keeps a newline at the end of the file, which no header may hold.
        self._token = str(settings.api_key.get("BearerToken") or "").strip()
        if not str(settings.host).startswith("https"):
            return
        named = (settings.ssl_ca_cert, settings.cert_file, settings.key_file)
        files: tuple[object, ...] = tuple((name, os.stat(name).st_mtime_ns) if name else None for name in named)
        if files != self._files:
            self._tls = _tls(settings)
            self._files = files


def _exists(path: str) -> bool:
    return any(Path(part).expanduser().is_file() for part in path.split(os.pathsep) if part)


def _tls(settings: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    # Python 3.13 became stricter than Go about extensions that many cluster CAs lack.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, keyfile=settings.key_file)
    return context


def _environment_proxy(base: str) -> str | None:
    parts = urlsplit(base)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)
