"""A plan replayed pod by pod through `decide`, as Volcano would ask; and room on cards in a search."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from scheduler.extender.decide import decide
from scheduler.model.decision import Outcome, Plan
from scheduler.model.request import GangRequest, Partner, ReachBound
from scheduler.planning.plan import plan
from tests.scheduler.small_cases import Choices, cases, random_case, roomy_case
from tests.scheduler.test_gpu_fit import vgpu, vgpu_node, wanting
from topology.cluster.snapshot import Assumed, Snapshot, snapshot_of
from topology.gpus.gpu_request import GpuRequest
from topology.labels import ALL_PAIRS, DECODE, NEAREST, PREFILL

quick = settings(deadline=None, suppress_health_check=list(HealthCheck))


def replay(made: Plan, asked: GangRequest, snapshot: Snapshot) -> None:
    """Each pod in turn is let onto its own node, beside those that went before, by the rules of one pod."""
    bound, now = replace(asked.bound, nearest=asked.pairing == NEAREST), snapshot
    placed: list[Partner] = list(asked.partners)
    members = [m for m in asked.members if m.uid in made.places]
    if bound.nearest:  # a pod may have to wait for the one it is paired with: everybody else is there
        placed += [Partner(m.uid, m.name, m.phase, (made.places[m.uid],)) for m in members]
    for member in members:
        node = made.places[member.uid]
        others = [p for p in placed if p.phase != member.phase]
        ranking = decide(member, now, [node], others, bound)
        assert others == [] or ranking.decision.eligible == 1, (member.name, node, ranking.decision.ruled_out)
        now = now.with_assumed({member.uid: Assumed(node, member.amounts, member.hold)})
        placed.append(Partner(member.uid, member.name, member.phase, (node,)))
    assert (now.without_assumed([m.uid for m in members]).used == snapshot.used).all()
    assert now.without_assumed([m.uid for m in members]).holds == snapshot.holds


@settings(quick, max_examples=80)
@given(cases(), st.sampled_from((ALL_PAIRS, NEAREST)))
def test_every_pod_is_let_onto_its_node(case: tuple[GangRequest, Snapshot], pairing: str) -> None:
    asked, snapshot = replace(case[0], pairing=pairing), case[1]
    made = plan(asked, snapshot, advise=False)
    assume(made.places)
    replay(made, asked, snapshot)


@pytest.mark.full
@settings(quick, max_examples=2_000)
@given(st.integers(0, 10_000_000), st.booleans(), st.sampled_from((ALL_PAIRS, NEAREST)))
def test_every_pod_of_larger_cases_is_let_onto_its_node(seed: int, roomy: bool, pairing: str) -> None:
    asked, snapshot = (roomy_case if roomy else random_case)(seed, pairing)
    made = plan(asked, snapshot, advise=False)
    assume(made.places)
    replay(made, asked, snapshot)


# --- on cards ----------------------------------------------------------------------------------


def gang_of(prefill: list[GpuRequest], decode: list[GpuRequest]) -> GangRequest:
    members = [wanting(gpu, PREFILL, f"p{i}") for i, gpu in enumerate(prefill)]
    members += [wanting(gpu, DECODE, f"d{i}") for i, gpu in enumerate(decode)]
    return GangRequest(
        "prod", "chat", tuple(members), bound=ReachBound(1000.0), min_prefill=len(prefill), min_decode=len(decode)
    )


def test_two_pods_that_need_a_card_each_do_not_share_one() -> None:
    # 68 of 80 GiB of a card may be planned. Two of 40 GiB need two cards; amounts alone would take ten on one.
    pair = gang_of([vgpu(40)], [vgpu(40)])
    assert plan(pair, snapshot_of([vgpu_node("n0")])).outcome == Outcome.HELD
    made = plan(pair, snapshot_of([vgpu_node("n0"), vgpu_node("n1")]))
    assert sorted(made.places.values()) == ["n0", "n1"]
    both = plan(pair, snapshot_of([vgpu_node("n0", devices=2)]))
    assert set(both.places.values()) == {"n0"}


def test_prefill_peaks_share_head_room_in_a_plan() -> None:
    # 20 + 20 promised and one burst of 20 GiB kept: 60 of 68. With decode's 20 guaranteed 80 would be needed.
    together = gang_of([vgpu(20, 40), vgpu(20, 40)], [])
    assert plan(replace(together, min_decode=0), snapshot_of([vgpu_node("n0")])).outcome == Outcome.PLANNED
    assert (
        plan(gang_of([vgpu(20, 40), vgpu(20, 40)], [vgpu(20)]), snapshot_of([vgpu_node("n0")])).outcome == Outcome.HELD
    )


@settings(quick, max_examples=60)
@given(st.binary(min_size=60, max_size=60))
@example(b"\x02\x00\x00\x00\x01]\x00\x00\x02\x02 " + bytes(49))  # p1 fits in the search's order, not as the last one
def test_a_plan_on_cards_is_let_onto_its_nodes(data: bytes) -> None:
    choose = Choices(data)
    nodes = [vgpu_node(f"n{i}", devices=choose.of((2, 1, 4))) for i in range(choose.of((2, 1, 3)))]
    sizes = (10, 20, 30, 40, 60)
    pods = [[vgpu(choose.of(sizes), choose.of((0, 0, 30, 60))) for _ in range(choose.of((1, 2, 3)))] for _ in "pd"]
    asked, snapshot = gang_of(*pods), snapshot_of(nodes)
    made = plan(asked, snapshot, advise=False)
    assume(made.places)
    for member in asked.members:  # with everybody else in place
        others = {
            m.uid: Assumed(made.places[m.uid], m.amounts, m.hold)
            for m in asked.members
            if m.uid != member.uid and m.uid in made.places
        }
        known = [Partner(m.uid, m.name, m.phase, (made.places[m.uid],)) for m in asked.members if m.uid in others]
        mine = [p for p in known if p.phase != member.phase]
        ranking = decide(member, snapshot.with_assumed(others), [made.places[member.uid]], mine, asked.bound)
        assert ranking.decision.eligible == 1, (member.name, ranking.decision.ruled_out)
