"""EDGE. The HTTP server that Volcano's extender plugin calls: `POST /{verb}` with JSON, answered 200 with JSON.

Decides how a request may look, how large it may be, how long it may take to come, and what happens when we fail. It
must never know what a score is made of.

1. Volcano takes every status but 200 for a failure of the whole scoring, so 200 is the answer to everything that is
   a call of its own; a bug of ours is logged, counted, and answered as if we had no opinion.
2. What is no call of Volcano's gets a 4xx with one sentence, changes nothing, and leaves the connection usable.
3. The body is read up to a limit of ours (a scoring call carries every candidate with all its pods, megabytes of them;
   the framework's own limit is one) and decoded once. Decoding stays on the event loop: in a thread it holds the
   interpreter just as long (61 MB: the loop stood 93 ms either way, measured).
4. Answers carry Content-Length and connections stay open: without either, every call would pay for a new connection.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
from aiohttp import web

from scheduler.extender import metrics as counted
from scheduler.extender.decision_cache import DecisionCache
from scheduler.extender.metrics import ExtenderMetrics
from scheduler.extender.session import SessionLedger
from scheduler.extender.verbs import NEUTRAL, UNREAD, VERBS, Answer, Result, SnapshotSource
from scheduler.extender.wire import MAX_BODY_BYTES, Body
from scheduler.model.policy import Policy
from topology.bad_input import BadInput
from topology.clock import monotonic_s
from topology.http_server import BodyBudget, drop_body, whole_body
from topology.units import show_bytes

log = logging.getLogger(__name__)

_BODY_LIMIT_S: Final = 5.0  # ten times the httpTimeout that volcano-conf writes: Volcano gave up long before
_REPORT_AGAIN_S: Final = 60.0  # the same complaint about the same verb is logged this often; the metric counts them all
_PATHS: Final = ", ".join(f"/{verb}" for verb in NEUTRAL)


class Extender:
    """One process's extender: the session's ledger, the application, and `decisions`, for all that scores came from."""

    def __init__(
        self,
        view: SnapshotSource,
        decisions: DecisionCache,
        *,
        metrics: ExtenderMetrics,
        max_body_bytes: int = MAX_BODY_BYTES,
        policy: Policy | None = None,
    ) -> None:
        self.view, self.decisions, self.metrics = view, decisions, metrics
        self.max_body_bytes, self.policy = max_body_bytes, policy or Policy()
        self.ledger = SessionLedger()
        self._in_flight = BodyBudget(max_body_bytes)  # Volcano scores one pod at a time
        self._reported_s: dict[tuple[str, int], float] = {}

    def app(self) -> web.Application:
        """Every path and method: what is no call is answered with a sentence too."""
        app = web.Application(client_max_size=self.max_body_bytes)
        for path in (*(f"/{verb}" for verb in VERBS), "/{verb:.*}"):  # what is known is found without a search
            app.router.add_route("*", path, self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.Response:
        started_s = monotonic_s()
        verb = request.path[1:]
        name = verb if verb in VERBS else counted.UNKNOWN_VERB
        try:
            _check_call(request, verb)
            answer, result = self._answer(verb, await self._body(request, verb))
        except web.HTTPException as refusal:
            self._complain(name, refusal)
            self.metrics.requests(name, counted.REJECTED).inc()
            return _refused(refusal)
        self.metrics.requests(name, result).inc()
        self.metrics.duration(name).observe(monotonic_s() - started_s)
        return web.Response(body=answer, content_type="application/json")

    def _answer(self, verb: str, body: Body) -> tuple[bytes, str]:
        """The body to send, and the metric's word for how it came about."""
        try:
            answer = VERBS[verb](body, self.view, self.ledger, self.policy)
            self._report(verb, answer)
        except BadInput as bad:
            raise web.HTTPBadRequest(text=str(bad)) from None
        except Exception:
            log.exception("bug in the answer to %s; answered without an opinion", verb)
            return NEUTRAL[verb], counted.FAILED
        return answer.body, counted.ANSWERED

    def _report(self, verb: str, answer: Answer) -> None:
        self.metrics.decisions(verb, answer.result.value).inc()
        self.metrics.tried.set(len(self.ledger))
        if answer.result is Result.COLD:
            self.metrics.cold.inc()
        if answer.decision is not None:
            self.decisions.remember(answer.decision)
            self.metrics.snapshot_age.set(answer.decision.facts_age_s)
        if answer.refusal:
            log.info("refused: %s", answer.refusal)  # Volcano shows this to nobody but the reader of its own log

    async def _body(self, request: web.Request, verb: str) -> Body:
        if verb in UNREAD:
            await drop_body(request, _BODY_LIMIT_S)
            return b""
        limit = show_bytes(self.max_body_bytes)
        too_large = f"the body is larger than {limit}; raise ISOCHRONE_MAX_BODY on the controller"
        return await whole_body(request, self._in_flight, _BODY_LIMIT_S, too_large)

    def _complain(self, verb: str, refusal: web.HTTPException) -> None:
        now_s = monotonic_s()
        before_s = self._reported_s.get((verb, refusal.status))
        if before_s is None or now_s - before_s >= _REPORT_AGAIN_S:
            self._reported_s[verb, refusal.status] = now_s
            log.warning("rejected a call (%s, status %d): %s", verb, refusal.status, refusal.text)


def _check_call(request: web.Request, verb: str) -> None:
    if verb not in VERBS:
        raise web.HTTPNotFound(text=f"the path is {request.path[:80]!r}; use POST to one of {_PATHS}")
    if request.method != "POST":
        text = f"the method is {request.method!r}; use 'POST'"
        raise web.HTTPMethodNotAllowed(request.method, ["POST"], text=text)
    if request.content_type != "application/json":
        text = f"the Content-Type is {request.content_type[:80]!r}; use 'application/json'"
        raise web.HTTPUnsupportedMediaType(text=text)


def _refused(refusal: web.HTTPException) -> web.Response:
    allow = {name: value for name, value in refusal.headers.items() if name == "Allow"}
    body = msgspec.json.encode({"error": refusal.text})
    return web.Response(status=refusal.status, body=body, content_type="application/json", headers=allow)
