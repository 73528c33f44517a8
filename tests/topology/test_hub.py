"""The hub's server and an agent's client over loopback: identity, limits, breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.topology.hub_certificates import Authority
from tests.topology.list_watch_server import LIMIT_S, until
from tests.topology.node_facts import state, two_gpus
from topology.agent.hub_client import METHOD, HubClient
from topology.agent.settings import AgentSettings
from topology.bad_input import BadInput
from topology.facts import agent_pb2 as wire
from topology.facts import report as f
from topology.facts import wire as facts_wire
from topology.facts.age import Freshness, PartAge
from topology.hub.server import Hub, listening
from topology.hub.state import HubState


@contextlib.asynccontextmanager
async def client(settings: AgentSettings, **given: Any) -> AsyncIterator[HubClient]:
    """A client that does not wait before it connects."""
    made = HubClient(settings, boot_id="b1", version="0.1.0", chance=lambda: 0.002, **given)
    task = asyncio.ensure_future(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=LIMIT_S)


def plain(port: int, node: str = "n1") -> AgentSettings:
    return AgentSettings(node_name=node, hub=f"127.0.0.1:{port}", plaintext=True)


def fuller(used: int) -> f.NodeFacts:
    facts = two_gpus()
    return replace(facts, memory=(replace(facts.memory[0], used_bytes=used), *facts.memory[1:]))


async def test_an_agent_tells_everything_once_and_changes_after() -> None:
    known = HubState()
    async with listening(Hub(known, bound=False), "127.0.0.1", 0, "") as port, client(plain(port)) as agent:
        agent.report(two_gpus())
        await until(lambda: agent.sent["full"] == 1)
        assert known.facts("n1", 0.0) is not None
        for used in (1, 2, 3):
            agent.report(fuller(used))
            await until(lambda used=used: agent.sent["delta"] == used)  # type: ignore[misc]
        found = known.known("n1")
        assert found is not None
        assert found.facts == fuller(3)
        assert (agent.sent, known.reports) == ({"full": 1, "delta": 3}, {"full": 1, "delta": 3, "refused": 0})


async def test_a_hub_that_starts_anew_gets_everything_again_though_nothing_is_new() -> None:
    first, second = HubState(), HubState()
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(contextlib.AsyncExitStack())
        port = await server.enter_async_context(listening(Hub(first, bound=False), "127.0.0.1", 0, ""))
        agent = await stack.enter_async_context(client(plain(port)))
        agent.report(two_gpus())
        await until(lambda: agent.sent["full"] == 1)
        await server.aclose()
        await until(lambda: agent.breaks >= 1)
        await stack.enter_async_context(listening(Hub(second, bound=False), "127.0.0.1", port, ""))
        await until(lambda: agent.sent["full"] == 2)
        assert second.nodes() == ["n1"]


async def test_orders_reach_the_agent_and_samples_the_hub() -> None:
    known = HubState()
    orders: list[wire.ProbeOrders] = []
    hub = Hub(known, bound=False)
    async with listening(hub, "127.0.0.1", 0, "") as port, client(plain(port), on_orders=orders.append) as agent:
        agent.report(two_gpus())
        await until(lambda: agent.sent["full"] == 1)
        order = wire.ProbeOrders(orders=[wire.ProbeOrder(peer="n2", address="10.0.0.2:7000", size_bytes=65536)])
        assert hub.order("n1", order)
        await until(lambda: orders == [order])
        assert not hub.order("n2", order)
        sample = f.ReachSample(
            peer="n2", size_bytes=65536, p50_us=9, p99_us=20, p999_us=30, count=64, transport="tcp", measured_at_s=1
        )
        agent.report(replace(two_gpus(), reach=(sample,)))
        await until(lambda: list(known.measured()) == [("n1", sample)])


# --- identity ------------------------------------------------------------------------------------


async def test_the_node_name_must_be_in_the_certificate(tmp_path: Path) -> None:
    authority, known = Authority(), HubState()
    served = authority.folder(tmp_path / "hub", "hub", "localhost")
    hub = Hub(known)
    async with listening(hub, "127.0.0.1", 0, str(served)) as port:

        def settings(node: str, folder: Path) -> AgentSettings:
            return AgentSettings(node_name=node, hub=f"127.0.0.1:{port}", hub_name="localhost", tls_dir=str(folder))

        by_subject = authority.folder(tmp_path / "n1", "n1")
        by_alternative = authority.folder(tmp_path / "n2", "agent", "n2")
        async with client(settings("n1", by_subject)) as one, client(settings("n2", by_alternative)) as two:
            one.report(two_gpus())
            two.report(two_gpus())
            await until(lambda: one.sent["full"] == two.sent["full"] == 1)
        async with client(settings("n3", by_subject)) as thief:
            thief.report(two_gpus())
            # A refusal that crosses the client's own next message can reach it as a broken stream: it tries again.
            refusal = "PERMISSION_DENIED: node 'n3' is not in the certificate, which names n1"
            await until(lambda: thief.problem == refusal)
        stranger = Authority("another-ca").folder(tmp_path / "n4", "n4")
        (stranger / "ca.crt").write_bytes((served / "ca.crt").read_bytes())
        async with client(settings("n4", stranger)) as outside:
            outside.report(two_gpus())
            await until(lambda: outside.breaks >= 1)
            assert outside.problem.startswith("UNAVAILABLE")
    assert known.nodes() == ["n1", "n2"]
    assert hub.refused >= 1  # at each try


async def test_a_missing_certificate_is_told_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ISOCHRONE_HUB_TLS_DIR is .*tls\.key"):
        async with listening(Hub(HubState()), "127.0.0.1", 0, str(tmp_path)):
            pass
    settings = AgentSettings(node_name="n1", hub="127.0.0.1:1", tls_dir=str(tmp_path))
    async with client(settings) as agent:
        agent.report(two_gpus())
        await until(lambda: agent.breaks >= 1)
        assert "it must hold tls.crt, tls.key and ca.crt: No such file or directory" in agent.problem


# --- limits --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def raw_stream(port: int) -> AsyncIterator[Any]:
    """A stream whose messages a test writes itself."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel.stream_stream(
            METHOD,
            request_serializer=wire.AgentMessage.SerializeToString,
            response_deserializer=wire.HubMessage.FromString,
        )(timeout=LIMIT_S)


async def ended(call: Any, message: wire.AgentMessage | None = None) -> grpc.aio.AioRpcError:
    """How a stream ends, after one more message."""
    try:
        if message is not None:
            await call.write(message)
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the stream ended well")


def hello(node: str = "n1") -> wire.AgentMessage:
    return wire.AgentMessage(sequence=1, hello=wire.Hello(node=node, protocol=1, boot_id="b"))


async def test_c148_a_message_above_the_limit_is_refused_by_name_and_a_node_of_72_gpus_fits() -> None:
    links = tuple(
        f.NvLink(
            link=n, active=True, version="5.0", speed_mbps=425_000, remote=f.Remote.GPU, remote_bus_id="0008:01:00.0"
        )
        for n in range(28)
    )
    uuids = [f"GPU-{n:08x}-0000-4000-8000-000000000000" for n in range(72)]
    path = ("pci0008:00", "0008:00:00.0", "0008:01:00.0", "0008:02:00.0", "0008:03:00.0")
    gpus = tuple(f.Gpu(uuid=u, name="NVIDIA GB200", bus_id="0008:01:00.0", nvlinks=links, pci_path=path) for u in uuids)
    near = tuple((uuid, f.Distance.SYS) for uuid in uuids)
    facts = f.NodeFacts(
        state=state(),
        gpus=gpus,
        memory=tuple(f.Memory(uuid=u, total_bytes=2**38, reserved_bytes=2**30, used_bytes=0) for u in uuids),
        pairs=tuple(f.GpuPair(a=a, b=b, distance=f.Distance.SYS) for i, a in enumerate(uuids) for b in uuids[i + 1 :]),
        nics=tuple(f.Nic(name=f"mlx5_{n}", rdma=True, gpus=near, pci_path=path) for n in range(8)),
    )
    assert facts_wire.full_message(facts).ByteSize() < 2**20  # a quarter of the limit
    known = HubState()
    async with listening(Hub(known, bound=False), "127.0.0.1", 0, "") as port, client(plain(port)) as agent:
        agent.report(facts)
        await until(lambda: agent.sent["full"] == 1)
        async with raw_stream(port) as call:
            await call.write(hello("n2"))
            big = wire.Full(node=wire.Node(nvml=wire.NVML_OK, problems=["x" * 500] * 10_000))
            refused = await ended(call, wire.AgentMessage(sequence=2, full=big))
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "4194304" in (refused.details() or "")
        assert known.nodes() == ["n1", "n2"]
    # An agent says so itself before it sends.
    huge = tuple(
        f.Holding(namespace="ml", pod="p" * 200, container=str(n), resource="r", device_ids=("GPU-" + "0" * 36,) * 4)
        for n in range(12_000)
    )
    too_much = replace(two_gpus(), pods=f.PodDevices(collected_at_s=1.0, holdings=huge))
    with pytest.raises(BadInput, match=r"the report is '.* MiB'; the hub takes at most 4 MiB a message"):
        HubClient(plain(1), boot_id="", version="")._message(2, None, too_much)


async def test_a_sender_beyond_its_rate_is_slowed_down_and_others_are_not() -> None:
    known = HubState()
    hub = Hub(known, bound=False, rate=5.0, burst=2.0)
    async with listening(hub, "127.0.0.1", 0, "") as port, raw_stream(port) as call:
        began = asyncio.get_running_loop().time()
        await call.write(hello("loud"))
        sent = 0
        while hub.throttled < 4:  # what comes while nobody is throttled was allowed: this machine stood still meanwhile
            for _ in range(6):
                sent += 1
                await call.write(wire.AgentMessage(sequence=1 + sent, full=facts_wire.full_message(two_gpus())))
            if sent == 6:
                async with client(plain(port, "calm")) as agent:
                    agent.report(two_gpus())
                    await until(lambda: agent.sent["full"] == 1)
            acknowledged = [await call.read() for _ in range(6)]
            assert [answer.ack.sequence for answer in acknowledged] == [*range(sent - 4, sent + 2)]
        took_s = asyncio.get_running_loop().time() - began
        # Two at once, then five a second: six need 0.8 s.
        assert took_s >= (sent - 2) / 5.0 - 0.05


async def test_a_newer_stream_of_a_node_ends_the_older_one() -> None:
    report = wire.AgentMessage(sequence=2, full=facts_wire.full_message(two_gpus()))
    served = listening(Hub(HubState(), bound=False), "127.0.0.1", 0, "")
    async with served as port, raw_stream(port) as old, raw_stream(port) as new:
        for call in (old, new):
            await call.write(hello())
            await call.write(report)
            assert (await call.read()).ack.sequence == 2
        assert (await ended(old)).code() is grpc.StatusCode.ABORTED


@pytest.mark.parametrize(
    ("message", "value"),
    [
        (wire.AgentMessage(sequence=1, full=wire.Full()), "a stream starts with a Hello"),
        (wire.AgentMessage(sequence=1, hello=wire.Hello(node="n1", protocol=9)), "this hub speaks 1"),
    ],
)
async def test_a_stream_that_starts_wrong_is_told_why(message: wire.AgentMessage, value: str) -> None:
    async with listening(Hub(HubState(), bound=False), "127.0.0.1", 0, "") as port, raw_stream(port) as call:
        refused = await ended(call, message)
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert value in (refused.details() or "")


async def test_a_killed_agent_ages_and_others_stay_fresh() -> None:
    known = HubState()
    async with listening(Hub(known, bound=False), "127.0.0.1", 0, "") as port:
        async with client(plain(port, "a")) as one:
            one.report(two_gpus())
            await until(lambda: one.sent["full"] == 1)
        async with client(plain(port, "b")) as two:
            two.report(two_gpus())
            await until(lambda: two.sent["full"] == 1)
        heard = {name: known.known(name) for name in ("a", "b")}
        assert heard["a"] is not None
        assert heard["b"] is not None
        later_s = heard["a"].heard_s + 46
        found = known.facts("a", later_s)
        assert found is not None
        assert set(found[1].values()) == {PartAge(46.0, Freshness.STALE)}
