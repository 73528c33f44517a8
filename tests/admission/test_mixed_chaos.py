"""Everything that may stand beside each other, by seed: units, queues under a queue, priorities, kept room, owners that
make pods one after the other, memory, MIG, nearest partners, nodes that go, writes that fail, a controller that dies.

The judge looks at every write and at every word; in the end whoever is held cannot go and was told a true reason last,
and when all is gone nothing is left."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from admission.controller.controller import Controller
from admission.demo.file_cluster import FileCluster
from admission.gangs.gang_view import request_of, view_of
from admission.recognition.replica_group import short_units
from admission.upkeep.stuck_pod_policy import StuckPodPolicy
from scheduler.model.decision import Outcome, Plan
from scheduler.model.policy import Policy
from scheduler.model.reason import Reason
from scheduler.planning.plan import plan
from tests.admission.chaos_judge import Judge, facts
from tests.admission.chaos_world import NODES, World, is_held
from tests.admission.controllers import SHORT_PAUSES_S, controlling, gated, groups, known, pods_of, reasons, versions
from tests.admission.held_pods import NAMESPACE
from tests.topology.list_watch_server import until

STEPS = 80


def why_not_settled(world: World, evaluate: Judge, controller: Controller) -> str:
    """ "" once nothing is under way and whoever is held cannot go, or waits for a queue or an older gang."""
    cluster = world.cluster
    world.volcano()
    world.owners_act()
    if controller.batch.busy or versions(cluster) != known(controller):
        return "under way"
    by_uid = {p["metadata"]["uid"]: p for p in pods_of(cluster)}
    if any(controller.state.is_assumed(uid) for uid, p in by_uid.items() if is_held(p)):
        return "about to go"
    for key in controller.state.gangs():
        view = view_of(key, controller.state.gang_pods(*key))
        if not view.members or short_units((*view.members, *view.released, *view.bound)):
            continue
        snapshot = facts(controller, view)
        lost = [p for p in view.bound if p.spec.node_name not in snapshot.table.index]
        result = plan(request_of(view, snapshot.table), snapshot, Policy(), advise=False)
        value = {evaluate.last.get(p.metadata.uid) for p in view.members}
        true = _true_reasons(result, bool(lost), key[1])
        if not value <= true:
            return f"{key[1]} is told {value}, not {true}; places {sorted(result.places)}"
    return ""


def _true_reasons(result: Plan, lost: bool, gang: str) -> set[Reason | None]:
    if lost:
        return {Reason.WAITING_FOR_PARTNER}
    if result.outcome == Outcome.WAITING_FOR_PARTNER:
        return {Reason.WAITING_FOR_PARTNER}
    fewer = result.outcome == Outcome.WAITING_FOR_GANG
    if fewer and not gang.startswith("ord"):
        return {Reason.WAITING_FOR_GANG}
    capacity: set[Reason | None] = {
        Reason.INSUFFICIENT_GPU,
        Reason.INSUFFICIENT_MEMORY,
        Reason.FRAGMENTED,
        Reason.REACH_EXCEEDED,
    }
    # With places for some the others are left out for room; with places for all an older gang, or a queue, is awaited.
    some_are_left = not result.places or len(result.places) < len(result.decisions)
    # Of an ordered owner it is asked with the pods to come, unless one that was there is missing.
    return (
        {Reason.WAITING_FOR_QUEUE}
        | ({Reason.WAITING_FOR_GANG} if fewer else set())
        | (capacity if some_are_left else set())
    )


async def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int) -> None:
    monkeypatch.setattr("admission.release.pod_writer._PAUSES_S", SHORT_PAUSES_S)
    monkeypatch.setattr("admission.upkeep.pod_group_gc.EMPTY_S", 0.3)
    monkeypatch.setattr("admission.upkeep.stuck_pods._LONGEST_PAUSE_S", 0.03)
    monkeypatch.setattr("admission.reconcile.gang_planner.QUEUE_LAG_S", 0.3)
    monkeypatch.setattr("admission.fairness.queue_commitments.QUEUE_LAG_S", 0.3)
    monkeypatch.setattr("admission.fairness.fairness._ASK_AGAIN_S", 0.1)
    async with FileCluster(NODES) as cluster:
        world, done = World(cluster, seed), 0
        evaluate = Judge(world)
        while done < steps:
            settings = {"settle": "5ms", "retry_s": 0.02, "bypass_limit": str(seed % 3), "partner_after": "100ms"}
            async with controlling(cluster, tmp_path, **settings) as controller:  # type: ignore[arg-type]
                controller.renewal._unplaced = StuckPodPolicy(0.15)
                evaluate.listen(controller)
                dies = False
                while done < steps and not dies:
                    dies, done = world.step(), done + 1
                    asked = len(cluster.requests)
                    with contextlib.suppress(TimeoutError):
                        await until(lambda asked=asked: len(cluster.requests) > asked, 0.02)  # type: ignore[misc]
                if done == steps:
                    await the_end(world, evaluate, controller)
        assert evaluate.found == [], evaluate.found[0]


async def the_end(world: World, evaluate: Judge, controller: Controller) -> None:
    """Nothing fails any more: it settles; then everything goes, and nothing is left of it."""
    cluster, why = world.cluster, ["?"]
    cluster._failures.clear()
    while world.away:
        world.node_turns()
    cluster.change("queues", "", "small", {"status": {"state": "Open"}})

    def settled() -> bool:
        why[0] = why_not_settled(world, evaluate, controller)
        return not why[0]

    try:
        await until(settled)
    except TimeoutError:
        raise AssertionError(why[0]) from None
    with contextlib.suppress(TimeoutError):
        await until(lambda: all(reasons(cluster, name) for name in gated(cluster)))
    silent = {pod["metadata"]["name"]: evaluate.last.get(pod["metadata"]["uid"]) for pod in pods_of(cluster)}
    silent = {name: value for name, value in silent.items() if name in gated(cluster) and not reasons(cluster, name)}
    assert silent == {}, "held, and nobody says why"
    for pod in pods_of(cluster):
        world.remove("pods", NAMESPACE, pod["metadata"]["name"])
    await until(lambda: not controller.state.gangs() and not controller.batch.busy)
    await until(lambda: not controller.batch._gangs)
    state = controller.state
    assert (state._held, state._assumed, dict(state._holds), state._shapes) == ({}, {}, {}, {})
    assert not state.snapshot(0.0, 0.0).used.any()
    await until(lambda: not groups(cluster))


@pytest.mark.parametrize("seed", [1, 2])
async def test_mixed_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    await play(tmp_path, monkeypatch, seed, STEPS)
