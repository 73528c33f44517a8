"""What a queue can still hold: numbers worked out by hand."""

from __future__ import annotations

import pytest

from admission.fairness.queue_quota import QueueQuota, QueueShort
from scheduler.model.request import GangRequest, PodRequest
from topology.labels import NVIDIA_GPU
from topology.objects import Metadata, Queue, QueueSpec, QueueStatus


def queue(name: str, gpus: str = "", held: str = "0", parent: str = "root", state: str = "Open") -> tuple[str, Queue]:
    capability: dict[str, str | int | float] | None = {NVIDIA_GPU: gpus} if gpus else None
    return name, Queue(
        Metadata(name=name), QueueSpec(capability, parent), QueueStatus(state, {NVIDIA_GPU: held, "cpu": "1"})
    )


ROOT = queue("root", parent="")


def gang(prefill: int, decode: int, gpus: int = 2, min_prefill: int = 1) -> GangRequest:
    members = [
        PodRequest(name, "team", name, phase, {NVIDIA_GPU: gpus, "pods": 1})
        for phase, count in (("prefill", prefill), ("decode", decode))
        for name in (f"{phase[0]}{i}" for i in range(count))
    ]
    return GangRequest("team", "chat", tuple(members), min_prefill=min_prefill)


def test_a_queue_without_capability_holds_anything() -> None:
    capacity = QueueQuota("a", dict([ROOT, queue("a")]), {})
    assert capacity.short_of({NVIDIA_GPU: 1000}) is None


def test_what_it_has_less_what_it_holds_less_what_is_coming() -> None:
    """16 - 8 held - 4 coming = 4 left."""
    queues = dict([ROOT, queue("a", "16", "8")])
    capacity = QueueQuota("a", queues, {"a": {NVIDIA_GPU: 4}})
    assert capacity.short_of({NVIDIA_GPU: 4}) is None
    assert capacity.short_of({NVIDIA_GPU: 5}) == QueueShort("a", NVIDIA_GPU, 5, 4, 16)


def test_queues_above_count_and_so_does_what_comes_to_their_other_children() -> None:
    """The parent has 20 - 10 = 10, of which 6 are promised to a sibling: 4 left, though the queue itself has 16."""
    queues = dict([ROOT, queue("top", "20", "10"), queue("a", "16", "0", "top"), queue("b", "", "0", "top")])
    capacity = QueueQuota("a", queues, {"b": {NVIDIA_GPU: 6}})
    assert capacity.short_of({NVIDIA_GPU: 4}) is None
    assert capacity.short_of({NVIDIA_GPU: 5}) == QueueShort("top", NVIDIA_GPU, 5, 4, 20)


@pytest.mark.parametrize(
    ("state", "why"), [("Closed", "is Closed, not Open"), ("Closing", "is Closing, not Open"), ("", None)]
)
def test_a_queue_that_is_not_open(state: str, why: str | None) -> None:
    found = QueueQuota("a", dict([ROOT, queue("a", state=state)]), {}).short_of({})
    assert (found and found.why) == why


def test_a_queue_that_is_not_there_or_cannot_be_read() -> None:
    assert QueueQuota("b", dict([ROOT, queue("a")]), {}).short_of({}) == QueueShort("b", why="does not exist")
    wrong = QueueQuota("a", dict([ROOT, queue("a", "many")]), {}).short_of({})
    assert wrong is not None
    assert wrong.why.startswith("cannot be read: queue a spec.capability[nvidia.com/gpu]")


def test_a_ring_of_parents_ends() -> None:
    queues = dict([queue("a", "4", parent="b"), queue("b", "2", parent="a")])
    assert QueueQuota("a", queues, {}).short_of({NVIDIA_GPU: 3}) == QueueShort("b", NVIDIA_GPU, 3, 2, 2)


def test_the_minimum_or_nobody() -> None:
    """2P2D of 2 GPUs with a minimum of 2 and 1 need 6; 5 are left."""
    capacity = QueueQuota("a", dict([ROOT, queue("a", "5")]), {})
    members, short = capacity.those_that_fit(gang(2, 2, min_prefill=2))
    assert members == ()
    assert short == QueueShort("a", NVIDIA_GPU, 6, 5, 5)


def test_beyond_the_minimum_one_of_each_phase_in_turn() -> None:
    """3P3D of 2 GPUs, 9 left: p0 and d0 (4), then d1 (6), p1 (8); the next would be 10."""
    capacity = QueueQuota("a", dict([ROOT, queue("a", "9")]), {})
    members, short = capacity.those_that_fit(gang(3, 3))
    assert [m.name for m in members] == ["p0", "p1", "d0", "d1"]
    assert short == QueueShort("a", NVIDIA_GPU, 10, 9, 9)
