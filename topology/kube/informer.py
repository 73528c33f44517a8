"""Keeps one kind of object in memory, the same as the API server has it: list once, then watch.

It decides when to list again, when to resume, how long to wait, and what changed. It must never know what the objects
are for.

1. A resourceVersion is opaque: compared for equality, never for order. The last event wins.
2. A watch resumes from the last version heard, bookmarks included. Whenever that may lose something (410 in either
   form, another ERROR event, a line that is no event) the list is read again; what vanished is reported as DELETED.
3. Silence is a failure: bookmarks come about every minute, so a connection without a line for `silence_s` is dropped.
4. One object that cannot be decoded costs itself only: the last good state of it stays, it is counted, logged once.
5. A name that comes back with another UID is another object: DELETED, then ADDED.
"""

from __future__ import annotations

import asyncio
import logging
import random  # noqa: TID251  # an edge: full jitter, so that informers do not come back in step
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from topology.clock import monotonic_s
from topology.kube.api import KubeApi
from topology.kube.errors import ApiError, ApiUnreachable
from topology.kube.gathering import Gathering
from topology.objects import ListPage, Metadata, StatusObject, WatchEvent

log = logging.getLogger(__name__)


class HasMetadata(Protocol):
    """What an informer must know of its objects; the structs of topology.objects have it."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=HasMetadata)


class ChangeKind(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """ADDED has no `old`, DELETED no `new` (its `old` is the last state we knew)."""

    kind: ChangeKind
    old: T | None
    new: T | None


@dataclass(frozen=True, slots=True)
class InformerSettings:
    """Times in seconds."""

    page_size: int = 500
    list_timeout_s: float = 30.0  # per page
    watch_s: float = 300.0  # asked of the server, +- a tenth so that watches do not end together
    silence_s: float = 90.0  # bookmarks come about every 60 s; a server without them is resumed this often, harmlessly
    backoff_first_s: float = 0.5
    backoff_cap_s: float = 10.0
    settle_s: float = 60.0  # so long without a failure and the back-off starts from its first step
    brief_s: float = 1.0  # a watch that ends sooner, without a line, counts as failed
    absent_retry_s: float = 30.0
    gather_s: float = 0.01  # what comes within this time of the last line is taken together,
    gather_busy_s: float = 0.05  # and within this time while the stream does not pause


class _Named(msgspec.Struct, frozen=True):
    """All that a bookmark, a deletion or an unreadable object needs to have."""

    metadata: Metadata = Metadata()


class _StartOver(Exception):  # noqa: N818  # not an error of ours: the version we hold can no longer be resumed
    pass


_PAGE: Final = msgspec.json.Decoder(ListPage)
_EVENT: Final = msgspec.json.Decoder(WatchEvent)
_NAMED: Final = msgspec.json.Decoder(_Named)
_STATUS: Final = msgspec.json.Decoder(StatusObject)


def key_of(metadata: Metadata) -> str:
    """`namespace/name`, or `name` alone for cluster-wide objects."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


class Informer(Generic[T]):
    """`objects` by key is the same dict for ever; read it on the event loop only.

    `on_change` is called on the event loop after `objects` was updated, once for all changes that arrived together; if
    it raises, so does `run`. `keep` makes of a decoded object what is to be kept of it. `last_heard_s` is monotonic
    (0.0: never), for the age of facts.
    """

    def __init__(
        self,
        api: KubeApi,
        path: str,
        kind: type[T],
        *,
        on_change: Callable[[Sequence[Change[T]]], None] | None = None,
        keep: Callable[[T], T] | None = None,
        label_selector: str = "",
        field_selector: str = "",
        absent_ok: bool = False,
        settings: InformerSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._api, self._path, self._on_change, self._absent_ok = api, path, on_change, absent_ok
        self._decoder = msgspec.json.Decoder(kind)
        self._keep = keep
        self._settings = settings or InformerSettings()
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not secrecy
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._selectors = {name: value for name, value in selectors.items() if value}
        self._version, self._doubtful = "", False
        self._failures, self._failed_s = 0, 0.0
        self._reported: set[str] = set()
        self.objects: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.last_heard_s = 0.0
        self.watching = False  # a watch stands: no word means that nothing changed
        self.relists = 0  # complete lists, the first one included
        self.reconnects = 0  # watches that failed and lists that got no answer
        self.undecodable = 0

    async def run(self) -> None:
        """Lists and watches until cancelled; no failure of the server or the network ends it."""
        while True:
            began_s = monotonic_s()
            try:
                if not self._version:
                    self._version = await self._list()
                    began_s = monotonic_s()
                elif self._doubtful:
                    await self._confirm()
                self._doubtful = False
                lines = await self._watch()
                if lines or monotonic_s() - began_s >= self._settings.brief_s:
                    continue
                pause_s = self._backoff_s()
            except _StartOver:
                self._version = ""
                pause_s = self._backoff_s()
            except ApiUnreachable as error:
                self._doubtful = True
                self.reconnects += 1
                self._report_once("trouble", f"{error}; what is known stays, trying again")
                pause_s = self._backoff_s()
            except ApiError as error:
                pause_s = self._after(error)
            await asyncio.sleep(pause_s)

    def _after(self, error: ApiError) -> float:
        """What an error answer means, and how long to wait because of it."""
        if error.gone:
            self._version = ""
            return self._backoff_s()
        if error.not_found and self._absent_ok:
            self._version = ""
            self.last_heard_s = monotonic_s()
            self._adopt({})
            self.synced.set()
            return self._settings.absent_retry_s
        self.reconnects += 1
        if error.forbidden:
            self._report_once("trouble", f"{error}; grant list and watch on {self._path}, trying again")
        else:
            self._report_once("trouble", f"{error}; what is known stays, trying again")
        if error.status not in (429, 503):
            self._version = ""  # 404 after a CRD was deleted, 504 for a version the server has not reached, ...
        return self._backoff_s() + min(error.retry_after_s or 0.0, self._settings.absent_retry_s)

    async def _confirm(self) -> None:
        """Raises ApiError if the server has not reached our version: then it was restored from a backup meanwhile.

        A watch from a version of the future is accepted and stays silent (seen on 1.34), so this must be asked. Without
        selectors, as the first object at hand will do; with them the server might read all of a kind to find one.
        """
        params = {"limit": "1", "resourceVersion": self._version, "resourceVersionMatch": "NotOlderThan"}
        await self._api.request("GET", self._path, params=params, timeout_s=self._settings.list_timeout_s)

    async def _list(self) -> str:
        """Reads all pages, reports the difference, and returns the version to watch from."""
        params = {**self._selectors, "limit": str(self._settings.page_size)}
        found: dict[str, T] = {}
        while True:
            body = await self._api.request("GET", self._path, params=params, timeout_s=self._settings.list_timeout_s)
            try:
                page = _PAGE.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ApiUnreachable(f"GET {self._path}", f"the list cannot be decoded: {error}", sent=True) from error
            self.last_heard_s = monotonic_s()
            for raw in page.items or ():
                self._take(raw, found)
            if not page.metadata.continue_:
                break
            params["continue"] = page.metadata.continue_
        self.relists += 1
        self._adopt(found)
        self.synced.set()
        return page.metadata.resource_version

    def _take(self, raw: msgspec.Raw, found: dict[str, T]) -> None:
        try:
            item = self._decode(raw)
            found[key_of(item.metadata)] = item
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            named = self._unreadable(raw, error)
            if named is not None and (known := self.objects.get(key_of(named))) is not None:
                found[key_of(named)] = known

    def _decode(self, raw: msgspec.Raw) -> T:
        item = self._decoder.decode(raw)
        if not item.metadata.name:
            raise msgspec.ValidationError("it has no name")
        return item if self._keep is None else self._keep(item)

    def _adopt(self, found: dict[str, T]) -> None:
        changes: list[Change[T]] = []
        for key in [known for known in self.objects if known not in found]:  # first what gives room, then what takes it
            changes.append(Change(ChangeKind.DELETED, self.objects.pop(key), None))
        for key, item in found.items():
            self._put(key, item, changes)
        self._report(changes)

    def _put(self, key: str, new: T, changes: list[Change[T]]) -> None:
        old = self.objects.get(key)
        self.objects[key] = new
        if old is None:
            changes.append(Change(ChangeKind.ADDED, None, new))
        elif old.metadata.uid != new.metadata.uid:
            changes.append(Change(ChangeKind.DELETED, old, None))
            changes.append(Change(ChangeKind.ADDED, None, new))
        elif old.metadata.resource_version != new.metadata.resource_version or not new.metadata.resource_version:
            changes.append(Change(ChangeKind.MODIFIED, old, new))

    def _report(self, changes: list[Change[T]]) -> None:
        if changes and self._on_change is not None:
            self._on_change(changes)

    async def _watch(self) -> int:
        """One watch until the server ends it; the number of lines heard."""
        asked_s = self._settings.watch_s * self._rng.uniform(0.9, 1.1)
        params = {
            **self._selectors,
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(asked_s))),
        }
        heard = 0
        gathering = Gathering(self._settings.gather_s, self._settings.gather_busy_s)
        stream = self._api.watch_lines(
            self._path, params=params, silence_s=self._settings.silence_s, gathering=gathering
        )
        try:
            async with aclosing(stream) as batches:
                async for lines in batches:
                    self.watching = True
                    self.last_heard_s = monotonic_s()
                    self._reported.discard("trouble")  # over; the next one is news again
                    heard += len(lines)
                    changes: list[Change[T]] = []
                    try:
                        for line in lines:
                            self._hear(line, changes)
                    finally:
                        self._report(changes)  # what came before a bad line did happen
        finally:
            self.watching = False
        return heard

    def _hear(self, line: bytes, changes: list[Change[T]]) -> None:
        if not line.strip():
            return
        try:
            event = _EVENT.decode(line)
            if not event.type:
                raise msgspec.ValidationError("it has no type")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # It may have been an event: resuming after it would lose that for ever.
            self.undecodable += 1
            self._report_once("line", f"a line of the watch on {self._path} is no event ({error}); listing again")
            raise _StartOver from error
        if event.type in ("ADDED", "MODIFIED"):
            try:
                item = self._decode(event.object)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                metadata = self._unreadable(event.object, error)
            else:
                metadata = item.metadata
                self._put(key_of(metadata), item, changes)
        elif event.type == "ERROR":
            self._refused(event.object)
            return
        else:  # DELETED, BOOKMARK, and what may be invented later
            try:
                metadata = _NAMED.decode(event.object).metadata
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                self.undecodable += 1
                self._report_once(
                    "line", f"a {event.type} event on {self._path} has no metadata ({error}); listing again"
                )
                raise _StartOver from error
            if event.type == "DELETED" and (old := self.objects.pop(key_of(metadata), None)) is not None:
                changes.append(Change(ChangeKind.DELETED, old, None))
        if metadata is not None and metadata.resource_version:
            self._version = metadata.resource_version

    def _refused(self, raw: msgspec.Raw) -> None:
        try:
            status = _STATUS.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            status = StatusObject()
        if status.code == 429:
            raise ApiError(429, status.reason, status.message, request=f"WATCH {self._path}")
        raise _StartOver  # 410, or a state of the server in which only a list is sure

    def _unreadable(self, raw: msgspec.Raw, error: Exception) -> Metadata | None:
        """Counts it; its metadata, if at least that can be read."""
        self.undecodable += 1
        try:
            metadata = _NAMED.decode(raw).metadata
        except (msgspec.MsgspecError, UnicodeDecodeError):
            metadata = None
        name = key_of(metadata) if metadata is not None else "an object"
        self._report_once("object", f"{name} of {self._path} cannot be decoded and keeps its last state: {error}")
        return metadata

    def _backoff_s(self) -> float:
        now_s = monotonic_s()
        if now_s - self._failed_s > self._settings.settle_s:
            self._failures = 0
        self._failures, self._failed_s = min(self._failures + 1, 30), now_s
        ceiling_s = self._settings.backoff_first_s * 2.0 ** (self._failures - 1)
        return self._rng.uniform(0.0, min(self._settings.backoff_cap_s, ceiling_s))

    def _report_once(self, about: str, text: str) -> None:
        if about not in self._reported:
            self._reported.add(about)
            log.warning("%s", text)
