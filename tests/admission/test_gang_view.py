"""From live pods to what the planner is asked: who is a member, who a partner, what holds, and whether all are here."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from admission.gangs.gang_view import GangView, complete, lost_partners, request_of, view_of
from scheduler.model.request import pod_request_of
from scheduler.planning.gang_usage import held_by_gang
from tests.admission.held_pods import CHAT, bound, held, released, required, stored, within
from tests.admission.pods import Raw
from tests.scheduler.clusters import node
from topology.cluster.snapshot import NodeTable, snapshot_of
from topology.kube.interned_pods import InternedPods
from topology.labels import (
    DECISION,
    GPU_MEMORY,
    HOSTNAME,
    MIN_DECODE,
    MIN_PREFILL,
    NVIDIA_GPU,
    PAIRING,
    REACH,
    REACH_MODE,
    REACH_SIZE,
)
from topology.objects import Pod

PREFILLS = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "chat-prefill", "uid": "rs-p"}}
DECODES = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "chat-decode", "uid": "rs-d"}}


def view(*pods: Raw | Pod) -> GangView:
    return view_of(CHAT, [pod if isinstance(pod, Pod) else stored(pod) for pod in pods])


def names(pods: tuple[Pod, ...]) -> list[str]:
    return [pod.metadata.name for pod in pods]


# --- who is who --------------------------------------------------------------------------------


def test_pods_are_sorted_by_what_happens_to_them() -> None:
    seen = view(
        held("d2"),
        held("p0"),
        held("d1", gates_before=("example.com/budget",)),
        released(held("d0"), "n1"),
        bound(held("p1"), "n2"),
        stored(held("d3"), deletionTimestamp="2026-11-02T10:41:07Z"),
        stored(bound(held("d4"), "n1"), deletionTimestamp="2026-11-02T10:41:07Z"),
    )
    assert names(seen.members) == ["d2", "p0"]
    assert names(seen.blocked) == ["d1"]
    assert names(seen.held) == ["d2", "p0", "d1"]
    assert names(seen.released) == ["d0"]
    assert names(seen.bound) == ["p1"]
    assert seen.started
    assert not view(held("p0"), held("d0")).started


@pytest.mark.parametrize("explained", [True, False])
def test_a_pod_that_went_by_hand_is_nobody(explained: bool) -> None:
    by_hand = held("d0")
    if explained:  # it was told why it is held, which leaves the mark of a decision, and then its bound was given up
        by_hand["metadata"]["annotations"] |= {
            DECISION: "abc1234 (snapshot 1, facts 0.1s old)",
            REACH_MODE: "preferred",
        }
    del by_hand["spec"]["schedulingGates"]
    seen = view(by_hand)
    assert (seen.held, seen.released, seen.bound) == ((), (), ())


def test_after_the_other_gate_is_gone_a_blocked_pod_is_a_member() -> None:
    pod = held("d0", gates_before=("another",))
    assert names(view(pod).blocked) == ["d0"]
    pod["spec"]["schedulingGates"].pop(0)
    assert names(view(pod).members) == ["d0"]


# --- what holds --------------------------------------------------------------------------------


def test_the_defaults_of_a_gang() -> None:
    seen = view(held("p0"), held("d0"))
    value = seen.settings
    assert (value.reach_us, value.reach_size_bytes, value.mode, value.pairing) == (1000.0, 65536, "required", "all")
    assert (value.min_prefill, value.min_decode) == (1, 1)
    assert not seen.explicit_minimum
    assert seen.problems == ()


def test_the_strictest_wins() -> None:
    seen = view(
        held("p0", annotations={REACH: "500us", REACH_SIZE: "8Mi", PAIRING: "nearest", MIN_DECODE: "2"}),
        held("d0", annotations={REACH: "200us", PAIRING: "nearest", MIN_DECODE: "3"}),
        held("d1", annotations={REACH_MODE: "required", MIN_PREFILL: "2"}),
    )
    value = seen.settings
    assert (value.reach_us, value.reach_size_bytes) == (200.0, 8 * 2**20)
    assert value.mode == "required"
    assert value.pairing == "all"  # d1 did not ask for less
    assert (value.min_prefill, value.min_decode) == (2, 3)
    assert seen.explicit_minimum


def test_settings_of_a_pod_that_is_leaving_do_not_count() -> None:
    gone = stored(held("d9", annotations={REACH: "1us"}), deletionTimestamp="2026-11-02T10:41:07Z")
    assert view(held("p0"), gone).settings.reach_us == 1000.0


def test_a_wrong_setting_counts_as_its_default_and_is_told_once() -> None:
    pods = [stored(held(name)) for name in ("p0", "d0")]
    spoiled = [
        msgspec.structs.replace(
            pod,
            metadata=msgspec.structs.replace(
                pod.metadata, annotations={**(pod.metadata.annotations or {}), REACH: "near"}
            ),
        )
        for pod in pods
    ]
    seen = view(*spoiled)
    assert seen.settings.reach_us == 1000.0
    assert len(seen.problems) == 1
    assert "near" in seen.problems[0]


# --- what the planner is asked -----------------------------------------------------------------


TABLE = NodeTable(
    [
        node("n1", zone="a", leaf="l1"),
        node("n2", zone="a", leaf="l1", ready=False),
        node("n3", zone="a", leaf="l2"),
        node("n4", zone="b", leaf="l3"),
    ]
)


def test_members_and_partners_of_a_request() -> None:
    seen = view(
        held("p0", gpus=2),
        held("d1", gates_before=("another",)),
        released(held("d0"), "n1", required({"matchExpressions": [within(HOSTNAME, "n1", "n2", "n3", "n9")]})),
        bound(held("p1"), "n4"),
    )
    asked = request_of(seen, TABLE)
    assert (asked.namespace, asked.name) == CHAT
    assert [(m.uid, m.name, m.phase, m.amounts) for m in asked.members] == [
        ("uid-p0", "p0", "prefill", {NVIDIA_GPU: 2, "pods": 1})
    ]
    partners = {p.name: (p.phase, p.nodes, p.bound) for p in asked.partners}
    # n2 is down; it is still one of the places where the released pod may end up.
    assert partners == {"p1": ("prefill", ("n4",), True), "d0": ("decode", ("n1", "n2", "n3"), False)}
    assert (asked.min_prefill, asked.min_decode) == (1, 1)
    assert asked.satisfied


def test_each_released_partner_counts_by_its_own_wishes() -> None:
    seen = view(
        released(held("d0", nodeSelector={HOSTNAME: "n3"}), "n3"),
        released(held("d1"), "n1", required({"matchExpressions": [within(HOSTNAME, "n1")]})),
        released(held("d2"), "n1"),
    )
    partners = {p.name: p.nodes for p in request_of(seen, TABLE).partners}
    assert partners == {"d0": ("n3",), "d1": ("n1",), "d2": ("n1", "n2", "n3", "n4")}


def test_the_request_carries_what_the_gang_wants() -> None:
    wishes = {REACH: "100us", REACH_SIZE: "1Mi", MIN_PREFILL: "2", MIN_DECODE: "4"}
    asked = request_of(view(held("p0", annotations=wishes)), TABLE)
    assert (asked.bound.us, asked.bound.size_bytes) == (100.0, 2**20)
    assert (asked.mode, asked.pairing) == ("required", "all")
    assert (asked.still_needed("prefill"), asked.still_needed("decode")) == (2, 4)


def test_pods_that_are_read_together_ask_what_each_asks_by_itself() -> None:
    wishes, intern = {GPU_MEMORY: "20Gi"}, InternedPods()
    pods = [
        intern(stored(pod))
        for pod in (
            held("d0"),
            held("d1"),
            held("d2", gpus=2),
            held("d3", nodeSelector={"pool": "a"}),
            held("d4", annotations=wishes),
            held("d5", annotations=wishes),
            held("p0"),
            held("p1"),
        )
    ]
    (d0, d1, _, _, d4, d5, *_) = (pod.equivalence_class for pod in pods)
    assert d0 == d1 != d4 == d5
    members = request_of(view(*pods), TABLE).members
    assert list(members) == [pod_request_of(pod) for pod in pods]
    assert [a.spec is b.spec for a, b in pairwise(members)] == [True, False, False, False, True, True, True]


def test_quantities_that_cannot_be_read_or_added_up_are_no_error() -> None:
    broken = held("d0")
    broken["spec"]["containers"][0]["resources"]["requests"][NVIDIA_GPU] = "many"
    assert pod_request_of(stored(broken)).amounts == {"pods": 1}
    huge = held("d0")
    huge["spec"]["containers"][0]["resources"] = {"requests": {"memory": str(2**63 - 1)}}
    huge["spec"]["containers"] *= 2
    amounts = pod_request_of(stored(huge)).amounts
    row, _ = TABLE.vector(amounts)
    assert row[TABLE.column["memory"]] > 2**40


# --- are all here? -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefill", "decode", "replicas", "expected"),
    [
        (1, 2, {"rs-p": 1, "rs-d": 2}, True),
        (1, 1, {"rs-p": 1, "rs-d": 2}, False),
        (1, 3, {"rs-p": 1, "rs-d": 2}, True),  # a rollout in between
        (1, 0, {"rs-p": 1, "rs-d": 2}, True),  # whose pods did not come at all is not waited for here
        (1, 2, {"rs-p": 1}, False),  # an owner that is not known yet has no count
        (1, 2, {}, False),
    ],
)
def test_all_are_here_when_every_owner_has_its_pods(
    prefill: int, decode: int, replicas: dict[str, int], expected: bool
) -> None:
    pods = [held(f"p{i}", owner=PREFILLS) for i in range(prefill)]
    pods += [held(f"d{i}", owner=DECODES) for i in range(decode)]
    assert complete(view(*pods), replicas) is expected


def test_every_pod_of_an_owner_counts_whatever_became_of_it() -> None:
    seen = view(
        held("d0", owner=DECODES),
        held("d1", owner=DECODES, gates_before=("another",)),
        released(held("d2", owner=DECODES), "n1"),
        bound(held("d3", owner=DECODES), "n1"),
        stored(held("d4", owner=DECODES), deletionTimestamp="2026-11-02T10:41:07Z"),
    )
    assert complete(seen, {"rs-d": 4})
    assert not complete(seen, {"rs-d": 5})


@pytest.mark.parametrize(
    ("pods", "minimum", "expected"),
    [
        (("p0", "d0"), {}, False),  # nobody said how many: only a quiet time tells
        (("p0", "d0"), {MIN_DECODE: "1"}, True),
        (("p0", "d0"), {MIN_DECODE: "2"}, False),
        (("p0", "d0", "d1"), {MIN_DECODE: "2"}, True),
        (("d0", "d1"), {MIN_DECODE: "2"}, False),
        (("p0", "p1", "d0"), {MIN_PREFILL: "2"}, True),
    ],
)
def test_pods_without_owner_are_all_here_once_their_stated_minimum_is(
    pods: tuple[str, ...], minimum: dict[str, str], expected: bool
) -> None:
    assert complete(view(*(held(name, annotations=minimum) for name in pods)), {}) is expected


def test_owners_are_asked_before_the_minimum() -> None:
    value = {MIN_DECODE: "1"}
    one = view(held("p0", annotations=value), held("d0", annotations=value, owner=DECODES))
    assert not complete(one, {"rs-d": 2})
    assert complete(one, {"rs-d": 1})


# --- partners on nodes that are not known -------------------------------------------------------


def test_nobody_joins_partners_whose_nodes_are_not_known() -> None:
    table = NodeTable([node("n1", gpus=8)])
    here, gone = bound(held("p0"), "n1"), bound(held("p1"), "n9")
    assert names(lost_partners(view(here, held("d0")), table)) == []
    assert names(lost_partners(view(here, gone, held("d0")), table)) == ["p1"]


def test_what_a_bound_partner_holds_is_known() -> None:
    there = view(bound(held("p0", gpus=6), "n1"), held("d0"))
    snapshot = snapshot_of([node("n1"), node("n2")], [("n1", {NVIDIA_GPU: 8})])
    own = held_by_gang(request_of(there, snapshot.table), snapshot)
    assert own[:, snapshot.table.column[NVIDIA_GPU]].tolist() == [6, 0]
