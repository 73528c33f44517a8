"""EDGE: `/livez`, `/readyz` and `/metrics` of an agent, by prometheus_client's WSGI application on wsgiref.

Decides how long a request may take and how many are answered at once. It must never know what the metrics mean.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from topology.agent.settings import host_port
from topology.bad_input import BadInput
from topology.environment import ENV_PREFIX

LIMIT_S: Final = 5.0
_MOST: Final = 16  # requests at once
Why = Callable[[], str]
"""Why something is not well, "" while it is."""


def health_app(registry: CollectorRegistry, why_dead: Why, why_not_ready: Why) -> Callable[..., Iterable[bytes]]:
    """The WSGI application."""
    metrics, checks = make_wsgi_app(registry), {"/livez": why_dead, "/readyz": why_not_ready}

    def app(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = request["PATH_INFO"]
        if path == "/metrics" or request["REQUEST_METHOD"] != "GET":  # it refuses other methods
            answered: Iterable[bytes] = metrics(request, start)
            return answered
        if path in checks:
            why = checks[path]()
            status, text = ("503 Service Unavailable" if why else "200 OK"), why or "ok"
        else:
            status, text = "404 Not Found", "there is /livez, /readyz and /metrics"
        start(status, [("Content-Type", "text/plain")])
        return [f"{text}\n".encode()]

    return app


class _Handler(WSGIRequestHandler):
    timeout = LIMIT_S  # of each read and write

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the library's name
        """A scrape every few seconds is no news."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.BoundedSemaphore(_MOST)
        super().__init__((host, port), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Closes what comes while too many are answered."""
        return self._free.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked went away, or sent no HTTP."""


@contextlib.contextmanager
def listening(app: Callable[..., Iterable[bytes]], where: str) -> Iterator[tuple[str, int]]:
    """Serves in threads while the context lasts; yields the address. Raises BadInput for one that cannot be used."""
    host, port = host_port(where, ENV_PREFIX + "HEALTH_LISTEN")
    try:
        server = _Server(host, port)
    except OSError as error:
        raise BadInput(ENV_PREFIX + "HEALTH_LISTEN", where, f"it cannot be used: {error.strerror}") from None
    server.set_app(app)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    try:
        yield str(server.server_address[0]), server.server_port
    finally:
        server.shutdown()
        server.server_close()
