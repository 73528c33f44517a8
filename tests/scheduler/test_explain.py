"""The words: exact for the usual situations, true and within their limits for every other."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from textwrap import wrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.explain.annotation import MAX_LINES, gang_block, placement_block, waiting_block
from scheduler.explain.events import decision_line, gang_event, held_event, log_fields, news_key, placed_event
from scheduler.explain.wording import (
    EVENT_BYTES,
    LINE_CHARS,
    amount,
    clip,
    counts,
    name_of,
    names_of,
    reach_setting,
    whole_points,
)
from scheduler.extender.decide import decide
from scheduler.model.decision import NANO, Candidate, Decision, Outcome, PairReach, Plan, ScorePart
from scheduler.model.policy import Policy
from scheduler.model.reason import Reason
from scheduler.model.request import GangRequest
from scheduler.planning.plan import plan
from tests.scheduler.clusters import gang, node, partner, pod
from tests.scheduler.small_cases import cases
from topology.cluster.snapshot import Snapshot, snapshot_of
from topology.labels import DECODE, HOSTNAME, PREFILL
from topology.objects import Metadata, Node
from topology.reach.model import Reach
from topology.units import parse_duration_us

GPU = "nvidia.com/gpu"


def pair_on_one_leaf(age: float = 0.4) -> Plan:
    """Two full nodes of one leaf, a free one a spine away, one in another zone; the bound is 1 ms."""
    nodes = [
        node("gpu-001", zone="z1", spine="s1", leaf="l1", gpus=4),
        node("gpu-002", zone="z1", spine="s1", leaf="l1", gpus=4),
        node("gpu-003", zone="z1", spine="s1", leaf="l2", gpus=8),
        node("gpu-004", zone="z2", gpus=8),
    ]
    # The third node is taken to the half, so that it cannot hold both.
    snapshot = replace(snapshot_of(nodes, [("gpu-003", {GPU: 4}), ("gpu-004", {GPU: 4})]), facts_age_s=age)
    return plan(gang(), snapshot)


def decision(made: Plan, name: str) -> Decision:
    return next(d for d in made.decisions.values() if d.request.name == name)


# --- bound -------------------------------------------------------------------------------------


def test_placed_as_planned() -> None:
    made = pair_on_one_leaf()
    assert made.places == {"uid-chat-decode-0": "gpu-001", "uid-chat-prefill-0": "gpu-002"}
    # gpu-001: reach 60 x (1 - 0.8 x ln(79.24/5) / ln 200) = 34.9, no harm to the room 27 and order 1;
    # gpu-003 at 119 us: 31.3, 27 and half of the order.
    assert placed_event(decision(made, "chat-decode-0"), "gpu-001") == (
        "On gpu-001, 79.2 us from prefill chat-prefill-0 (bound 1.00 ms, same leaf, TCP, modelled); "
        "score 63, next best gpu-003 at 59"
    )


def test_placed_elsewhere_inside_the_set() -> None:
    reach = Reach(119.24288, "same spine, TCP")
    text = placed_event(
        decision(pair_on_one_leaf(), "chat-decode-0"),
        "gpu-003",
        PairReach("chat-prefill-0", "chat-decode-0", reach),
        inside_set=True,
    )
    assert text == (
        "On gpu-003, 119 us from prefill chat-prefill-0 (bound 1.00 ms, same spine, TCP, modelled); "
        "planned gpu-001, Volcano chose gpu-003 inside the isochrone set; score 59, best gpu-001 at 63"
    )


def test_placed_beyond_the_bound_is_said_first() -> None:
    reach = Reach(2000.0, "other zone, not measured")
    text = placed_event(
        decision(pair_on_one_leaf(), "chat-decode-0"), "gpu-004", PairReach("p-0", "d-0", reach), inside_set=False
    )
    assert text == (
        "On gpu-004, 2.00 ms from prefill p-0, 1.00 ms over the bound of 1.00 ms (other zone, not measured); "
        "planned gpu-001, Volcano chose gpu-004 outside the isochrone set; without a score: it was ruled out when the "
        "pod was decided"
    )


def test_placed_without_a_decision_is_not_scored() -> None:
    assert placed_event(None, "gpu-003") == "On gpu-003; not scored: no decision was made for this pod"
    measured = PairReach("p-0", "d-0", Reach(40.0, "same leaf, RDMA", "measured 42s ago"))
    assert placed_event(None, "gpu-003", measured, phase=PREFILL, bound_us=1000.0) == (
        "On gpu-003, 40 us from decode d-0 (bound 1.00 ms, same leaf, RDMA, measured 42s ago); "
        "not scored: no decision was made for this pod"
    )


def test_placed_by_scores_alone() -> None:
    """A preferred pod: the extender scored it, nobody planned it."""
    snapshot = snapshot_of([node("gpu-001", zone="z1"), node("gpu-002", zone="z1")])
    there = [partner("chat-prefill-0", PREFILL, "gpu-002")]
    scored = decide(pod("chat-decode-0", DECODE), snapshot, ["gpu-001", "gpu-002"], there).decision
    # gpu-002: 25.8 us, 45.13; gpu-001: 159 us, 28.64; to both 27 for no harm, 0.5 or 1 for order.
    assert placed_event(scored, "gpu-002") == "On gpu-002; score 73, next best gpu-001 at 57"
    assert placed_event(scored, "gpu-001") == "On gpu-001; score 57, best gpu-002 at 73"


def test_a_better_node_that_the_plan_did_not_take_is_not_hidden() -> None:
    made = pair_on_one_leaf()
    one = decision(made, "chat-decode-0")
    mine, other = one.ranked[0], one.ranked[1]
    better = replace(other, parts=(ScorePart("reach", 59 * NANO, 60.0), ScorePart("order", 39 * NANO, 39.99)))
    text = placed_event(replace(one, ranked=(mine, better)), "gpu-001")
    assert text.endswith("score 63; gpu-003 alone scores 98, the gang was planned as a whole")


# --- held --------------------------------------------------------------------------------------


def test_old_facts_are_mentioned_and_fresh_ones_are_not() -> None:
    one = decision(pair_on_one_leaf(age=42.0), "chat-decode-0")
    assert placed_event(one, "gpu-001").endswith("; facts 42s old")
    assert "facts" not in placed_event(decision(pair_on_one_leaf(age=0.4), "chat-decode-0"), "gpu-001")
    assert decision_line(one) == f"{one.id} (snapshot s1, facts 42s old)"
    assert decision_line(one, 310.0) == f"{one.id} (snapshot s1, facts 5m10s old)"


def test_waiting_says_who_is_missing() -> None:
    snapshot = snapshot_of([node("gpu-001")])
    assert held_event(plan(gang(0, 2), snapshot)) == (
        Reason.WAITING_FOR_PARTNER,
        "The gang chat has no prefill pod yet, only 2 decode; it waits for 1 prefill, the minimum is 1 prefill, "
        "1 decode; nodes are looked at then",
    )
    assert held_event(plan(gang(1, 2, minimum=(2, 4)), snapshot)) == (
        Reason.WAITING_FOR_GANG,
        "The gang chat has 1 prefill, 2 decode; it waits for 1 prefill, 2 decode more, the minimum is 2 prefill, "
        "4 decode; nodes are looked at then. Raise the replicas, or lower isochrone.dev/min-prefill and "
        "isochrone.dev/min-decode",
    )


def test_undecided_claims_nothing_that_nobody_found_out() -> None:
    snapshot = snapshot_of([node(f"n{i}", zone="z1") for i in range(4)])
    reason, text = held_event(plan(gang(2, 2, minimum=(2, 2)), snapshot, Policy(search_budget=2)))
    assert reason == Reason.UNDECIDED
    assert text == (
        "Undecided about the gang chat (2 prefill, 2 decode): no placement found in 2 tries, none ruled out; "
        "4 nodes checked, 4 with room for one pod"
    )


def test_the_minimum_of_a_larger_gang_is_named_as_such() -> None:
    _, text = held_event(plan(gang(2, 3), snapshot_of([node("gpu-001", gpus=2)])))
    assert text.startswith("No place for the minimum of the gang chat (1 prefill, 1 decode of 2 prefill, 3 decode): ")


def test_with_partners_the_distance_is_to_them() -> None:
    there = [partner("chat-prefill-0", PREFILL, "gpu-001")]
    nodes = [node("gpu-001", zone="z1", gpus=4), node("gpu-002", zone="z2")]
    made = plan(gang(0, 1, partners=there), snapshot_of(nodes, [("gpu-001", {GPU: 4})]))
    assert held_event(made)[1] == (
        "No place for the gang chat (1 decode): 2 nodes checked, 1 beyond reach, 1 without 4 free GPUs; nearest room "
        "and partner gpu-001 and gpu-002 at 2.00 ms, 1.00 ms over the bound of 1.00 ms (other zone, not measured). "
        "Free 4 GPUs on gpu-001, or set isochrone.dev/reach to 2ms on all its pods"
    )


# --- blocks ------------------------------------------------------------------------------------


def test_the_block_of_a_planned_pod() -> None:
    made = pair_on_one_leaf()
    assert placement_block(decision(made, "chat-decode-0"), made) == "\n".join(
        [
            "planned  gpu-001  score 63 = reach 35/60  fragmentation 16/24  balance 6/10  scarcity 5/5  order 1/1",
            "pair     worst: chat-prefill-0 on gpu-002  79.2 us modelled  bound 1.00 ms  same leaf, TCP",
            "next     gpu-003 59 (119 us, same spine, TCP)",
            "out      2 of 4: 1 beyond reach, 1 without 4 free GPUs",
            "set      topology.kubernetes.io/zone in (z1), 3 nodes",
            "facts    0.4s old; GPUs predicted: the device plugin picks the cards",
        ]
    )


def test_the_block_once_bound_elsewhere() -> None:
    made = pair_on_one_leaf()
    block = placement_block(decision(made, "chat-decode-0"), made, bound_node="gpu-003", facts_age_s=3.0)
    assert block.splitlines()[:2] == [
        "placed   gpu-003  score 59 = reach 31/60  fragmentation 16/24  balance 6/10  scarcity 5/5  order 1/1",
        "instead  of gpu-001, which was planned",
    ]
    assert block.splitlines()[-1].startswith("facts    3.0s old")


def test_the_block_of_a_held_pod() -> None:
    nodes = [node("gpu-001", zone="z1"), node("gpu-002", zone="z1", gpus=4), node("gpu-003", zone="z2", gpus=4)]
    made = plan(gang(), snapshot_of(nodes, [("gpu-001", {GPU: 6})]))
    block = "\n".join(
        [
            "none     3 nodes checked, 2 beyond reach, 1 without 4 free GPUs",
            "gang     1 prefill, 1 decode together, every pair within 1.00 ms: room, but none of it within the bound",
            "nearest  gpu-002 and gpu-003  2.00 ms (other zone, not measured), 1.00 ms over the bound of 1.00 ms",
            "room     2 nodes have it; of the others nearest gpu-001: 2 free GPUs, 2 short",
            "helps    free 2 GPUs on gpu-001, or set isochrone.dev/reach to 2ms on all its pods",
            "facts    0.0s old",
        ]
    )
    assert {placement_block(d, made) for d in made.decisions.values()} == {block}
    assert gang_block(made) == "held     chat: ReachExceeded\n" + block


def test_the_block_of_a_planned_gang() -> None:
    made = pair_on_one_leaf()
    assert gang_block(made) == "\n".join(
        [
            "gang     chat: 1 prefill, 1 decode planned first; minimum 1 prefill, 1 decode",
            "prefill  chat-prefill-0 on gpu-002",
            "decode   chat-decode-0 on gpu-001",
            "worst    79.2 us (same leaf, TCP, modelled)  bound 1.00 ms  chat-prefill-0 and chat-decode-0",
            "set      both topology.kubernetes.io/zone in (z1), 3 nodes",
            "facts    0.4s old",
        ]
    )
    assert gang_event(made)[1].startswith("Planned 1 prefill, 1 decode")
    assert gang_event(made, bound=True)[1].startswith("Placed 1 prefill, 1 decode")


def test_log_fields_are_plain_values() -> None:
    made = pair_on_one_leaf()
    fields = log_fields(decision(made, "chat-decode-0"))
    assert fields["pod"] == "prod/chat-decode-0"
    assert fields["node"] == "gpu-001"
    assert fields["reach_ms"] == 0.079243
    assert log_fields(made)["gang"] == "prod/chat"
    json.dumps([fields, log_fields(made)])


# --- parts of the wording ----------------------------------------------------------------------


@given(st.lists(st.integers(0, 60 * NANO), min_size=2, max_size=5), st.integers(0, 9_999_999))
def test_parts_shown_add_up_to_the_score_shown(points: list[int], order: int) -> None:
    parts = tuple(ScorePart(f"part{i}", nano, 60.0) for i, nano in enumerate(points))
    candidate = Candidate("n", (*parts, ScorePart("order", order, 0.01)), None, True)
    score, shown = whole_points(candidate)
    assert score == sum(got for _, got, _ in shown)
    assert abs(score - candidate.score) <= 0.5
    assert all(abs(got - part.points) <= 1 for (_, got, _), part in zip(shown, parts, strict=True))


@given(st.floats(0.1, 5e7))
def test_a_setting_that_is_advised_can_be_set_and_is_enough(us: float) -> None:
    wide = parse_duration_us(reach_setting(us), "isochrone.dev/reach")
    assert us <= wide <= max(us * 1.1, us + 1)


@pytest.mark.parametrize(
    ("value", "unit", "output"),
    [
        (1, "gpus", "1 free GPU"),
        (4, "gpus", "4 free GPUs"),
        (64 * 2**30, "bytes", "64.0 GiB of free memory"),
        (1000, "millicores", "1 free core"),
        (2500, "millicores", "2.5 free cores"),
        (0, "pods", "0 free pod slots"),
        (2, "rdma/hca", "2 free rdma/hca"),
    ],
)
def test_amounts(value: float, unit: str, output: str) -> None:
    assert amount(value, unit, "free") == output


def test_no_more_than_three_names() -> None:
    assert names_of(["a", "b", "c"]) == "a, b, c"
    assert names_of("abcde") == "a, b, c and 2 more"
    assert name_of("x" * 200) == "x" * 30 + "..." + "x" * 30


def test_a_cut_is_marked_and_cuts_no_character_in_two() -> None:
    assert clip("a\nb\tc", 10) == "a b c"
    cut = clip("ü" * 600, EVENT_BYTES, count_bytes=True)
    assert cut == "ü" * 498 + "..."
    assert len(cut.encode()) == 999


@given(cases())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_counts_explain_every_node(case: tuple[GangRequest, Snapshot]) -> None:
    for one in plan(*case).decisions.values():
        total, *parts = (int(re.match(r"\d+", part).group()) for part in counts(one).split(", "))  # type: ignore[union-attr]
        assert sum(parts) == total == len(case[1].table)
        assert parts == sorted(parts, reverse=True)


NAMES = st.text(min_size=1, max_size=250) | st.text("abcdefghij-.0123456789", min_size=50, max_size=253)


@given(cases(), st.lists(NAMES, min_size=4, max_size=4))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_text_keeps_its_limits(case: tuple[GangRequest, Snapshot], names: list[str]) -> None:
    asked, snapshot = long_names(*case, names)
    made = plan(asked, snapshot)
    notes = [gang_event(made)[1], gang_event(made, bound=True)[1], held_event(made)[1]]
    blocks = [gang_block(made)]
    for one in made.decisions.values():
        text = held_event(made, one)[1] if one.chosen is None else placed_event(one, one.chosen)
        notes += [text, placed_event(one, names[0], made.worst, inside_set=True), placed_event(one, names[1])]
        blocks += [placement_block(one, made), placement_block(one), placement_block(one, made, bound_node=names[0])]
        assert news_key(made, one)
    for note in notes:
        assert 0 < len(note.encode()) <= EVENT_BYTES
        assert len(note.splitlines()) == 1
    for block in blocks:
        lines = block.split("\n")
        assert 2 <= len(lines) <= MAX_LINES
        assert all(0 < len(line) <= LINE_CHARS and len(line.splitlines()) == 1 for line in lines)


def long_names(asked: GangRequest, snapshot: Snapshot, names: list[str]) -> tuple[GangRequest, Snapshot]:
    """The same case with names of any length and alphabet: of nodes, labels, the gang and its pods."""
    new = {name: f"{names[0]}{i}" for i, name in enumerate(snapshot.table.names)}
    nodes = []
    for one in snapshot.table.nodes:
        labels = {k: v if k in ("pool",) else f"{v}{names[1]}" for k, v in (one.metadata.labels or {}).items()}
        if HOSTNAME in labels:
            labels[HOSTNAME] = new[one.metadata.name]
        nodes.append(
            Node(metadata=Metadata(name=new[one.metadata.name], labels=labels), spec=one.spec, status=one.status)
        )
    columns = list(enumerate(snapshot.table.resources))
    held = [
        (new[name], {r: int(snapshot.used[i, c]) for c, r in columns}) for i, name in enumerate(snapshot.table.names)
    ]
    partners = tuple(
        replace(p, name=f"{names[2]}{p.name}", nodes=tuple(new[n] for n in p.nodes)) for p in asked.partners
    )
    members = tuple(replace(m, name=f"{names[2]}{m.name}") for m in asked.members)
    return replace(asked, name=names[3], partners=partners, members=members), snapshot_of(nodes, held)


def test_a_plan_never_says_placed() -> None:
    made = pair_on_one_leaf()
    assert made.outcome == Outcome.PLANNED
    texts = [gang_event(made)[1], gang_block(made), *(placement_block(d, made) for d in made.decisions.values())]
    assert not any(re.search(r"\bplaced\b", text, re.IGNORECASE) for text in texts)


def test_a_pod_that_a_predecessor_planned_is_not_called_unscored() -> None:
    text = placed_event(None, "n1", phase="decode", bound_us=1000.0, explained_before=True)
    assert text == "On n1; planned before this controller started, see isochrone.dev/placement"


@given(st.lists(st.text("ab -\u00a0", max_size=60), max_size=10).map(" ".join))
def test_a_text_is_cut_where_a_line_is_full_and_nowhere_else(text: str) -> None:
    first, *rest = wrap(text.strip(), LINE_CHARS - 9, break_on_hyphens=False) or [""]
    assert waiting_block(text).split("\n") == [f"none     {first}", *(f"{'':9}{more}" for more in rest)]
