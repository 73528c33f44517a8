"""EDGE. A cluster from a file, served on loopback the way an API server serves it: list, watch, patch, apply, bind.

For the demo and for tests of clients. It decides what HTTP request means which read or write of the object store, and
which of them fail on demand. It must never know what the objects are for. It is not a general API server: only the
kinds of `cluster_kinds`, JSON only, no validation of schemas, no defaults but a pod's, no field owners, no admission,
no garbage collection, no graceful deletion, one token for all rights. In memory only; a stop forgets everything.

Every watch reads the one bounded log of the store: a watcher that is too slow gets 410 and lists again.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import yaml
from aiohttp import web

from admission.demo import cluster_file
from admission.demo.cluster_kinds import Object, Refused, Target, kind_named, selection_of, target_of
from admission.demo.object_store import ObjectStore, merged
from topology.bad_input import BadInput
from topology.clock import monotonic_s, rfc3339_seconds, wall_time_s

_BODY_BYTES: Final = 4 * 2**20
_WATCH_S: Final = 1800.0  # a watch that names no end gets this one
_BOOKMARK_S: Final = 30.0
_STOP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Failure:
    method: str
    path: re.Pattern[str]
    status: int
    after: bool


class FileCluster:
    """One cluster. Belongs to the event loop that starts it; `async with` starts and stops it."""

    def __init__(self, nodes: Sequence[Object], pods: Sequence[Object] = (), *, remembered: int = 10_000) -> None:
        """`nodes` are entries as in a cluster file, compact or whole; `remembered` bounds the log that watches read."""
        self.requests: list[tuple[str, str]] = []  # (method, path) as they came; the method of a watch is WATCH
        self.token = secrets.token_urlsafe(16)
        self.url = ""
        self._changed = asyncio.Event()
        self.store = ObjectStore(lambda: rfc3339_seconds(wall_time_s()), self._wakeup, remembered)
        self._failures: list[_Failure] = []
        self._watches: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None
        made_nodes, made_pods = cluster_file.expand(nodes, None, pods)
        for node in made_nodes:
            self.store.create(kind_named("nodes"), "", node, keep_status=True)
        for pod in made_pods:
            self.create_pod(pod)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Reads a cluster file. Raises BadInput."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput("cluster file", str(path), f"it must be a readable file: {error}") from None
        nodes, pods = cluster_file.read(text)
        return cls(nodes, pods)

    # --- the cluster, from inside --------------------------------------------------------------

    def create_pod(self, pod: Object) -> Object:
        """Creates a pod as it is, its status included; no webhook is asked."""
        return self.create("pods", pod)

    def create(self, kind: str, obj: Object) -> Object:
        """Creates any object; `kind` is the plural, such as `deployments`."""
        known = kind_named(kind)
        namespace = obj.get("metadata", {}).get("namespace", "default") if known.namespaced else ""
        return self.store.create(known, namespace, obj, keep_status=True)

    def change(self, kind: str, namespace: str, name: str, patch: Object) -> Object:
        """Merge-patches any object, status included, with no rule of the API server in the way."""
        return self.store.change(kind_named(kind), namespace, name, lambda old: merged(old, patch), free=True)

    def delete(self, kind: str, namespace: str, name: str) -> Object:
        """Deletes any object at once."""
        return self.store.delete(kind_named(kind), namespace, name)

    def bind(self, namespace: str, name: str, node: str) -> Object:
        """Puts a pod on a node, as a scheduler does. Raises Refused (409) for a gated or bound one."""
        return self.store.bind(namespace, name, node)

    def objects(self, kind: str) -> list[Object]:
        """All objects of a kind (its plural), in the order of creation. Read only."""
        return self.store.list(kind_named(kind), selection_of("", {}))

    def pod(self, namespace: str, name: str) -> Object:
        """One pod. Read only. Raises Refused (404)."""
        return self.store.get(kind_named("pods"), namespace, name)

    def events_of(self, uid: str) -> list[Object]:
        """The Events about one object, in the order of creation."""
        return [event for event in self.objects("events") if event.get("involvedObject", {}).get("uid") == uid]

    def forget_history(self) -> None:
        """Compaction: watches can go on from the present version only."""
        self.store.forget_history()

    def fail_next(self, method: str, path: str, status: int, *, after: bool = False) -> None:
        """The next request of this method (GET, WATCH, POST ...) whose path matches the pattern fails with `status`.

        `after`: it is done all the same, and only its answer is lost. Status 0 cuts the connection.
        """
        self._failures.append(_Failure(method, re.compile(path), status, after))

    def kubeconfig(self, path: str | Path) -> str:
        """Writes a kubeconfig for this cluster and returns its path; call it after `start`."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "file",
            "contexts": [{"name": "file", "context": {"cluster": "file", "user": "file"}}],
            "clusters": [{"name": "file", "cluster": {"server": self.url}}],
            "users": [{"name": "file", "user": {"token": self.token}}],
        }
        Path(path).write_text(yaml.safe_dump(content), encoding="utf-8")
        return str(path)

    # --- the server ----------------------------------------------------------------------------

    async def start(self) -> str:
        """Listens on a free loopback port; the URL."""
        app = web.Application(client_max_size=_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_S, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0])
        return self.url

    async def stop(self) -> None:
        """Ends all watches and closes; safe to call twice."""
        self.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def cut_watches(self) -> None:
        """Breaks every open watch without its closing chunk, as a dying server does."""
        for task in self._watches:
            task.cancel()

    def _wakeup(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        watching = request.method == "GET" and request.query.get("watch") in ("true", "1")
        method = "WATCH" if watching else request.method
        self.requests.append((method, request.path))
        body = await request.read()
        failure = self._failure(method, request.path)
        try:
            if request.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refused(401, "Unauthorized", "Unauthorized")
            if failure is not None and not failure.after:
                raise Refused(failure.status, "Failed", "as the test wants")
            target = target_of(request.path)
            if watching:
                return await self._watch(request, target)
            answer, status = self._answer(request, target, body)
            if failure is not None:
                raise Refused(failure.status, "Failed", "as the test wants")
        except Refused as refused:
            if not refused.status:
                assert request.transport is not None
                request.transport.close()
            return _status(refused)
        return web.Response(body=msgspec.json.encode(answer), status=status, content_type="application/json")

    def _failure(self, method: str, path: str) -> _Failure | None:
        for failure in self._failures:
            if failure.method == method and failure.path.search(path):
                self._failures.remove(failure)
                return failure
        return None

    def _answer(self, request: web.Request, target: Target, body: bytes) -> tuple[Object, int]:
        store, kind, namespace, name, sub = self.store, target.kind, target.namespace, target.name, target.sub
        if sub and sub != "status" and (kind.plural, sub, request.method) != ("pods", "binding", "POST"):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        match request.method, bool(name):
            case "GET", False:
                return self._list(request, target), 200
            case "GET", True:
                return store.get(kind, namespace, name), 200
            case "POST", False:
                return store.create(kind, namespace, _object(body)), 201
            case "POST", True if sub == "binding":
                wanted = _object(body)
                uid = wanted.get("metadata", {}).get("uid", "")
                store.bind(namespace, name, wanted.get("target", {}).get("name", ""), uid)
                return {"apiVersion": "v1", "kind": "Status", "status": "Success"}, 201
            case "PUT", True:
                return store.replace(kind, namespace, name, _object(body), sub), 200
            case "PATCH", True:
                return self._patch(request, target, body)
            case "DELETE", True:
                return store.delete(kind, namespace, name, _object(body).get("preconditions") if body else None), 200
        raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _list(self, request: web.Request, target: Target) -> Object:
        selection = selection_of(target.namespace, request.query)
        found = self.store.list(target.kind, selection)
        version, _, start = request.query.get("continue", f"{self.store.version}:0").partition(":")
        limit = _number(request, "limit") or len(found) or 1
        if not (version + start).isdecimal():
            raise Refused(400, "BadRequest", "the continue parameter is not valid")
        end = int(start) + limit
        meta = {"resourceVersion": version}
        if end < len(found):
            if version != str(self.store.version):  # a page by number is only right while nothing changes
                raise Refused(410, "Expired", "the provided continue parameter is too old")
            meta["continue"] = f"{version}:{end}"
        api_version, name = target.kind.api_version, f"{target.kind.name}List"
        return {"apiVersion": api_version, "kind": name, "metadata": meta, "items": found[int(start) : end]}

    def _patch(self, request: web.Request, target: Target, body: bytes) -> tuple[Object, int]:
        kind, namespace, name, sub = target.kind, target.namespace, target.name, target.sub
        match request.content_type:
            case "application/json-patch+json":
                return self.store.patch_json(kind, namespace, name, body, sub), 200
            case "application/merge-patch+json":
                return self.store.patch_merge(kind, namespace, name, _object(body), sub), 200
            case "application/apply-patch+yaml":
                wanted = _object(body)
                if not request.query.get("fieldManager"):
                    raise Refused(400, "BadRequest", "PatchOptions.fieldManager: Required value: for apply patch")
                if (wanted.get("apiVersion"), wanted.get("kind")) != (kind.api_version, kind.name):
                    raise Refused(400, "BadRequest", f"apply needs apiVersion {kind.api_version} and kind {kind.name}")
                before = self.store.version
                applied = self.store.apply(kind, namespace, name, wanted)
                new = applied["metadata"]["resourceVersion"] == str(before + 1)
                return applied, 201 if new and applied["metadata"].get("generation") == 1 else 200
        raise Refused(415, "UnsupportedMediaType", f"patches of type {request.content_type} are not known here")

    # complexity: one stream with its resume, bookmarks and end
    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = request.query
        selection = selection_of(target.namespace, query)
        since = _number(request, "resourceVersion")
        end_s = monotonic_s() + (_number(request, "timeoutSeconds") or _WATCH_S)
        first = [_line("ADDED", obj) for obj in self.store.list(target.kind, selection)] if not since else []
        position = since or self.store.version
        self.store.after(position)  # refuses a version that is forgotten, before anything is sent
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        try:
            lines = first
            while True:
                changed = self._changed
                try:
                    for entry in self.store.after(position):
                        if entry.kind is target.kind and (seen := entry.seen_by(selection)) is not None:
                            lines.append(_line(*seen))
                        position = entry.version
                except Refused as gone:
                    await answer.write(b"".join(lines) + _line("ERROR", _status_object(gone)))
                    return answer
                if lines:
                    await answer.write(b"".join(lines))
                    lines = []
                    continue  # more may have come meanwhile
                left_s = end_s - monotonic_s()
                if left_s <= 0:
                    return answer
                try:
                    async with asyncio.timeout(min(left_s, _BOOKMARK_S)):
                        await changed.wait()
                except TimeoutError:
                    if query.get("allowWatchBookmarks") in ("true", "1"):
                        mark = {"apiVersion": target.kind.api_version, "kind": target.kind.name}
                        lines.append(_line("BOOKMARK", {**mark, "metadata": {"resourceVersion": str(position)}}))
        except ConnectionError:  # the client left first
            return answer
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.close()
            raise
        finally:
            self._watches.discard(task)


def _number(request: web.Request, name: str) -> int:
    """A whole number of the query; 0 without it."""
    text = request.query.get(name, "") or "0"
    if not text.isdecimal():
        raise Refused(400, "BadRequest", f"{name} is {text!r}; it must be a whole number")
    return int(text)


def _line(kind: str, obj: Object) -> bytes:
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"


def _object(body: bytes) -> Object:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, "BadRequest", f"the body is not JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise Refused(400, "BadRequest", "the body is not an object")
    return decoded


def _status_object(refused: Refused) -> Object:
    value = {"status": "Failure", "code": refused.status, "reason": refused.reason, "message": refused.message}
    return {"apiVersion": "v1", "kind": "Status", "metadata": {}, **value}


def _status(refused: Refused) -> web.Response:
    later = {"Retry-After": "1"} if refused.status == 429 else None  # as an API server that is busy says
    return web.json_response(_status_object(refused), status=refused.status or 500, headers=later)
