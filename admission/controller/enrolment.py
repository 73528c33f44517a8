"""EDGE: the gRPC server where node agents get their certificates, for the node that their pod's token is bound to.

Decides how much and how often may be asked, and what each refusal is called. Who a token stands for is decided by the
API server and `agent_identity`, what is signed by `admission.certificates.authority`. A request that is sent a second
time gives a certificate for the same key and the same node, which is of no use to whoever has not that key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol
from urllib.parse import quote

import grpc.aio
import msgspec

from admission.certificates.authority import AGENT_LIFE, Bundle, UnfitRequestError, sign_agent
from admission.controller.agent_identity import (
    TOKEN_CHARS,
    AgentPod,
    NotVouchedForError,
    WrongIdentityError,
    node_of,
    pod_of,
    review_of,
)
from admission.controller.enrolment_rate import AskingRate
from topology.bad_input import BadInput
from topology.clock import monotonic_s, utc_now
from topology.facts import enrolment_pb2 as wire
from topology.hub.server import Parts, server_credentials
from topology.kube.errors import ApiError, ApiFailure
from topology.objects import Pod
from topology.units import HostPort

log = logging.getLogger(__name__)

SERVICE: Final = "isochrone.agent.v1.Enrolment"
REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
MAX_REQUEST: Final = 16 * 2**10
PER_S: Final = 2.0  # asks of one address in the long run: an agent asks once a day, or every 10 s while it is refused
BURST: Final = 50.0  # agents on their hosts' network may share an address on their way here
AT_ONCE: Final = 64
ASKING: Final = 16  # reviews under way at the API server
_PAUSE_S: Final = 1.0


class ReviewApi(Protocol):
    """The part of the Kubernetes client that is needed here."""

    async def get(self, path: str) -> bytes: ...

    async def create(self, path: str, obj: Any) -> bytes: ...


class EnrolmentServer:
    """`bundle` gives the authority, None while there is none; `namespace` and `account` are those of agents."""

    def __init__(
        self,
        api: ReviewApi,
        bundle: Callable[[], Bundle | None],
        namespace: str,
        account: str,
        rate: AskingRate | None = None,
    ) -> None:
        self._api, self._bundle, self._namespace, self._account = api, bundle, namespace, account
        self._rate = rate if rate is not None else AskingRate(PER_S, BURST)
        self._asking = asyncio.Semaphore(ASKING)
        self.answers: Counter[str] = Counter()
        """How many asks ended how: issued, or the name of a gRPC code."""

    async def enrol(self, request: wire.EnrolRequest, context: Any) -> wire.EnrolAnswer:
        """One ask. Ends in a certificate or in one of the codes of enrolment.proto."""
        try:
            certificate = await self._certificate(request, _address(context.peer()))
        except _RefusedError as refused:
            self.answers[refused.code.name.lower().replace("_", "-")] += 1
            if refused.code is not grpc.StatusCode.RESOURCE_EXHAUSTED:  # whoever floods this must not flood the log
                log.warning("enrolment of %s for node %r refused: %s", context.peer(), request.node[:253], refused)
            await context.abort(refused.code, str(refused))
            raise  # abort raises; this is for type checkers
        self.answers["issued"] += 1
        log.info("node %s has a certificate", request.node)
        return wire.EnrolAnswer(certificate=certificate, valid_s=AGENT_LIFE.total_seconds())

    async def _certificate(self, request: wire.EnrolRequest, address: str) -> bytes:
        if not self._rate.may(address, monotonic_s()):
            raise _RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, "asked too often; ask again in a minute")
        bundle = self._bundle()
        if bundle is None:
            raise _RefusedError(grpc.StatusCode.UNAVAILABLE, "the hub has no authority yet; ask again")
        if not request.node or not request.token or len(request.token) > TOKEN_CHARS or not request.token.isascii():
            raise _RefusedError(grpc.StatusCode.INVALID_ARGUMENT, f"node and token are needed, up to {TOKEN_CHARS}")
        try:
            node = await self._node(request.token)
        except NotVouchedForError as error:
            raise _RefusedError(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None
        except WrongIdentityError as error:
            raise _RefusedError(grpc.StatusCode.PERMISSION_DENIED, str(error)) from None
        except ApiFailure as failure:
            log.warning("enrolment: %s", failure)
            raise _RefusedError(grpc.StatusCode.UNAVAILABLE, "the API server could not be asked; ask again") from None
        if node != request.node:
            why = f"the token is of a pod on node {node!r}, not on {request.node[:253]!r}"
            raise _RefusedError(grpc.StatusCode.PERMISSION_DENIED, why)
        try:
            return sign_agent(bundle, request.request, node, utc_now())
        except UnfitRequestError as error:
            raise _RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None

    async def _node(self, token: str) -> str:
        async with self._asking:
            answer = await self._api.create(REVIEWS, review_of(token))
            bound = pod_of(answer, self._namespace, self._account)
            return node_of(bound, None if bound.node else await self._pod(bound))

    async def _pod(self, bound: AgentPod) -> Pod | None:
        """Asked of the API server and not of the watch, which may be behind."""
        path = f"/api/v1/namespaces/{quote(bound.namespace, safe='')}/pods/{quote(bound.name, safe='')}"
        try:
            return msgspec.json.decode(await self._api.get(path), type=Pod)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    def handler(self) -> grpc.GenericRpcHandler:
        """What the server serves."""
        method = grpc.unary_unary_rpc_method_handler(
            self.enrol,
            request_deserializer=wire.EnrolRequest.FromString,
            response_serializer=wire.EnrolAnswer.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Enrol": method})


class _RefusedError(Exception):
    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


def _address(peer: str) -> str:
    """The address in gRPC's `ipv4:10.0.0.1:4711`, without the port."""
    return peer.rpartition(":")[0]


@contextlib.asynccontextmanager
async def listening(enrolment: EnrolmentServer, where: HostPort, tls: Callable[[], Parts]) -> AsyncIterator[HostPort]:
    """Serves while the context lasts, with the hub's certificate and asking for none. Raises BadInput."""
    options = [
        ("grpc.max_receive_message_length", MAX_REQUEST),
        ("grpc.max_send_message_length", MAX_REQUEST),
        ("grpc.max_metadata_size", 8 * 2**10),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 1),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_age_ms", 60_000),
        ("grpc.max_connection_age_grace_ms", 10_000),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=AT_ONCE)
    server.add_generic_rpc_handlers((enrolment.handler(),))
    try:
        port = server.add_secure_port(str(where), server_credentials(tls, clients=False))
    except RuntimeError as error:
        raise BadInput("ISOCHRONE_ENROL_LISTEN", str(where), f"it cannot be used: {error}") from None
    await server.start()
    try:
        yield HostPort(where.host, port)
    finally:
        await server.stop(_PAUSE_S)
