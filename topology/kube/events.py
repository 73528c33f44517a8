"""Posts core/v1 Events, so that `kubectl describe` says what was decided.

It decides whether, when and under which name an Event is written. It must never know what the words mean, and must
never fail or delay a decision: `post` only queues, and whatever goes wrong later is counted.

1. One object, reason and key is one Event: its name is made from them, and a repeat raises `count` and moves
   `lastTimestamp` instead of adding a line to `kubectl describe`.
2. A repeat within its window is not written at all.
3. Core/v1, with firstTimestamp, lastTimestamp and count: kubectl sorts and ages by these; events.k8s.io objects
   without them sort on top as if from year one.
4. Only `create` and `patch` on events are needed, never `get`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from topology.clock import monotonic_s, rfc3339_seconds, wall_time_s
from topology.kube.api import KubeApi
from topology.kube.errors import ApiError, ApiFailure
from topology.token_bucket import TokenBucket

log = logging.getLogger(__name__)

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
PENDING_WINDOW_S: Final = 300.0
DEGRADED_WINDOW_S: Final = 900.0
MESSAGE_BYTES: Final = 1024  # kubernetes pkg/apis/core/validation/events.go, NoteLengthLimit
_REASON_CHARS: Final = 128  # the same file, ReasonLengthLimit
_NAME_CHARS: Final = 253
_CUT: Final = " ..."
_BREAKS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class Involved:
    """The object that the Event is about. kubectl finds it by namespace, name and UID, so the UID must be right."""

    kind: str
    api_version: str
    namespace: str  # empty for cluster-wide objects; their Events live in `default`
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class EventSettings:
    """How much may be written and remembered."""

    per_second: float = 10.0
    burst: int = 50
    queued: int = 2000
    remembered: int = 20_000
    busy_wait_s: float = 5.0  # the longest that a non-urgent Event waits for a decision to end
    busy_poll_s: float = 0.05
    forget_after_s: float = 3600.0  # the server keeps Events for an hour; older ones are created anew
    request_s: float = 5.0


@dataclass(slots=True)
class _Waiting:
    name: str
    involved: Involved
    type_: str
    reason: str
    message: str
    since_s: float  # monotonic
    at_s: float  # wall


@dataclass(slots=True)
class _Known:
    accepted_s: float | None  # monotonic: when it last passed the window; None: that one was not written after all
    count: int = 0  # as the server has it; 0: not written by this process yet


class _Count(msgspec.Struct, frozen=True):
    count: int | None = None


def cut_message(text: str, limit: int = MESSAGE_BYTES) -> str:
    """One line of at most `limit` bytes of UTF-8, cut between characters and marked with ` ...` if it was longer."""
    whole = _BREAKS.sub(" ", text).strip().encode("utf-8", "replace")
    if len(whole) <= limit:
        return whole.decode()
    return whole[: limit - len(_CUT)].decode("utf-8", "ignore").rstrip() + _CUT


def event_name(involved: Involved, reason: str, key: str) -> str:
    """The same for the same (UID, reason, key), in any process: `<object name>.<16 hex digits>`."""
    digest = hashlib.sha256("\0".join((involved.uid, reason, key)).encode("utf-8", "replace")).hexdigest()[:16]
    return f"{involved.name[: _NAME_CHARS - 17].rstrip('-.')}.{digest}"


class EventSink:
    """Takes Events from the event loop and writes them in `run`. The counters are plain integers, for metrics."""

    def __init__(
        self,
        api: KubeApi,
        component: str,
        *,
        settings: EventSettings | None = None,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._api, self._component, self._busy = api, component, busy
        self._settings = settings or EventSettings()
        self._urgent: OrderedDict[str, _Waiting] = OrderedDict()  # by name, the oldest first
        self._normal: OrderedDict[str, _Waiting] = OrderedDict()
        self._waiting: dict[str, _Waiting] = {}  # both
        self._names: dict[str, set[str]] = {}  # of those that wait, by the uid that they are about
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._something = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._bucket = TokenBucket(self._settings.per_second, self._settings.burst, monotonic_s())
        self.posted = 0  # written: created or repeated
        self.suppressed = 0  # a repeat within its window
        self.dropped: Counter[str] = Counter()  # why -> how many

    def post(
        self,
        involved: Involved,
        type_: str,
        reason: str,
        message: str,
        *,
        key: str | None = None,
        urgent: bool = False,
        window_s: float = PENDING_WINDOW_S,
    ) -> None:
        """Queues one Event; returns at once and never raises. `type_` is Normal or Warning.

        `key` says what makes two messages the same news (None: their text). The caller puts the top reasons first,
        since a message over 1,024 bytes loses its end.
        """
        name = event_name(involved, reason, message if key is None else key)
        now_s = monotonic_s()
        if (waiting := self._waiting.get(name)) is not None:
            waiting.message, waiting.type_ = message, type_  # not written yet: the newest words win
            self.suppressed += 1
            return
        known = self._known.get(name)
        if known is not None and known.accepted_s is not None and now_s - known.accepted_s < window_s:
            self.suppressed += 1
            return
        if len(self._waiting) >= self._settings.queued and not (urgent and self._give_up_one()):
            self.dropped["queue-full"] += 1
            return
        self._remember(name, now_s)
        waiting = _Waiting(name, involved, type_, reason[:_REASON_CHARS], message, now_s, wall_time_s())
        self._waiting[name] = waiting
        self._names.setdefault(involved.uid, set()).add(name)
        (self._urgent if urgent else self._normal)[name] = waiting
        self._idle.clear()
        self._something.set()

    def forget(self, uid: str, keep: str = "") -> None:
        """Drop what is queued about an object: it is gone, or what was to be said is not true any more.

        `keep`: a reason that stays true.
        """
        for name in sorted(self._names.get(uid, ())):
            if self._waiting[name].reason != keep:
                self._take(name)
                self._forget_acceptance(name)
                self.dropped["outdated"] += 1
        if not self._waiting:
            self._something.clear()
            self._idle.set()

    async def run(self) -> None:
        """Writes queued Events, one after the other, until cancelled."""
        while True:
            await self._something.wait()
            await asyncio.sleep(self._bucket.take(monotonic_s()))
            if (waiting := await self._next()) is None:
                continue
            try:
                await self._write(waiting)
                self.posted += 1
            except ApiFailure as error:
                self.dropped[_why(error)] += 1
                self._forget_acceptance(waiting.name)
            except Exception:  # an Event is a side effect: not even a mistake of ours may end it
                self.dropped["bug"] += 1
                log.exception("an Event %s about %s was not written", waiting.reason, waiting.involved.name)
            if not self._waiting:
                self._idle.set()

    async def drain(self, limit_s: float) -> bool:
        """Waits until everything queued was written or dropped, at most `limit_s`; whether it was. `run` must run."""
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _give_up_one(self) -> bool:
        if not self._normal:
            return False
        oldest = next(iter(self._normal))
        self._take(oldest)
        self._forget_acceptance(oldest)
        self.dropped["queue-full"] += 1
        return True

    def _take(self, name: str) -> _Waiting:
        """Out of every book in which it waits."""
        waiting = self._waiting.pop(name)
        self._urgent.pop(name, None)
        self._normal.pop(name, None)
        names = self._names[waiting.involved.uid]
        names.discard(name)
        if not names:
            del self._names[waiting.involved.uid]
        return waiting

    def _remember(self, name: str, now_s: float) -> None:
        known = self._known.setdefault(name, _Known(None))
        if known.accepted_s is not None and now_s - known.accepted_s > self._settings.forget_after_s:
            known.count = 0
        known.accepted_s = now_s
        self._known.move_to_end(name)
        while len(self._known) > self._settings.remembered:
            self._known.popitem(last=False)

    def _forget_acceptance(self, name: str) -> None:
        """It was not written after all: the next repeat may try at once."""
        if (known := self._known.get(name)) is not None:
            known.accepted_s = None

    async def _next(self) -> _Waiting | None:
        """The next to write: urgent ones first, others once no decision is under way or they waited long enough."""
        while True:
            if self._urgent:
                name = next(iter(self._urgent))
            elif not self._normal:
                self._something.clear()
                return None
            elif (
                self._busy() and monotonic_s() - next(iter(self._normal.values())).since_s < self._settings.busy_wait_s
            ):
                await asyncio.sleep(self._settings.busy_poll_s)
                continue
            else:
                name = next(iter(self._normal))
            chosen = self._take(name)
            if not self._waiting:
                self._something.clear()
            return chosen

    async def _write(self, waiting: _Waiting) -> None:
        known = self._known.get(waiting.name) or _Known(waiting.since_s)
        path = f"/api/v1/namespaces/{waiting.involved.namespace or 'default'}/events"
        if known.count:
            try:
                known.count = await self._repeat(f"{path}/{waiting.name}", waiting, known.count)
                return
            except ApiError as error:
                if not error.not_found:
                    raise
        try:
            await self._api.create(path, self._body(waiting), timeout_s=self._settings.request_s)
            known.count = 1
        except ApiError as error:
            if not error.already_exists:
                raise
            # Written before a restart, or its answer was lost: a patch tells the count without a right to read.
            known.count = await self._repeat(f"{path}/{waiting.name}", waiting, None)

    async def _repeat(self, path: str, waiting: _Waiting, count: int | None) -> int:
        """Raises the count of an Event that exists; the new count."""
        patch: dict[str, Any] = {
            "lastTimestamp": rfc3339_seconds(waiting.at_s),
            "message": cut_message(waiting.message),
        }
        limit_s = self._settings.request_s
        if count is None:
            answer = await self._api.patch_merge(path, patch, timeout_s=limit_s)
            try:
                count = msgspec.json.decode(answer, type=_Count).count or 0
            except (msgspec.MsgspecError, UnicodeDecodeError):
                count = 0
            patch = {}
        await self._api.patch_merge(path, {**patch, "count": count + 1}, timeout_s=limit_s)
        return count + 1

    def _body(self, waiting: _Waiting) -> dict[str, Any]:
        involved, at = waiting.involved, rfc3339_seconds(waiting.at_s)
        about = {"kind": involved.kind, "name": involved.name, "uid": involved.uid, "apiVersion": involved.api_version}
        if involved.namespace:
            about["namespace"] = involved.namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": waiting.name, "namespace": involved.namespace or "default"},
            "involvedObject": about,
            "reason": waiting.reason,
            "message": cut_message(waiting.message),
            "type": waiting.type_,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }


def _why(error: ApiFailure) -> str:
    """A short fixed word for a metric label."""
    if not isinstance(error, ApiError):
        return "unreachable"
    if error.forbidden:
        return "forbidden"  # also what a namespace that is being deleted answers
    if error.not_found:
        return "not-found"
    return "throttled" if error.status == 429 else "refused"
