"""A small synchronous Kubernetes client: connections are kept and shared, JSON in, JSON out.

For tests and for bringing the stack up. Not the product's client: a test should see what any user sees.
"""

import http.client
import json
import ssl
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from e2e.stack.processes import LIMIT_S

JSON = "application/json"
YAML = "application/yaml"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

NOT_REACHED = (ConnectionError, TimeoutError, http.client.HTTPException, ssl.SSLError, OSError)
"""What a request raises when no answer came."""


class ApiError(RuntimeError):
    """The API server said no."""

    def __init__(self, method: str, path: str, code: int, text: str) -> None:
        try:
            status = json.loads(text)
            message, self.reason = str(status.get("message", text)), str(status.get("reason", ""))
        except (ValueError, AttributeError):
            message, self.reason = text, ""
        super().__init__(f"{method} {path}: {code} {self.reason}: {message}")
        self.code = code
        self.message = message


class ApiClient:
    """Talks to one API server as one user; safe to share between threads."""

    def __init__(self, url: str, ca_file: Path, token: str, limit_s: float = LIMIT_S) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 443
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self._token = token
        self._limit_s = limit_s
        self._idle: list[http.client.HTTPSConnection] = []
        self._lock = threading.Lock()

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = JSON, token: str | None = None
    ) -> tuple[int, str]:
        """Status code and text of one request; never raises for a status."""
        payload = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        headers = {
            "Authorization": f"Bearer {token or self._token}",
            "Accept": JSON,
            "Content-Type": content_type,
            "User-Agent": "e2e",
        }
        connection = self._take()
        used_before = connection.sock is not None
        try:
            try:
                answer = _exchange(connection, method, path, payload, headers)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
                # A kept connection that the server closed meanwhile says nothing about this request: once more.
                if not used_before:
                    raise
                connection.close()
                answer = _exchange(connection, method, path, payload, headers)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return answer

    def call(self, method: str, path: str, body: Any = None, content_type: str = JSON, token: str | None = None) -> Any:
        """The parsed answer; raises ApiError for any status of 400 and above."""
        code, text = self.request(method, path, body, content_type, token)
        if code >= 400:
            raise ApiError(method, path, code, text)
        if not text:
            return {}
        return json.loads(text) if text[0] in "{[" else text

    def create_all(
        self, path: str, objects: Iterable[dict[str, Any] | str], threads: int = 16, content_type: str = JSON
    ) -> list[dict[str, Any]]:
        """Creates many objects of one kind at once, in parallel; the first refusal is raised."""
        items = list(objects)
        if not items:
            return []
        with ThreadPoolExecutor(min(threads, len(items))) as pool:
            return list(pool.map(lambda item: self.call("POST", path, item, content_type), items))

    def close(self) -> None:
        """Closes the connections that are not in use."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def _take(self) -> http.client.HTTPSConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._limit_s, context=self._tls)


def _exchange(
    connection: http.client.HTTPSConnection, method: str, path: str, payload: bytes | None, headers: dict[str, str]
) -> tuple[int, str]:
    connection.request(method, path, payload, headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
    "StorageClass": "storageclasses",
    "RuntimeClass": "runtimeclasses",
    "Ingress": "ingresses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}
CLUSTER_WIDE = {
    "Namespace",
    "Node",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "PriorityClass",
    "Queue",
    "HyperNode",
    "PersistentVolume",
    "StorageClass",
    "RuntimeClass",
}


def path_of(item: dict[str, Any], namespace: str = "default") -> str:
    """The collection an object belongs to; kinds with an odd plural are in a table, discovery is not asked."""
    group, kind = item["apiVersion"], item["kind"]
    root = f"/apis/{group}" if "/" in group else f"/api/{group}"
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    if kind in CLUSTER_WIDE:
        return f"{root}/{plural}"
    return f"{root}/namespaces/{item['metadata'].get('namespace', namespace)}/{plural}"
