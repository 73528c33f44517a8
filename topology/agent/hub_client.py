"""EDGE: an agent's side of its stream to the hub: Hello, a full report, then changes, one at a time.

Decides what is sent when (the newest state only, after the last was acknowledged), and how long to wait after a break:
a random part of a growing pause, so that thousands of agents do not come back in one moment. It must never change
facts.
"""

from __future__ import annotations

import asyncio
import logging
import random  # noqa: TID251  # an edge: jitter is chance on purpose
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc.aio

from topology.agent.enrolment import AgentEnrolment, NotEnrolledError
from topology.agent.settings import AgentSettings
from topology.bad_input import BadInput
from topology.environment import ENV_PREFIX
from topology.facts import agent_pb2 as wire
from topology.facts import delta as facts_delta
from topology.facts import wire as facts_wire
from topology.facts.report import NodeFacts, ReachSample
from topology.units import show_bytes

log = logging.getLogger(__name__)

METHOD: Final = "/isochrone.agent.v1.Hub/Report"
MAX_MESSAGE: Final = 4 * 2**20  # gRPC's own default, set on both sides so that nobody has to know it
START_PAUSE_S: Final = 2.0  # before the first connection of a process: starts are spread by image pulls already
FIRST_PAUSE_S: Final = 10.0  # 5,000 agents of a hub that died come back at 500 a second
LAST_PAUSE_S: Final = 60.0
ACK_LIMIT_S: Final = 30.0
DOUBT_AFTER: Final = 3  # connections in a row that came to nothing, until another certificate is asked for
PROTOCOL: Final = 1

Orders = Callable[[wire.ProbeOrders], None]


class HubClient:
    """Tell it facts with `report`; it sends them when the hub is there."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        boot_id: str,
        version: str,
        on_orders: Orders | None = None,
        probe_address: str | None = None,
        chance: Callable[[], float] = random.random,
        channel: Callable[[], Any] | None = None,
        enrolment: AgentEnrolment | None = None,
    ) -> None:
        self._settings, self._chance, self._on_orders = settings, chance, on_orders
        self._hello = wire.Hello(
            node=settings.node_name,
            agent_version=version,
            boot_id=boot_id,
            protocol=PROTOCOL,
            probe_address=probe_address,
        )
        self._made_channel = channel
        self._enrolment = enrolment or (AgentEnrolment(settings) if settings.enrol else None)
        self._news = asyncio.Event()
        self._facts: NodeFacts | None = None
        self._samples: dict[tuple[str, int, str], ReachSample] = {}
        self.connected = False
        self.sent = {"full": 0, "delta": 0}
        self.breaks = 0
        self.problem = "not connected yet"

    def report(self, facts: NodeFacts) -> None:
        """The newest facts; those before them that were not sent yet are dropped. Measurements are kept."""
        for sample in facts.reach:
            self._samples[sample.peer, sample.size_bytes, sample.transport] = sample
        self._facts = facts
        self._news.set()

    async def run(self) -> None:
        """Until cancelled. The first connection, too, waits a random part of a pause."""
        pause_s, in_vain = START_PAUSE_S, 0
        while True:
            await asyncio.sleep(pause_s * self._chance())
            began, before = asyncio.get_running_loop().time(), sum(self.sent.values())
            try:
                channel = self._made_channel() if self._made_channel else await self._channel()
                try:
                    await self._stream(channel)
                finally:
                    self.connected = False
                    await channel.close()
            except grpc.aio.AioRpcError as error:
                self._broken(_status_text(error))
            except (BadInput, NotEnrolledError, OSError, _Quiet) as error:
                self._broken(str(error))
            in_vain = in_vain + 1 if sum(self.sent.values()) == before else 0
            if in_vain >= DOUBT_AFTER and self._enrolment is not None:
                self._enrolment.doubt()
            lasted = asyncio.get_running_loop().time() - began
            # The pause starts over only after a stream that was worth something.
            pause_s = FIRST_PAUSE_S if lasted > LAST_PAUSE_S else min(max(FIRST_PAUSE_S, pause_s * 2), LAST_PAUSE_S)

    def _broken(self, why: str) -> None:
        self.breaks += 1
        if why != self.problem:
            log.warning("hub %s: %s", self._settings.hub, why)
        self.problem = why

    async def _channel(self) -> Any:
        options: list[tuple[str, Any]] = [
            ("grpc.max_send_message_length", MAX_MESSAGE),
            ("grpc.max_receive_message_length", MAX_MESSAGE),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.enable_retries", 0),
        ]
        if self._settings.plaintext:
            return grpc.aio.insecure_channel(self._settings.hub, options=options)
        options.append(("grpc.ssl_target_name_override", self._settings.hub_host))
        if self._enrolment is not None:
            shown = await self._enrolment.credentials()
        else:
            shown = credentials(self._settings.tls_dir)
        return grpc.aio.secure_channel(self._settings.hub, shown, options=options)

    async def _stream(self, channel: Any) -> None:
        call = channel.stream_stream(
            METHOD,
            request_serializer=wire.AgentMessage.SerializeToString,
            response_deserializer=wire.HubMessage.FromString,
        )()
        sequence = 1
        await call.write(wire.AgentMessage(sequence=sequence, hello=self._hello))
        answers = _Answers(aiter(call))
        try:
            await self._talk(call, answers, sequence)
        finally:
            answers.stop()

    async def _talk(self, call: Any, answers: _Answers, sequence: int) -> None:
        acknowledged: NodeFacts | None = None
        if self._facts is not None:
            self._news.set()  # a new stream starts with everything, whether or not anything is new
        while True:
            while self._facts is None or not self._news.is_set():
                await self._wait(answers)
            self._news.clear()
            facts = replace(self._facts, reach=tuple(self._samples[key] for key in sorted(self._samples)))
            message = self._message(sequence + 1, acknowledged, facts)
            sequence += 1
            await call.write(message)
            answer = await self._acknowledged(answers, sequence)
            if answer is None:
                acknowledged = None  # the hub wants everything
                self._news.set()
                continue
            self.connected, self.problem = True, ""
            self.sent["delta" if message.HasField("delta") else "full"] += 1
            acknowledged = facts
            for sample in facts.reach:
                if self._samples.get((sample.peer, sample.size_bytes, sample.transport)) is sample:
                    del self._samples[sample.peer, sample.size_bytes, sample.transport]
            if answer.HasField("pause_s"):
                await asyncio.sleep(min(max(answer.pause_s, 0.0), 600.0))

    def _message(self, sequence: int, acknowledged: NodeFacts | None, facts: NodeFacts) -> wire.AgentMessage:
        delta = facts_delta.difference(acknowledged, facts) if acknowledged is not None else None
        if delta is not None:
            return wire.AgentMessage(sequence=sequence, delta=delta)
        message = wire.AgentMessage(sequence=sequence, full=facts_wire.full_message(facts))
        if message.ByteSize() > MAX_MESSAGE:
            allowed = f"the hub takes at most {show_bytes(MAX_MESSAGE)} a message"
            raise BadInput("the report", show_bytes(message.ByteSize()), allowed)
        return message

    async def _wait(self, answers: _Answers) -> None:
        """For news of ours, or whatever the hub says meanwhile."""
        news: asyncio.Future[Any] = asyncio.ensure_future(self._news.wait())
        answer: asyncio.Future[Any] = answers.next()
        try:
            await asyncio.wait([news, answer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        if answer.done():
            self._heed(answers.take())

    async def _acknowledged(self, answers: _Answers, sequence: int) -> wire.Ack | None:
        """The Ack of this report; None if the hub wants a full one instead."""
        loop = asyncio.get_running_loop()
        until = loop.time() + ACK_LIMIT_S
        while True:
            await asyncio.wait([answers.next()], timeout=max(0.0, until - loop.time()))
            if not answers.next().done():
                raise _Quiet(f"the hub did not acknowledge a report within {ACK_LIMIT_S:g}s")
            answer = answers.take()
            if answer.HasField("ack") and answer.ack.sequence == sequence:
                return answer.ack
            if answer.HasField("full_wanted"):
                log.info("the hub wants a full report: %s", answer.full_wanted.why)
                return None
            self._heed(answer)

    def _heed(self, answer: wire.HubMessage) -> None:
        if answer.HasField("probe_orders") and self._on_orders is not None:
            self._on_orders(answer.probe_orders)


class _Quiet(Exception):  # noqa: N818  # says what happened
    """The hub stopped answering, or ended the stream."""


class _Answers:
    """One read at a time that survives being waited for in several places."""

    def __init__(self, source: AsyncIterator[wire.HubMessage]) -> None:
        self._source = source
        self._task: asyncio.Future[wire.HubMessage] | None = None

    def next(self) -> asyncio.Future[wire.HubMessage]:
        """The read under way."""
        if self._task is None:
            self._task = asyncio.ensure_future(anext(self._source))
        return self._task

    def take(self) -> wire.HubMessage:
        """The answer that was read. Raises what ended the stream."""
        task, self._task = self._task, None
        assert task is not None, "next() came before"
        try:
            return task.result()
        except StopAsyncIteration:
            raise _Quiet("the hub ended the stream") from None

    def stop(self) -> None:
        """Nobody waits any more."""
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())


def credentials(folder: str) -> grpc.ChannelCredentials:
    """Read at every connection, so that a renewed certificate is taken up. Raises BadInput."""
    try:
        parts = [(Path(folder) / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
    except OSError as error:
        allowed = f"it must hold tls.crt, tls.key and ca.crt: {error.strerror} ({error.filename})"
        raise BadInput(ENV_PREFIX + "TLS_DIR", folder, allowed) from None
    return grpc.ssl_channel_credentials(*parts)


def _status_text(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {' '.join((error.details() or '').split())[:300]}"
