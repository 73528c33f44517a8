"""Any order of changes: what is used is what a naive recount says, a restart sees the same, growth misses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.topology.interned_objects import Held, held_by, node, pod
from topology.cluster.state import ClusterState, gang_key
from topology.labels import DECISION, GANG, GATE, PHASE
from topology.objects import Node, Pod
from topology.resources import Amounts, readable_request

NODES = ("n1", "n2", "n3")
PODS = ("a", "b", "c", "d")
nodes, names = st.sampled_from(NODES), st.sampled_from(PODS)
amounts = st.integers(1, 4)


def used(state: ClusterState) -> Held:
    snapshot = state.snapshot(0.0, 0.0)
    table = snapshot.table
    cells = ((i, j) for i in range(len(table.names)) for j in range(len(table.resources)))
    return {(table.names[i], table.resources[j]): int(snapshot.used[i, j]) for i, j in cells if snapshot.used[i, j]}


def changed(old: Pod, **parts: dict[str, Any]) -> Pod:
    """The pod with other fields in some of its parts."""
    return msgspec.structs.replace(
        old, **{name: msgspec.structs.replace(getattr(old, name), **fields) for name, fields in parts.items()}
    )


def released(pod: Pod) -> bool:
    return gang_key(pod) is not None and not pod.has_gate(GATE) and bool(pod.metadata.annotation(DECISION))


class Watched(RuleBasedStateMachine):
    """The truth beside what is kept of it. Pods go from gated to released to bound to finished, or vanish any time."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.planned: dict[str, tuple[str, Amounts]] = {}  # uid -> place, for pods that are still gated
        self.born = 0

    # --- the truth, recounted ------------------------------------------------------------------

    def place(self, pod: Pod, *, restarted: bool = False) -> tuple[str, Amounts] | None:
        asked = readable_request(pod.spec)[0]
        if pod.finished:
            return None
        if pod.spec.node_name:
            return pod.spec.node_name, asked
        if released(pod):
            leaving = pod.metadata.deletion_timestamp is not None
            return None if leaving or not pod.status.nominated_node_name else (pod.status.nominated_node_name, asked)
        return None if restarted else self.planned.get(pod.metadata.uid)

    def truth(self, *, restarted: bool = False) -> Held:
        places = (self.place(pod, restarted=restarted) for pod in self.pods.values())
        return held_by([place for place in places if place is not None], self.nodes)

    def capacity(self) -> Held:
        taken = self.truth()
        capacity: Held = {}
        for name, known in self.nodes.items():
            usable = known.ready and not known.spec.unschedulable
            for resource, amount in (known.status.allocatable or {}).items():
                capacity[name, resource] = (int(amount) if usable else 0) - taken.get((name, resource), 0)
        return capacity

    def report(self, how: Callable[[], object], *, grows: bool | None = None) -> None:
        """Makes one change; growth rises if room appeared anywhere, and not if this change cannot give room."""
        before, capacity_generation = self.capacity(), self.state.capacity_generation
        how()
        after = self.capacity()
        if any(amount > before.get(cell, 0) for cell, amount in after.items()):
            assert self.state.capacity_generation > capacity_generation
        if grows is False:
            assert self.state.capacity_generation == capacity_generation

    def change(self, new: Pod, *, grows: bool | None = None) -> None:
        old = self.pods.get(new.metadata.name)

        def reported() -> None:
            self.pods[new.metadata.name] = new
            if not new.has_gate(GATE) or gang_key(new) is None:
                self.planned.pop(new.metadata.uid, None)
            self.state.apply_pods([(old, new)])

        self.report(reported, grows=grows)

    # --- what happens --------------------------------------------------------------------------

    @rule(name=nodes, gpus=st.integers(4, 9), ready=st.booleans(), cordoned=st.booleans())
    def node_says(self, name: str, gpus: int, ready: bool, cordoned: bool) -> None:
        old, new = self.nodes.get(name), node(name, gpus, ready=ready, cordoned=cordoned)

        def reported() -> None:
            self.nodes[name] = new
            self.state.apply_nodes([(old, new)])

        self.report(reported, grows=False if old == new else None)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def node_goes(self, data: st.DataObject) -> None:
        old = self.nodes.pop(data.draw(st.sampled_from(sorted(self.nodes))))
        self.state.apply_nodes([(old, None)])

    @rule(name=names, gpus=amounts, where=nodes, kind=st.sampled_from(["gated", "foreign", "ours", "released"]))
    def pod_comes(self, name: str, gpus: int, where: str, kind: str) -> None:
        if name in self.pods:
            return
        self.born += 1
        uid = f"{name}-{self.born}"
        made = {
            "gated": pod(name, gpus, uid=uid, gated=True),
            "foreign": pod(name, gpus, uid=uid, gang="", node=where),
            "ours": pod(name, gpus, uid=uid, node=where),
            "released": pod(name, gpus, uid=uid, nominated=where, decision=True),
        }[kind]
        self.change(made, grows=False)

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), where=nodes, gpus=amounts, replaced=st.booleans())
    def pod_changes(self, data: st.DataObject, where: str, gpus: int, replaced: bool) -> None:
        old = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        may = ["relabelled", "leaving", "finished", "replaced"]
        if old.finished:
            may = ["replaced"]
        elif old.spec.node_name:
            may += ["status", "resized"]
        elif old.has_gate(GATE):
            may += ["nominated", "released", "by hand"]
        else:
            may += ["bound", "bound", "nominated", "cleared"]
        what = data.draw(st.sampled_from(may))
        new = {
            "relabelled": lambda: changed(old, metadata={"labels": {PHASE: "decode", GANG: "other"}}),
            "leaving": lambda: changed(old, metadata={"deletion_timestamp": "2026-11-02T10:41:07Z"}),
            "finished": lambda: changed(old, status={"phase": "Succeeded"}),
            "replaced": lambda: pod(old.metadata.name, gpus, uid=old.metadata.uid + "+", gated=True),
            "status": lambda: changed(old, status={"phase": "Running"}),
            "resized": lambda: changed(old, spec={"containers": pod("x", gpus).spec.containers}),
            "nominated": lambda: changed(old, status={"nominated_node_name": where}),
            "released": lambda: changed(
                old, metadata={"annotations": {DECISION: "abc"}}, spec={"scheduling_gates": None}
            ),
            "by hand": lambda: changed(old, spec={"scheduling_gates": None}),
            "bound": lambda: changed(old, spec={"node_name": where}),
            "cleared": lambda: changed(old, status={"nominated_node_name": ""}),
        }[what]()
        planned = self.place(old)
        as_planned = what == "bound" and (planned is None or planned[0] == where)
        idle = what == "status" or (what == "nominated" and old.has_gate(GATE))
        self.change(new, grows=False if as_planned or idle else None)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def pod_goes(self, data: st.DataObject) -> None:
        old = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]

        def reported() -> None:
            del self.pods[old.metadata.name]
            self.planned.pop(old.metadata.uid, None)
            self.state.apply_pods([(old, None)])

        self.report(reported)

    @precondition(lambda self: any(p.has_gate(GATE) and gang_key(p) for p in self.pods.values()))
    @rule(data=st.data(), where=nodes)
    def planned_for(self, data: st.DataObject, where: str) -> None:
        gated = sorted(n for n, p in self.pods.items() if p.has_gate(GATE) and gang_key(p) and not p.finished)
        if not gated:
            return
        chosen = self.pods[data.draw(st.sampled_from(gated))]
        uid, asked = chosen.metadata.uid, readable_request(chosen.spec)[0]
        again = uid in self.planned

        def reported() -> None:
            self.planned[uid] = where, asked
            self.state.assume(uid, where, asked)

        self.report(reported, grows=None if again else False)

    @rule(data=st.data())
    def given_back(self, data: st.DataObject) -> None:
        uids = sorted({p.metadata.uid for p in self.pods.values()}) or ["nobody"]
        uid = data.draw(st.sampled_from(uids))

        def reported() -> None:
            self.planned.pop(uid, None)
            self.state.unassume(uid)

        self.report(reported)

    # --- what holds ----------------------------------------------------------------------------

    @rule()
    def asked(self) -> None:
        """From here on the table is there and is kept up to date, until a node changes."""
        assert used(self.state) == self.truth()

    @rule()
    def restarted(self) -> None:
        fresh = ClusterState()
        fresh.apply_pods((None, p) for p in self.pods.values())
        fresh.apply_nodes((None, n) for n in self.nodes.values())
        assert used(fresh) == self.truth(restarted=True)
        assert {k: set(v) for k, v in fresh.gangs().items()} == {k: set(v) for k, v in self.state.gangs().items()}

    @invariant()
    def gangs_are_the_live_pods(self) -> None:
        live: dict[tuple[str, str], set[str]] = {}
        for known in self.pods.values():
            if not known.finished and (key := gang_key(known)) is not None:
                live.setdefault(key, set()).add(known.metadata.uid)
        assert {key: set(pods) for key, pods in self.state.gangs().items()} == live

    def teardown(self) -> None:
        assert used(self.state) == self.truth()


TestWatched = Watched.TestCase
TestWatched.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
