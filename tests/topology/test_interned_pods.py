"""What is kept of a watched pod: nothing that is asked of it is lost, equal parts are one object."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology import labels
from topology.cluster.state import ClusterState
from topology.gpus.allocations import allocation_of
from topology.gpus.forms import FORMS, GPU_ANNOTATIONS
from topology.kube.interned_pods import InternedPods, read_of_anybody
from topology.objects import Node, Pod
from topology.resources import readable_request


def pod_of(name: str, **more: Any) -> Pod:
    spec = {
        "nodeName": "n1",
        "schedulerName": "volcano",
        "priority": 7,
        "nodeSelector": {"gpu": "h100"},
        "overhead": {"cpu": "100m"},
        "containers": [
            {
                "name": "engine",
                "image": "engine:v1",
                "args": ["--model", "m"],
                "env": [{"name": "A", "value": "b"}],
                "resources": {"requests": {"cpu": "4"}, "limits": {"nvidia.com/gpu": "1", "cpu": "4"}},
            }
        ],
        "initContainers": [{"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
    metadata = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "labels": {"app": "x", "volcano.sh/preemptable": "false"},
        "creationTimestamp": "2026-11-30T06:18:00Z",
        "annotations": {"cni.example/status": "long", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,30:;"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}],
    }
    content = {"metadata": metadata | more.pop("metadata", {}), "spec": spec | more.pop("spec", {}), **more}
    return msgspec.convert(content, Pod)


OURS = {"labels": {labels.PHASE: "decode", labels.GANG: "g"}}


def test_of_others_only_what_is_asked_of_them_stays() -> None:
    pod = InternedPods()(pod_of("a"))
    assert pod.metadata == msgspec.convert(
        {
            "name": "a",
            "namespace": "team",
            "uid": "uid-a",
            "resourceVersion": "7",
            "labels": {"volcano.sh/preemptable": "false"},
            "creationTimestamp": "2026-11-30T06:18:00Z",
            "annotations": {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,30:;"},
        },
        type(pod.metadata),
    )
    (engine,), (proxy,) = pod.spec.containers, pod.spec.init_containers or ()
    assert (engine.name, engine.image, engine.args, engine.env) == ("", "", None, None)
    assert engine.resources.limits == {"nvidia.com/gpu": "1", "cpu": "4"}
    assert proxy.restart_policy == "Always"
    assert (pod.spec.node_name, pod.spec.priority, pod.spec.node_selector) == ("n1", 7, {"gpu": "h100"})
    # By hand: 4 cores of the engine, 1 of the sidecar, 0.1 overhead.
    assert readable_request(pod.spec)[0] == {"cpu": 5100, "nvidia.com/gpu": 1, "pods": 1}


@pytest.mark.parametrize(
    "ours",
    [
        {"metadata": OURS},
        {"metadata": {"labels": {labels.PHASE: "decode"}}},
        {"spec": {"schedulingGates": [{"name": labels.GATE}]}},
    ],
)
def test_ours_are_kept_whole(ours: dict[str, Any]) -> None:
    whole = pod_of("a", **ours)
    assert InternedPods()(whole) == whole


def test_pods_of_one_template_share_their_parts() -> None:
    keep = InternedPods()
    for more in ({}, {"metadata": OURS}):
        a, b = keep(pod_of("a", **more)), keep(pod_of("b", **more, spec={"nodeName": "n2"}))
        assert a.spec.containers is b.spec.containers
        assert (a.spec.node_name, b.spec.node_name) == ("n1", "n2")
        assert (a.metadata.uid, b.metadata.uid) == ("uid-a", "uid-b")
    other = keep(pod_of("c", spec={"containers": [{"resources": {"requests": {"cpu": "2"}}}]}))
    assert readable_request(other.spec)[0]["cpu"] == 3100


def test_a_pods_own_arguments_do_not_keep_what_it_asks_for_from_being_shared() -> None:
    keep = InternedPods()
    asked = {"resources": {"requests": {"cpu": "4"}}}
    a, b = (keep(pod_of(name, spec={"containers": [{"args": [name], **asked}]})) for name in "ab")
    assert a.spec.containers is b.spec.containers


def test_what_is_shared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topology.kube.interned_pods._SHARED_LIMIT", 3)
    keep = InternedPods()
    for i in range(20):
        retained = keep(pod_of(f"p{i}", spec={"priority": i, "nodeName": f"n{i}"}, metadata={"namespace": f"team{i}"}))
        assert (retained.spec.priority, retained.spec.node_name, retained.metadata.namespace) == (
            i,
            f"n{i}",
            f"team{i}",
        )
    assert len(keep._specs) <= 3
    assert len(keep._names) <= 12


def test_every_annotation_of_the_forms_is_kept() -> None:
    keys = {*GPU_ANNOTATIONS, *(key for form in FORMS for key in form.allocated)}
    keys |= {form.pins for form in FORMS if form.pins} | {labels.GROUP_NAME, labels.DECISION}
    assert [key for key in sorted(keys) if not read_of_anybody(key)] == []
    assert not read_of_anybody("cni.example/gpu")
    assert not read_of_anybody("example.com/note")


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "x/y"]),
    st.sampled_from(["0", "1", "2", "1500m", "4Gi", "broken"]),
    max_size=3,
)


@given(
    asked=st.lists(AMOUNTS, max_size=2),
    note=st.sampled_from(["cni.example/status", "gpu-memory", "volcano.sh/vgpu-ids-new", labels.PREFIX + "gpu-memory"]),
    value=st.sampled_from(["", "10Gi", "GPU-a,NVIDIA,1000,30:;"]),
    ours=st.booleans(),
    phase=st.sampled_from(["Running", "Pending", "Failed"]),
)
def test_a_cluster_of_kept_pods_is_the_cluster(
    asked: list[dict[str, str]], note: str, value: str, ours: bool, phase: str
) -> None:
    metadata = (OURS if ours else {}) | {"annotations": {note: value}}
    spec = {"containers": [{"name": "c", "resources": {"limits": amounts}} for amounts in asked]}
    whole = pod_of("a", metadata=metadata, spec=spec, status={"phase": phase})
    retained = InternedPods()(whole)
    assert allocation_of(retained) == allocation_of(whole)
    node = {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "8", "memory": "9Gi"}}}
    used, doubts, gangs = [], [], []
    for pod in (whole, retained):
        state = ClusterState()
        state.apply_nodes([(None, msgspec.convert(node, Node))])
        state.apply_pods([(None, pod)])
        used.append(state.snapshot(0.0, 0.0).used.tolist())
        doubts.append(state.unreadable_pods)
        gangs.append({key: list(pods) for key, pods in state.gangs().items()})
    assert used[0] == used[1]
    assert doubts[0] == doubts[1]
    assert gangs[0] == gangs[1]
