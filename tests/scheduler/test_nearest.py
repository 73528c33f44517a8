"""`pairing: nearest`: groups of partners, their sets, and a partner for every pod wherever in its set it goes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from scheduler.model.decision import Outcome, Plan
from scheduler.model.policy import Policy
from scheduler.model.request import GangRequest
from scheduler.planning.partner_groups import PartnerPlaces, groups_of
from scheduler.planning.plan import plan
from tests.scheduler import brute_force
from tests.scheduler.clusters import gang, node, partner
from tests.scheduler.small_cases import cases, random_case, roomy_case
from topology.cluster.isochrone_sets import NodeSet
from topology.cluster.snapshot import NodeTable, Snapshot, snapshot_of
from topology.labels import DECODE, NEAREST, PREFILL

PAGE = 65_536


def two_zones() -> Snapshot:
    """Four nodes of 4 GPUs, two in each zone: 159 us inside one, 2 ms to the other."""
    return snapshot_of([node(f"n{i}", zone="z1" if i < 2 else "z2", gpus=4) for i in range(4)])


def test_two_pairs_in_two_zones() -> None:
    asked = gang(2, 2, minimum=(2, 2))
    assert plan(asked, two_zones()).outcome == Outcome.HELD
    made = plan(replace(asked, pairing=NEAREST), two_zones())
    assert made.outcome == Outcome.PLANNED
    assert made.terms is not None
    assert round(made.terms.worst_us, 2) == 159.24
    # One prefill and one decode in each zone, each held to its zone; no one set is right for a whole phase.
    zones = {"n0": "z1", "n1": "z1", "n2": "z2", "n3": "z2"}
    for uid, where in made.places.items():
        held_to = made.set_of(uid)
        assert held_to is not None
        assert held_to.values == (zones[where],)
    assert made.set_for(PREFILL) is None
    assert {zones[made.places[f"uid-chat-{p}-{i}"]] for p in (PREFILL, DECODE) for i in (0, 1)} == {"z1", "z2"}


def test_one_partner_within_the_bound_is_enough_for_a_joiner() -> None:
    there = [partner("chat-prefill-0", PREFILL, "n0"), partner("chat-prefill-1", PREFILL, "n2")]
    snapshot = snapshot_of(two_zones().table.nodes, [("n0", {"nvidia.com/gpu": 4}), ("n2", {"nvidia.com/gpu": 4})])
    asked = gang(0, 1, partners=there)
    assert plan(asked, snapshot).outcome == Outcome.HELD
    made = plan(replace(asked, pairing=NEAREST), snapshot)
    assert made.places == {"uid-chat-decode-0": "n1"}
    decision = made.decisions["uid-chat-decode-0"]
    assert decision.partner is not None
    assert decision.partner.prefill == "chat-prefill-0"  # 159 us; the other is 2 ms away
    assert made.set_of("uid-chat-decode-0") == NodeSet("topology.kubernetes.io/zone", ("z1",), 2)


def test_stars_around_the_nearest() -> None:
    table = NodeTable([node(n, zone="z1", leaf="l1" if n < "c" else "l2") for n in "abcd"])
    at = {name: (table.index[name],) for name in "abcd"}

    def stars(*pods: tuple[str, str, str, bool]) -> list[list[str]]:
        waiting_gang = [PartnerPlaces(name, phase, at[where], planned) for name, phase, where, planned in pods]
        return [[pod.name for pod in group] for group in groups_of(waiting_gang, table.reach, PAGE)]

    # Each leaf has one of both: two pairs.
    pairs = [
        ("d0", DECODE, "a", True),
        ("d1", DECODE, "c", True),
        ("p0", PREFILL, "b", True),
        ("p1", PREFILL, "d", True),
    ]
    assert stars(*pairs) == [["p0", "d0"], ["p1", "d1"]]
    # One decode pod is the nearest to both prefill pods: a star around it.
    around = stars(("d0", DECODE, "a", True), ("p0", PREFILL, "b", True), ("p1", PREFILL, "d", True))
    assert around == [["d0", "p0", "p1"]]
    # A partner that has its place is no one's guest, and with nobody at its side it needs no group.
    assert stars(("d0", DECODE, "a", False), ("d1", DECODE, "c", False), ("p0", PREFILL, "b", True)) == [["d0", "p0"]]


def slow_nearest(of: PartnerPlaces, others: list[PartnerPlaces], table: NodeTable) -> PartnerPlaces:
    """Pod by pod, node by node."""
    row = table.reach.row_us(of.nodes[0], PAGE)
    return min(others, key=lambda pod: (max(float(row[n]) for n in pod.nodes), pod.name))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.data())
def test_a_pod_stands_with_its_nearest_partner(case: tuple[GangRequest, Snapshot], data: st.DataObject) -> None:
    table = case[1].table
    somewhere = st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=2, unique=True).map(tuple)
    lone = PartnerPlaces("p", PREFILL, (data.draw(st.integers(0, len(table) - 1)),), planned=True)
    others = [
        PartnerPlaces(f"d{i}", DECODE, tuple(sorted(data.draw(somewhere))), planned=False)
        for i in range(data.draw(st.integers(1, 5)))
    ]
    assert groups_of([lone, *others], table.reach, PAGE) == [[slow_nearest(lone, others, table), lone]]


def check_sets(made: Plan, asked: GangRequest, snapshot: Snapshot) -> None:
    """Every planned pod has a partner that is within the bound of all of its set, wherever in its own that one is."""
    table = snapshot.table

    def inside(nodes: NodeSet) -> list[str]:
        return [n.metadata.name for n in table.nodes if n.metadata.label(nodes.key) in nodes.values]

    everywhere = [(p.phase, [n for n in p.nodes if n in table.index]) for p in asked.partners]
    for member in asked.members:
        if (held_to := made.set_of(member.uid)) is not None:
            assert made.places[member.uid] in inside(held_to)
            everywhere.append((member.phase, inside(held_to)))
    for member in asked.members:
        if (held_to := made.set_of(member.uid)) is not None:
            assert any(
                phase != member.phase
                and all(
                    brute_force.reach_us(snapshot, a, b, asked.bound.size_bytes) <= asked.bound.us
                    for a, b in product(inside(held_to), theirs)
                )
                for phase, theirs in everywhere
                if theirs
            )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_every_pod_keeps_a_partner_wherever_in_its_set_it_goes(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = replace(case[0], pairing=NEAREST), case[1]
    made = plan(asked, snapshot, advise=False)
    assume(made.places)
    event(f"{len(set(made.sets.values()))} sets")
    check_sets(made, asked, snapshot)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1_000_000))
def test_so_it_is_on_roomy_clusters(seed: int) -> None:
    asked, snapshot = roomy_case(seed, NEAREST)
    made = plan(asked, snapshot, advise=False)
    assume(made.places)
    event(f"{len(set(made.sets.values()))} sets")
    check_sets(made, asked, snapshot)
    if plan(replace(asked, pairing="all"), snapshot, advise=False).outcome == Outcome.PLANNED:
        assert len(made.places) == len(asked.members)  # what keeps to all partners keeps to one


def test_a_gang_of_far_apart_pairs_on_a_large_cluster() -> None:
    # 150 racks with room on two nodes each for one pod of 8 GPUs, 25 us within a rack: 20 pairs need 20 racks, and more
    # pairs than racks have no place. 300 nodes with room are too many to weigh together.
    nodes = [node(f"n{i:03}", zone="z1", spine="s1", leaf=f"l{i // 2}", rdma=True) for i in range(300)]
    pairs = replace(gang(20, 20, gpus=8, reach_us=25.0, minimum=(20, 20)), pairing=NEAREST)
    made = plan(pairs, snapshot_of(nodes), advise=False)
    assert made.outcome == Outcome.PLANNED
    leaves = [int(made.places[m.uid][1:]) // 2 for m in pairs.members]
    assert sorted(leaves[:20]) == sorted(leaves[20:])  # members are by phase: one of each in every rack
    assert len(set(leaves)) == 20
    # One prefill pod for five decode pods: no rack has room for two of these beside it.
    lopsided = replace(gang(4, 20, gpus=8, reach_us=25.0, minimum=(4, 20)), pairing=NEAREST)
    assert plan(lopsided, snapshot_of(nodes), advise=False).outcome == Outcome.HELD


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10_000_000), st.booleans())
def test_clique_by_clique_says_nothing_that_is_not_so(seed: int, roomy: bool) -> None:
    asked, snapshot = (roomy_case if roomy else random_case)(seed, NEAREST)
    wanted = {phase: sum(m.phase == phase for m in asked.members) for phase in (PREFILL, DECODE)}
    there = {phase: sum(p.phase == phase for p in asked.partners) for phase in (PREFILL, DECODE)}
    asked = replace(asked, min_prefill=wanted[PREFILL] + there[PREFILL], min_decode=wanted[DECODE] + there[DECODE])
    exact = plan(asked, snapshot, advise=False)  # these are so small that the search of all nodes ends
    made = plan(asked, snapshot, Policy(joint_pods=0), advise=False)
    event(f"{exact.outcome}, clique by clique {made.outcome}")
    assert made.outcome in (exact.outcome, Outcome.UNDECIDED)
    if made.outcome == Outcome.PLANNED:
        check_sets(made, asked, snapshot)
