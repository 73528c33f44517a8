"""Cases from public bug reports that concern the extender, one file each: bodies in over HTTP, answers out.

A call is written short (a pod, a node) and sent as the whole body that Volcano would make of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.extender.scheduler_config import stanza
from scheduler.model.policy import Policy
from tests.scheduler.volcano import (
    Cluster,
    Running,
    body_of,
    node_info_json,
    node_json,
    pod_json,
    read_by_go,
    running,
    task_json,
)
from topology.labels import REACH_MODE
from topology.units import parse_size_bytes

FOLDER = Path(__file__).resolve().parents[1] / "cases"
CASES = [
    case
    for path in sorted(FOLDER.glob("C*.yaml"))
    for case in yaml.safe_load_all(path.read_text())
    if case.get("kind") == "extender"
]
MAX_SCORE = 100 * Policy().volcano_weight


class Given:
    """The input of a case, spelled out."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        content = case["input"]
        listed = content["nodes"]
        self.tasks, self.padding = 0, 0
        if isinstance(listed, Mapping):
            self.tasks, self.padding = listed["tasks"], listed["padding"]
            listed = [{"name": f"node-{i:03}"} for i in range(listed["count"])]
        self.nodes = {node["name"]: _node(node) for node in listed}
        pods = [self._pod(pod) for pod in content.get("pods", ())]
        pods += [pod_json(f"on-{n['name']}", gpus=n["used"], node=n["name"]) for n in listed if n.get("used")]
        self.cluster = Cluster(self.nodes.values(), pods)
        self.cluster.ready = content.get("ready", True)

    def asked(self, call: Mapping[str, Any]) -> list[str]:
        """The names in a prioritize call; all nodes unless it says otherwise."""
        return list(call.get("nodes", self.nodes))

    def body(self, call: Mapping[str, Any]) -> bytes:
        if "raw" in call:
            raw: str = call["raw"]
            return raw.encode()
        if "body" in call:
            return body_of(**call["body"])
        pod = self._pod(call["pod"])
        if call["verb"] == "prioritize":
            reported = call.get("told", {})  # what the body says of a node, whatever we know of it
            infos = [self._info(name) | reported.get(name, {}) for name in self.asked(call)]
            return body_of(task=task_json(pod), nodes=infos)
        if call["verb"] == "predicate":
            return body_of(task=task_json(pod), node=self._info(call["node"]))
        return body_of(task=task_json(pod, node=call["node"], status=call.get("status", 2)))

    def _info(self, name: str) -> dict[str, Any]:
        return node_info_json(self.nodes.get(name) or node_json(name), self.tasks, self.padding)

    def _pod(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        annotations = {REACH_MODE: pod["reach_mode"]} if "reach_mode" in pod else {}
        return pod_json(
            pod["name"],
            pod.get("phase", ""),
            gpus=pod.get("gpus", 1),
            node=pod.get("node", ""),
            annotations=annotations,
        )


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    extra = {}
    if "annotation" in node:
        extra["isochrone.dev/topology"] = node["annotation"]
    if "annotation_kilobytes" in node:
        extra["isochrone.dev/topology"] = "a" * 1000 * node["annotation_kilobytes"]
    reported = {key: node[key] for key in ("gpus", "zone", "leaf") if key in node}
    return node_json(node["name"], **reported, **extra)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
async def test_case(case: Mapping[str, Any]) -> None:
    given, calls, expected = Given(case), case["input"]["calls"], case["expect"]
    assert len(calls) == len(expected)
    if "stanza" in case:
        (plugin,) = yaml.safe_load(stanza("http://isochrone-controller.isochrone-system.svc:8800"))
        assert {key: plugin["arguments"].get(key) for key in case["stanza"]} == case["stanza"]
    async with running(given.cluster) as server:
        for call, expect in zip(calls, expected, strict=True):
            given.cluster.ready = call.get("ready", given.cluster.ready)
            if "max_body" in call:
                limit = parse_size_bytes(call["max_body"], "max_body")
                async with running(given.cluster, max_body_bytes=limit) as smaller:
                    await _check(smaller, given, call, expect)
            else:
                await _check(server, given, call, expect)


async def _check(server: Running, given: Given, call: Mapping[str, Any], expect: Mapping[str, Any]) -> None:
    body = given.body(call)
    started_s = time.process_time()  # both ends are this process; a clock on the wall would tell of its neighbours
    status, answer = await server.post(call["verb"], body)
    took_s = time.process_time() - started_s
    assert status == expect["status"], answer
    if status == 200:
        decoded = read_by_go(call["verb"], answer)
        if "answer" in expect:
            assert decoded == expect["answer"]
        if "scored" in expect:
            _check_scores(decoded["nodeScore"], given.asked(call), expect)
    if "says" in expect:
        assert expect["says"] in json.loads(answer)["error" if status != 200 else "errorMessage"]
    if "empty" in expect:
        assert answer == b""
    if "within_s" in expect:
        assert took_s < expect["within_s"]
    if "body_megabytes" in expect:
        low, high = expect["body_megabytes"]
        assert low <= len(body) / 1e6 <= high
    if "counted" in expect:
        labels = {"verb": call["verb"], "result": expect["counted"]}
        assert server.counted("isochrone_extender_requests_total", **labels) == 1
    if "cold" in expect:
        assert server.counted("isochrone_extender_cold_answers_total") == expect["cold"]
    if "remembered" in expect:
        assert len(server.decisions) == expect["remembered"]


def _check_scores(scores: Mapping[str, float], asked: list[str], expect: Mapping[str, Any]) -> None:
    assert set(scores) == set(asked)
    assert len(set(scores.values())) == len(scores), "ties would be broken at random"
    assert all(0 <= score <= MAX_SCORE for score in scores.values())
    ranked = sorted(scores, key=lambda name: -scores[name])
    if "order" in expect:
        assert ranked == expect["order"]
    if "best" in expect:
        assert ranked[0] == expect["best"]
    if "worst" in expect:
        assert ranked[-1] == expect["worst"]
    if "level" in expect:
        level = [scores[name] for name in expect["level"]]
        by_order = Policy().whole.order * Policy().volcano_weight
        assert max(level) - min(level) < by_order, "they differ by the order of their names only"


def test_the_cases_of_this_kind_are_here() -> None:
    assert {case["id"] for case in CASES} >= {
        *("C022", "C023", "C025", "C026", "C029", "C031", "C032", "C034", "C037", "C038", "C065", "C119"),
    }
