"""The session's ledger: places as Volcano tries them, undoes them, evicts from them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.extender.decision_cache import DecisionCache
from scheduler.extender.session import SessionLedger, SessionPod
from scheduler.extender.verbs import prioritize
from scheduler.extender.wire import TaskStatus
from scheduler.model.policy import Policy
from tests.scheduler.volcano import Cluster, node_json, pod_json, prioritize_body
from topology.cluster.snapshot import Assumed
from topology.objects import Pod

P0 = SessionPod("u-p0", "p-0", "default", "chat", "prefill", "n1", TaskStatus.ALLOCATED, Pod())
D0 = SessionPod("u-d0", "d-0", "default", "chat", "decode", "n2", TaskStatus.PIPELINED, Pod())


def places(ledger: SessionLedger, phase: str = "prefill") -> list[tuple[str, tuple[str, ...]]]:
    return [(p.name, p.nodes) for p in ledger.partners("default", "chat", phase)]


def test_a_place_counts_until_it_is_given_back() -> None:
    ledger = SessionLedger()
    ledger.allocated(P0)
    ledger.allocated(D0)
    assert places(ledger) == [("p-0", ("n1",))]
    assert places(ledger, "decode") == [("d-0", ("n2",))]
    assert ledger.partners("other", "chat", "prefill") == ()
    assert ledger.assumed() == {"u-p0": Assumed("n1", {"pods": 1}), "u-d0": Assumed("n2", {"pods": 1})}
    assert ledger.assumed(without={"u-p0"}) == {"u-d0": Assumed("n2", {"pods": 1})}
    ledger.deallocated(replace(P0, status=TaskStatus.PENDING))
    assert places(ledger) == []
    ledger.deallocated(replace(P0, status=TaskStatus.PENDING))
    assert len(ledger) == 1


def test_a_second_place_replaces_the_first() -> None:
    ledger = SessionLedger()
    ledger.allocated(P0)
    ledger.allocated(replace(P0, node="n3"))
    assert places(ledger) == [("p-0", ("n3",))]
    ledger.allocated(replace(P0, gang="other"))
    assert places(ledger) == []


def test_an_evicted_pod_is_no_partner_and_holds_its_node_until_it_is_gone() -> None:
    ledger = SessionLedger()
    ledger.deallocated(replace(P0, status=TaskStatus.RELEASING))
    assert ledger.leaving("u-p0")
    assert places(ledger) == []
    assert ledger.assumed() == {}
    ledger.allocated(replace(P0, status=TaskStatus.RUNNING))
    assert not ledger.leaving("u-p0")
    assert len(ledger) == 0


def test_the_end_of_a_session_forgets_all_of_it() -> None:
    ledger = SessionLedger()
    ledger.allocated(P0)
    ledger.deallocated(replace(D0, status=TaskStatus.RELEASING))
    ledger.close()
    assert (len(ledger), tuple(ledger.gangs()), places(ledger)) == (0, (), [])


def test_a_session_that_never_closes_stays_bounded() -> None:
    ledger = SessionLedger(limit=3)
    for i in range(10):
        ledger.allocated(replace(P0, uid=f"u{i}", gang=f"g{i}"))
    assert list(ledger.assumed()) == ["u7", "u8", "u9"]
    assert set(ledger.gangs()) == {("default", f"g{i}") for i in (7, 8, 9)}


CALLS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["n1", "n2"]), st.sampled_from([2, 4, 32, 1, 64])), max_size=30
)


@given(CALLS)
def test_the_ledger_agrees_with_a_plain_reading_of_the_calls(calls: list[tuple[str, str, int]]) -> None:
    ledger = SessionLedger()
    truth: dict[str, str] = {}
    for uid, node, status in calls:
        pod = replace(P0, uid=uid, name=uid, node=node, status=status)
        truth.pop(uid, None)
        if status in (TaskStatus.ALLOCATED, TaskStatus.PIPELINED):
            ledger.allocated(pod)
            truth[uid] = node
        elif status == TaskStatus.RUNNING:
            ledger.allocated(pod)
        else:
            ledger.deallocated(pod)
    assert {uid: a.node for uid, a in ledger.assumed().items()} == truth
    assert {p.uid: p.nodes[0] for p in ledger.partners("default", "chat", "prefill")} == truth


def test_the_last_decisions_are_kept_and_no_more() -> None:
    log, cluster = DecisionCache(limit=2), Cluster([node_json("n1"), node_json("n2")])
    for name in ("d-0", "d-1", "d-2"):
        body = prioritize_body(pod_json(name, "decode"), [node_json("n1"), node_json("n2")])
        decision = prioritize(body, cluster, SessionLedger(), Policy()).decision
        assert decision is not None
        log.remember(decision)
        log.get("uid-d-0")
    retained = {name: log.get(f"uid-{name}") is not None for name in ("d-0", "d-1", "d-2")}
    assert retained == {"d-0": True, "d-1": False, "d-2": True}
    log.forget("uid-d-0")
    log.forget("uid-d-0")
    assert len(log) == 1
