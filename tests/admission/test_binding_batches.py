"""When a binding is told: settled, in lots, and after the gangs that are being let go, but not for ever."""

from admission.report.binding_batches import BUSY_WAIT_S, SETTLE_S, Bindings
from topology.objects import Metadata, Pod


def pod(uid: str) -> Pod:
    return Pod(metadata=Metadata(name=uid, namespace="ns", uid=uid))


def names(pods: list[Pod]) -> list[str]:
    return [each.metadata.name for each in pods]


def test_a_binding_is_told_once_it_settled() -> None:
    bindings = Bindings(lambda: False)
    assert bindings.next_s(100.0) is None
    assert bindings.add(pod("a"), 100.0)
    assert not bindings.add(pod("b"), 100.1)  # it is later than what is waited for already
    assert bindings.next_s(100.1) == 100.0 + SETTLE_S
    assert names(bindings.due(100.2)) == []
    assert names(bindings.due(100.35)) == ["a"]
    assert bindings.next_s(100.35) == 100.1 + SETTLE_S
    assert names(bindings.due(200.0)) == ["b"]
    assert bindings.due(300.0) == []
    assert bindings.next_s(300.0) is None


def test_while_gangs_are_let_go_it_waits_but_not_for_ever() -> None:
    busy = True
    bindings = Bindings(lambda: busy)
    bindings.add(pod("a"), 100.0)
    assert bindings.due(101.0) == []
    again_s = bindings.next_s(101.0)
    assert again_s is not None
    assert 101.0 < again_s <= 102.0  # it may be calm any moment
    assert names(bindings.due(100.0 + BUSY_WAIT_S)) == ["a"]
    bindings.add(pod("b"), 200.0)
    assert bindings.due(201.0) == []
    busy = False
    assert names(bindings.due(201.0)) == ["b"]


def test_many_are_told_in_lots_the_oldest_first() -> None:
    bindings = Bindings(lambda: False)
    for i in range(40):
        bindings.add(pod(f"p{i:02}"), 100.0 + i / 1000)
    lots = []
    while batch := bindings.due(200.0):
        lots.append(names(batch))
    assert [name for batch in lots for name in batch] == [f"p{i:02}" for i in range(40)]
    assert len(lots) > 1


def test_a_pod_that_is_gone_is_told_nothing() -> None:
    bindings = Bindings(lambda: False)
    bindings.add(pod("a"), 100.0)
    bindings.add(pod("b"), 100.0)
    bindings.forget("a")
    bindings.forget("never seen")
    assert names(bindings.due(200.0)) == ["b"]


def test_it_holds_no_more_than_its_limit() -> None:
    bindings = Bindings(lambda: True)
    for i in range(6_000):
        bindings.add(pod(f"p{i}"), 100.0)
    reported = 0
    while batch := bindings.due(1000.0):
        reported += len(batch)
    assert reported == 5_000
