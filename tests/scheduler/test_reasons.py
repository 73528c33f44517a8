"""The closed set of reasons: a contract, and which of them a plan comes to."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings

from scheduler.explain.events import held_event
from scheduler.explain.wording import PHRASES
from scheduler.model.decision import Outcome
from scheduler.model.policy import Policy
from scheduler.model.reason import Obstacle, Reason, blocked_of, is_joiner, reason_of
from scheduler.model.request import GangRequest
from scheduler.model.verdict import VerdictCode
from scheduler.planning.plan import plan
from tests.scheduler.clusters import gang, node, partner, pod
from tests.scheduler.small_cases import cases
from topology.cluster.snapshot import Snapshot, snapshot_of
from topology.labels import DECODE, PREFILL
from topology.objects import Node, PodSpec, Taint

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reasons.md"
GPU = "nvidia.com/gpu"


def test_the_set_is_closed() -> None:
    """Changing it is an entry in the changelog, and a page in the docs."""
    assert sorted(Reason) == [
        "FactsStale",
        "Fragmented",
        "InsufficientGPU",
        "InsufficientMemory",
        "NotRecognised",
        "PhaseConflict",
        "Placed",
        "ReachBreached",
        "ReachExceeded",
        "Replanned",
        "Undecided",
        "WaitingForGang",
        "WaitingForPartner",
        "WaitingForQueue",
    ]


@pytest.mark.skipif(not DOCS.exists(), reason="the page is not written yet")
def test_every_reason_has_a_heading_and_every_heading_a_reason() -> None:
    assert sorted(re.findall(r"^## (\S+)$", DOCS.read_text(), re.MULTILINE)) == sorted(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_one_word_and_has_a_type(reason: Reason) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z]{3,127}", reason)
    assert reason.type in ("Normal", "Warning")


def test_news_is_normal_and_what_needs_a_person_a_warning() -> None:
    assert {r for r in Reason if r.type == "Normal"} == {
        Reason.PLACED,
        Reason.REPLANNED,
        Reason.WAITING_FOR_GANG,
        Reason.WAITING_FOR_PARTNER,
        Reason.WAITING_FOR_QUEUE,
    }


def test_every_verdict_has_a_phrase_without_numbers() -> None:
    assert set(PHRASES) == set(VerdictCode)
    assert len(set(PHRASES.values())) == len(PHRASES)
    assert not any(re.search(r"\d", phrase) for phrase in PHRASES.values())


def reason_for(asked: GangRequest, *nodes: Node, used: dict[str, dict[str, int]] | None = None) -> Reason:
    made = plan(asked, snapshot_of(nodes, list((used or {}).items())))
    return reason_of(made)


def test_too_few_gpus_on_every_node() -> None:
    assert reason_for(gang(), node("n0", gpus=2), node("n1", gpus=3)) == Reason.INSUFFICIENT_GPU


def with_memory(gib: int) -> GangRequest:
    amounts = {GPU: 1, "memory": gib * 2**30, "pods": 1}
    return replace(gang(), members=(pod("p", PREFILL, amounts=amounts), pod("d", DECODE, amounts=amounts)))


def test_memory_where_more_nodes_lack_memory_than_gpus() -> None:
    nodes = [node("n0", memory="8Gi"), node("n1", memory="8Gi"), node("n2")]
    assert reason_for(with_memory(16), *nodes, used={"n2": {GPU: 8}}) == Reason.INSUFFICIENT_MEMORY
    assert reason_for(with_memory(16), *nodes[1:], used={"n2": {GPU: 8}}) == Reason.INSUFFICIENT_GPU  # one each


def test_a_pod_that_no_node_accepts_is_told_so() -> None:
    tainted = node("n0", taints=[Taint("maintenance", "", "NoSchedule")])
    made = plan(gang(), snapshot_of([tainted]))
    reason, text = held_event(made)
    assert reason == Reason.INSUFFICIENT_GPU
    assert "1 not open to the pod; each is down, cordoned, tainted, not selected" in text


def test_a_shortage_of_cpu_comes_to_the_same_reason_and_says_cpu() -> None:
    amounts = {"cpu": 8000, "pods": 1}
    members = (pod("p", PREFILL, amounts=amounts), pod("d", DECODE, amounts=amounts))
    reason, text = held_event(plan(replace(gang(), members=members), snapshot_of([node("n0", cpu="2500m")])))
    assert reason == Reason.INSUFFICIENT_GPU
    assert "1 short of another resource; nearest n0 with 2.5 free cores, 5.5 short" in text


def test_room_but_not_in_reach() -> None:
    assert reason_for(gang(gpus=8), node("n0", zone="z1"), node("n1", zone="z2")) == Reason.REACH_EXCEEDED


def test_pairs_but_not_for_the_whole_gang() -> None:
    two = gang(2, 2, 4, minimum=(2, 2))
    # 8 + 4 GPUs of the 16 needed are near each other; then 5 + 5 + 5 + 5, of which 4 each can be used.
    assert reason_for(two, node("n0", zone="z1"), node("n1", gpus=4, zone="z1")) == Reason.INSUFFICIENT_GPU
    three = gang(3, 2, 4, minimum=(3, 2))
    assert reason_for(three, *[node(f"n{i}", gpus=5, zone="z1") for i in range(4)]) == Reason.FRAGMENTED


def test_waiting_and_undecided_are_what_the_plan_says() -> None:
    assert reason_for(gang(0, 1), node("n0")) == Reason.WAITING_FOR_PARTNER
    assert reason_for(gang(1, 1, minimum=(1, 2)), node("n0")) == Reason.WAITING_FOR_GANG
    snapshot = snapshot_of([node(f"n{i}", zone="z1") for i in range(4)])
    assert reason_of(plan(gang(2, 2, minimum=(2, 2)), snapshot, Policy(search_budget=2))) == Reason.UNDECIDED


def test_an_odd_member_beyond_the_minimum_is_not_the_reason() -> None:
    # p-0 fits nowhere, but the minimum can be made without it; what is in the way is the distance.
    odd = pod("p-0", PREFILL, 8, spec=PodSpec(node_selector={"pool": "none"}))
    asked = replace(gang(), members=(odd, pod("p-1", PREFILL, 8), pod("d-0", DECODE, 8)))
    made = plan(asked, snapshot_of([node("n0", zone="z1"), node("n1", zone="z2")]))
    blocked = blocked_of(made)
    assert blocked is not None
    assert (reason_of(made), blocked.decision.request.name) == (Reason.REACH_EXCEEDED, "p-1")


def test_a_joiner_has_its_own_reason_while_its_gang_is_placed() -> None:
    there = [partner("chat-prefill-0", PREFILL, "n0"), partner("chat-decode-0", DECODE, "n0")]
    snapshot = snapshot_of([node("n0", gpus=4)], [("n0", {GPU: 3})])
    made = plan(gang(0, 2, 1, partners=there), snapshot)  # one GPU left for two joiners
    placed, left = (made.decisions[f"uid-chat-decode-{i}"] for i in (1, 2))
    assert reason_of(made) == reason_of(made, placed) == Reason.PLACED
    assert reason_of(made, left) == Reason.INSUFFICIENT_GPU


many = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(cases())
def test_all_pods_of_a_held_gang_have_its_reason(case: tuple[GangRequest, Snapshot]) -> None:
    made = plan(*case)
    if made.outcome == Outcome.PLANNED:
        assert reason_of(made) == Reason.PLACED
    assert {reason_of(made, d) for uid, d in made.decisions.items() if uid in made.places} <= {Reason.PLACED}
    if not is_joiner(made):
        assert {reason_of(made, d) for d in made.decisions.values()} <= {reason_of(made)}


@many
@given(cases())
def test_the_obstacle_is_the_first_that_applies(case: tuple[GangRequest, Snapshot]) -> None:
    made = plan(*case)
    assume(made.outcome == Outcome.HELD and case[0].members)
    blocked = blocked_of(made)
    assert blocked is not None
    counts = blocked.decision.ruled_out
    capacity = {code for code in (VerdictCode.REACH_EXCEEDED, VerdictCode.GANG_TOO_LARGE) if counts.get(code)}
    match blocked.obstacle:
        case Obstacle.NO_CAPACITY:
            assert not capacity
        case Obstacle.OUT_OF_REACH:
            assert capacity == {VerdictCode.REACH_EXCEEDED}
            short = made.shortfall
            if short is not None and not case[0].partners:
                assert short.closest is not None
        case Obstacle.DOES_NOT_FIT_TOGETHER:
            assert VerdictCode.GANG_TOO_LARGE in capacity
