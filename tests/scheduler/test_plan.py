"""The planner against brute force: whether there is a plan, that it is sound, and that a refusal is true."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, example, given, settings
from hypothesis import strategies as st

from scheduler.explain.annotation import placement_block
from scheduler.explain.wording import reach_setting
from scheduler.model.decision import Decision, Outcome, Plan
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest
from scheduler.model.verdict import VerdictCode
from scheduler.planning.plan import plan
from tests.scheduler import brute_force
from tests.scheduler.clusters import gang, node, partner, pod
from tests.scheduler.small_cases import cases, enough_pods
from topology.cluster.isochrone_sets import NodeSet
from topology.cluster.snapshot import Snapshot, snapshot_of
from topology.labels import DECODE, HOSTNAME, PHASES, PREFILL
from topology.objects import Metadata, Node, PodSpec
from topology.resources import Amounts
from topology.units import parse_duration_us

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
many = settings(unhurried, max_examples=200)
some = settings(unhurried, max_examples=70)

ROOM_CODES = (VerdictCode.REACH_EXCEEDED, VerdictCode.GANG_TOO_LARGE)


def renamed(of: Node, name: str) -> Node:
    """The same node under another name; one without a hostname label stays without."""
    labels = dict(of.metadata.labels or {})
    if HOSTNAME in labels:
        labels[HOSTNAME] = name
    return Node(metadata=Metadata(name=name, labels=labels), spec=of.spec, status=of.status)


def amounts_used(snapshot: Snapshot, name: str) -> Amounts:
    """What is held on a node."""
    row = snapshot.used[snapshot.table.index[name]]
    return {r: int(row[i]) for i, r in enumerate(snapshot.table.resources)}


def nodes_in(snapshot: Snapshot, nodes: NodeSet) -> list[str]:
    """The nodes that a requirement means, read from the labels as Kubernetes would."""
    return [n.metadata.name for n in snapshot.table.nodes if n.metadata.label(nodes.key) in nodes.values]


@many
@given(cases())
def test_there_is_a_plan_exactly_when_brute_force_finds_one(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    made = plan(asked, snapshot)
    event(made.outcome)
    if not enough_pods(asked):
        assert made.outcome in (Outcome.WAITING_FOR_PARTNER, Outcome.WAITING_FOR_GANG)
        assert not made.decisions
        assert not made.places
        return
    if asked.satisfied:
        assert made.outcome == (Outcome.PLANNED if made.places else Outcome.HELD)
    else:
        assert made.outcome == (Outcome.PLANNED if brute_force.minimum_is_possible(asked, snapshot) else Outcome.HELD)
    assert brute_force.faults(asked, snapshot, made.places) == []
    for phase in PHASES if made.outcome == Outcome.PLANNED else ():
        assert sum(1 for m in asked.members if m.phase == phase and m.uid in made.places) >= asked.still_needed(phase)


@some
@given(cases())
def test_whoever_is_left_out_fits_nowhere(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    made = plan(asked, snapshot)
    assume(made.places or asked.satisfied)
    placed = {m.uid: m for m in asked.members if m.uid in made.places}
    held = [(made.places[uid], m.amounts) for uid, m in placed.items()]
    after = snapshot.with_assumed({})
    for where, amounts in held:
        used = after.used.copy()
        used[after.table.index[where]] += after.table.vector(amounts)[0]
        after = replace(after, used=used)
    there = [partner(m.name, m.phase, made.places[uid]) for uid, m in placed.items()]
    for member in asked.members:
        if member.uid not in made.places:
            alone = replace(asked, members=(member,), partners=(*asked.partners, *there))
            assert next(brute_force.placements(alone, after, [member]), None) is None
            decision = made.decisions[member.uid]
            assert decision.chosen is None
            assert decision.eligible == 0
            check_advice(alone, after, decision)


def check_advice(alone: GangRequest, after: Snapshot, decision: Decision) -> None:
    """What `suffices` claims of a miss: this gap closed, the pod has a place."""
    (member,) = alone.members
    for miss in decision.nearest.values():
        if not miss.suffices:
            continue
        changed, asked = after, alone
        if miss.unit == "us":
            asked = replace(alone, bound=replace(alone.bound, us=miss.have))
        else:
            column = after.table.column[{"gpus": "nvidia.com/gpu", "millicores": "cpu", "pods": "pods"}[miss.unit]]
            used = np.minimum(after.used, after.table.allocatable)
            used[after.table.index[miss.node], column] -= int(miss.need - miss.have)
            assert (used >= 0).all()
            changed = replace(after, used=used)
        placed = next(brute_force.placements(asked, changed, [member]), None)
        assert placed == {member.uid: miss.node}


@many
@given(cases())
def test_every_pair_drawn_from_the_sets_is_within_the_bound(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    made = plan(asked, snapshot)
    assume(made.outcome == Outcome.PLANNED)
    inside = {}
    for phase in PHASES:
        nodes = made.set_for(phase)
        planned = {made.places[m.uid] for m in asked.members if m.phase == phase and m.uid in made.places}
        assert nodes is not None or not planned
        inside[phase] = nodes_in(snapshot, nodes) if nodes is not None else []
        assert planned <= set(inside[phase])
        if nodes is not None:
            assert nodes.nodes == len(inside[phase])
    for a, b in product(inside[PREFILL], inside[DECODE]):
        assert brute_force.reach_us(snapshot, a, b, asked.bound.size_bytes) <= asked.bound.us


SMALL = {"cpu": 2000, "pods": 1}


@some
@given(cases())
def test_a_pod_is_told_what_it_would_be_told_without_a_twin(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    # Nothing of a resource that is nowhere: each asks for the same as before, and for another than all others.
    members = tuple(replace(m, amounts=m.amounts | {f"none-{m.uid}": 0}) for m in asked.members)
    made, alone = plan(asked, snapshot), plan(replace(asked, members=members), snapshot)
    event(f"twins: {len(set(made.equivalents.values())) < len(made.equivalents)}")
    assert all(uid == first for uid, first in alone.equivalents.items())
    for member in asked.members if made.decisions else ():
        one, first = made.decisions[member.uid], made.decisions[made.equivalents.get(member.uid, member.uid)]
        assert replace(alone.decisions[member.uid], request=one.request) == one
        assert placement_block(one, made) == placement_block(first, made)


AN_ABSENT_RESOURCE = (
    replace(
        gang(reach_us=15.0),
        members=(
            pod("p-0", PREFILL, amounts=SMALL),
            pod("p-1", PREFILL, amounts={**SMALL, "nvidia.com/gpu": 2}),
            pod("d-0", DECODE, amounts=SMALL),
        ),
    ),
    snapshot_of([node("n0", gpus=0, zone="z1")]),
)
"""No node has GPUs, so that p-1 differs from p-0 in what is in no column alone. There is room for p-0 and d-0 together,
25.8 us apart by PCIe: distance keeps them out."""


@many
@given(cases())
@example(AN_ABSENT_RESOURCE)
def test_the_verdicts_of_a_held_gang_are_true(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    made = plan(asked, snapshot)
    assume(made.outcome == Outcome.HELD and not asked.satisfied)
    for member in asked.members:
        decision = made.decisions[member.uid]
        assert decision.eligible == 0
        assert sum(decision.ruled_out.values()) == len(snapshot.table)
        naive = Counter(brute_force.verdict(asked, snapshot, member, name) for name in snapshot.table.names)
        for code in set(VerdictCode) - set(ROOM_CODES):
            assert decision.ruled_out.get(code, 0) == naive[code]
        assert sum(decision.ruled_out.get(code, 0) for code in ROOM_CODES) == sum(naive[c] for c in ROOM_CODES)
        far = decision.ruled_out.get(VerdictCode.REACH_EXCEEDED, 0)
        assert far == naive[VerdictCode.REACH_EXCEEDED]


@some
@given(cases())
def test_nearest_misses_say_what_is_there(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    for decision in plan(asked, snapshot).decisions.values():
        for code in (VerdictCode.INSUFFICIENT_GPU, VerdictCode.INSUFFICIENT_OTHER):
            if (miss := decision.nearest.get(code)) is None:
                continue
            resource = {"gpus": "nvidia.com/gpu", "millicores": "cpu", "pods": "pods"}[miss.unit]
            assert miss.need == decision.request.amounts[resource]
            # A partner's pods are not in the snapshot's use, planned members of this plan may be: never more is free.
            assert miss.have <= max(brute_force.free_of(snapshot, miss.node)[resource], 0)
            assert miss.have < miss.need


@some
@given(cases())
def test_advice_helps(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    made = plan(asked, snapshot)
    assume(made.shortfall is not None and made.shortfall.remedies)
    assert made.shortfall is not None
    for remedy in made.shortfall.remedies:
        event(remedy.unit)
        if remedy.unit == "us":
            wider = parse_duration_us(reach_setting(remedy.amount), "reach")
            assert wider > asked.bound.us
            assert brute_force.minimum_is_possible(replace(asked, bound=replace(asked.bound, us=wider)), snapshot)
        else:
            table = snapshot.table
            at, column = table.index[remedy.node], table.column["nvidia.com/gpu"]
            used = np.minimum(snapshot.used, table.allocatable)
            used[at, column] -= int(remedy.amount)
            assert used[at, column] >= 0
            assert brute_force.minimum_is_possible(asked, replace(snapshot, used=used))


@some
@given(cases(), st.permutations(range(6)))
def test_names_and_their_order_do_not_matter(case: tuple[GangRequest, Snapshot], order: list[int]) -> None:
    asked, snapshot = case
    table = snapshot.table
    new = {name: f"m{order[i]}" for i, name in enumerate(table.names)}
    made = [renamed(n, new[n.metadata.name]) for n in table.nodes]
    held = [(new[name], amounts_used(snapshot, name)) for name in table.names]
    partners = tuple(replace(p, nodes=tuple(new[n] for n in p.nodes)) for p in asked.partners)
    again = plan(replace(asked, partners=partners), snapshot_of(made, held))
    original = plan(asked, snapshot)
    assert again.outcome == original.outcome
    # One by one beyond the minimum, so which of several equal nodes comes first may matter; the minimum is as it was.
    assert bool(again.places) == bool(original.places)
    if len(original.places) == len(asked.members):
        assert len(again.places) == len(asked.members)
        assert again.cost == pytest.approx(original.cost)


@some
@given(cases(limit=5))
def test_one_more_free_node_never_hurts(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    assume(plan(asked, snapshot).outcome == Outcome.PLANNED)
    held = [(name, amounts_used(snapshot, name)) for name in snapshot.table.names]
    more = snapshot_of([*snapshot.table.nodes, node("n9", zone="z1", leaf="l1", rdma=True)], held)
    assert plan(asked, more).outcome == Outcome.PLANNED


@pytest.mark.full
@settings(unhurried, max_examples=4_000)
@given(cases(limit=8))
def test_there_is_a_plan_exactly_when_brute_force_finds_one_in_many_cases(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    made = plan(asked, snapshot, advise=False)
    if enough_pods(asked) and not asked.satisfied:
        possible = brute_force.minimum_is_possible(asked, snapshot)
        assert made.outcome == (Outcome.PLANNED if possible else Outcome.HELD)
    assert brute_force.faults(asked, snapshot, made.places) == []


@some
@given(cases())
def test_the_same_question_has_the_same_answer(case: tuple[GangRequest, Snapshot]) -> None:
    assert plan(*case) == plan(*case)


def test_a_gang_of_one_and_one_shares_a_node_if_it_can() -> None:
    snapshot = snapshot_of([node("gpu-001", zone="z1"), node("gpu-002", zone="z1")])
    made = plan(gang(), snapshot)
    # 8 GPUs hold both; PCIe inside a node (25.8 us) is nearer than TCP within a zone (159 us).
    assert set(made.places.values()) == {"gpu-001"}
    assert made.worst is not None
    assert made.worst.reach.path == "same node, PCIe across sockets"


def test_a_joiner_comes_to_its_partners_and_moves_nobody() -> None:
    nodes = [node(f"gpu-{i:03}", zone="z1" if i < 3 else "z2") for i in range(1, 5)]
    running = [partner("chat-prefill-0", PREFILL, "gpu-003"), partner("chat-decode-0", DECODE, "gpu-003")]
    snapshot = snapshot_of(nodes, [("gpu-003", {"nvidia.com/gpu": 8})])
    made = plan(gang(0, 1, partners=running), snapshot)
    assert made.places == {"uid-chat-decode-1": "gpu-004"}  # the other node of zone z2; 159 us over TCP


def test_a_member_beyond_the_minimum_that_does_not_fit_is_left_out_alone() -> None:
    snapshot = snapshot_of([node("gpu-001", zone="z1", gpus=8)])
    made = plan(gang(1, 2), snapshot)  # 12 GPUs asked for, 8 there
    assert made.outcome == Outcome.PLANNED
    assert sorted(made.places) == ["uid-chat-decode-0", "uid-chat-prefill-0"]
    left = made.decisions["uid-chat-decode-1"]
    assert left.ruled_out == {VerdictCode.INSUFFICIENT_GPU: 1}
    assert left.nearest[VerdictCode.INSUFFICIENT_GPU].have == 0


def test_the_minimum_is_made_of_whichever_members_fit() -> None:
    # The first prefill pod by name wants a pool that is full; the second one takes any node.
    picky = PodSpec(node_selector={"pool": "b"})
    asked = replace(gang(0, 1), members=(pod("p-0", PREFILL, spec=picky), pod("p-1", PREFILL), pod("d-0", DECODE)))
    made = plan(asked, snapshot_of([node("gpu-001", labels={"pool": "a"})]))
    assert made.outcome == Outcome.PLANNED
    assert sorted(made.places) == ["uid-d-0", "uid-p-1"]


def test_out_of_budget_is_undecided_and_not_a_no() -> None:
    snapshot = snapshot_of([node(f"gpu-{i:03}", zone="z1") for i in range(4)])
    made = plan(gang(2, 2, minimum=(2, 2)), snapshot, Policy(search_budget=2))
    assert made.outcome == Outcome.UNDECIDED
    assert not made.places
    assert made.expanded == 2
    assert made.shortfall is not None
    assert not made.shortfall.remedies


def test_a_gang_without_one_phase_waits_for_it() -> None:
    snapshot = snapshot_of([node("gpu-001")])
    assert plan(gang(0, 2), snapshot).outcome == Outcome.WAITING_FOR_PARTNER
    assert plan(gang(1, 1, minimum=(2, 1)), snapshot).outcome == Outcome.WAITING_FOR_GANG


def test_an_empty_cluster_holds_everybody() -> None:
    made: Plan = plan(gang(), snapshot_of([]))
    assert made.outcome == Outcome.HELD
    decisions: list[Decision] = list(made.decisions.values())
    assert all(d.node_count == 0 and not d.ruled_out for d in decisions)
