"""Everything that may stand beside each other, by seed: units, queues, priorities, kept room, memory, MIG, nearest
partners, nodes that go, writes that fail, a controller that dies. A judge looks at what the API server has, and at that
alone: no GPU is given or promised twice, no pair is beyond its bound, nobody is deleted who must not be, whoever is
held cannot go, and when all is gone nothing is left."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from admission.controller.main import Controller
from admission.demo.file_cluster import FileCluster
from admission.gangs.gang_request import request_of, view_of
from admission.gangs.replan import Unplaced
from admission.gangs.units import plan_units, short_units, units_by_uid
from scheduler.policy import Policy
from tests.admission.controllers import SHORT_PAUSES_S, controlling, gated, groups, known, pods_of, reasons, versions
from tests.admission.held_pods import NAMESPACE, held
from tests.admission.pods import Raw
from tests.admission.test_fairness import queue
from tests.admission.test_units import lws
from tests.topology.list_watch_server import until
from topology.labels import CARD_MEMORY, GANG, GATE, GROUP_NAME, NEAREST, NVIDIA_GPU, PAIRING, QUEUE_NAME, ZONE
from topology.objects import Node, Pod
from topology.selectors import selects_node

MIG = "nvidia.com/mig-1g.10gb"
NODES: list[Raw] = [
    {"name": f"n{i}", "zone": "ab"[i // 3], "leaf": f"l{i // 2}", "gpus": 2 + i % 3, "product": "NVIDIA-H100-80GB-HBM3"}
    for i in range(6)
]
KINDS = ("plain", "near", "memory", "mig", "lws", "vip", "small")
STEPS = 80


class World:
    """The cluster, what may happen to it, Volcano, and the owners of pods."""

    def __init__(self, cluster: FileCluster, seed: int) -> None:
        self.cluster, self.rng, self.born, self.mine = cluster, random.Random(seed), 0, False
        self.found: list[str] = []
        queue(cluster, "default", None)
        queue(cluster, "small", 6)
        meta = {"name": "rs", "namespace": NAMESPACE}
        made = cluster.create("replicasets", {"metadata": meta, "spec": {"replicas": 1}})
        self.owner = {**made, "apiVersion": "apps/v1", "kind": "ReplicaSet"}
        template = {"containers": [{"name": "w", "resources": {"requests": {NVIDIA_GPU: "1"}}}]}
        spec = {
            "replicas": 9,
            "startupPolicy": "LeaderReady",
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": template}},
        }
        lws_made = cluster.create("leaderworkersets", {"metadata": {"name": "w", "namespace": NAMESPACE}, "spec": spec})
        self.lws = {**lws_made, "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        for node in cluster.objects("nodes"):
            if node["metadata"]["name"] in ("n2", "n5"):
                cluster.change("nodes", "", node["metadata"]["name"], {"status": {"allocatable": {MIG: "3"}}})
        self.away: list[Raw] = []
        self._delete = cluster.store.delete
        cluster.store.delete = self.deleted  # type: ignore[method-assign]
        self._wake = cluster.store._on_change
        cluster.store._on_change = self.look

    # --- the judge -----------------------------------------------------------------------------

    def deleted(self, kind: Any, namespace: str, name: str, preconditions: Any = None) -> Raw:
        if not self.mine and kind.plural == "pods":
            pod = self.cluster.pod(namespace, name)
            owners = pod["metadata"].get("ownerReferences", [])
            done = self._delete(kind, namespace, name, preconditions)  # refuses what changed meanwhile
            if "nodeName" in pod["spec"] or is_held(pod) or not owners or owners[0]["kind"] != "ReplicaSet":
                self.found.append(f"deleted {name}: {pod['spec'].get('nodeName')} {owners}")
            meta = {k: v for k, v in pod["metadata"].items() if k in ("namespace", "labels", "ownerReferences")}
            labels = meta["labels"]
            self.make(labels["isochrone.dev/phase"], labels[GANG])
            return done
        return self._delete(kind, namespace, name, preconditions)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        self.mine = True
        try:
            self.cluster.delete(kind, namespace, name)
        finally:
            self.mine = False

    def look(self) -> None:
        self._wake()
        has = {n["metadata"]["name"]: n for n in self.cluster.objects("nodes")}
        booked: dict[tuple[str, str], int] = {}
        zones: dict[str, set[tuple[str, str]]] = {}
        for pod in self.cluster.objects("pods"):
            node: str = pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName", "")
            if is_held(pod):
                continue
            if pod["status"].get("phase") == "Succeeded" or node not in has:
                continue
            for what, amount in asks(pod).items():
                booked[node, what] = booked.get((node, what), 0) + amount
            labels = pod["metadata"].get("labels", {})
            if labels.get(GANG) and not labels[GANG].startswith("near"):
                zone = has[node]["metadata"]["labels"][ZONE]
                zones.setdefault(labels[GANG], set()).add((labels["isochrone.dev/phase"], zone))
        for (node, what), amount in booked.items():
            if amount > int(has[node]["status"]["allocatable"].get(what, 0)):
                self.found.append(f"{amount} {what} booked on {node}")
        for gang, where in zones.items():
            if len({phase for phase, _ in where}) == 2 and len({zone for _, zone in where}) > 1:
                self.found.append(f"{gang} is in {sorted(where)}")

    # --- what happens --------------------------------------------------------------------------

    def step(self) -> bool:
        things: list[tuple[int, Callable[[], object]]] = [
            (12, self.comes),
            (4, self.goes),
            (8, self.volcano),
            (3, self.ends),
            (4, self.fails),
            (1, self.cluster.cut_watches),
            (1, self.cluster.forget_history),
            (1, self.group_goes),
            (1, self.queue_turns),
            (1, self.node_turns),
        ]
        self.rng.choices([what for _, what in things], [weight for weight, _ in things])[0]()
        return self.rng.random() < 0.03

    def comes(self) -> None:
        self.make(self.rng.choice(("prefill", "decode")), f"{self.rng.choice(KINDS)}-{self.rng.choice('ab')}")

    def make(self, phase: str, gang: str) -> None:
        self.born += 1
        name, kind = f"{gang}-{self.born}", gang.partition("-")[0]
        notes: dict[str, str] = {}
        more: Raw = {}
        if kind == "near":
            notes[PAIRING] = NEAREST
        if kind == "small":
            notes[QUEUE_NAME] = "small"
        if kind == "memory":
            notes[CARD_MEMORY] = "30Gi"
        if kind == "vip":
            more["priority"] = 10
        if kind == "lws" and phase == "decode":
            alone = self.rng.random() < 0.3  # the worker comes when the leader runs
            for worker in range(1 if alone else 2):
                pod = lws(self.born, worker, 2, "w", owner=self.lws)
                pod["metadata"]["labels"][GANG] = gang
                self.cluster.create_pod(pod)
            return
        owner = self.owner if self.rng.random() < 0.6 else None
        pod = held(name, phase, gang, gpus=self.rng.choice((1, 1, 2)), annotations=notes, owner=owner, **more)
        if kind == "mig":
            pod["spec"]["containers"][0]["resources"] = {"requests": {MIG: "1"}, "limits": {MIG: "1"}}
        self.cluster.create_pod(pod)

    def goes(self) -> None:
        if pods := pods_of(self.cluster):
            self.remove("pods", NAMESPACE, self.rng.choice(pods)["metadata"]["name"])

    def ends(self) -> None:
        if on := [pod for pod in pods_of(self.cluster) if "nodeName" in pod["spec"]]:
            name = self.rng.choice(on)["metadata"]["name"]
            self.cluster.change("pods", NAMESPACE, name, {"status": {"phase": "Succeeded"}})

    def volcano(self) -> None:
        """Binds released pods whose PodGroup is there: nominated ones where they are nominated, others where no promise
        is broken, if need be after somebody of a lower priority left."""
        for pod in pods_of(self.cluster):
            meta = pod["metadata"]
            grouped = meta["annotations"].get(GROUP_NAME) in groups(self.cluster)
            if is_held(pod) or "nodeName" in pod["spec"] or not grouped:
                continue
            if (node := pod["status"].get("nominatedNodeName")) and node in self.free():
                self.cluster.bind(NAMESPACE, meta["name"], node)
                continue
            if node:
                continue
            if (where := self.a_place(pod)) or (self.evicts(pod) and (where := self.a_place(pod))):
                self.cluster.bind(NAMESPACE, meta["name"], where)

    def free(self) -> dict[str, dict[str, int]]:
        left = {
            n["metadata"]["name"]: {k: int(n["status"]["allocatable"].get(k, 0)) for k in (NVIDIA_GPU, MIG)}
            for n in self.cluster.objects("nodes")
        }
        for pod in self.cluster.objects("pods"):
            node = pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName")
            if node in left and pod["status"].get("phase") != "Succeeded":
                for what, amount in asks(pod).items():
                    left[node][what] -= amount
        return left

    def a_place(self, pod: Raw) -> str:
        known = msgspec.convert(pod, Pod, strict=False)
        nodes = {n["metadata"]["name"]: msgspec.convert(n, Node, strict=False) for n in self.cluster.objects("nodes")}
        fits = [
            name
            for name, left in self.free().items()
            if selects_node(known.spec, nodes[name]) and all(left[k] >= v for k, v in asks(pod).items())
        ]
        return self.rng.choice(fits) if fits else ""

    def evicts(self, pod: Raw) -> bool:
        mine = pod["spec"].get("priority", 0)
        below = [p for p in pods_of(self.cluster) if "nodeName" in p["spec"] and p["spec"].get("priority", 0) < mine]
        if below:
            self.remove("pods", NAMESPACE, self.rng.choice(below)["metadata"]["name"])
        return bool(below)

    def fails(self) -> None:
        what = self.rng.choice(("/pods/[^/]*$", "/pods/[^/]*/status$", "/podgroups/", "/api/v1/pods$"))
        method = "WATCH" if what.startswith("/api") else "PATCH"
        after = method == "PATCH" and self.rng.random() < 0.5
        status = self.rng.choice((0, 500) if after else (0, 500, 422, 404, 409))
        self.cluster.fail_next(method, what, status, after=after)

    def group_goes(self) -> None:
        if there := sorted(groups(self.cluster)):
            self.remove("podgroups", NAMESPACE, self.rng.choice(there))

    def queue_turns(self) -> None:
        self.cluster.change("queues", "", "small", {"status": {"state": self.rng.choice(("Open", "Open", "Closed"))}})

    def node_turns(self) -> None:
        if self.away:
            node = self.away.pop()
            meta = {k: v for k, v in node["metadata"].items() if k in ("name", "labels", "annotations")}
            self.cluster.create("nodes", {**node, "metadata": meta})
        else:
            node = self.rng.choice(self.cluster.objects("nodes"))
            self.away.append(node)
            self.remove("nodes", "", node["metadata"]["name"])


def asks(pod: Raw) -> dict[str, int]:
    amounts = pod["spec"]["containers"][0].get("resources", {}).get("requests", {})
    return {k: int(v) for k, v in amounts.items() if k in (NVIDIA_GPU, MIG)}


def is_held(pod: Raw) -> bool:
    return GATE in [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]


def why_not_settled(world: World, controller: Controller) -> str:
    """ "" once nothing is under way and whoever is held cannot go, or waits for a queue or an older gang."""
    cluster = world.cluster
    world.volcano()
    if controller.batch.busy or versions(cluster) != known(controller):
        return "under way"
    by_uid = {p["metadata"]["uid"]: p for p in pods_of(cluster)}
    if any(controller.state.is_assumed(uid) for uid, p in by_uid.items() if is_held(p)):
        return "about to go"
    snapshot = controller.snapshot()
    assert snapshot is not None
    for key in controller.state.gangs():
        view = view_of(key, controller.state.gang_pods(*key))
        if not view.members or short_units((*view.members, *view.released, *view.bound)):
            continue
        lost = [p for p in view.bound if p.spec.node_name not in snapshot.table.index]
        units = units_by_uid(view.members)
        result = plan_units(request_of(view, snapshot.table), units, snapshot, Policy())
        if result.places and not lost:
            said = {r for uid in result.places for r in reasons(cluster, by_uid[uid]["metadata"]["name"])[-1:]}
            if said != {"WaitingForQueue"}:
                return f"{key[1]} could go: {sorted(result.places)}, but is told {sorted(said)}"
    return ""


async def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int) -> None:
    monkeypatch.setattr("admission.gangs.let_go._PAUSES_S", SHORT_PAUSES_S)
    monkeypatch.setattr("admission.gangs.retire.EMPTY_S", 0.3)
    monkeypatch.setattr("admission.gangs.renew._LONGEST_PAUSE_S", 0.03)
    monkeypatch.setattr("admission.gangs.turn.QUEUE_LAG_S", 0.1)
    monkeypatch.setattr("admission.gangs.promised.QUEUE_LAG_S", 0.1)
    monkeypatch.setattr("admission.gangs.fairness._ASK_AGAIN_S", 0.1)
    async with FileCluster(NODES) as cluster:
        world, done = World(cluster, seed), 0
        while done < steps:
            settings = {"quiet": "5ms", "retry_s": 0.02, "overtaking": str(seed % 3), "partner_after": "100ms"}
            async with controlling(cluster, tmp_path, **settings) as controller:  # type: ignore[arg-type]
                controller.renewal._unplaced = Unplaced(0.15)
                dies = False
                while done < steps and not dies:
                    dies, done = world.step(), done + 1
                    asked = len(cluster.requests)
                    with contextlib.suppress(TimeoutError):
                        await until(lambda asked=asked: len(cluster.requests) > asked, 0.02)  # type: ignore[misc]
                if done == steps:
                    await the_end(world, controller)
        assert world.found == [], world.found[0]


async def the_end(world: World, controller: Controller) -> None:
    """Nothing fails any more: it settles; then everything goes, and nothing is left of it."""
    cluster, why = world.cluster, ["?"]
    cluster._failures.clear()
    while world.away:
        world.node_turns()
    cluster.change("queues", "", "small", {"status": {"state": "Open"}})

    def settled() -> bool:
        why[0] = why_not_settled(world, controller)
        return not why[0]

    try:
        await until(settled)
    except TimeoutError:
        raise AssertionError(why[0]) from None
    with contextlib.suppress(TimeoutError):
        await until(lambda: all(reasons(cluster, name) for name in gated(cluster)))
    assert {n for n in gated(cluster) if not reasons(cluster, n)} == set(), "held, and nobody says why"
    for pod in pods_of(cluster):
        world.remove("pods", NAMESPACE, pod["metadata"]["name"])
    await until(lambda: not controller.state.gangs() and not controller.batch.busy)
    await until(lambda: not controller.batch._tracks)
    state = controller.state
    assert (state._held, state._assumed, dict(state._holds), state._shapes) == ({}, {}, {}, {})
    assert not state.snapshot(0.0, 0.0).used.any()
    await until(lambda: not groups(cluster))


@pytest.mark.parametrize("seed", [1, 2])
async def test_mixed_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    await play(tmp_path, monkeypatch, seed, STEPS)
