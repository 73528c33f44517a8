"""EDGE. The HTTP server that Volcano's extender plugin calls: `POST /{verb}` with JSON, answered 200 with JSON.

Decides how a request may look, how large it may be, how long it may take to come, and what happens when we fail. It
must never know what a score is made of.

1. Volcano takes every status but 200 for a failure of the whole scoring, so 200 is the answer to everything that is
   a call of its own; a bug of ours is logged, counted, and answered as if we had no opinion.
2. What is no call of Volcano's gets a 4xx with one sentence, changes nothing, and leaves the connection usable.
3. The body is read up to a limit of ours (a scoring call carries every candidate with all its pods, megabytes of them;
   the framework's own limit is one) into one room of its announced size (scheduler.extender.body_room), past the
   framework where it is large (scheduler.extender.straight_read), and decoded where it lies, once.
   Decoding stays on the event loop: in a thread it holds the
   interpreter just as long (61 MB: the loop stood 93 ms either way, measured).
4. Answers carry Content-Length and connections stay open: without either, every call would pay for a new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from scheduler.extender import metrics as counted
from scheduler.extender.body_room import Body, Room, Rooms
from scheduler.extender.decision_cache import DecisionLog
from scheduler.extender.metrics import ExtenderMetrics
from scheduler.extender.one_handler import arrived, server_of
from scheduler.extender.session import SessionLedger
from scheduler.extender.straight_read import FIRST_BYTES, WHOLE_BYTES, may_read_straight, read_at_once, read_straight
from scheduler.extender.verbs import NEUTRAL, UNREAD, VERBS, Answer, ClusterView, Result
from scheduler.model.policy import Policy
from topology.bad_input import BadInput
from topology.clock import monotonic_s
from topology.units import show_bytes

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 512 * 2**20
_BODY_LIMIT_S: Final = 30.0
_BIG_BYTES: Final = 4 * 2**20
_BIG_AT_ONCE: Final = 2  # bodies above _BIG_BYTES in memory together; Volcano scores one pod at a time
_READ_BUFFER_BYTES: Final = 2**18  # what the framework piles up before we take it; more is memory and no faster
_ROOMS_KEPT: Final = 2
_KEEP_ALIVE_S: Final = 120.0  # above the 90 s of Go's client, so that it is the one that closes
_STOP_LIMIT_S: Final = 5.0
_LINGER_S: Final = 1.0  # what is left of a rejected body is read away this long, so that the caller sees the answer
_SAY_AGAIN_S: Final = 60.0  # the same complaint about the same verb is logged this often; the metric counts them all
_PATHS: Final = ", ".join(f"/{verb}" for verb in NEUTRAL)


class _Rejected(Exception):  # noqa: N818  # the caller's mistake, not a failure of ours
    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.sentence, self.headers = status, sentence, headers
        super().__init__(sentence)


class Extender:
    """One process's extender: the session's ledger, the handler, and `decisions`, told of all that scores came from."""

    def __init__(
        self,
        view: ClusterView,
        decisions: DecisionLog,
        *,
        metrics: ExtenderMetrics,
        max_body_bytes: int = MAX_BODY_BYTES,
        policy: Policy | None = None,
        now_s: Callable[[], float] = monotonic_s,
    ) -> None:
        self.view, self.decisions, self.metrics = view, decisions, metrics
        self.max_body_bytes, self.policy, self.now_s = max_body_bytes, policy or Policy(), now_s
        self.ledger = SessionLedger()
        self._big = asyncio.Semaphore(_BIG_AT_ONCE)
        self._rooms = Rooms(kept=_ROOMS_KEPT, kept_bytes=_BIG_BYTES)
        self._said_s: dict[tuple[str, int], float] = {}

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Any request at all."""
        started_s = self.now_s()
        verb = request.path[1:]
        name = verb if verb in VERBS else counted.UNKNOWN_VERB
        try:
            _check_call(request, verb)
            if (body := self._arrived(request, verb)) is not None:
                answer, result = self._answer(verb, body)
            else:
                async with self._turn(request, verb):
                    with self._rooms.room_for(self._announced(request, verb)) as room:
                        answer, result = self._answer(verb, await self._body(request, verb, room))
        except _Rejected as no:
            self._complain(name, no)
            self.metrics.requests(name, counted.REJECTED).inc()
            said = msgspec.json.encode({"error": no.sentence})
            return web.Response(status=no.status, body=said, content_type="application/json", headers=no.headers)
        self.metrics.requests(name, result).inc()
        self.metrics.duration(name).observe(self.now_s() - started_s)
        return web.Response(body=answer, content_type="application/json")

    def _answer(self, verb: str, body: Body) -> tuple[bytes, str]:
        """The body to send, and the metric's word for how it came about."""
        try:
            answer = VERBS[verb](body, self.view, self.ledger, self.policy)
            self._tell(verb, answer)
        except BadInput as bad:
            raise _Rejected(400, str(bad)) from None
        except Exception:
            log.exception("bug in the answer to %s; answered without an opinion", verb)
            return NEUTRAL[verb], counted.FAILED
        return answer.body, counted.ANSWERED

    def _tell(self, verb: str, answer: Answer) -> None:
        self.metrics.decisions(verb, answer.result.value).inc()
        self.metrics.tried.set(len(self.ledger))
        if answer.result is Result.COLD:
            self.metrics.cold.inc()
        if answer.decision is not None:
            self.decisions.remember(answer.decision)
            self.metrics.snapshot_age.set(answer.decision.facts_age_s)
        if answer.refusal:
            log.info("refused: %s", answer.refusal)  # Volcano shows this to nobody but the reader of its own log

    def _arrived(self, request: web.BaseRequest, verb: str) -> bytes | None:
        """The body if it is kept at all, its size was announced, and all of it is here."""
        if verb in UNREAD or request.content_length is None:
            return None
        body = arrived(request)
        if body is not None and len(body) > self.max_body_bytes:
            raise self._too_large()
        return body

    def _announced(self, request: web.BaseRequest, verb: str) -> int:
        """The size of the body that will be kept, as far as the caller has said."""
        size = 0 if verb in UNREAD else request.content_length or 0
        if size > self.max_body_bytes:
            raise self._too_large()
        return size

    def _turn(self, request: web.BaseRequest, verb: str) -> contextlib.AbstractAsyncContextManager[object]:
        """Large bodies wait for each other, unread, so that memory stays bounded; small ones never wait for them."""
        length = request.content_length
        small = verb in UNREAD or (length is not None and length <= _BIG_BYTES)
        return contextlib.nullcontext() if small else self._big

    async def _body(self, request: web.BaseRequest, verb: str, room: Room) -> Body:
        try:
            async with asyncio.timeout(_BODY_LIMIT_S):
                if verb not in UNREAD:
                    self._take(request.content.read_nowait(), room)
                    if may_read_straight(request, room.size, _READ_BUFFER_BYTES):
                        await read_straight(request, room)
                read_at_once(request, WHOLE_BYTES)
                async for piece, _ in request.content.iter_chunks():
                    if verb not in UNREAD:
                        self._take(piece, room)
        except TimeoutError:
            raise _Rejected(408, f"the body did not arrive within {_BODY_LIMIT_S:g} s; send it at once") from None
        except (OSError, aiohttp.ClientError, web.RequestPayloadError, HttpProcessingError) as error:
            raise _Rejected(400, f"the body did not arrive whole ({type(error).__name__}); send it again") from None
        finally:
            read_at_once(request, FIRST_BYTES)
        return room.body()

    def _take(self, piece: bytes, room: Room) -> None:
        if room.size + len(piece) > self.max_body_bytes:
            raise self._too_large()
        room.add(piece)

    def _too_large(self) -> _Rejected:
        limit = show_bytes(self.max_body_bytes)
        return _Rejected(413, f"the body is larger than {limit}; raise ISOCHRONE_MAX_BODY on the controller")

    def _complain(self, verb: str, no: _Rejected) -> None:
        now_s = self.now_s()
        before_s = self._said_s.get((verb, no.status))
        if before_s is None or now_s - before_s >= _SAY_AGAIN_S:
            self._said_s[verb, no.status] = now_s
            log.warning("rejected a call (%s, status %d): %s", verb, no.status, no.sentence)


def _check_call(request: web.BaseRequest, verb: str) -> None:
    if verb not in VERBS:
        raise _Rejected(404, f"the path is {request.path[:80]!r}; use POST to one of {_PATHS}")
    if request.method != "POST":
        raise _Rejected(405, f"the method is {request.method!r}; use 'POST'", {"Allow": "POST"})
    if request.content_type != "application/json":
        raise _Rejected(415, f"the Content-Type is {request.content_type[:80]!r}; use 'application/json'")


@contextlib.asynccontextmanager
async def listening(extender: Extender, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Serves inside the block; gives the address, with the port the system chose for 0.

    Raises BadInput for an address that cannot be used.
    """
    server = server_of(
        extender.handle,
        keepalive_timeout=_KEEP_ALIVE_S,
        lingering_time=_LINGER_S,
        read_bufsize=_READ_BUFFER_BYTES,
    )
    runner = web.ServerRunner(server, shutdown_timeout=_STOP_LIMIT_S)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            allowed = f"it cannot be used: {error.strerror}"
            raise BadInput("ISOCHRONE_EXTENDER_LISTEN", f"{host}:{port}", allowed) from None
        bound_host, bound_port, *_ = runner.addresses[0]
        yield str(bound_host), int(bound_port)
    finally:
        await runner.cleanup()
