"""EDGE: an agent's own certificate: asked for with the pod's token when the hub is called, kept in memory.

Decides when to ask: before a connection, if two thirds of the certificate's life are over, or if several connections
with it came to nothing: its authority may be gone. A certificate that is still good is used if asking fails. It must
never write a key anywhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc.aio

from topology.agent.key_request import NoKeyError, key_and_request
from topology.agent.settings import AgentSettings
from topology.bad_input import BadInput
from topology.clock import monotonic_s
from topology.environment import ENV_PREFIX
from topology.facts import enrolment_pb2 as wire

log = logging.getLogger(__name__)

METHOD: Final = "/isochrone.agent.v1.Enrolment/Enrol"
ANSWER_S: Final = 30.0
MAX_FILE: Final = 64 * 2**10


class NotEnrolledError(Exception):
    """There is no certificate, and why, in one sentence."""


@dataclass(frozen=True, slots=True)
class _Held:
    key: bytes
    certificate: bytes
    since_s: float
    valid_s: float

    def left(self, now_s: float) -> float:
        """The part of its life that is left, 1 to 0."""
        return 1.0 - (now_s - self.since_s) / self.valid_s if self.valid_s > 0 else 0.0


class AgentEnrolment:
    """`enrol_dir` of the settings holds the pod's token and ca.crt, both renewed by the kubelet."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        clock: Callable[[], float] = monotonic_s,
        make_key: Callable[[], Awaitable[tuple[bytes, bytes]]] = key_and_request,
    ) -> None:
        self._settings, self._clock, self._make_key = settings, clock, make_key
        self._held: _Held | None = None
        self._doubted = False
        self.issued = 0

    def doubt(self) -> None:
        """The hub may not believe the certificate that there is: ask for another before the next connection."""
        self._doubted = True

    async def credentials(self) -> grpc.ChannelCredentials:
        """For the next connection to the hub. Raises NotEnrolledError; BadInput for a folder that cannot be used."""
        held = self._held
        if held is None or self._doubted or held.left(self._clock()) < 1 / 3:
            try:
                held = self._held = await self._ask()
                self._doubted = False
                self.issued += 1
            except (NotEnrolledError, NoKeyError) as error:
                if held is None or held.left(self._clock()) <= 0:
                    raise NotEnrolledError(str(error)) from None
                log.warning("certificate not renewed, the old one is used: %s", error)
        return grpc.ssl_channel_credentials(self._read("ca.crt"), held.key, held.certificate)

    async def _ask(self) -> _Held:
        token = self._read("token").decode("ascii", "replace").strip()
        key, request = await self._make_key()
        message = wire.EnrolRequest(node=self._settings.node_name, token=token, request=request)
        trust = grpc.ssl_channel_credentials(self._read("ca.crt"))
        options = [("grpc.ssl_target_name_override", self._settings.hub_host), ("grpc.enable_retries", 0)]
        since_s = self._clock()
        async with grpc.aio.secure_channel(self._settings.enrol, trust, options=options) as channel:
            call: Any = channel.unary_unary(
                METHOD,
                request_serializer=wire.EnrolRequest.SerializeToString,
                response_deserializer=wire.EnrolAnswer.FromString,
            )
            try:
                answer = await asyncio.wait_for(call(message, timeout=ANSWER_S), ANSWER_S + 5.0)
            except grpc.aio.AioRpcError as error:
                why = f"{error.code().name}: {' '.join((error.details() or '').split())[:300]}"
                raise NotEnrolledError(f"no certificate from {self._settings.enrol}: {why}") from None
            except TimeoutError:
                raise NotEnrolledError(f"no certificate from {self._settings.enrol} in time") from None
        log.info("certificate for node %s, good for %.0f h", self._settings.node_name, answer.valid_s / 3600)
        return _Held(key, answer.certificate, since_s, answer.valid_s)

    def _read(self, name: str) -> bytes:
        path = Path(self._settings.enrol_dir) / name
        try:
            with path.open("rb") as file:
                return file.read(MAX_FILE)
        except OSError as error:
            allowed = f"it must hold token and ca.crt: {error.strerror} ({error.filename})"
            raise BadInput(ENV_PREFIX + "ENROL_DIR", self._settings.enrol_dir, allowed) from None
