"""What the hub answers, message by message, on a clock made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.node_facts import state, two_gpus
from topology.bad_input import BadInput
from topology.facts import agent_pb2 as wire
from topology.facts import delta as facts_delta
from topology.facts import report as f
from topology.facts import wire as facts_wire
from topology.facts.age import AgeLimits, FactPart, Freshness, PartAge
from topology.hub.state import FORGET_S, HubState, Superseded


def hello(node: str = "n1", boot: str = "b1") -> wire.Hello:
    return wire.Hello(node=node, boot_id=boot, protocol=1, agent_version="0.1.0")


def full(sequence: int, facts: f.NodeFacts | None = None) -> wire.AgentMessage:
    return wire.AgentMessage(sequence=sequence, full=facts_wire.full_message(facts or two_gpus()))


def change(sequence: int, old: f.NodeFacts, new: f.NodeFacts) -> wire.AgentMessage:
    delta = facts_delta.difference(old, new)
    assert delta is not None
    return wire.AgentMessage(sequence=sequence, delta=delta)


def all_parts(age_s: float, freshness: Freshness) -> dict[FactPart, PartAge]:
    """Every source answers the agent: its facts are as old as its last word."""
    return dict.fromkeys(FactPart, PartAge(age_s, freshness))


def fuller(facts: f.NodeFacts, used: int) -> f.NodeFacts:
    return replace(facts, memory=(replace(facts.memory[0], used_bytes=used), *facts.memory[1:]))


def test_a_full_report_then_changes() -> None:
    hub = HubState()
    stream = hub.hello(1, hello(), 10.0)
    assert hub.facts("n1", 10.0) is None
    assert hub.report("n1", stream, full(2), 11.0).ack.sequence == 2
    found = hub.facts("n1", 12.5)
    assert found == (two_gpus(), all_parts(1.5, Freshness.FRESH))
    later = fuller(two_gpus(), 7)
    assert hub.report("n1", stream, change(3, two_gpus(), later), 20.0).ack.sequence == 3
    assert hub.facts("n1", 20.0) == (later, all_parts(0.0, Freshness.FRESH))
    assert hub.reports == {"full": 1, "delta": 1, "refused": 0}


def test_a_gap_asks_for_a_full_report_and_changes_nothing() -> None:
    hub = HubState()
    stream = hub.hello(1, hello(), 0.0)
    hub.report("n1", stream, full(2), 0.0)
    answer = hub.report("n1", stream, change(5, two_gpus(), fuller(two_gpus(), 9)), 1.0)
    assert answer.full_wanted.why == "expected message 3, got 5"
    assert hub.facts("n1", 1.0) == (two_gpus(), all_parts(1.0, Freshness.FRESH))  # as old as before
    assert hub.report("n1", stream, full(6, fuller(two_gpus(), 9)), 2.0).ack.sequence == 6


def test_a_change_before_any_full_report_asks_for_one() -> None:
    hub = HubState()
    stream = hub.hello(1, hello(), 0.0)
    answer = hub.report("n1", stream, change(2, two_gpus(), fuller(two_gpus(), 1)), 0.0)
    assert answer.full_wanted.why == "no full report yet"


def test_after_a_reconnect_the_facts_stay_until_the_next_full_report_and_a_reboot_drops_them() -> None:
    hub = HubState()
    hub.report("n1", hub.hello(1, hello(), 0.0), full(2), 0.0)
    hub.hello(1, hello(), 30.0)
    assert hub.facts("n1", 30.0) == (two_gpus(), all_parts(30.0, Freshness.FRESH))
    hub.hello(1, hello(boot="b2"), 31.0)
    assert hub.facts("n1", 31.0) is None


def test_an_old_stream_cannot_write_any_more() -> None:
    hub = HubState()
    old = hub.hello(1, hello(), 0.0)
    new = hub.hello(1, hello(), 1.0)
    with pytest.raises(Superseded):
        hub.report("n1", old, full(2), 2.0)
    assert hub.report("n1", new, full(2), 2.0).ack.sequence == 2


def test_a_report_that_cannot_be_read_is_refused_and_changes_nothing() -> None:
    hub = HubState()
    stream = hub.hello(1, hello(), 0.0)
    hub.report("n1", stream, full(2), 0.0)
    with pytest.raises(BadInput, match="node is 'missing'"):
        hub.report("n1", stream, wire.AgentMessage(sequence=3, full=wire.Full()), 1.0)
    bad = wire.Delta(topology_generation=1, gpus=[wire.Gpu(uuid="GPU-new", health=wire.HEALTHY)])
    answer = hub.report("n1", stream, wire.AgentMessage(sequence=3, delta=bad), 1.0)
    assert "a change names what the last full report named" in answer.full_wanted.why
    assert hub.facts("n1", 1.0) == (two_gpus(), all_parts(1.0, Freshness.FRESH))
    assert hub.reports["refused"] == 2


@pytest.mark.parametrize(
    ("sequence", "value", "message"),
    [
        (1, wire.Hello(node="n1", protocol=2), "protocol is 2; this hub speaks 1"),
        (1, wire.Hello(node="", protocol=1), "node is ''"),
        (2, wire.Hello(node="n1", protocol=1), "a stream starts with 1"),
    ],
)
def test_a_hello_that_cannot_be_is_refused(sequence: int, value: wire.Hello, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        HubState().hello(sequence, value, 0.0)


def test_c098_a_silent_agents_node_is_stale_then_expired_and_never_empty() -> None:
    hub = HubState(AgeLimits(stale_s=45, expired_s=300))
    hub.report("n1", hub.hello(1, hello(), 0.0), full(2), 0.0)
    for now_s, expected in ((45.0, Freshness.FRESH), (46.0, Freshness.STALE), (300.0, Freshness.EXPIRED)):
        found = hub.facts("n1", now_s)
        assert found is not None
        assert found == (two_gpus(), all_parts(now_s, expected))
    # An agent that reports on, but without NVML, has stale GPUs at once.
    lost = replace(two_gpus(), state=state(nvml=f.NvmlState.LOST, nvml_problem="gone"))
    hub.report("n2", hub.hello(1, hello("n2"), 300.0), full(2, lost), 300.0)
    counts = hub.count(300.0)
    assert counts[FactPart.GPUS] == {Freshness.FRESH: 0, Freshness.STALE: 1, Freshness.EXPIRED: 1}
    # Its network cards and who holds what are as fresh as ever.
    assert counts[FactPart.NETWORK] == {Freshness.FRESH: 1, Freshness.STALE: 0, Freshness.EXPIRED: 1}
    assert counts[FactPart.PODS] == counts[FactPart.NETWORK]
    assert hub.oldest(300.0)[FactPart.NETWORK] == 300.0
    assert hub.forget_silent(FORGET_S + 1) == ["n1"]
    assert hub.nodes() == ["n2"]


def test_measurements_come_with_the_node_that_made_them() -> None:
    sample = f.ReachSample(
        peer="n2",
        size_bytes=65536,
        p50_us=10,
        p99_us=80,
        p999_us=95,
        count=100,
        transport="rdma",
        measured_at_s=1000,
    )
    hub = HubState()
    hub.report("n1", hub.hello(1, hello(), 0.0), full(2, replace(two_gpus(), reach=(sample,))), 0.0)
    assert list(hub.measured()) == [("n1", sample)]


def test_changes_are_told_with_what_was_before() -> None:
    reported = []
    hub = HubState(on_change=lambda node, old, new: reported.append((node, old, new)))
    stream = hub.hello(1, hello(), 0.0)
    hub.report("n1", stream, full(2), 0.0)
    hub.report("n1", stream, change(3, two_gpus(), fuller(two_gpus(), 3)), 1.0)
    assert reported == [("n1", None, two_gpus()), ("n1", two_gpus(), fuller(two_gpus(), 3))]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["change", "full", "skip", "again", "hello"]), max_size=25))
def test_whatever_comes_the_hub_knows_the_last_state_it_acknowledged(steps: list[str]) -> None:
    hub, sequence, used = HubState(), 1, 0
    stream = hub.hello(1, hello(), 0.0)
    reported: f.NodeFacts | None = None
    known: f.NodeFacts | None = None
    for step in steps:
        used += 1
        new = fuller(two_gpus(), used)
        if step == "hello":
            stream, sequence, reported = hub.hello(1, hello(), 0.0), 1, None
            continue
        sequence += {"skip": 2, "again": 0}.get(step, 1)
        message = full(sequence, new) if step == "full" or reported is None else change(sequence, reported, new)
        answer = hub.report("n1", stream, message, 0.0)
        reported = new if answer.HasField("ack") else None
        known = new if answer.HasField("ack") else known
        found = hub.facts("n1", 0.0)
        assert (found[0] if found else None) == known


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_reports_are_refused_and_change_nothing(data: st.DataObject) -> None:
    """Bytes changed, cut and doubled in a report: what still is a message is taken or refused, never worse."""
    hub = HubState()
    stream = hub.hello(1, hello(), 0.0)
    hub.report("n1", stream, full(2), 0.0)
    message = data.draw(st.sampled_from([full(3), change(3, two_gpus(), fuller(two_gpus(), 7))]))
    damaged = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["change", "cut", "double"])):
            case "change":
                damaged[at] = data.draw(st.integers(0, 255))
            case "cut":
                del damaged[at : at + data.draw(st.integers(1, 20))]
                damaged += b"\0" if not damaged else b""
            case _:
                damaged[at:at] = damaged[at : at + 40]
    try:
        read = wire.AgentMessage.FromString(bytes(damaged))
    except DecodeError:
        return
    before = hub.known("n1")
    try:
        taken = hub.report("n1", stream, read, 1.0).HasField("ack")
    except BadInput:
        taken = False
    after = hub.known("n1")
    assert before is not None
    assert after is not None
    if not taken:
        assert (after.facts, after.heard_s) == (before.facts, before.heard_s)


def test_facts_of_many_nodes_are_listed_in_order() -> None:
    hub = HubState()
    for name in ("n3", "n1", "n2"):
        hub.hello(1, hello(name), 0.0)
    assert hub.nodes() == ["n1", "n2", "n3"]
    assert len(hub) == 3
