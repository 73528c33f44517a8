"""What each verb answers: complete and distinct scores, one guarded no, and no opinion on what is not ours."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.extender.session import SessionLedger
from scheduler.extender.verbs import NEUTRAL, VERBS, Answer, Result
from scheduler.extender.wire import TaskStatus
from scheduler.model.policy import Policy
from tests.scheduler.volcano import Cluster, body_of, event_body, node_json, pod_json, prioritize_body, read_by_go
from topology.cluster.snapshot import Assumed, Snapshot
from topology.labels import DEFAULT_REACH_SIZE_BYTES, PAIRING, REACH, REACH_MODE, REACH_SIZE
from topology.resources import GPU

REQUIRED = {REACH_MODE: "required"}
NEAR = [node_json("n1", leaf="l1"), node_json("n2", leaf="l1"), node_json("n3", leaf="l2")]
FAR = [node_json("f1", zone="z2", leaf="l9"), node_json("f2", zone="z2", leaf="l9")]
PREFILL_ON_N1 = pod_json("p-0", "prefill", node="n1")


class Volcano:
    """Calls the verbs one after the other, as one session would."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.ledger = cluster, SessionLedger()

    def call(self, verb: str, body: bytes) -> Answer:
        answer = VERBS[verb](body, self.cluster, self.ledger, Policy())
        read_by_go(verb, answer.body)
        return answer

    def scores(self, pod: Mapping[str, Any], nodes: list[dict[str, Any]]) -> dict[str, float]:
        answer = self.call("prioritize", prioritize_body(pod, nodes))
        scores: dict[str, float] = json.loads(answer.body)["nodeScore"]
        return scores

    def allocate(self, pod: Mapping[str, Any], node: str, status: int = TaskStatus.ALLOCATED) -> str:
        refusal: str = json.loads(self.call("allocateFunc", event_body(pod, node, status)).body)["errorMessage"]
        return refusal

    def take_back(self, pod: Mapping[str, Any], node: str, status: int = TaskStatus.PENDING) -> None:
        self.call("deallocateFunc", event_body(pod, node, status))


def best(scores: Mapping[str, float]) -> list[str]:
    return sorted(scores, key=lambda name: -scores[name])


# --- prioritize --------------------------------------------------------------------------------


def test_nodes_near_a_bound_partner_come_first_and_all_are_scored() -> None:
    volcano = Volcano(Cluster(NEAR + FAR, [PREFILL_ON_N1]))
    scores = volcano.scores(pod_json("d-0", "decode"), FAR + NEAR)
    assert best(scores)[:2] == ["n1", "n2"]
    assert set(best(scores)[3:]) == {"f1", "f2"}
    assert len(set(scores.values())) == 5


def test_the_decision_is_handed_back_for_the_explanation() -> None:
    answer = Volcano(Cluster(NEAR + FAR, [PREFILL_ON_N1])).call(
        "prioritize", prioritize_body(pod_json("d-0", "decode"), NEAR + FAR)
    )
    assert answer.result is Result.SCORED
    assert answer.decision is not None
    assert (answer.decision.request.uid, answer.decision.node_count, answer.decision.eligible) == ("uid-d-0", 5, 3)


def test_a_place_tried_in_this_session_is_a_partner_and_holds_its_gpus() -> None:
    volcano, decode = Volcano(Cluster(NEAR + FAR)), pod_json("d-0", "decode", gpus=8)
    assert volcano.allocate(pod_json("p-0", "prefill", gpus=8), "f1") == ""
    scores = volcano.scores(decode, NEAR + FAR)
    assert best(scores)[0] == "f2"
    assert max(scores[name] for name in ("n1", "n2", "n3")) > scores["f1"], "f1 is full: it ranks below all"
    volcano.take_back(pod_json("p-0", "prefill", gpus=8), "f1")
    assert best(volcano.scores(decode, NEAR + FAR))[0] == "f1", "no partner any more: by the order of names"


def test_the_next_session_starts_from_what_the_api_server_says() -> None:
    volcano = Volcano(Cluster(NEAR + FAR))
    before = volcano.scores(pod_json("d-0", "decode"), NEAR + FAR)
    volcano.allocate(pod_json("p-0", "prefill"), "f1")
    assert volcano.scores(pod_json("d-0", "decode"), NEAR + FAR) != before
    assert volcano.call("onSessionClose", b"{}").body == b""
    assert volcano.scores(pod_json("d-0", "decode"), NEAR + FAR) == before


def test_what_is_bound_wins_over_what_was_tried_and_is_counted_once() -> None:
    bound = pod_json("p-0", "prefill", gpus=4, node="n3")
    volcano = Volcano(Cluster(NEAR + FAR, [bound]))
    without_session = volcano.scores(pod_json("d-0", "decode", gpus=4), NEAR + FAR)
    volcano.allocate(pod_json("p-0", "prefill", gpus=4), "f1")
    assert volcano.scores(pod_json("d-0", "decode", gpus=4), NEAR + FAR) == without_session


@pytest.mark.parametrize("gone", [{"deletionTimestamp": "2026-11-02T10:00:00Z"}, None])
def test_a_partner_that_leaves_is_none(gone: dict[str, str] | None) -> None:
    leaving = pod_json("p-0", "prefill", node="f1")
    if gone:
        leaving["metadata"] |= gone
    volcano = Volcano(Cluster(NEAR + FAR, [leaving]))
    if not gone:
        assert best(volcano.scores(pod_json("d-0", "decode"), NEAR + FAR))[0] == "f1"
        volcano.take_back(leaving, "f1", TaskStatus.RELEASING)
    assert volcano.allocate(pod_json("d-0", "decode", annotations=REQUIRED), "n1") == ""
    if not gone:
        volcano.allocate(leaving, "f1", TaskStatus.RUNNING)
        assert volcano.allocate(pod_json("d-1", "decode", annotations=REQUIRED), "n1") != ""


def test_a_pod_does_not_compete_with_its_own_reservation() -> None:
    class Planned(Cluster):
        def snapshot(self) -> Snapshot | None:
            plain = super().snapshot()
            assert plain is not None
            return plain.with_assumed({"uid-d-0": Assumed("n2", {GPU: 8, "cpu": 4000})})

    scores = Volcano(Planned(NEAR, [PREFILL_ON_N1])).scores(pod_json("d-0", "decode", gpus=8), NEAR)
    assert best(scores)[0] == "n2", "n1 has seven GPUs left; n2 is its own"
    assert best(Volcano(Planned(NEAR, [PREFILL_ON_N1])).scores(pod_json("d-1", "decode", gpus=8), NEAR))[0] == "n3"


def test_the_bound_comes_from_the_pod_and_a_wrong_one_is_the_default() -> None:
    cluster = Cluster([*NEAR, *FAR], [PREFILL_ON_N1])

    def eligible(**annotations: str) -> int:
        pod = pod_json("d-0", "decode", annotations=annotations)
        decision = Volcano(cluster).call("prioritize", prioritize_body(pod, NEAR + FAR)).decision
        assert decision is not None
        return decision.eligible

    assert eligible() == 3
    assert eligible(**{REACH: "3ms"}) == 5
    assert eligible(**{REACH: "10us"}) == 1
    assert eligible(**{REACH_SIZE: "1Gi"}) == 0
    for wrong in ("", "soon", "-1ms", "9" * 300, "1h"):
        assert eligible(**{REACH: wrong, REACH_SIZE: wrong}) == 3


def test_no_opinion_on_pods_of_others_and_before_the_first_lists() -> None:
    volcano = Volcano(Cluster(NEAR))
    for pod in (pod_json("web-1", gpus=0), pod_json("x", "both")):
        assert volcano.call("prioritize", prioritize_body(pod, NEAR)).result is Result.FOREIGN
        assert volcano.scores(pod, NEAR) == {}
        assert volcano.allocate(pod, "n1") == ""
        volcano.take_back(pod, "n1")
    assert len(volcano.ledger) == 0
    volcano.cluster.ready = False
    answer = volcano.call("prioritize", prioritize_body(pod_json("d-0", "decode"), NEAR))
    assert (answer.result, answer.decision) == (Result.COLD, None)
    assert json.loads(answer.body)["nodeScore"] == {"n1": 0, "n2": 0, "n3": 0}
    assert volcano.allocate(pod_json("d-0", "decode", annotations=REQUIRED), "n1") == ""
    assert len(volcano.ledger) == 1


def test_an_empty_cluster_and_unknown_names_get_scores_too() -> None:
    scores = Volcano(Cluster([])).scores(pod_json("d-0", "decode"), NEAR)
    assert set(scores) == {"n1", "n2", "n3"}
    assert len(set(scores.values())) == 3
    assert Volcano(Cluster(NEAR)).scores(pod_json("d-0", "decode"), []) == {}


# --- the guard ---------------------------------------------------------------------------------


def test_a_required_pod_is_refused_beyond_the_bound_of_a_partner_with_a_place() -> None:
    volcano = Volcano(Cluster(NEAR + FAR, [PREFILL_ON_N1]))
    refusal = volcano.allocate(pod_json("d-0", "decode", annotations=REQUIRED), "f1")
    assert refusal == (
        "isochrone: decode pod d-0 on f1 would be 2.00 ms (modelled) from p-0 on n1, and its bound is 1.00 ms"
    )
    assert len(volcano.ledger) == 0
    assert volcano.allocate(pod_json("d-0", "decode", annotations=REQUIRED), "n3", TaskStatus.PIPELINED) == ""


def test_a_partner_tried_in_this_session_counts_as_much() -> None:
    volcano = Volcano(Cluster(NEAR + FAR))
    assert volcano.allocate(pod_json("d-0", "decode", annotations=REQUIRED), "f1") == ""
    assert volcano.allocate(pod_json("p-0", "prefill", annotations=REQUIRED), "n1") != ""
    volcano.take_back(pod_json("d-0", "decode"), "f1")
    assert volcano.allocate(pod_json("p-0", "prefill", annotations=REQUIRED), "n1") == ""


@pytest.mark.parametrize("annotations", [{}, {REACH_MODE: "preferred"}, {REACH_MODE: "Required!"}])
def test_any_other_pod_is_never_refused(annotations: dict[str, str]) -> None:
    volcano = Volcano(Cluster(NEAR + FAR, [PREFILL_ON_N1]))
    assert volcano.allocate(pod_json("d-0", "decode", annotations=annotations), "f1") == ""


def test_what_nobody_can_know_is_not_refused() -> None:
    volcano = Volcano(Cluster(NEAR + FAR, [pod_json("p-0", "prefill", node="unheard-of")]))
    assert volcano.allocate(pod_json("d-0", "decode", annotations=REQUIRED), "f1") == ""
    assert volcano.allocate(pod_json("d-1", "decode", annotations=REQUIRED), "new-node") == ""
    assert volcano.allocate(pod_json("d-2", "decode", gang="", annotations=REQUIRED), "f1") == ""
    assert volcano.allocate(pod_json("p-1", "prefill", annotations=REQUIRED), "n1") != "", "d-0 is on f1 by now"


def test_with_pairing_nearest_one_partner_in_reach_is_enough() -> None:
    volcano = Volcano(Cluster(NEAR + FAR, [PREFILL_ON_N1, pod_json("p-1", "prefill", node="f2")]))
    assert volcano.allocate(pod_json("d-0", "decode", annotations={**REQUIRED, PAIRING: "nearest"}), "f1") == ""
    assert "from p-0" in volcano.allocate(pod_json("d-0", "decode", annotations=REQUIRED), "f1")


def test_an_eviction_undone_is_never_refused() -> None:
    running = pod_json("d-0", "decode", node="f1", annotations=REQUIRED)
    volcano = Volcano(Cluster(NEAR + FAR, [PREFILL_ON_N1, running]))
    volcano.take_back(running, "f1", TaskStatus.RELEASING)
    assert volcano.allocate(running, "f1", TaskStatus.RUNNING) == ""


# --- the rest ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"prioritize", "allocateFunc", "deallocateFunc"}))
def test_the_other_verbs_have_no_opinion(verb: str) -> None:
    volcano = Volcano(Cluster(NEAR))
    volcano.cluster.ready = False
    answer = volcano.call(verb, body_of(job={"Tasks": None}, task=None, queue=None))
    assert (answer.body, answer.result) == (NEUTRAL[verb], Result.NEUTRAL)


# --- properties --------------------------------------------------------------------------------

NAMES = [f"node-{i:02}" for i in range(14)]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=10, unique=True))
    nodes = [
        node_json(
            name,
            gpus=draw(st.sampled_from([0, 1, 8])),
            zone=draw(st.sampled_from(["z1", "z1", "z2"])),
            leaf=draw(st.sampled_from(["l1", "l2"])),
        )
        for name in names
    ]
    pods = [
        pod_json(f"p-{i}", "prefill", gpus=draw(st.integers(0, 9)), node=draw(st.sampled_from([*names, "elsewhere"])))
        for i in range(draw(st.integers(0, 4)))
    ]
    return nodes, pods


@settings(deadline=None, max_examples=150)
@given(clusters(), st.lists(st.sampled_from(NAMES), max_size=14, unique=True), st.integers(0, 9), st.randoms())
def test_scores_are_complete_distinct_and_put_reach_first(
    cluster: tuple[list[dict[str, Any]], list[dict[str, Any]]], asked: list[str], gpus: int, random: Any
) -> None:
    nodes, pods = cluster
    decode = pod_json("d-0", "decode", gpus=gpus)
    volcano = Volcano(Cluster(nodes, pods))
    infos = [node_json(name) for name in asked]
    scores = volcano.scores(decode, infos)
    assert set(scores) == set(asked)
    assert len(set(scores.values())) == len(asked)
    assert all(math.isfinite(score) and 0 <= score <= 1000 for score in scores.values())
    random.shuffle(infos)
    assert volcano.scores(decode, infos) == scores

    snapshot = volcano.cluster.snapshot()
    assert snapshot is not None
    table = snapshot.table
    partners = [table.index[p["spec"]["nodeName"]] for p in pods if p["spec"]["nodeName"] in table.index]
    if not partners:
        return
    away = {
        name: max(table.reach.between(table.index[name], p, DEFAULT_REACH_SIZE_BYTES).us for p in partners)
        for name in asked
        if name in table.index
    }
    column = table.column.get(GPU)
    free = {name: 0 if column is None else int(snapshot.free[table.index[name], column]) for name in away}
    capacity = {name for name in away if gpus == 0 or free[name] >= gpus}
    good = [scores[name] for name in capacity if away[name] <= 1000]
    bad = [scores[name] for name in asked if name not in capacity or away[name] > 1000]
    assert min(good, default=math.inf) > max(bad, default=-math.inf)
