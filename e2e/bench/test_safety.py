"""The judge of the safety benchmark: its reach by hand, and that it sees a promise that is not kept."""

import pytest

from e2e.bench.oracle import Oracle, Stood, hosts
from e2e.bench.safety import Simulation


def test_reach_on_the_shortest_path() -> None:
    evaluate = Oracle({host.name: host for host in hosts()})
    # n00 to n02 stand under one leaf, n03 under the next, n09 under another spine, n18 in the other zone; n06 has TCP.
    assert evaluate.reach_us("n01", "n01") == pytest.approx(8.188, abs=1e-3)
    assert evaluate.reach_us("n00", "n00") == pytest.approx(25.800, abs=1e-3)
    assert evaluate.reach_us("n00", "n02") == pytest.approx(24.426, abs=1e-3)
    assert evaluate.reach_us("n00", "n03") == pytest.approx(25.626, abs=1e-3)
    assert evaluate.reach_us("n00", "n09") == pytest.approx(26.826, abs=1e-3)
    assert evaluate.reach_us("n00", "n06") == pytest.approx(119.243, abs=1e-3)
    assert evaluate.reach_us("n00", "n18") == 2000.0


def test_the_book() -> None:
    evaluate = Oracle({host.name: host for host in hosts()})
    evaluate.pods = {"a": Stood("g", "prefill", "n00", 6), "b": Stood("g", "decode", "n18", 4)}
    assert evaluate.free("n00") == 2
    assert evaluate.booked_twice([("n00", 4), ("n18", 4)]) == 2
    assert evaluate.pairs_beyond("g", 1000.0) == 1
    assert evaluate.alone("g", ["a", "b"], 1000.0) == 2


def run(one: Simulation, gangs: int) -> Simulation:
    while one.came < gangs:
        one.step()
    return one


def test_promises_are_kept_for_a_while() -> None:
    one = run(Simulation(3), 40)
    assert one.strayed > 5
    assert (one.pairs_beyond, one.booked_twice) == (0, 0)


def test_pods_that_leave_their_sets_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Simulation(3)
    monkeypatch.setattr(one, "_inside", lambda held_to: [host.name for host in hosts()])
    assert run(one, 40).pairs_beyond > 0
