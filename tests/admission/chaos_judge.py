"""Who looks at everything that a controller writes and says in a chaos, and finds what must not be.

After every single write it looks at what the API server has, and at that alone: no GPU is given or promised twice, no
queue holds more than it may, no pair is beyond its bound, nobody is deleted who must not be, and `Placed` is said of
who is bound. What a gang is told is judged the moment it is said, against the facts that it was said on, by other means
than the planner's: places are tried one by one, pods and amounts are counted anew.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from admission.controller.controller import Controller
from admission.gangs.gang_view import GangView
from admission.recognition.replica_group import size_of, unit_of
from admission.report.wait_messages import WaitMessage
from scheduler.explain.events import held_event
from scheduler.model.decision import Outcome, Plan
from scheduler.model.reason import Reason
from tests.admission.chaos_world import QUEUE_OF, QUEUES, World, is_held, live, requests
from tests.admission.pods import Raw
from topology.cluster.snapshot import Snapshot
from topology.labels import GANG, GATE, GPU_MEMORY, NVIDIA_GPU, PHASE, QUEUE_NAME, ZONE
from topology.objects import Pod
from topology.resources import readable_request
from topology.selectors import accepts, selects_node


class Judge:
    """Looks at one world; `found` is what must not be."""

    def __init__(self, world: World) -> None:
        self.world, self.cluster = world, world.cluster
        self.found: list[str] = []
        self.value: dict[str, int] = {}  # how often what was judged, so that a judge that sleeps is noticed
        self.last: dict[str, Reason] = {}  # what each pod was told last, by uid
        self._events = 0
        self._delete = self.cluster.store.delete
        self.cluster.store.delete = self._deleted  # type: ignore[method-assign]
        self._wakeup = self.cluster.store._on_change
        self.cluster.store._on_change = self._read

    # --- what is written -----------------------------------------------------------------------

    def _deleted(self, kind: Any, namespace: str, name: str, preconditions: Any = None) -> Raw:
        if self.world.mine or kind.plural != "pods":
            return self._delete(kind, namespace, name, preconditions)
        pod = self.cluster.pod(namespace, name)
        owners = pod["metadata"].get("ownerReferences", [])
        done = self._delete(kind, namespace, name, preconditions)  # refuses what changed meanwhile
        made_again = bool(owners) and owners[0]["kind"] in ("ReplicaSet", "StatefulSet")
        if "nodeName" in pod["spec"] or is_held(pod) or not made_again:
            self.found.append(f"deleted {name}: {pod['spec'].get('nodeName')} {owners}")
        labels = pod["metadata"]["labels"]
        self.world.make(labels[PHASE], labels[GANG])
        return done

    def _read(self) -> None:
        self._wakeup()
        has = {n["metadata"]["name"]: n for n in self.cluster.objects("nodes")}
        booked: dict[tuple[str, str], int] = {}
        zones: dict[str, set[tuple[str, str]]] = {}
        queues: dict[str, int] = dict.fromkeys(QUEUES, 0)
        for pod in live(self.cluster):
            if is_held(pod):
                continue
            labels = pod["metadata"].get("labels", {})
            for name in {QUEUE_OF.get(labels.get(GANG, "").partition("-")[0], ""), "top"} & queues.keys():
                if pod["metadata"]["annotations"].get(QUEUE_NAME):
                    queues[name] += requests(pod).get(NVIDIA_GPU, 0)
            node: str = pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName", "")
            if node not in has:
                continue
            if pod["metadata"]["uid"] in self.world.chosen:
                continue  # Volcano took room that a plan may have been made for at the same moment
            for what, amount in requests(pod).items():
                booked[node, what] = booked.get((node, what), 0) + amount
            if labels.get(GANG) and not labels[GANG].startswith("near"):
                zone = has[node]["metadata"]["labels"][ZONE]
                zones.setdefault(labels[GANG], set()).add((labels[PHASE], zone))
        for (node, what), amount in booked.items():
            if amount > int(has[node]["status"]["allocatable"].get(what, 0)):
                self.found.append(f"{amount} {what} booked on {node}, after {self.world.did[-12:]}")
        for gang, where in zones.items():
            if len({phase for phase, _ in where}) == 2 and len({zone for _, zone in where}) > 1:
                self.found.append(f"{gang} is in {sorted(where)}")
        self.found += [f"{gpus} GPUs let go into queue {name}" for name, gpus in queues.items() if gpus > QUEUES[name]]
        self._look_at_events()

    def _look_at_events(self) -> None:
        events = self.cluster.objects("events")
        by_uid = {pod["metadata"]["uid"]: pod for pod in self.cluster.objects("pods")}
        for event in events[self._events :]:
            pod = by_uid.get(event.get("involvedObject", {}).get("uid"))
            if event["reason"] == "Placed" and pod is not None and "nodeName" not in pod["spec"]:
                self.found.append(f"{pod['metadata']['name']} is said to be placed")
        self._events = len(events)

    # --- what is said --------------------------------------------------------------------------

    def listen(self, controller: Controller) -> None:
        """Judge what this controller tells gangs, before it is told."""
        reporter = controller.reporter
        held, waiting, left_out = reporter.held, reporter.waiting, reporter.left_out

        def note(view: GangView, plan: Plan) -> None:
            for pod in view.held:
                uid = pod.metadata.uid
                if uid not in plan.places and (uid in plan.decisions or not plan.decisions):
                    self.last[uid] = held_event(plan, plan.decisions.get(uid))[0]

        def judge_held(view: GangView, plan: Plan) -> None:
            self._count(plan.outcome)
            if wrong := _held_wrongly(controller, view, plan):
                self.found.append(f"{view.key[1]} is told {plan.outcome}: {wrong}")
            note(view, plan)
            held(view, plan)

        def note_left_out(view: GangView, plan: Plan) -> None:
            note(view, plan)
            left_out(view, plan)

        def judge_waiting(pod: Pod, reported: WaitMessage) -> None:
            self._count(reported.key.partition("/")[0])
            if wrong := _waits_wrongly(controller, pod, reported):
                self.found.append(f"{pod.metadata.name} is told {reported.text}: {wrong}")
            self.last[pod.metadata.uid] = reported.reason
            waiting(pod, reported)

        reporter.held, reporter.waiting, reporter.left_out = judge_held, judge_waiting, note_left_out  # type: ignore[method-assign]

    def _count(self, what: str) -> None:
        self.value[what] = self.value.get(what, 0) + 1


def facts(controller: Controller, view: GangView) -> Snapshot:
    """What the gang could be planned on."""
    snapshot = controller.state.snapshot(0.0, 0.0)
    snapshot = controller.batch._fairness.claims.laid_over(snapshot)
    return snapshot.without_assumed(controller.batch._gangs[view.key].reserved)


# --- why a gang has no place -------------------------------------------------------------------


def _held_wrongly(controller: Controller, view: GangView, plan: Plan) -> str:
    here = [p.metadata.label(PHASE) for p in (*view.members, *view.released, *view.bound)]
    least = {"prefill": plan.request.min_prefill, "decode": plan.request.min_decode}
    short = {phase: least[phase] - here.count(phase) for phase in least if here.count(phase) < least[phase]}
    if plan.outcome == Outcome.WAITING_FOR_PARTNER:
        return "" if any(not here.count(phase) for phase in short) else f"both phases are there: {here}"
    if plan.outcome == Outcome.WAITING_FOR_GANG:
        return "" if short else f"{here} are enough for {least}"
    if plan.outcome != Outcome.HELD:
        return "it could be decided"
    pods = (*view.members, *view.released, *view.bound)
    if any(p.metadata.annotation(GPU_MEMORY) for p in pods):
        return ""  # which cards fit is not counted here
    asked = {m.uid for m in plan.request.members}  # those that the queue can hold
    view = replace(view, members=tuple(p for p in view.members if p.metadata.uid in asked))
    return _a_place(controller, view, least)


def _a_place(controller: Controller, view: GangView, least: dict[str, int]) -> str:
    """Places for the fewest members that would go, if there are some."""
    snapshot, near = facts(controller, view), view.key[1].startswith("near")
    out = (*view.released, *view.bound)
    needed = {phase: least[phase] - sum(1 for p in out if p.metadata.label(PHASE) == phase) for phase in least}
    wholes: dict[str, list[Pod]] = {}
    for pod in view.members:
        wholes.setdefault(unit_of(pod) or pod.metadata.name, []).append(pod)
    by_phase = {
        phase: [w for w in wholes.values() if w[0].metadata.label(PHASE) == phase and len(w) == size_of(w[0])]
        for phase in least
    }
    if max(needed.values()) <= 0:
        choices: list[Any] = [(whole,) for of_phase in by_phase.values() for whole in of_phase]
    else:
        choices = list(product(*(_some(by_phase[phase], needed[phase]) for phase in least)))
    for choice in choices:
        pods = [pod for part in choice for pod in _flat(part)]
        if pods and (where := _fits(snapshot, pods, out, near)):
            return f"{[p.metadata.name for p in pods]} fit on {where}"
    return ""


def _flat(part: Any) -> list[Pod]:
    return [pod for each in part for pod in (each if isinstance(each, list) else [each])]


def _some(wholes: list[list[Pod]], needed: int) -> list[list[Pod]]:
    """Ways to take as many pods as are needed, one kind of whole after the other."""
    if needed <= 0:
        return [[]]
    found = []
    for first in range(len(wholes)):
        taken: list[Pod] = []
        for whole in wholes[first:]:
            if len(taken) < needed:
                taken += whole
        if len(taken) >= needed:
            found.append(taken)
    return found


def _fits(snapshot: Snapshot, pods: list[Pod], out: tuple[Pod, ...], near: bool) -> list[str]:
    table = snapshot.table
    rows = [table.vector(readable_request(pod.spec)[0])[0] for pod in pods]
    able = [[i for i, node in enumerate(table.nodes) if accepts(pod.spec, node)] for pod in pods]
    zone_of = [node.metadata.label(ZONE) for node in table.nodes]
    partners: list[tuple[str, set[str]]] = []
    for pod in out:
        where = [zone_of[i] for i, n in enumerate(table.nodes) if _may_be_on(pod, n.metadata.name, n)]
        partners.append((pod.metadata.label(PHASE), set(where)))
    for nodes in product(*able):
        left = snapshot.free.copy()
        for row, node in zip(rows, nodes, strict=True):
            left[node] -= row
        if any((left[node][row > 0] < 0).any() for row, node in zip(rows, nodes, strict=True)):
            continue
        new = [(pod.metadata.label(PHASE), {zone_of[node]}) for pod, node in zip(pods, nodes, strict=True)]
        if _within(new, partners, near):
            return [table.names[node] for node in nodes]
    return []


def _may_be_on(pod: Pod, name: str, node: Any) -> bool:
    return pod.spec.node_name == name if pod.spec.node_name else selects_node(pod.spec, node)


def _within(new: list[tuple[str, set[str]]], partners: list[tuple[str, set[str]]], near: bool) -> bool:
    """One zone for every pair; with `near` one partner in the same zone for every new pod."""
    for i, (phase, zones) in enumerate(new):
        others = [z for p, z in (*new[:i], *new[i + 1 :], *partners) if p != phase]
        equivalent = [len(zones | z) == 1 for z in others]
        if not (any(equivalent) if near else all(equivalent)):
            return False
    return True


# --- why it waits for something else -----------------------------------------------------------


def _waits_wrongly(controller: Controller, pod: Pod, reported: WaitMessage) -> str:
    kind, _, rest = reported.key.partition("/")
    state, batch = controller.state, controller.batch
    key = (pod.metadata.namespace, pod.metadata.label(GANG))
    match kind:
        case "behind":
            older = tuple(rest.split("/"))
            gang = batch._gangs.get(older)  # type: ignore[arg-type]
            if gang is None or gang.waiting_gang is None or batch._ranked(older) > batch._ranked(key):  # type: ignore[arg-type]
                return "that gang does not wait, or is younger"
            limit = batch._fairness._overtaking._limit
            return "" if batch._fairness.passed(older) >= limit else "it may be passed"  # type: ignore[arg-type]
        case "unit":
            mine = [p for p in state.gang_pods(*key) if unit_of(p) == rest and p.metadata.deletion_timestamp is None]
            return "" if len(mine) < size_of(pod) else "all of it is there"
        case "partners":
            mine = [p for p in state.gang_pods(*key) if unit_of(p) == rest and p.metadata.deletion_timestamp is None]
            return "" if mine and len(mine) < size_of(mine[0]) else "all of it is there"
        case "lost":
            lost = [p for p in state.gang_pods(*key) if p.metadata.uid == rest]
            names = controller.state.table().index
            return "" if lost and lost[0].spec.node_name not in names else "its node is known"
        case "queue":
            return _short_wrongly(controller, key, rest, reported.text)
        case "preemption":
            return "" if pod.metadata.uid in batch._gangs[key].releasing else "it is not let go"
        case "unplaced" | "withdrawn":  # whether its node was full is judged where that is decided, in test_renew
            return "it is held or bound" if pod.has_gate(GATE) or pod.spec.node_name else ""
        case _:
            return f"nobody judges {kind}"


def _short_wrongly(controller: Controller, key: tuple[str, str], rest: str, text: str) -> str:
    name, _, more = rest.partition("/")
    why = more.rpartition("/")[2]
    found = controller.queues.objects.get(name)
    if why:
        return "" if found is None or found.status.state != "Open" else "the queue is open"
    numbers = [int(word) for word in text.split() if word.isdigit()]
    left, capability, need = numbers[0], numbers[1], numbers[2]
    assert found is not None
    if capability != QUEUES[name] or need <= left:
        return f"{left} of {QUEUES[name]} are enough for {need}"
    # What is surely taken, and what is perhaps taken: bound pods may be in Volcano's count already, or not yet.
    below = {name} if name != "top" else {"small", "kids", "top"}
    counted = int((found.status.allocated or {}).get(NVIDIA_GPU, 0))
    surely, perhaps = counted, counted
    for other, pods in controller.state.gangs().items():
        for uid, pod in pods.items():
            if pod.metadata.annotation(QUEUE_NAME) not in below:
                continue
            gpus = readable_request(pod.spec)[0].get(NVIDIA_GPU, 0)
            on_its_way = not pod.has_gate(GATE) or controller.state.is_assumed(uid)
            surely += gpus if on_its_way and not pod.spec.node_name else 0
            perhaps += gpus if on_its_way else 0
        perhaps += 2 * int(other != key and bool(controller.batch._gangs[other].reserved))
    return "" if capability - perhaps <= left or left == 0 else f"{left} left, at least {capability - perhaps}"
