"""What gangs will take of queues, kept up to date; against the sum over all pods, which is slow and plain."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from admission.fairness.queue_commitments import QUEUE_LAG_S, QueueCommitments
from tests.admission.held_pods import NAMESPACE, bound, held, released, stored
from topology.cluster.state import ClusterState, GangKey, gang_key
from topology.labels import GANG, GATE, GROUP_NAME, NVIDIA_GPU, QUEUE_NAME
from topology.objects import Metadata, Pod, PodGroup, PodGroupSpec
from topology.resources import Amounts, readable_request, sum_amounts

A, B = (NAMESPACE, "a"), (NAMESPACE, "b")


def pod(name: str, gang: str, state: str = "gated", gpus: int = 1, queue: str = "") -> Pod:
    made = held(name, gang=gang, gpus=gpus, annotations={QUEUE_NAME: queue} if queue else None)
    return stored(
        {"gated": lambda: made, "released": lambda: released(made), "bound": lambda: bound(made, "n1")}[state]()
    )


def group(name: str, queue: str) -> PodGroup:
    return PodGroup(metadata=Metadata(name=name, namespace=NAMESPACE), spec=PodGroupSpec(queue=queue))


def gpus(commitments: QueueCommitments, now_s: float, but: GangKey | None = None) -> dict[str, int]:
    return {queue: amounts[NVIDIA_GPU] for queue, amounts in commitments.amounts(now_s, but).items()}


def test_a_life() -> None:
    """Gated: nothing. Planned, released, just bound: its GPUs. Bound for as long as Volcano's count takes: nothing."""
    state = ClusterState()
    commitments = QueueCommitments(state, {})
    pods = [pod("p0", "a", state, 2, "q") for state in ("gated", "released", "bound")]
    state.apply_pods([(None, pods[0])])
    assert gpus(commitments, 0.0) == {}
    state.assume(pods[0].metadata.uid, "n1", {NVIDIA_GPU: 2})
    assert gpus(commitments, 1.0) == {"q": 2}
    state.unassume(pods[0].metadata.uid)
    assert gpus(commitments, 2.0) == {}
    state.apply_pods([(pods[0], pods[1])])
    assert gpus(commitments, 3.0) == {"q": 2}
    state.apply_pods([(pods[1], pods[2])])
    assert gpus(commitments, 4.0) == {"q": 2}
    assert gpus(commitments, 4.0 + QUEUE_LAG_S - 0.1) == {"q": 2}
    assert gpus(commitments, 4.0 + QUEUE_LAG_S) == {}
    state.apply_pods([(pods[2], None)])
    assert gpus(commitments, 9.0) == {}
    assert not commitments._shares
    assert not commitments._bound_s


def test_kept_room_is_promised_to_all_others() -> None:
    """Two GPUs wait for a pod to come: they count for gang b, not for a, whose they are; and go with its last pod."""
    state = ClusterState()
    commitments = QueueCommitments(state, {})
    mine, other = pod("p0", "a", "released", 1, "q"), pod("p1", "b", "released", 4, "q")
    state.apply_pods([(None, mine), (None, other)])
    commitments.keep(A, {NVIDIA_GPU: 2})
    assert gpus(commitments, 0.0) == gpus(commitments, 0.0, B) == {"q": 7}
    assert gpus(commitments, 0.0, A) == {"q": 5}
    commitments.keep(A, {})
    assert gpus(commitments, 0.0) == {"q": 5}
    commitments.keep(A, {NVIDIA_GPU: 2})
    state.apply_pods([(mine, None)])
    assert gpus(commitments, 0.0) == {"q": 4}


def test_the_queue_of_a_pod_group_counts_and_may_change() -> None:
    state, groups = ClusterState(), dict[str, PodGroup]()
    commitments = QueueCommitments(state, groups)
    one = pod("p0", "a", "released", 3, "q")
    name = one.metadata.annotation(GROUP_NAME)
    state.apply_pods([(None, one)])
    assert gpus(commitments, 0.0) == {"q": 3}
    for queue in ("r", "s"):
        groups[f"{NAMESPACE}/{name}"] = group(name, queue)
        commitments.group_changed(f"{NAMESPACE}/{name}")
        assert gpus(commitments, 0.0) == {queue: 3}
    groups.clear()
    commitments.group_changed(f"{NAMESPACE}/{name}")
    assert gpus(commitments, 0.0) == {"q": 3}


class Slow:
    """The same, summed over all pods each time."""

    def __init__(self, state: ClusterState, groups: Mapping[str, PodGroup]) -> None:
        self.state, self.groups = state, groups
        self.bound_s: dict[str, float] = {}

    def amounts(self, now_s: float, retained: Mapping[GangKey, Amounts]) -> dict[str, Amounts]:
        coming: dict[str, list[Amounts]] = {}
        seen: dict[str, float] = {}
        for key, pods in self.state.gangs().items():
            for uid, each in pods.items():
                if each.spec.node_name:
                    seen[uid] = self.bound_s.get(uid, now_s)
                    counts = now_s < seen[uid] + QUEUE_LAG_S
                else:
                    counts = not each.has_gate(GATE) or self.state.is_assumed(uid)
                if counts:
                    coming.setdefault(self.queue_of(each), []).append(readable_request(each.spec)[0])
            if key in retained:
                queues = [self.queue_of(each) for each in pods.values()]
                by_group = [q for q, each in zip(queues, pods.values(), strict=True) if self.group_of(each)]
                coming.setdefault((by_group or queues)[0], []).append(retained[key])
        self.bound_s = seen
        return {queue: total for queue, many in coming.items() if any((total := sum_amounts(many)).values())}

    def group_of(self, each: Pod) -> PodGroup | None:
        return self.groups.get(f"{each.metadata.namespace}/{each.metadata.annotation(GROUP_NAME)}")

    def queue_of(self, each: Pod) -> str:
        found = self.group_of(each)
        return found.spec.queue if found is not None else each.metadata.annotation(QUEUE_NAME) or "default"


@pytest.mark.parametrize("seed", range(6))
def test_the_same_as_the_plain_sum(seed: int) -> None:
    """Pods of four gangs come, are planned, let go, bound, change gangs and go; groups come and move; room is kept."""
    rng, state = random.Random(seed), ClusterState()
    groups: dict[str, PodGroup] = {}
    fast, slow, now = QueueCommitments(state, groups), Slow(state, groups), 0.0
    pods: dict[str, Pod] = {}
    retained: dict[GangKey, Amounts] = {}
    for step in range(250):
        now += rng.choice((0.0, 0.4, QUEUE_LAG_S))
        name, gang = f"{rng.choice('pd')}{rng.randrange(8)}", rng.choice("abcd")
        old, kind = pods.get(name), rng.randrange(7)
        if kind <= 2 or old is None:
            if old is not None and old.spec.node_name:
                gang = old.metadata.label(GANG)  # a bound pod of another gang counts as just bound once more
            new = pod(name, gang, rng.choice(("gated", "released", "bound")), 1 + step % 3, f"q{gang}")
            state.apply_pods([(old, new)])
            pods[name] = new
        elif kind == 3:
            state.apply_pods([(old, None)])
            del pods[name]
        elif kind == 4:
            if state.is_assumed(old.metadata.uid):
                state.unassume(old.metadata.uid)
            else:
                state.assume(old.metadata.uid, "n1", {NVIDIA_GPU: 1})
        elif kind == 5:
            named = f"{NAMESPACE}/isochrone-{gang}"
            if groups.pop(named, None) is None:
                groups[named] = group(f"isochrone-{gang}", rng.choice(("qa", "other")))
            fast.group_changed(named)
        elif (key := gang_key(old)) is not None:
            retained[key] = {NVIDIA_GPU: step % 4} if step % 4 else {}
            fast.keep(key, retained[key])
        if rng.random() < 0.8:  # it need not hear of every change
            assert fast.amounts(now) == slow.amounts(now, retained), step
