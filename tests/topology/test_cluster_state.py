"""What is kept from watch changes: who holds what where, which pods form a gang, when room may have appeared."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.topology.interned_objects import Held, node, pod
from topology.cluster.state import ClusterState, gang_key
from topology.labels import GPU_PRODUCT, NVIDIA_GPU
from topology.objects import HyperNode, Metadata, Node, Pod

CHAT = ("team", "chat")


def state_of(*objects: Node | Pod) -> ClusterState:
    """A state that was told of these objects, as from first lists, and whose table was asked for."""
    state = ClusterState()
    state.apply_nodes((None, o) for o in objects if isinstance(o, Node))
    state.apply_pods((None, o) for o in objects if isinstance(o, Pod))
    state.table()
    return state


def held(state: ClusterState) -> Held:
    """What the snapshot says is used."""
    snapshot = state.snapshot(0.0, 0.0)
    table = snapshot.table
    return {
        (name, resource): int(snapshot.used[i, j])
        for i, name in enumerate(table.names)
        for j, resource in enumerate(table.resources)
        if snapshot.used[i, j]
    }


def gpus(state: ClusterState) -> dict[str, int]:
    return {where: amount for (where, resource), amount in held(state).items() if resource == NVIDIA_GPU}


# --- where a pod counts ------------------------------------------------------------------------


def test_a_planned_pod_counts_where_it_was_planned_until_it_is_bound_elsewhere() -> None:
    waiting = pod("a", 3, gated=True)
    state = state_of(node("n1"), node("n2"), waiting)
    assert gpus(state) == {}
    state.assume("uid-a", "n1", {NVIDIA_GPU: 3, "pods": 1})
    assert held(state) == {("n1", NVIDIA_GPU): 3, ("n1", "pods"): 1}
    assert state.is_assumed("uid-a")
    state.apply_pods([(waiting, pod("a", 3, node="n2"))])
    assert held(state) == {("n2", NVIDIA_GPU): 3, ("n2", "pods"): 1}
    assert not state.is_assumed("uid-a")
    state.assume("uid-a", "n1", {NVIDIA_GPU: 3})  # too late: it has its place
    assert gpus(state) == {"n2": 3}


@pytest.mark.parametrize(
    ("released", "expected"),
    [
        (pod("a", 2, nominated="n1", decision=True), {"n1": 2}),
        (pod("a", 2, nominated="n1", decision=True, gated=True), {}),  # nominated only: its successor plans again
        (pod("a", 2, nominated="n1"), {}),  # by hand: nobody planned it
        (pod("a", 2, decision=True), {}),
        (pod("a", 2, nominated="n1", decision=True, leaving=True), {}),
        (pod("a", 2, nominated="n1", decision=True, gang=""), {}),
        (pod("a", 2, nominated="n1", decision=True, status="Failed"), {}),
        (pod("a", 2, nominated="gone", decision=True), {}),
    ],
)
def test_after_a_restart_a_released_pod_counts_where_it_is_nominated(released: Pod, expected: dict[str, int]) -> None:
    assert gpus(state_of(node("n1"), released)) == expected


def test_a_released_pod_follows_its_nomination() -> None:
    before = pod("a", 2, nominated="n1", decision=True)
    state = state_of(node("n1"), node("n2"), before)
    moved = pod("a", 2, nominated="n2", decision=True)
    capacity_generation = state.capacity_generation
    state.apply_pods([(before, moved)])
    assert gpus(state) == {"n2": 2}
    assert state.capacity_generation > capacity_generation
    capacity_generation = state.capacity_generation
    state.apply_pods([(moved, pod("a", 2, decision=True))])
    assert gpus(state) == {}
    assert state.capacity_generation > capacity_generation


def test_a_plan_that_is_given_back_falls_back_to_what_the_pod_says() -> None:
    """The answer to a release is lost, but the release was done and seen: giving it back must not free its room."""
    waiting = pod("a", 2, gated=True)
    state = state_of(node("n1"), waiting)
    state.assume("uid-a", "n1", {NVIDIA_GPU: 2, "pods": 1})
    released = pod("a", 2, nominated="n1", decision=True)
    state.apply_pods([(waiting, released)])
    state.unassume("uid-a")
    assert gpus(state) == {"n1": 2}
    state.apply_pods([(released, None)])
    state.unassume("uid-a")
    assert gpus(state) == {}


def test_a_pod_that_goes_by_hand_in_the_middle_of_a_plan_is_promised_nothing() -> None:
    waiting = pod("a", 2, gated=True)
    state = state_of(node("n1"), waiting)
    state.assume("uid-a", "n1", {NVIDIA_GPU: 2, "pods": 1})
    capacity_generation = state.capacity_generation
    state.apply_pods([(waiting, pod("a", 2, nominated="n1"))])
    assert held(state) == {}
    assert state.capacity_generation > capacity_generation


def test_a_plan_for_a_pod_that_is_still_held_is_given_back_whole() -> None:
    state = state_of(node("n1"), pod("a", 2, gated=True))
    state.assume("uid-a", "n1", {NVIDIA_GPU: 2})
    state.assume("uid-a", "n1", {NVIDIA_GPU: 2})
    state.unassume("uid-a")
    state.unassume("uid-a")
    state.unassume("never-heard-of")
    assert held(state) == {}


def test_finished_and_deleted_pods_hold_nothing() -> None:
    one, two = pod("a", 2, node="n1"), pod("b", 3, node="n1", gang="")
    state = state_of(node("n1"), one, two)
    assert gpus(state) == {"n1": 5}
    state.apply_pods([(one, pod("a", 2, node="n1", status="Succeeded"))])
    assert gpus(state) == {"n1": 3}
    state.apply_pods([(two, None)])
    assert held(state) == {}


def test_a_pod_counts_once_its_node_is_known() -> None:
    state = state_of(pod("a", 2, node="late"), pod("b", 3, nominated="late", decision=True))
    assert held(state) == {}
    state.apply_nodes([(None, node("late"))])
    assert gpus(state) == {"late": 5}
    state.apply_nodes([(node("late"), None)])
    assert held(state) == {}


@pytest.mark.parametrize("gang", ["chat", ""])
def test_a_pod_that_is_resized_in_place_counts_anew(gang: str) -> None:
    before = pod("a", 2, node="n1", gang=gang)
    state = state_of(node("n1"), before)
    state.apply_pods([(before, pod("a", 5, node="n1", gang=gang))])
    assert gpus(state) == {"n1": 5}


def test_the_same_name_with_another_uid_is_another_pod() -> None:
    before, after = pod("a", 2, node="n1"), pod("a", 3, uid="second", gated=True)
    state = state_of(node("n1"), before)
    assert state.apply_pods([(before, after)]) == {CHAT}
    assert gpus(state) == {}
    assert [p.metadata.uid for p in state.gang_pods(*CHAT)] == ["second"]


# --- what cannot be read -----------------------------------------------------------------------


def test_an_unreadable_quantity_costs_only_its_pod() -> None:
    broken = pod("a", "many", node="n1")
    state = state_of(node("n1"), broken, pod("b", 3, node="n1"))
    assert held(state) == {("n1", NVIDIA_GPU): 3, ("n1", "pods"): 2}
    assert "many" in state.unreadable_pods["uid-a"]
    state.apply_pods([(broken, None)])
    assert state.unreadable_pods == {}


def test_quantities_that_are_too_large_to_add_up_cost_only_their_pods() -> None:
    """Each is allowed by itself, and anybody may create such pods: 63 bits are all that a sum has."""
    most = pod("a", str(2**63 - 1))
    twice = msgspec.structs.replace(most.spec, containers=most.spec.containers * 2, node_name="n1")
    state = state_of(node("n1"), node("n2"))
    for name in "abcd":
        huge = msgspec.structs.replace(pod(name), spec=twice)
        state.apply_pods([(None, huge)])
    free = state.snapshot(0.0, 0.0).free
    column = state.table().column[NVIDIA_GPU]
    assert free[0, column] < 0
    assert free[1, column] == 8
    state.apply_pods([(None, pod("e", 1, node="n2"))])
    assert gpus(state)["n2"] == 1


# --- gangs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "key"),
    [
        ({"isochrone.dev/phase": "decode", "isochrone.dev/gang": "chat"}, CHAT),
        ({"isochrone.dev/phase": "router", "isochrone.dev/gang": "chat"}, None),
        ({"isochrone.dev/phase": "decode", "isochrone.dev/gang": ""}, None),
        ({"isochrone.dev/phase": "decode"}, None),
        (None, None),
    ],
)
def test_the_gang_of_a_pod(labels: dict[str, str] | None, key: tuple[str, str] | None) -> None:
    assert gang_key(Pod(metadata=Metadata(namespace="team", labels=labels))) == key


def test_gangs_hold_their_live_pods_by_name() -> None:
    one, two = pod("b", gated=True), pod("a", node="n1", phase="prefill")
    state = state_of(node("n1"), one, two, pod("x", gang=""), pod("y", gang="other"))
    assert [p.metadata.name for p in state.gang_pods(*CHAT)] == ["a", "b"]
    assert set(state.gangs()) == {CHAT, ("team", "other")}
    assert state.apply_pods([(two, pod("a", node="n1", phase="prefill", status="Failed"))]) == {CHAT}
    assert [p.metadata.name for p in state.gang_pods(*CHAT)] == ["b"]
    state.apply_pods([(one, None)])
    assert set(state.gangs()) == {("team", "other")}
    assert state.gang_pods(*CHAT) == []


def test_a_pod_that_changes_its_gang_touches_both() -> None:
    before, after = pod("a", gated=True), pod("a", gated=True, gang="code")
    state = state_of(before)
    assert state.apply_pods([(before, after)]) == {CHAT, ("team", "code")}
    assert set(state.gangs()) == {("team", "code")}
    assert state.apply_pods([(after, pod("a", gated=True, gang=""))]) == {("team", "code")}
    assert state.gangs() == {}


# --- versions and growth -----------------------------------------------------------------------


def test_a_heartbeat_changes_nothing() -> None:
    state = ClusterState()
    state.apply_nodes([(None, node("n1"))])
    for _ in range(2):  # before anybody asked for the table, and after
        before = state.version, state.capacity_generation
        state.apply_nodes([(node("n1"), node("n1", version="2"))])
        assert (state.version, state.capacity_generation) == before
        state.table()
    table = state.table()
    state.apply_nodes([(node("n1"), node("n1", version="3"))])
    assert state.table() is table


@pytest.mark.parametrize(
    "changed",
    [
        node("n1", gpus=9),
        node("n1", cordoned=True),
        node("n1", ready=False),
        msgspec.structs.replace(node("n1"), metadata=Metadata(name="n1", labels={GPU_PRODUCT: "NVIDIA-L40S"})),
    ],
)
def test_a_change_of_a_fact_makes_another_table(changed: Node) -> None:
    state = state_of(node("n1"))
    table, capacity_generation = state.table(), state.capacity_generation
    state.apply_nodes([(node("n1"), changed)])
    assert state.table() is not table
    assert state.capacity_generation == capacity_generation + 1


def test_hypernodes_are_part_of_the_table() -> None:
    state = state_of(node("n1"))
    table, capacity_generation = state.table(), state.capacity_generation
    made = HyperNode(metadata=Metadata(name="h"))
    state.apply_hypernodes([(None, made)])
    state.apply_hypernodes([(made, None)])
    assert state.table() is not table
    assert state.capacity_generation == capacity_generation + 2


def test_growth_stays_while_room_only_shrinks() -> None:
    waiting = pod("a", 2, gated=True)
    state = state_of(node("n1"), node("n2"), waiting)
    capacity_generation = state.capacity_generation
    state.apply_pods([(None, pod("b", 1, node="n2", gang=""))])
    state.assume("uid-a", "n1", {NVIDIA_GPU: 2, "pods": 1})
    released = pod("a", 2, nominated="n1", decision=True)
    state.apply_pods([(waiting, released)])
    state.apply_pods([(released, pod("a", 2, node="n1", nominated="n1", decision=True))])
    assert state.capacity_generation == capacity_generation


def test_growth_rises_when_a_pod_is_bound_elsewhere_than_planned() -> None:
    waiting = pod("a", 2, gated=True)
    state = state_of(node("n1"), node("n2"), waiting)
    state.assume("uid-a", "n1", {NVIDIA_GPU: 2, "pods": 1})
    capacity_generation = state.capacity_generation
    state.apply_pods([(waiting, pod("a", 2, node="n2"))])
    assert state.capacity_generation > capacity_generation


def test_a_snapshot_is_the_same_until_something_changes_but_for_its_age() -> None:
    state = state_of(node("n1"), pod("a", 2, node="n1"))
    first, second = state.snapshot(10.0, 1.0), state.snapshot(20.0, 2.0)
    assert (first.id, first.used is second.used) == (second.id, True)
    assert (second.taken_at_s, second.facts_age_s) == (20.0, 2.0)
    with pytest.raises(ValueError, match="read-only"):
        first.used[0, 0] = 9
    state.apply_pods([(None, pod("b", 3, node="n1"))])
    third = state.snapshot(30.0, 0.0)
    assert third.id != first.id
    assert np.array_equal(first.used, second.used)
    assert not np.array_equal(first.used, third.used)
