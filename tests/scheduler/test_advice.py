"""What a waiting pod is told to do: true, possible, and never at the cost of its own gang."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from scheduler.explain.annotation import gang_block, placement_block, waiting_block
from scheduler.explain.events import held_event, placed_event
from scheduler.explain.wording import LINE_CHARS, nearest_capacity
from scheduler.model.decision import Outcome, PairReach, Remedy
from scheduler.model.policy import Policy
from scheduler.model.reason import Reason
from scheduler.model.request import GangRequest
from scheduler.planning.plan import plan
from tests.scheduler.clusters import gang, node, partner, pod
from tests.scheduler.small_cases import cases
from tests.scheduler.test_gpu_fit import vgpu, vgpu_node, wanting
from topology.cluster.snapshot import Snapshot, snapshot_of
from topology.labels import DECODE, PREFILL
from topology.objects import PodSpec
from topology.reach.model import Reach

GPU = "nvidia.com/gpu"


# --- what is to be freed is held by others -----------------------------------------------------


def test_a_pod_below_the_minimum_is_not_told_to_free_its_own_partners_gpus() -> None:
    nodes = [node("n0", zone="z1"), node("n1", zone="z1")]
    snapshot = snapshot_of(nodes, [("n0", {GPU: 8}), ("n1", {GPU: 8})])
    mine = [partner("low-prefill-0", PREFILL, "n0", gpus=8)]
    # All 8 of n0 are its own prefill's; those of n1 are somebody else's.
    assert held_event(plan(gang(0, 1, 8, partners=mine, name="low"), snapshot))[1] == (
        "No place for the gang low (1 decode): no node has room for a decode pod; 2 nodes checked, 2 without 8 free "
        "GPUs; nearest n1 with 0 free GPUs, 8 short. Free 8 GPUs on n1"
    )


@pytest.mark.parametrize("own", [8, 6])
def test_no_more_is_to_be_freed_than_others_hold(own: int) -> None:
    # Of the 8 that are used others hold none, then 2: not the 4 that the decode lacks. n1 is too far and full.
    nodes = [node("n0", zone="z1"), node("n1", zone="z2")]
    snapshot = snapshot_of(nodes, [("n0", {GPU: 8}), ("n1", {GPU: 8})])
    made = plan(gang(0, 1, 4, partners=[partner("chat-prefill-0", PREFILL, "n0", gpus=own)]), snapshot)
    assert held_event(made)[1].endswith("nearest n0 with 0 free GPUs, 4 short")
    assert "helps" not in gang_block(made)


def test_as_much_as_others_hold_may_be_freed() -> None:
    snapshot = snapshot_of([node("n0", zone="z1")], [("n0", {GPU: 8})])
    made = plan(gang(0, 1, 4, partners=[partner("chat-prefill-0", PREFILL, "n0", gpus=4)]), snapshot)
    assert held_event(made)[1].endswith("4 short. Free 4 GPUs on n0")


def test_a_joiner_is_not_told_to_free_its_own_gangs_gpus() -> None:
    nodes = [node("n0", zone="z1"), node("n1", zone="z1")]
    mine = [partner("chat-prefill-0", PREFILL, "n0", gpus=4), partner("chat-decode-0", DECODE, "n0", gpus=2)]
    made = plan(gang(0, 1, 4, partners=mine), snapshot_of(nodes, [("n0", {GPU: 6}), ("n1", {GPU: 6})]))
    (left,) = made.decisions.values()
    assert held_event(made, left)[1] == (
        "The gang chat has its minimum (2 pods bound); no node within reach can take this decode pod; 2 nodes checked, "
        "2 without 4 free GPUs; nearest n1 with 2 free GPUs, 2 short. Free 2 GPUs on n1"
    )


def test_what_the_same_plan_gave_to_siblings_is_not_to_be_freed() -> None:
    made = plan(gang(1, 3, 4), snapshot_of([node("n0", zone="z1")]))
    left = next(d for d in made.decisions.values() if d.chosen is None)
    assert held_event(made, left)[1] == (
        "The gang chat has its minimum (2 planned); no node within reach can take this decode pod; 1 node checked, 1 "
        "without 4 free GPUs; nearest n0 with 0 free GPUs, 4 short"
    )


@given(cases())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_advice_never_asks_for_more_than_others_hold(case: tuple[GangRequest, Snapshot]) -> None:
    asked, snapshot = case
    made, before = plan(asked, snapshot), snapshot.used
    reported = list(made.shortfall.remedies) if made.shortfall else []
    for one in made.decisions.values():
        if one.chosen is None and (miss := nearest_capacity(one)) is not None and miss.suffices:
            reported.append(Remedy(miss.need - miss.have, miss.unit, miss.node))
    for remedy in (r for r in reported if r.unit == "gpus"):
        # Whoever is planned now was not counted before: what was used then is what others hold.
        assert remedy.amount <= before[snapshot.table.index[remedy.node], snapshot.gpu_column or 0]


# --- what can never fit ------------------------------------------------------------------------


def test_a_pod_larger_than_every_node_is_told_so() -> None:
    members = (pod("chat-prefill-0", PREFILL, 16), pod("chat-decode-0", DECODE, 1))
    made = plan(replace(gang(), members=members), snapshot_of([node("n0", zone="z1"), node("n1", zone="z1", gpus=4)]))
    reason, text = held_event(made)
    assert reason == Reason.INSUFFICIENT_GPU
    assert text == (
        "No place for the gang chat (1 prefill, 1 decode): no node of the cluster has 16 GPUs (largest: 8) for a "
        "prefill pod; 2 nodes checked, 2 without 16 free GPUs. Ask for at most 8 GPUs a prefill pod"
    )
    assert gang_block(made).splitlines()[3:5] == [
        "room   no node of the cluster has 16 GPUs (largest: 8)",
        "helps  ask for at most 8 GPUs a prefill pod",
    ]


def test_a_larger_node_that_is_not_open_to_the_pod_counts_as_such() -> None:
    nodes = [node("n0", gpus=4, labels={"pool": "a"}), node("n1")]
    big = pod("chat-prefill-0", PREFILL, 8, spec=PodSpec(node_selector={"pool": "a"}))
    made = plan(replace(gang(), members=(big, pod("chat-decode-0", DECODE, 1))), snapshot_of(nodes))
    assert "no node open to the pod has 8 GPUs (largest: 4) for a prefill pod" in held_event(made)[1]


def test_a_joiner_larger_than_every_node_is_told_so() -> None:
    there = [partner("chat-prefill-0", PREFILL, "n0", gpus=2), partner("chat-decode-0", DECODE, "n0", gpus=2)]
    made = plan(gang(0, 1, 16, partners=there), snapshot_of([node("n0", zone="z1")], [("n0", {GPU: 4})]))
    (left,) = made.decisions.values()
    assert held_event(made, left)[1].endswith(
        "1 node checked, 1 without 16 free GPUs; no node of the cluster has 16 GPUs (largest: 8). Ask for at most 8 "
        "GPUs a decode pod"
    )


def test_more_memory_than_every_node_has() -> None:
    amounts = {GPU: 1, "memory": 2 * 2**40, "pods": 1}
    members = (pod("p", PREFILL, amounts=amounts), pod("d", DECODE, 1))
    reason, text = held_event(plan(replace(gang(), members=members), snapshot_of([node("n0", memory="1Ti")])))
    assert reason == Reason.INSUFFICIENT_MEMORY
    assert "no node of the cluster has 2.0 TiB of memory (largest: 1.0 TiB) for a prefill pod" in text
    assert text.endswith(". Ask for at most 1.0 TiB of memory a prefill pod")


def test_more_memory_than_every_gpu_has() -> None:
    # Of a card of 80 GiB 85 % may be planned: 68 GiB.
    ask = replace(wanting(vgpu(70), name="chat-decode-0"), namespace="prod")
    members = (replace(wanting(vgpu(4), PREFILL, "chat-prefill-0")), ask)
    reason, text = held_event(plan(replace(gang(), members=members), snapshot_of([vgpu_node("n0"), vgpu_node("n1")])))
    assert reason == Reason.INSUFFICIENT_MEMORY
    assert "no GPU of the cluster can give 70.0 GiB (largest: 68.0 GiB) for a decode pod; 2 nodes checked" in text
    assert text.endswith(". Ask for at most 68.0 GiB of GPU memory a decode pod")


def test_a_minimum_larger_than_the_cluster_is_told_so() -> None:
    # 42 pods of 8 GPUs each are 336; 16 nodes of 8 are 128. However little is searched, it can never fit.
    snapshot = snapshot_of([node(f"n{i:02}", zone="z1") for i in range(16)])
    made = plan(gang(14, 28, 8, minimum=(14, 28)), snapshot, Policy(search_budget=2))
    assert made.outcome == Outcome.HELD
    reason, text = held_event(made)
    assert reason == Reason.INSUFFICIENT_GPU
    assert text == (
        "No place for the gang chat (14 prefill, 28 decode): the minimum needs 336 GPUs, nodes open to its pods have "
        "128 in all; 16 nodes checked, 16 with room for one pod but not for all within reach. Lower "
        "isochrone.dev/min-prefill or isochrone.dev/min-decode, ask for fewer GPUs a pod, or add nodes"
    )
    assert "cluster  the minimum needs 336 GPUs, nodes open to its pods have 128 in all" in gang_block(made)


def test_what_placed_pods_hold_counts_for_the_minimum() -> None:
    # The minimum is three of 8, one of which runs: 16 more beside 8, of 16.
    nodes = [node("n0", zone="z1"), node("n1", zone="z1")]
    mine = [partner("chat-prefill-0", PREFILL, "n0", gpus=8)]
    made = plan(gang(0, 2, 8, partners=mine, minimum=(1, 2)), snapshot_of(nodes, [("n0", {GPU: 8})]))
    assert (
        "the minimum needs 16 GPUs beside the 8 that its placed pods hold, nodes open to its pods have 16 in all"
        in held_event(made)[1]
    )


def test_a_minimum_as_large_as_the_cluster_is_not_too_large() -> None:
    snapshot = snapshot_of([node("n0", zone="z1"), node("n1", zone="z1")], [("n0", {GPU: 1})])
    assert "in all" not in held_event(plan(gang(1, 1, 8), snapshot))[1]


# --- lines that are true and whole -------------------------------------------------------------


def test_a_full_node_is_not_called_best_while_others_have_room() -> None:
    snapshot = snapshot_of([node(f"n{i}", zone="z1") for i in range(3)], [("n0", {GPU: 8})])
    made = plan(gang(2, 1, 8, minimum=(2, 1)), snapshot)
    block = gang_block(made)
    assert "3 nodes checked, 2 with room for one pod but not for all within reach, 1 without 8 free GPUs" in block
    assert not any(line.startswith("room") for line in block.splitlines())


def test_a_waiting_text_goes_on_in_the_next_line() -> None:
    text = held_event(plan(gang(1, 2, minimum=(2, 4)), snapshot_of([node("n0")])))[1]
    lines = waiting_block(text).splitlines()
    assert len(lines) == 2
    assert all(len(line) <= LINE_CHARS for line in lines)
    assert lines[0].startswith("none     The gang chat has 1 prefill")
    assert lines[1].startswith(" " * 9)
    assert " ".join([lines[0][9:], lines[1].strip()]) == text


def test_pods_that_one_line_does_not_hold_are_counted() -> None:
    # 33 characters a pod and 25 a node: with " on " and ", " three are 190, two 126, one 62 of the 121 there are.
    name = "a-service-with-a-long-name"
    nodes = [node(f"gpu-node-of-the-rack-{i:03}x", zone="z1", gpus=2) for i in range(5)]
    made = plan(gang(2, 3, 2, name=name), snapshot_of(nodes))
    (line,) = [line for line in gang_block(made).splitlines() if line.startswith("decode")]
    assert line.endswith(" and 2 more")
    assert "..." not in line


def test_all_texts_of_a_gang_give_the_gangs_bound() -> None:
    # The decode itself says nothing (1 ms); its prefill says 15 us, which holds for both: 79.24 - 15 = 64.24.
    made = plan(
        gang(), snapshot_of([node("n0", gpus=4, zone="z1", leaf="l1"), node("n1", gpus=4, zone="z1", leaf="l1")])
    )
    one = next(d for d in made.decisions.values() if d.request.phase == DECODE)
    text = placed_event(one, one.chosen or "", PairReach("p-0", "d-0", Reach(79.24, "same leaf, TCP")), bound_us=15.0)
    assert "79.2 us from prefill p-0, 64.2 us over the bound of 15 us" in text


def test_with_pairing_nearest_the_pair_is_the_nearest_one() -> None:
    made = plan(replace(gang(), pairing="nearest"), snapshot_of([node("n0", zone="z1")]))
    one = next(d for d in made.decisions.values() if d.request.phase == DECODE)
    assert "pair     nearest: chat-prefill-0 on n0" in placement_block(one, made)
