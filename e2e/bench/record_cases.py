"""Case files in the behaviour record: what is decided about each document of tests/cases, by its kind.

Clusters and gangs are built as the tests build them (tests/scheduler, tests/topology).
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import yaml

from e2e.bench.record_pods import admission_data
from e2e.bench.record_topology import TOPOLOGY_KINDS
from e2e.bench.record_values import Data, card_data, decision_data, plan_data, ranking_data, used_data
from scheduler.model.request import GangRequest, Partner
from scheduler.planning.plan import plan
from tests.scheduler.case_files import CASES
from tests.scheduler.clusters import gang, gang_from, node, pod, snapshot_from
from tests.scheduler.gpu_cases import ask
from tests.scheduler.test_cases_extender import Given
from tests.scheduler.test_cases_gangs import not_ready, running, with_gang
from tests.scheduler.test_cases_roots import asked_for, state_of
from tests.scheduler.test_cases_score import cluster_of, ranking
from tests.scheduler.volcano import Running
from tests.scheduler.volcano import running as serving
from topology.cluster.snapshot import Assumed, Snapshot
from topology.cluster.state import ClusterState
from topology.labels import DECODE, PREFILL
from topology.units import parse_size_bytes

Case = Mapping[str, Any]


def case_records() -> dict[str, Data]:
    """By file and place in the file; documents of no kind are left out."""
    found = {}
    for path in sorted(CASES.glob("*.yaml")):
        for number, case in enumerate(yaml.safe_load_all(path.read_text())):
            if "kind" in case:
                found[f"{path.stem} {number} {case['id']}"] = _KINDS[case["kind"]](case["input"])
    return found


def _plan(given: Case) -> Data:
    return plan_data(plan(gang_from(given), snapshot_from(given)))


def _devices(given: Case) -> Data:
    asked = ask(given)
    refused = None if asked.refused is None else decision_data(asked.refused)
    return {
        "placed": asked.placed,
        "refused": refused,
        "used": used_data(asked.snapshot),
        "cards": card_data(asked.snapshot),
    }


def _gangs(given: Case) -> Data:
    """Each gang with those before it in place."""
    snapshot, found = snapshot_from(given), []
    for asked in given["gangs"]:
        made = plan(gang_from({"gang": asked}), snapshot)
        found.append(plan_data(made))
        snapshot = with_gang(snapshot, made)
    return found


def _arrivals(given: Case) -> Data:
    found = []
    for order in given["orders"]:
        snapshot, here = snapshot_from(given), dict[str, list[str]]()
        for name in order:
            of, phase = name.split("-")
            here.setdefault(of, []).append(phase)
            members = tuple(pod(f"{of}-{p}", p, given["gpus"]) for p in here[of])
            made = plan(replace(gang(), name=of, members=members), snapshot)
            found.append(plan_data(made))
            snapshot = with_gang(snapshot, made)
    return found


def _churn(given: Case) -> Data:
    """When which gang got which nodes, while gangs come and end on a clock that is a number."""
    sizes, snapshot, now_s = given["sizes"] * given["rounds"], snapshot_from(given), 0
    waiting, ends, found = dict[str, int](), dict[str, tuple[int, list[str]]](), dict[str, Data]()
    while len(found) < len(sizes):
        for name in [name for name, (end_s, _) in ends.items() if end_s <= now_s]:
            snapshot = snapshot.without_assumed(ends.pop(name)[1])
        if now_s % given["every_s"] == 0 and (number := now_s // given["every_s"]) < len(sizes):
            waiting[f"g{number:02}"] = sizes[number]
        for name, size in list(waiting.items()):
            halves = size // 2, size - size // 2
            made = plan(gang(*halves, 1, minimum=halves, name=name), snapshot, advise=False)
            if made.places:
                snapshot = with_gang(snapshot, made)
                ends[name] = now_s + given["runs_s"], list(made.places)
                found[name] = {"at_s": now_s, "nodes": sorted(made.places.values()), "cost": float(made.cost)}
                del waiting[name]
        now_s += given["cycle_s"]
    return found


def _blip(given: Case) -> Data:
    """The joiner's plan before, while and after a node is not ready."""
    state = ClusterState()
    nodes = {name: node(name, gpus=given["gpus"], zone=zone) for name, zone in given["nodes"].items()}
    state.apply_nodes((None, each) for each in nodes.values())
    state.apply_pods((None, running(name, where)) for name, where in given["running"].items())
    partners = tuple(
        Partner(f"uid-{name}", name, PREFILL if PREFILL in name else DECODE, (where,))
        for name, where in given["running"].items()
    )

    def joins() -> Data:
        snapshot = state.snapshot(0.0, 0.0)
        request = GangRequest("prod", "chat", (pod(given["joiner"], DECODE, 2),), partners)
        return {"plan": plan_data(plan(request, snapshot)), "used": used_data(snapshot)}

    found, gone = [joins()], nodes[given["blip"]]
    for before, now in ((gone, not_ready(gone)), (not_ready(gone), gone)):
        state.apply_nodes([(before, now)])
        found.append(joins())
    return found


def _roots(given: Case) -> Data:
    return plan_data(plan(asked_for(given["gang"]), state_of(given["nodes"]).snapshot(0.0, 0.0)))


def _score(given: Case) -> Data:
    """One pod at several weights; pods one after the other, each on the best node; the gang, where there is one."""
    first, snapshot = cluster_of(given), cluster_of(given)
    gpus = given.get("waves") or [given["pod"]["gpus"]] * given.get("one_after_the_other", 1)
    turns: list[Data] = []
    for number, each in enumerate(gpus):
        found = ranking({**given, "pod": {**given["pod"], "gpus": each}}, snapshot)
        turns.append(ranking_data(found))
        snapshot = _with_pod(snapshot, f"uid-{number}", turns[-1]["ranked"][0]["node"], each)
    weighed = {**given, "pod": {**given["pod"], "gpus": gpus[0]}}
    weights = given.get("weights", (0, 0.5, 1, 10))
    return {
        "turns": turns,
        "weights": {str(weight): ranking_data(ranking(weighed, first, weight)) for weight in weights},
        "gang": plan_data(plan(gang_from(given), first)) if "gang" in given else None,
    }


def _with_pod(snapshot: Snapshot, uid: str, where: str, gpus: int) -> Snapshot:
    return snapshot.with_assumed({uid: Assumed(where, {"nvidia.com/gpu": gpus})})


def _extender(given: Case) -> Data:
    return asyncio.run(_calls(given))


async def _calls(content: Case) -> Data:
    """Status and answer of each call; of a refusal whether it says why."""
    given, found = Given({"input": content}), []
    async with serving(given.cluster) as server:
        for call in content["calls"]:
            given.cluster.ready = call.get("ready", given.cluster.ready)
            if "max_body" in call:
                limit = parse_size_bytes(call["max_body"], "max_body")
                async with serving(given.cluster, max_body_bytes=limit) as smaller:
                    found.append(await _call(smaller, given, call))
            else:
                found.append(await _call(server, given, call))
    return found


async def _call(server: Running, given: Given, call: Case) -> Data:
    status, body = await server.post(call["verb"], given.body(call))
    answer = json.loads(body) if body else None
    if isinstance(answer, dict):
        for key in {"error", "errorMessage"} & answer.keys():
            answer[key] = bool(answer[key])
        if "status" in answer and "code" in answer:  # a predicate's status is a sentence
            answer["status"] = bool(answer["status"])
    return {"verb": call["verb"], "status": status, "answer": answer}


_KINDS: Final[Mapping[str, Callable[[Any], Data]]] = {
    "admission": admission_data,
    "arrivals": _arrivals,
    "blip": _blip,
    "cards": _devices,
    "churn": _churn,
    "crowd": _plan,
    "explain": _plan,
    "extender": _extender,
    "gangs": _gangs,
    "plan": _plan,
    "roots": _roots,
    "score": _score,
    **TOPOLOGY_KINDS,
}
