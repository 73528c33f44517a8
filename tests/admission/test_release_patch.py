"""The patch that lets a pod go, against every shape of a pod; done by the API server's rules as the cluster file has
them, and read again by what the planner calls acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jsonpatch
import msgspec
import pytest

from admission.demo.cluster_kinds import kind_named
from admission.demo.file_cluster import FileCluster
from admission.release.release_patch import annotate, gate_there, release_patch
from tests.admission.held_pods import NAMESPACE, held, required, stored, within
from tests.admission.pods import Raw, decoded
from tests.scheduler.clusters import node
from topology.cluster.isochrone_sets import NodeSet
from topology.labels import GATE, HOSTNAME, ZONE
from topology.selectors import accepts

SET = NodeSet(ZONE, ("a", "b"), 4)
OURS = {"key": ZONE, "operator": "In", "values": ["a", "b"]}
ON_N1 = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
PREFER = {"weight": 1, "preference": {"matchExpressions": [within("disk", "ssd")]}}
APART = {
    "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"x": 1}}]}
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def let_go(pod: Raw, node_set: NodeSet | None = SET, annotations: dict[str, str] | None = None) -> Raw:
    """The pod after its release, as the API server accepts it."""
    cluster = FileCluster([])
    made = cluster.create_pod(pod)
    patch = msgspec.json.encode(release_patch(decoded(made), node_set, annotations or {}))
    after: Raw = cluster.store.patch_json(kind_named("pods"), NAMESPACE, made["metadata"]["name"], patch)
    assert jsonpatch.apply_patch(made, patch)["spec"].get("affinity") == after["spec"].get("affinity")
    return after


def terms(*expressions: Sequence[Raw]) -> Raw:
    return {"nodeSelectorTerms": [{"matchExpressions": list(each)} for each in expressions]}


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        (None, {"nodeAffinity": {REQUIRED: terms([OURS])}}),
        ({}, {"nodeAffinity": {REQUIRED: terms([OURS])}}),
        (APART, {**APART, "nodeAffinity": {REQUIRED: terms([OURS])}}),
        ({"nodeAffinity": {}}, {"nodeAffinity": {REQUIRED: terms([OURS])}}),
        (
            {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFER]}},
            {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [PREFER],
                    REQUIRED: terms([OURS]),
                }
            },
        ),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}, {"nodeAffinity": {REQUIRED: terms([OURS])}}),
        (
            required({"matchExpressions": [within("gpu", "h100")]}),
            required({"matchExpressions": [within("gpu", "h100"), OURS]}),
        ),
        (
            required({"matchExpressions": [within("gpu", "h100")]}, {"matchExpressions": [within("gpu", "b200")]}),
            required(
                {"matchExpressions": [within("gpu", "h100"), OURS]}, {"matchExpressions": [within("gpu", "b200"), OURS]}
            ),
        ),
        (required({"matchFields": [ON_N1]}), required({"matchFields": [ON_N1], "matchExpressions": [OURS]})),
        (
            required({"matchFields": [ON_N1], "matchExpressions": []}),
            required({"matchFields": [ON_N1], "matchExpressions": [OURS]}),
        ),
        # An empty term matches nothing, and the API server lets nobody change that.
        (
            required({}, {"matchExpressions": [within("gpu", "h100")]}),
            required({}, {"matchExpressions": [within("gpu", "h100"), OURS]}),
        ),
        (required({"matchExpressions": []}), required({"matchExpressions": []})),
    ],
)
def test_every_term_gets_our_set(affinity: Raw | None, expected: Raw) -> None:
    pod = held("d0") if affinity is None else held("d0", affinity=affinity)
    after = let_go(pod)
    assert after["spec"]["affinity"] == expected
    assert "schedulingGates" not in after["spec"]


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        required({"matchExpressions": [within("team", "x")]}, {"matchExpressions": [within("team", "y")]}),
        required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["in-x", "out-x"]}]}),
        required({}, {"matchExpressions": [within("team", "x")]}),
        required({}),
    ],
)
def test_a_released_pod_goes_nowhere_else_than_it_could_before_and_the_set_allows(affinity: Raw | None) -> None:
    nodes = [
        node(f"{where}-{team}", zone=zone, labels={"team": team})
        for where, zone in (("in", "a"), ("out", "c"))
        for team in ("x", "z")
    ]
    pod = held("d0") if affinity is None else held("d0", affinity=affinity)
    before, after = decoded(pod).spec, decoded(let_go(pod)).spec
    for each in nodes:
        inside = (each.metadata.labels or {})[ZONE] in SET.values
        assert accepts(after, each) == (accepts(before, each) and inside), each.metadata.name


def test_without_a_set_the_affinity_stays() -> None:
    assert "affinity" not in let_go(held("d0"), None)["spec"]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_only_our_gate_goes_wherever_it_stands(position: int) -> None:
    pod = held("d0")
    others = [{"name": "a.example/one"}, {"name": "b.example/two"}]
    pod["spec"]["schedulingGates"] = [*others[:position], {"name": GATE}, *others[position:]]
    assert let_go(pod)["spec"]["schedulingGates"] == others


@pytest.mark.parametrize("gates", [None, [], [{"name": "another"}]])
def test_a_pod_without_our_gate_is_not_touched(gates: list[Raw] | None) -> None:
    pod = held("d0")
    del pod["spec"]["schedulingGates"]
    if gates is not None:
        pod["spec"]["schedulingGates"] = gates
    with pytest.raises(LookupError, match=r"team/d0 has no gate isochrone\.dev/reach"):
        release_patch(stored(pod), SET, {})
    with pytest.raises(LookupError):
        gate_there(stored(pod))


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda pod: pod["spec"]["schedulingGates"].pop(0),  # the gate before ours is gone
        lambda pod: pod["spec"]["schedulingGates"].pop(1),  # ours is gone
        lambda pod: pod["spec"].pop("schedulingGates"),
        lambda pod: pod["metadata"].update(uid="another"),
    ],
)
def test_what_changed_since_it_was_read_is_never_overwritten(meanwhile: Any) -> None:
    raw = held("d0")
    raw["spec"]["schedulingGates"] = [{"name": "another"}, {"name": GATE}]
    raw["metadata"]["uid"] = "u1"
    patch = msgspec.json.encode(release_patch(decoded(raw), SET, {}))
    assert jsonpatch.apply_patch(raw, patch)["spec"]["schedulingGates"] == [{"name": "another"}]
    meanwhile(raw)
    with pytest.raises((jsonpatch.JsonPatchException, jsonpatch.JsonPointerException)):
        jsonpatch.apply_patch(raw, patch)


def test_annotations_go_beside_those_that_are_there() -> None:
    value = {"isochrone.dev/placement": "node  n1\nreach 8.2 us", "a~b/c": "tilde"}
    pod = held("d0", annotations={"mine": "1"})
    after = let_go(pod, annotations=value)
    assert after["metadata"]["annotations"].items() >= {"mine": "1", **value}.items()
    again = jsonpatch.apply_patch(after, msgspec.json.encode(annotate(decoded(after), {"a~b/c": "newer"})))
    assert again["metadata"]["annotations"] == {**after["metadata"]["annotations"], "a~b/c": "newer"}


@pytest.mark.parametrize("empty", [True, False])
def test_the_map_of_annotations_is_made_where_there_is_none(empty: bool) -> None:
    pod = held("d0")
    del pod["metadata"]["annotations"]
    if empty:
        pod["metadata"]["annotations"] = {}
    assert let_go(pod, annotations={"x": "1"})["metadata"]["annotations"] == {"x": "1"}
    assert let_go(pod)["metadata"].get("annotations", {}) == {}


def test_the_hostnames_of_a_set_stand_in_the_order_of_the_plan() -> None:
    names = tuple(f"n{i}" for i in range(128))
    after = let_go(held("d0"), NodeSet(HOSTNAME, names, 128))
    (term,) = after["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": list(names)}]}
