"""EDGE: the gRPC server to which agents report: one stream each, identified by its certificate.

Decides who may speak for which node, how much and how often; a sender beyond its rate is not read, so that TCP itself
holds it back. It must never know what facts mean.

Public sources: gRPC Python API (grpc.aio, dynamic_ssl_server_credentials, auth_context); gRPC documentation on
keepalive and flow control.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import grpc.aio

from topology.bad_input import BadInput
from topology.clock import monotonic_s
from topology.facts import agent_pb2 as wire
from topology.hub.state import HubState, Superseded
from topology.token_bucket import TokenBucket

log = logging.getLogger(__name__)

SERVICE: Final = "isochrone.agent.v1.Hub"
MAX_MESSAGE: Final = 4 * 2**20
RATE: Final = 2.0  # reports a second and agent, in the long run
BURST: Final = 10.0
HELLO_LIMIT_S: Final = 20.0
_PAUSE_S: Final = 1.0

Parts = tuple[bytes, bytes, bytes]
"""PEM of a server: its key, its certificate, and the authorities whose clients it believes."""


class Hub:
    """Serves a HubState. Belongs to one event loop."""

    def __init__(
        self,
        state: HubState,
        *,
        bound: bool = True,
        rate: float = RATE,
        burst: float = BURST,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        """`bound`: the node name must be in the client's certificate; False without TLS."""
        self.state = state
        self._bound, self._rate, self._burst, self.max_message = bound, rate, burst, max_message
        self._streams: dict[str, _Stream] = {}
        self.refused = 0
        self.throttled = 0

    @property
    def open(self) -> int:
        """Streams open now."""
        return len(self._streams)

    def order(self, node: str, orders: wire.ProbeOrders) -> bool:
        """Sends probe orders to a node's agent; False if it is not connected or has orders waiting."""
        stream = self._streams.get(node)
        return stream is not None and stream.offer(wire.HubMessage(probe_orders=orders))

    async def report(self, messages: AsyncIterator[wire.AgentMessage], context: Any) -> AsyncIterator[wire.HubMessage]:
        """One stream, from Hello to its end."""
        stream: _Stream | None = None
        try:
            first = await asyncio.wait_for(anext(messages), HELLO_LIMIT_S)
            if not first.HasField("hello"):
                raise BadInput("the first message", first.WhichOneof("body"), "a stream starts with a Hello")
            node = first.hello.node
            if self._bound and node not in (names := _names(context.auth_context())):
                self.refused += 1
                shown = ", ".join(sorted(names)) or "no name"
                why = f"node {node!r} is not in the certificate, which names {shown}"
                log.warning("%s refused: %s", context.peer(), why)
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
            number = self.state.hello(first.sequence, first.hello, monotonic_s())
            stream = _Stream(node, number)
            if (older := self._streams.get(node)) is not None:
                older.end()
            self._streams[node] = stream
            async for answer in self._answers(stream, messages):
                yield answer
        except BadInput as bad:
            self.refused += 1
            log.warning("%s refused: %s", context.peer(), bad)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(bad))
        except Superseded:
            await context.abort(grpc.StatusCode.ABORTED, "a newer stream of this node took over")
        except (TimeoutError, StopAsyncIteration):
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no Hello within {HELLO_LIMIT_S:g}s")
        finally:
            if stream is not None and self._streams.get(stream.node) is stream:
                del self._streams[stream.node]

    async def _answers(
        self, stream: _Stream, messages: AsyncIterator[wire.AgentMessage]
    ) -> AsyncIterator[wire.HubMessage]:
        bucket = TokenBucket(self._rate, self._burst, monotonic_s())
        reading: asyncio.Future[Any] = asyncio.ensure_future(anext(messages))
        try:
            while True:
                await asyncio.wait([reading, stream.news()], return_when=asyncio.FIRST_COMPLETED)
                if stream.ended:
                    raise Superseded(stream.node)
                if (order := stream.taken()) is not None:
                    yield order
                if not reading.done():
                    continue
                try:
                    message = reading.result()
                except StopAsyncIteration:
                    return
                now_s = monotonic_s()
                wait_s = bucket.take(now_s)
                if wait_s > 0:
                    self.throttled += 1
                    await asyncio.sleep(wait_s)  # not read meanwhile: the sender's window fills
                yield self.state.report(stream.node, stream.number, message, monotonic_s())
                reading = asyncio.ensure_future(anext(messages))
        finally:
            reading.cancel()
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())

    def handler(self) -> grpc.GenericRpcHandler:
        """What the server serves."""
        method = grpc.stream_stream_rpc_method_handler(
            self.report,
            request_deserializer=wire.AgentMessage.FromString,
            response_serializer=wire.HubMessage.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Report": method})


class _Stream:
    """The hub's end of one stream: whether a newer one took over, and at most one order that waits."""

    def __init__(self, node: str, number: int) -> None:
        self.node, self.number, self.ended = node, number, False
        self._order: wire.HubMessage | None = None
        self._news: asyncio.Future[None] | None = None

    def news(self) -> asyncio.Future[None]:
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
            if self.ended or self._order is not None:
                self._news.set_result(None)
        return self._news

    def end(self) -> None:
        self.ended = True
        self._signal()

    def offer(self, order: wire.HubMessage) -> bool:
        if self._order is not None:
            return False
        self._order = order
        self._signal()
        return True

    def taken(self) -> wire.HubMessage | None:
        order, self._order = self._order, None
        return order

    def _signal(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def _names(auth: dict[str, Iterable[bytes]]) -> set[str]:
    """Names in the client's certificate: its subject's common name and alternative names."""
    found = [*auth.get("x509_common_name", ()), *auth.get("x509_subject_alternative_name", ())]
    return {name.decode("utf-8", "replace") for name in found if name}


@contextlib.asynccontextmanager
async def listening(
    hub: Hub,
    host: str,
    port: int,
    tls_dir: str = "",
    setting: str = "ISOCHRONE_HUB_LISTEN",
    *,
    tls: Callable[[], Parts] | None = None,
    longest_s: float = 0.0,
) -> AsyncIterator[int]:
    """Serves while the context lasts; yields the port. Without `tls_dir` and `tls` in plain text, for tests.

    `tls` gives key, certificate and authorities anew at each handshake. A connection lasts `longest_s`, if that is not
    0, give or take a tenth; then its agent comes again and shows its certificate.
    Raises BadInput for an address or a folder that cannot be used.
    """
    options = [
        ("grpc.max_receive_message_length", hub.max_message),
        ("grpc.max_send_message_length", hub.max_message),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 8),  # on one connection; an agent has one
        ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
        ("grpc.keepalive_time_ms", 120_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]
    if longest_s:
        grace_s = min(5.0, longest_s)
        options += [("grpc.max_connection_age_ms", int(longest_s * 1000))]
        options += [("grpc.max_connection_age_grace_ms", int(grace_s * 1000))]
    if tls_dir and tls is None:
        tls = functools.partial(_read, tls_dir)
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((hub.handler(),))
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is not None:
            taken = server.add_secure_port(where, server_credentials(tls))
        else:
            taken = server.add_insecure_port(where)
    except RuntimeError as error:
        raise BadInput(setting, where, f"it cannot be used: {error}") from None
    await server.start()
    forgetting = asyncio.ensure_future(_forget(hub.state))
    try:
        yield taken
    finally:
        forgetting.cancel()
        await server.stop(_PAUSE_S)


async def _forget(state: HubState) -> None:
    while True:
        await asyncio.sleep(60)
        for node in state.forget_silent(monotonic_s()):
            log.info("node %s is silent for an hour and forgotten", node)


def server_credentials(read: Callable[[], Parts], *, clients: bool = True) -> grpc.ServerCredentials:
    """TLS, with clients' certificates demanded unless `clients` is False; what `read` gives is taken up at the next
    handshake. Raises BadInput if `read` does at first."""
    last = read()

    def configuration(parts: Parts) -> grpc.ServerCertificateConfiguration:
        key, certificate, authority = parts
        roots = authority if clients else None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=roots)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        try:
            parts = read()
        except BadInput as bad:
            log.warning("%s", bad)
            return None
        if parts == last:
            return None
        last = parts
        log.info("another certificate is served")
        return configuration(parts)

    fetch: Callable[[], Any] = renewed  # None means "unchanged", which the types do not know
    return grpc.dynamic_ssl_server_credentials(configuration(last), fetch, require_client_authentication=clients)


def _read(folder: str) -> Parts:
    try:
        key, certificate, authority = ((Path(folder) / name).read_bytes() for name in ("tls.key", "tls.crt", "ca.crt"))
    except OSError as error:
        allowed = f"it must hold tls.crt, tls.key and ca.crt: {error.strerror} ({error.filename})"
        raise BadInput("ISOCHRONE_HUB_TLS_DIR", folder, allowed) from None
    return key, certificate, authority
