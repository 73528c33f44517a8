"""The PodGroup of a gang: its minimum, its owners, its queue, and whose name it bears."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from admission.gangs.gang_view import GangView, view_of
from admission.gangs.owners import Owners
from admission.release.pod_group import differs, group_names, is_ours, wanted_pod_group
from tests.admission.held_pods import CHAT, bound, held, released, stored
from tests.admission.pods import Raw
from topology.labels import GROUP_NAME, MIN_DECODE, MIN_PREFILL, QUEUE_NAME, TASK_SPEC
from topology.objects import Pod, PodGroup


def view(*pods: Raw) -> GangView:
    return view_of(CHAT, [stored(pod) for pod in pods])


def nobody(pod: Pod) -> None:
    return None


def group_of(*pods: Raw, owners: Owners | None = None) -> dict[str, Any]:
    seen = view(*pods)
    everybody = [*seen.held, *seen.released, *seen.bound]
    value = {"isochrone.dev/placement": "x"}
    return wanted_pod_group(seen, everybody, owners.top_owner if owners else nobody, value)


def existing(**spec: Any) -> PodGroup:
    return msgspec.convert({"metadata": {"name": "isochrone-chat"}, "spec": spec}, PodGroup)


def test_a_gang_of_two_halves() -> None:
    made = group_of(held("p0", gpus=2), held("d0", gpus=4), held("d1", gpus=4))
    meta = made.pop("metadata")
    assert made == {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "spec": {
            "minMember": 2,
            "minTaskMember": {"prefill": 1, "decode": 1},
            "minResources": {"nvidia.com/gpu": "6"},
            "queue": "default",
        },
    }
    assert (meta["name"], meta["namespace"]) == ("isochrone-chat", "team")
    assert meta["labels"] == {"isochrone.dev/gang": "chat", "app.kubernetes.io/managed-by": "isochrone"}
    assert meta["annotations"] == {"isochrone.dev/placement": "x"}


def test_the_minimum_is_the_sum_of_its_halves() -> None:
    wishes = {MIN_PREFILL: "2", MIN_DECODE: "3"}
    spec = group_of(held("p0", annotations=wishes), held("d0", annotations=wishes))["spec"]
    assert spec["minMember"] == 5
    assert spec["minTaskMember"] == {"prefill": 2, "decode": 3}


def test_whoever_is_still_to_come_is_taken_to_be_like_the_largest_that_is_here() -> None:
    wishes = {MIN_PREFILL: "1", MIN_DECODE: "3"}
    pods = [held("p0", gpus=1, annotations=wishes), held("d0", gpus=2), held("d1", gpus=4)]
    assert group_of(*pods)["spec"]["minResources"] == {"nvidia.com/gpu": "11"}  # 1 + 2 + 4 + 4


def test_the_smallest_pods_of_each_phase_make_up_the_minimum() -> None:
    pods = [held("p0", gpus=8), held("p1", gpus=2), held("d0", gpus=4), bound(held("d1", gpus=1), "n1")]
    assert group_of(*pods)["spec"]["minResources"] == {"nvidia.com/gpu": "3"}


def test_quantities_are_written_as_kubernetes_reads_them() -> None:
    pod = held("p0")
    asked = {"cpu": "1500m", "memory": "2Gi", "nvidia.com/gpu": "1"}
    pod["spec"]["containers"][0]["resources"]["requests"] |= asked
    assert group_of(pod, held("d0"))["spec"]["minResources"] == {
        "cpu": "1500m",
        "memory": "2147483648",
        "nvidia.com/gpu": "2",
    }


def test_a_quantity_that_cannot_be_read_asks_for_nothing() -> None:
    broken = held("d0")
    broken["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "many"
    assert group_of(held("p0"), broken)["spec"]["minResources"] == {"nvidia.com/gpu": "1"}


def test_queue_and_priority_come_from_whichever_pod_names_them() -> None:
    pods = [held("p0"), held("d0", annotations={QUEUE_NAME: "gold"}, priorityClassName="high")]
    spec = group_of(*pods)["spec"]
    assert (spec["queue"], spec["priorityClassName"]) == ("gold", "high")
    assert "priorityClassName" not in group_of(held("p0"))["spec"]


# --- roles -------------------------------------------------------------------------------------


def role(name: str, value: str) -> Raw:
    return held(name, annotations={TASK_SPEC: value})


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([role("p0", "head"), role("d0", "worker")], {"head": 1, "worker": 1}),
        ([role("p0", "head"), held("d0")], {"head": 1, "decode": 1}),
        ([held("d0")], {"prefill": 1, "decode": 1}),  # the other half is still to come
        ([role("p0", "worker"), role("d0", "worker")], None),  # one role for both phases
        ([role("p0", "head"), role("d0", "a"), role("d1", "b")], None),  # two roles in one phase
        ([role("d0", "prefill")], None),  # would take the other half's name
    ],
)
def test_roles_that_people_gave_are_kept(pods: list[Raw], expected: dict[str, int] | None) -> None:
    spec = group_of(*pods)["spec"]
    assert spec.get("minTaskMember") == expected
    assert spec["minMember"] == 2


def test_a_role_may_be_a_label() -> None:
    pod = held("p0")
    del pod["metadata"]["annotations"][TASK_SPEC]
    pod["metadata"]["labels"][TASK_SPEC] = "head"
    assert group_of(pod, held("d0"))["spec"]["minTaskMember"] == {"head": 1, "decode": 1}


# --- owners ------------------------------------------------------------------------------------


def test_pods_without_owner_own_it_themselves() -> None:
    assert group_of(held("p0"), held("d0"))["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "d0", "uid": "uid-d0"},
        {"apiVersion": "v1", "kind": "Pod", "name": "p0", "uid": "uid-p0"},
    ]


def test_owners_are_named_once_and_block_no_deletion() -> None:
    replicas = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "chat-1", "uid": "rs"}}
    pods = [held(name, owner=replicas) for name in ("d0", "d1", "p0")]
    made = group_of(*pods, owners=Owners())
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat-1", "uid": "rs"}
    ]


def test_no_more_owners_than_an_object_may_carry() -> None:
    many = group_of(*(held(f"d{i:03}") for i in range(150)))["metadata"]["ownerReferences"]
    assert len(many) == 100
    assert many[0]["name"] == "d000"


# --- names -------------------------------------------------------------------------------------


def test_groups_by_name_and_whose_they_are() -> None:
    stray = held("d3")
    del stray["metadata"]["annotations"][GROUP_NAME]
    seen = view(
        held("p0"),
        released(held("d0"), "n1"),
        bound(held("d1", annotations={GROUP_NAME: "theirs"}), "n1"),
        stray,
    )
    found = {name: [p.metadata.name for p in pods] for name, pods in group_names(seen).items()}
    assert found == {"isochrone-chat": ["p0", "d0"], "theirs": ["d1"]}
    assert is_ours("isochrone-chat", "chat")
    assert not is_ours("theirs", "chat")
    assert not is_ours("isochrone-chat", "code")


def test_long_gangs_have_a_name_that_an_object_may_bear() -> None:
    gang = "a" * 63
    pod = stored(held("p0", gang=gang))
    seen = view_of(("team", gang), [pod])
    made = wanted_pod_group(seen, seen.members, nobody, {})
    (named,) = group_names(seen)
    assert made["metadata"]["name"] == named
    assert len(named) <= 63
    assert is_ours(named, gang)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"minMember": 2, "minTaskMember": {"prefill": 1, "decode": 1}, "queue": "other"}, False),
        ({"minMember": 1, "minTaskMember": {"prefill": 1, "decode": 1}}, True),
        ({"minMember": 2}, True),
        ({"minMember": 2, "minTaskMember": {"prefill": 2}}, True),
        ({}, True),
    ],
)
def test_only_what_holds_the_minimum_makes_a_difference(spec: dict[str, Any], expected: bool) -> None:
    assert differs(existing(**spec), group_of(held("p0"), held("d0"))) is expected


def test_a_gang_without_roles_is_the_same_as_a_group_without_them() -> None:
    wanted = group_of(role("p0", "worker"), role("d0", "worker"))
    assert not differs(existing(minMember=2), wanted)
    assert not differs(existing(minMember=2, minTaskMember={}), wanted)
