"""EDGE. The admission webhook: HTTPS for the API server, plain HTTP for probes and metrics.

Decides what a request must look like, how long anything may take, and how the server starts and stops. It must
never know what is written on a pod. A bug of ours answers "allowed" with a warning: inference is never blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from admission.certificates.authority import service_names
from admission.recognition.rule_watch import RulesInUse
from admission.serving import background, health_app, stopped_by_signals
from admission.settings import WebhookSettings
from admission.webhook import certificate_store, review
from admission.webhook.review import Reply, ReviewResult
from admission.webhook.serving_certificate import ServingCertificate
from admission.webhook.tagging import Entry
from topology import clock
from topology.bad_input import BadInput
from topology.http_server import BodyBudget, listening, whole_body
from topology.kube.api import KubeApi
from topology.units import HostPort

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 3 * 2**20  # the API server takes objects of at most 1.5 MiB
_BODY_LIMIT_S: Final = 1.0
_IN_FLIGHT_BYTES: Final = 64 * 2**20  # an eighth of the chart's memory limit; bodies that are here at once need none
_TOO_LARGE: Final = f"body is {{size}}; at most {MAX_BODY_BYTES} bytes are read"
_VALIDATE: Final = "/validate"
_VALIDATING: Final = "validate"
_ENTRIES: Final = (*map(str, Entry), _VALIDATING)
_PATHS: Final = ", ".join([*(f"/mutate/{entry}" for entry in Entry), _VALIDATE])
_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class WebhookAddresses:
    """Where the two servers listen, with the ports that the system chose."""

    admission: HostPort
    health: HostPort


class Metrics:
    """The webhook's metrics, in a registry of their own."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        counter = Counter(
            "isochrone_admission_reviews", "Admission reviews answered.", ("entry", "result"), registry=self.registry
        )
        # Looked up once: labels() costs more than the count itself, and zeros show that a series exists.
        self.reviews = {(entry, result): counter.labels(entry, result) for entry in _ENTRIES for result in ReviewResult}
        self.duration = Histogram(
            "isochrone_admission_duration_seconds",
            "Time from the whole request to the answer.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.rules_accepted = Gauge(
            "isochrone_rules_accepted", "0 while the rule file is not in use as it stands.", registry=self.registry
        )
        build = Gauge("isochrone_build_info", "Always 1; the labels tell.", ("version",), registry=self.registry)
        build.labels(version).set(1)


class Webhook:
    """Both servers' handlers and what they share."""

    def __init__(self, serving: ServingCertificate, metrics: Metrics, rules: RulesInUse) -> None:
        self.serving, self.metrics, self.rules = serving, metrics, rules
        metrics.rules_accepted.set_function(lambda: 0.0 if rules.problem else 1.0)
        self.draining = False
        self._in_flight = BodyBudget(_IN_FLIGHT_BYTES)
        self._paths = {f"/mutate/{entry}": (str(entry), self._tagging(entry)) for entry in Entry}
        self._paths[_VALIDATE] = (_VALIDATING, self._validating)

    def admission(self) -> web.Application:
        """The API server's side: every path and method, since what is no review is answered with a sentence too."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for path in (*self._paths, "/{path:.*}"):  # what is known is found without a search
            app.router.add_route("*", path, self._review)
        return app

    async def _review(self, request: web.Request) -> web.Response:
        asked = self._paths.get(request.path)
        if asked is None:
            return _refused(404, f"path is {request.path[:80]!r}; use POST to one of {_PATHS}")
        entry, decide = asked
        try:
            body = await _body(request, self._in_flight)
            started = clock.monotonic_s()
            reply = _decided(body, decide)
        except BadInput as error:
            response = _refused(400, str(error))
        except web.HTTPException as error:
            response = _refused(error.status, error.text or error.reason)
        else:
            self.metrics.duration.observe(clock.monotonic_s() - started)
            self.metrics.reviews[entry, reply.result].inc()
            response = web.Response(body=reply.body, content_type="application/json")
        if response.status != 200:
            self.metrics.reviews[entry, ReviewResult.FAILED].inc()
        if self.draining:
            response.force_close()  # the API server's next request goes to another replica
        return response

    def health(self) -> web.Application:
        """The kubelet's and Prometheus' side."""
        return health_app(self.metrics.registry, self._checks, self._notes)

    def _tagging(self, entry: Entry) -> Callable[[review.Request], Reply]:
        return lambda request: review.answer(request, entry, self.rules.rules)

    def _validating(self, request: review.Request) -> Reply:
        return review.validated(request, self.rules.rules)

    def _checks(self) -> dict[str, str]:
        return {
            "certificate": "" if self.serving.ready else self.serving.problem,
            "serving": "stopping" if self.draining else "",
        }

    def _notes(self) -> list[str]:
        renewal = self.serving.problem if self.serving.ready else ""
        value = {"certificate renewal": renewal, "rule file": self.rules.problem}
        return [f"[!] {what}: {problem}" for what, problem in value.items() if problem]


async def serve(
    settings: WebhookSettings,
    ready: Callable[[WebhookAddresses], None] | None = None,
    *,
    stop: asyncio.Event | None = None,
) -> None:
    """Runs until SIGTERM, SIGINT or `stop`; `ready` is called once reviews are answered.

    Raises BadInput for settings that cannot work: an address in use, no way to the API server.
    """
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stop = stop or asyncio.Event()
    rules = RulesInUse(settings.rules)
    webhook = Webhook(ServingCertificate(), Metrics(importlib.metadata.version("isochrone")), rules)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(stopped_by_signals(stop))
        health = await stack.enter_async_context(listening(webhook.health(), settings.health_listen, "HEALTH_LISTEN"))
        loaded = asyncio.Event()
        source = await stack.enter_async_context(_source(settings))
        log.info("probes and metrics on %s", health)  # not before all settings are known to work: a refusal is one line
        await stack.enter_async_context(background(certificate_store.keep(source, webhook.serving, loaded)))
        await stack.enter_async_context(background(rules.keep()))
        if not await _first(loaded, stop):
            return
        tls = webhook.serving.context
        bound = await stack.enter_async_context(listening(webhook.admission(), settings.listen, "LISTEN", tls))
        log.info("answering reviews on %s", bound)
        if ready:
            ready(WebhookAddresses(bound, health))
        await stop.wait()
        webhook.draining = True
        log.info("stopping: not ready any more, still answering for %.1f s", settings.drain / 1e6)
        # Endpoints are told apart from us: requests still come for a moment after readiness went.
        await asyncio.sleep(settings.drain / 1e6)


def _decided(body: bytes | bytearray, decide: Callable[[review.Request], Reply]) -> Reply:
    request = review.decode(body)
    try:
        return decide(request)
    except Exception:
        log.exception("bug while looking at a pod in namespace %s; it was allowed as it is", request.namespace)
        warning = "Isochrone failed on this pod and left it alone; its log says why"
        return review.untouched(request.uid, warning, ReviewResult.FAILED)


async def _body(request: web.Request, in_flight: BodyBudget) -> bytes | bytearray:
    if request.method != "POST":
        raise web.HTTPMethodNotAllowed(request.method, ["POST"], text=f"method is {request.method!r}; use 'POST'")
    if request.content_type != "application/json":
        kind = f"Content-Type is {request.content_type[:80]!r}; use 'application/json'"
        raise web.HTTPUnsupportedMediaType(text=kind)
    return await whole_body(request, in_flight, _BODY_LIMIT_S, _TOO_LARGE)


def _refused(status: int, sentence: str) -> web.Response:
    return web.Response(status=status, text=sentence + "\n")


@contextlib.asynccontextmanager
async def _source(settings: WebhookSettings) -> AsyncIterator[certificate_store.Source]:
    if settings.cert_dir:
        yield certificate_store.Folder(settings.cert_dir)
        return
    names = service_names(settings.service, settings.namespace, settings.extra_names)
    async with await KubeApi.connect(
        settings.kubeconfig or None, user_agent="isochrone-webhook", named="ISOCHRONE_KUBECONFIG"
    ) as api:
        yield certificate_store.Secret(
            api, settings.namespace, settings.cert_secret, settings.webhook_configuration, names
        )


async def _first(loaded: asyncio.Event, stop: asyncio.Event) -> bool:
    """Waits for the certificate for as long as the probes allow; False if the end came first."""
    waits = [asyncio.ensure_future(event.wait()) for event in (loaded, stop)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return not stop.is_set()
