"""What people are told, when, and how often: by Events and annotations that the API server has."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admission.controller.controller import Controller
from admission.demo import volcano_shapes
from admission.demo.file_cluster import FileCluster
from admission.gangs.gang_view import request_of, view_of
from admission.report.reporter import GangReporter
from scheduler.explain.annotation import placement_block
from scheduler.extender.session import SessionLedger
from scheduler.extender.verbs import prioritize
from scheduler.extender.wire import TaskStatus
from scheduler.model.decision import Plan
from scheduler.model.policy import Policy
from scheduler.planning.plan import plan
from tests.admission.controllers import (
    annotation,
    bind_released,
    controlling,
    create,
    events,
    gated,
    groups,
    pods_of,
    reasons,
    released,
    writes,
)
from tests.admission.held_pods import CHAT, NAMESPACE, held
from tests.admission.pods import Raw
from tests.topology.list_watch_server import LIMIT_S, running, until
from topology.kube.events import EventSink
from topology.labels import CONFLICT, DECISION, ENABLED, GATE, HOSTNAME, PLACEMENT, REACH, REACH_MODE, SIGNAL

# One page over NVSwitch inside a node 8.19 us, over RDMA on one leaf 24.4 us, to the other zone 2 ms.
NODES: list[dict[str, Any]] = [
    {"name": "n1", "zone": "a", "spine": "s", "leaf": "l1", "gpus": 4, "rdma": True},
    {"name": "n2", "zone": "a", "spine": "s", "leaf": "l1", "gpus": 4, "rdma": True},
    {"name": "z-far", "zone": "b", "spine": "t", "leaf": "m1", "gpus": 4, "rdma": True},
]


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster(NODES) as made:
        yield made


async def planned_pair(cluster: FileCluster) -> str:
    """A gang of two that waits for its binding; the node of both."""
    create(cluster, held("p0"), held("d0"))
    await until(lambda: "isochrone-chat" in groups(cluster))
    (node,) = set(released(cluster).values())
    return node


def group_events(cluster: FileCluster) -> list[tuple[str, str]]:
    uid = groups(cluster)["isochrone-chat"]["metadata"]["uid"]
    return [(event["reason"], event["message"]) for event in cluster.events_of(uid)]


# --- placed ------------------------------------------------------------------------------------


async def test_placed_is_said_after_the_binding_and_not_before(cluster: FileCluster, tmp_path: Path) -> None:
    """Case C131: proposed is not placed; what is said follows what the API server shows."""
    async with controlling(cluster, tmp_path) as controller:
        node = await planned_pair(cluster)
        assert annotation(cluster, "d0").startswith("planned")
        assert await controller.events.drain(LIMIT_S)
        assert cluster.objects("events") == []
        before = len(writes(cluster))
        bind_released(cluster)
        await until(lambda: reasons(cluster, "p0") == reasons(cluster, "d0") == ["Placed"])
        await until(lambda: bool(group_events(cluster)))
        assert len(writes(cluster)) == before, "as planned: the words are there already"
    (text,) = [message for _, message in events(cluster, "d0")]
    assert text.startswith(f"On {node}, 8.19 us from prefill p0 (bound 1.00 ms, same node, NVLink, modelled); score ")
    ((reason, text),) = group_events(cluster)
    assert reason == "Placed"
    assert text.startswith("Placed 1 prefill, 1 decode of the gang chat; worst pair p0 and d0 at 8.19 us")


async def test_another_node_inside_the_set_is_said_and_written(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path):
        node = await planned_pair(cluster)
        other = "n1" if node == "n2" else "n2"
        cluster.bind(NAMESPACE, "d0", other)
        cluster.bind(NAMESPACE, "p0", node)
        await until(lambda: reasons(cluster, "p0") == reasons(cluster, "d0") == ["Placed"])
        await until(lambda: annotation(cluster, "d0").startswith("placed"))
    text = events(cluster, "d0")[0][1]
    assert text.startswith(f"On {other}, 24.4 us from prefill p0 (bound 1.00 ms, same leaf, RDMA, modelled); ")
    assert f"planned {node}, Volcano chose {other} inside the isochrone set" in text
    assert f"of {node}, which was planned" in annotation(cluster, "d0")
    assert annotation(cluster, "p0").startswith("planned"), "it went as planned"


async def test_a_pair_beyond_its_bound_is_a_breach(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path):
        node = await planned_pair(cluster)
        cluster.bind(NAMESPACE, "p0", node)
        cluster.bind(NAMESPACE, "d0", "z-far")
        await until(lambda: set(reasons(cluster, "d0")) == {"Placed", "ReachBreached"})
        await until(lambda: set(reasons(cluster, "p0")) == {"Placed", "ReachBreached"})
    output = dict(events(cluster, "d0"))
    assert "Reach to prefill p0 is 2.00 ms (bound 1.00 ms" in output["ReachBreached"]
    assert "outside the isochrone set" in output["Placed"]


async def test_of_several_partners_the_farthest_is_named(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path):
        create(cluster, held("p0"), held("d0"), held("d1", nodeSelector={HOSTNAME: "n1"}))
        create(cluster, held("d2", nodeSelector={HOSTNAME: "n2"}))
        await until(lambda: "isochrone-chat" in groups(cluster))
        bind_released(cluster)
        await until(lambda: reasons(cluster, "p0") == ["Placed"])
    assert "24.4 us from decode d" in events(cluster, "p0")[0][1]


# --- scored pods -------------------------------------------------------------------------------


def preferred(name: str, **spec: Any) -> Raw:
    pod = held(name, annotations={REACH_MODE: "preferred"}, **spec)
    assert "schedulingGates" not in pod["spec"]
    return pod


def scored(cluster: FileCluster, controller: Controller, name: str) -> None:
    """Volcano asks for the scores of a pod."""
    pods = cluster.objects("pods")
    infos = [
        volcano_shapes.node_info(n, [p for p in pods if p["spec"].get("nodeName") == n["metadata"]["name"]])
        for n in cluster.objects("nodes")
    ]
    task = volcano_shapes.task(cluster.pod(NAMESPACE, name), "", TaskStatus.PENDING)
    body = bytearray(msgspec.json.encode({"task": task, "nodes": infos}))
    decision = prioritize(body, controller, SessionLedger(), Policy()).decision
    assert decision is not None
    controller.decisions.remember(decision)


async def test_a_scored_pod_is_explained_from_the_extenders_decision(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, preferred("p0"), preferred("d0"))
        await until(lambda: len(controller.state.gang_pods(*CHAT)) == 2)
        cluster.bind(NAMESPACE, "p0", "n1")
        await until(lambda: reasons(cluster, "p0") == ["Placed"])
        scored(cluster, controller, "d0")
        cluster.bind(NAMESPACE, "d0", "n2")
        await until(lambda: reasons(cluster, "d0") == ["Placed"] and bool(annotation(cluster, "d0")))
    assert "not scored" in events(cluster, "p0")[0][1]
    assert annotation(cluster, "p0") == ""
    text = events(cluster, "d0")[0][1]
    assert text.startswith("On n2, 24.4 us from prefill p0 (bound 1.00 ms, same leaf, RDMA, modelled); score ")
    assert "n1 at " in text
    assert annotation(cluster, "d0").startswith("placed")
    assert annotation(cluster, "d0", DECISION)
    assert {kind for kind, _ in writes(cluster)} == {"pod"}
    assert groups(cluster) == {}


async def test_both_phases_are_told_the_bound_of_the_gang(cluster: FileCluster, tmp_path: Path) -> None:
    """Only the prefill states 15 us, and the decode was scored by its own 1 ms: 24.4 - 15 is 9.4 over for both."""
    tight = held("p0", annotations={REACH_MODE: "preferred", REACH: "15us"})
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, tight, preferred("d0"))
        await until(lambda: len(controller.state.gang_pods(*CHAT)) == 2)
        cluster.bind(NAMESPACE, "p0", "n1")
        await until(lambda: reasons(cluster, "p0") == ["Placed"])
        scored(cluster, controller, "d0")
        cluster.bind(NAMESPACE, "d0", "n2")
        await until(lambda: reasons(cluster, "d0") == ["Placed"])
    text = events(cluster, "d0")[0][1]
    assert re.match(r"On n2, 24\.4 us from prefill p0, 9\.[34]\d us over the bound of 15 us \(same leaf, RDMA", text)


async def test_a_preferred_pair_too_far_apart_is_no_breach(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, preferred("p0"), preferred("d0"))
        cluster.bind(NAMESPACE, "p0", "n1")
        cluster.bind(NAMESPACE, "d0", "z-far")
        await until(lambda: reasons(cluster, "p0") == reasons(cluster, "d0") == ["Placed"])
        assert await controller.events.drain(LIMIT_S)
    assert "2.00 ms from prefill p0" in events(cluster, "d0")[0][1]
    assert reasons(cluster, "d0") == ["Placed"]


# --- not recognised ----------------------------------------------------------------------------


def untagged(name: str, **labels: str) -> Raw:
    """A pod with our labels that never passed the webhook."""
    pod = held(name)
    spec = {**pod["spec"], "containers": [{"name": "engine", "image": "engine:dev"}], "schedulerName": "other"}
    del spec["schedulingGates"]
    meta = {key: value for key, value in pod["metadata"].items() if key != "annotations"}
    return {"metadata": {**meta, "labels": {**meta["labels"], **labels}}, "spec": spec}


async def test_signals_that_disagree_are_told_whether_the_pod_is_tagged_or_not(
    cluster: FileCluster, tmp_path: Path
) -> None:
    async with controlling(cluster, tmp_path):
        open_pod, tagged = preferred("d0"), held("d1")
        del open_pod["metadata"]["labels"]
        for pod in (open_pod, tagged):
            pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), CONFLICT: "x says a, y says b"}
        create(cluster, open_pod, tagged)
        for name in ("d0", "d1"):
            await until(lambda name=name: "PhaseConflict" in reasons(cluster, name))  # type: ignore[misc]


async def test_a_pod_that_passed_no_webhook_is_told_once(cluster: FileCluster, tmp_path: Path) -> None:
    create(cluster, untagged("d8"))  # before the controller: it told that one's predecessor, or nobody
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, untagged("d0"), untagged("d1", **{ENABLED: "false"}), held("d2"), preferred("d3"))
        await until(lambda: reasons(cluster, "d0") == ["NotRecognised"])
        for turn in range(3):
            cluster.change("pods", NAMESPACE, "d0", {"metadata": {"labels": {"touched": str(turn)}}})
        cluster.cut_watches()
        create(cluster, untagged("d9"))
        await until(lambda: reasons(cluster, "d9") == ["NotRecognised"])
        assert await controller.events.drain(LIMIT_S)
    assert [event["count"] for event in cluster.objects("events")] == [1, 1]
    assert "placed by other alone" in events(cluster, "d0")[0][1]
    assert writes(cluster) == []


# --- held --------------------------------------------------------------------------------------


async def test_other_news_about_a_held_pod_is_told_and_written_again(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path):
        create(cluster, held("p0", gpus=2), held("d0", gpus=6))
        await until(lambda: reasons(cluster, "d0") == ["InsufficientGPU"] and bool(annotation(cluster, "d0")))
        tokens = annotation(cluster, "d0")
        # A node with room, and too far from every place for the other.
        cluster.create("nodes", FileCluster([{"name": "c1", "zone": "c", "gpus": 6}]).objects("nodes")[0])
        await until(lambda: reasons(cluster, "d0") == ["InsufficientGPU", "ReachExceeded"])
        await until(lambda: annotation(cluster, "d0") != tokens)
        assert gated(cluster) == {"p0", "d0"}


async def test_a_gang_with_a_pod_group_hears_why_the_rest_waits(cluster: FileCluster, tmp_path: Path) -> None:
    async with controlling(cluster, tmp_path):
        await planned_pair(cluster)
        bind_released(cluster)
        await until(lambda: [reason for reason, _ in group_events(cluster)] == ["Placed"])
        create(cluster, held("d1", gpus=5))
        await until(lambda: [reason for reason, _ in group_events(cluster)] == ["Placed", "InsufficientGPU"])
        await until(lambda: reasons(cluster, "d1") == ["InsufficientGPU"])


# --- the announcer alone -----------------------------------------------------------------------


def spoken(controller: Controller) -> tuple[GangReporter, EventSink]:
    """Another announcer over the same state, which nobody runs yet."""
    sink = EventSink(controller.reporter.pod_writer._api, "isochrone-controller")
    keeper, groups_ = controller.reporter.pod_writer, controller.pod_groups.objects
    return GangReporter(controller.state, sink, keeper, controller.decisions, groups_, controller), sink


def plan_of(controller: Controller) -> tuple[Any, Plan]:
    view = view_of(CHAT, controller.state.gang_pods(*CHAT))
    snapshot = controller.snapshot()
    assert snapshot is not None
    return view, plan(request_of(view, snapshot.table), snapshot)


async def test_what_was_to_be_said_of_a_held_pod_is_dropped_once_it_is_planned(tmp_path: Path) -> None:
    async with FileCluster([]) as cluster, controlling(cluster, tmp_path, settle="60s") as controller:
        create(cluster, held("p0"), held("d0"), held("d1"))
        await until(lambda: len(controller.state.gang_pods(*CHAT)) == 3)
        reporter, _ = spoken(controller)
        reporter.held(*plan_of(controller))
        cluster.create("nodes", FileCluster([{"name": "n1", "gpus": 2}]).objects("nodes")[0])
        await until(lambda: len(controller.state.table()) == 1)
        view, made = plan_of(controller)
        assert len(made.places) == 2
        reporter.planned(view, made)
        reporter.left_out(view, made)
        tokens = reporter.annotations(made)
        assert tokens.keys() == made.places.keys()
        for uid, output in tokens.items():
            assert output.keys() == {PLACEMENT, DECISION}
            assert output[PLACEMENT] == placement_block(made.decisions[uid], made)
        (left,) = [pod.metadata.name for pod in view.members if pod.metadata.uid not in made.places]
        async with running(reporter.run()):
            await until(lambda: "this pod alone waits" in annotation(cluster, left))
        assert writes(cluster) == [("pod", left)]


async def test_words_that_wait_are_bounded_and_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admission.report.reporter._WAITING", 3)
    async with FileCluster([]) as cluster, controlling(cluster, tmp_path, settle="60s") as controller:
        create(cluster, *(held(f"d{i}") for i in range(9)), held("p0"))
        await until(lambda: len(controller.state.gang_pods(*CHAT)) == 10)
        reporter, sink = spoken(controller)
        reporter.held(*plan_of(controller))
        async with running(reporter.run()), running(sink.run()):
            await until(lambda: len(writes(cluster)) == 3)
            assert await sink.drain(LIMIT_S)
        assert sorted(name for _, name in writes(cluster)) == ["d7", "d8", "p0"]
        assert all(reasons(cluster, p["metadata"]["name"]) == ["InsufficientGPU"] for p in pods_of(cluster))


@pytest.mark.parametrize("mark", ["gate", "marker", "signal"])
async def test_any_trace_of_the_webhook_will_do(cluster: FileCluster, tmp_path: Path, mark: str) -> None:
    pod, whole = untagged("d0"), held("d0")
    if mark == "gate":
        pod["spec"]["schedulingGates"] = [{"name": GATE}]
    elif mark == "marker":
        pod["spec"]["containers"] = whole["spec"]["containers"]
    else:
        pod["metadata"]["annotations"] = {SIGNAL: whole["metadata"]["annotations"][SIGNAL]}
    async with controlling(cluster, tmp_path) as controller:
        create(cluster, pod, untagged("d1"))
        await until(lambda: reasons(cluster, "d1") == ["NotRecognised"])
        assert await controller.events.drain(LIMIT_S)
        assert reasons(cluster, "d0") == []
