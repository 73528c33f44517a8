"""The state machine of a gang: every transition that may be, and every one that must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from admission.reconcile.gang_state import GangState, GangStatus, IllegalTransitionError, WaitReason
from admission.release.pod_writer import PodRelease
from topology.objects import Metadata, Pod

W, P, R, C, G, RUN, GONE = (
    GangStatus.WAITING,
    GangStatus.PLANNING,
    GangStatus.RELEASING,
    GangStatus.CONFIRMING,
    GangStatus.GROUPING,
    GangStatus.RUNNING,
    GangStatus.GONE,
)


def waiting() -> GangState:
    gang = GangState(10.0)
    gang.observe({"p", "d"}, 10.0)
    gang.dequeue()
    return gang


def planning() -> GangState:
    gang = waiting()
    gang.begin_planning()
    return gang


def releasing() -> GangState:
    gang = planning()
    gang.begin_release({"p", "d"}, preempts=False)
    return gang


def confirming() -> GangState:
    gang = releasing()
    gang.writes_ended(done=False)
    return gang


def grouping() -> GangState:
    gang = waiting()
    gang.wait_for(WaitReason.CAPACITY)
    gang.begin_grouping()
    return gang


def running() -> GangState:
    gang = waiting()
    gang.all_released()
    return gang


def gone() -> GangState:
    gang = waiting()
    gang.gone()
    return gang


MADE: dict[GangStatus, Callable[[], GangState]] = {
    W: waiting,
    P: planning,
    R: releasing,
    C: confirming,
    G: grouping,
    RUN: running,
    GONE: gone,
}

STEPS: dict[str, Callable[[GangState], object]] = {
    "wait for": lambda gang: gang.wait_for(WaitReason.CAPACITY),
    "begin planning": lambda gang: gang.begin_planning(),
    "begin release": lambda gang: gang.begin_release({"p"}, preempts=False),
    "retry release": lambda gang: gang.retry_release(),
    "writes ended": lambda gang: gang.writes_ended(done=True),
    "begin grouping": lambda gang: gang.begin_grouping(),
    "all released": lambda gang: gang.all_released(),
    "enqueue": lambda gang: gang.enqueue(),
    "confirm some": lambda gang: gang.confirm({"p"}),
    "confirm all": lambda gang: gang.confirm(set()),
    "abandon": lambda gang: gang.abandon(),
    "gone": lambda gang: gang.gone(),
}

# Written by hand. A step that is not listed for a status must raise.
MAY: dict[GangStatus, dict[str, GangStatus]] = {
    W: {
        "wait for": W,
        "begin planning": P,
        "begin grouping": G,
        "all released": RUN,
        "enqueue": W,
        "confirm some": W,
        "confirm all": W,
        "abandon": W,
        "gone": GONE,
    },
    P: {
        "wait for": W,
        "begin release": R,
        "enqueue": P,
        "confirm some": P,
        "confirm all": P,
        "abandon": W,
    },
    R: {
        "wait for": W,
        "writes ended": C,
        "enqueue": R,
        "confirm some": R,
        "confirm all": R,
        "abandon": W,
        "gone": GONE,
    },
    C: {
        "wait for": W,
        "retry release": R,
        "enqueue": C,
        "confirm some": C,
        "confirm all": W,
        "abandon": C,
        "gone": GONE,
    },
    G: {
        "wait for": W,
        "writes ended": W,
        "enqueue": G,
        "confirm some": G,
        "confirm all": G,
        "abandon": W,
        "gone": GONE,
    },
    RUN: {
        "wait for": W,
        "enqueue": W,
        "confirm some": RUN,
        "confirm all": RUN,
        "abandon": W,
        "gone": GONE,
    },
    GONE: {"confirm some": GONE, "confirm all": GONE},
}

# Which status may follow which, whatever the step: also by hand.
FOLLOWS: dict[GangStatus, set[GangStatus]] = {
    W: {W, P, G, RUN, GONE},
    P: {W, R},
    R: {C, W, GONE},
    C: {R, W, GONE},
    G: {W, GONE},
    RUN: {W, GONE},
    GONE: set(),
}


@pytest.mark.parametrize("status", GangStatus)
def test_a_gang_gets_into_every_status(status: GangStatus) -> None:
    assert MADE[status]().status is status


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("status", GangStatus)
def test_every_step_from_every_status(status: GangStatus, step: str) -> None:
    gang = MADE[status]()
    expected = MAY[status].get(step)
    if expected is not None:
        STEPS[step](gang)
        assert gang.status is expected
        return
    before = (gang.wait, gang.releasing, gang.enqueued, gang.next_s, gang.generation)
    with pytest.raises(IllegalTransitionError):
        STEPS[step](gang)
    assert gang.status is status
    assert (gang.wait, gang.releasing, gang.enqueued, gang.next_s, gang.generation) == before


@pytest.mark.parametrize("after", GangStatus)
@pytest.mark.parametrize("before", GangStatus)
def test_every_pair_of_statuses(before: GangStatus, after: GangStatus) -> None:
    gang = MADE[before]()
    if after in FOLLOWS[before]:
        gang._to(after)
        assert gang.status is after
    else:
        with pytest.raises(IllegalTransitionError, match=f"{before.value} -> {after.value}"):
            gang._to(after)
        assert gang.status is before


# --- data that belongs to a status -------------------------------------------------------------


def test_a_wait_says_for_what_and_ends_with_the_status() -> None:
    gang = waiting()
    gang.wait_for(WaitReason.OLDER_GANG, older=("ns", "old"))
    assert gang.behind == ("ns", "old")
    gang.begin_grouping()
    assert gang.behind == ("ns", "old"), "it goes on waiting beside the write"
    gang.writes_ended(done=False)
    assert gang.behind == ("ns", "old")
    gang.begin_planning()
    assert gang.wait is None
    assert gang.behind is None


def test_writes_that_released_nobody_leave_nothing_to_confirm() -> None:
    gang = releasing()
    gang.not_released({"p", "d"})
    gang.writes_ended(done=False)
    assert gang.wait is not None
    assert gang.wait.reason is WaitReason.BACKOFF
    assert gang.releasing == frozenset()


def test_unconfirmed_writes_are_kept_until_their_pods_are_seen_released() -> None:
    gang = releasing()
    releases = [PodRelease(Pod(metadata=Metadata(name=uid, uid=uid)), "n1", None) for uid in ("p", "d")]
    gang.release_unconfirmed(releases)
    gang.writes_ended(done=False)
    assert not gang.confirm({"d", "other"})
    assert gang.releasing == {"d"}
    assert [x.pod.metadata.uid for x in gang.unconfirmed] == ["d"]
    assert gang.confirm({"other"})
    assert not gang.unconfirmed


def test_a_bug_gives_back_what_a_release_took_and_nothing_that_may_be_done() -> None:
    assert releasing().abandon() == {"p", "d"}
    gang = confirming()
    assert gang.abandon() == frozenset()
    assert gang.releasing == {"p", "d"}


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (lambda gang: gang.reserve({"e"}, 99.0), WaitReason.EXPECTED_PODS),
        (lambda gang: gang.group_written(15.0), WaitReason.OWN_POD_GROUP),
    ],
)
def test_a_gang_runs_only_once_nothing_is_to_be_seen_or_to_come(
    before: Callable[[GangState], None], reason: WaitReason
) -> None:
    gang = waiting()
    before(gang)
    gang.all_released()
    assert gang.status is W
    assert gang.wait is not None
    assert gang.wait.reason is reason
    assert not gang.at_rest


# --- the work queue ----------------------------------------------------------------------------


def test_failures_in_a_row_back_off_to_the_cap_and_success_begins_anew() -> None:
    gang = waiting()
    times = []
    for _ in range(4):
        gang.back_off(100.0, 1.0, 5.0)
        times.append(gang.dequeue())
    assert times == [101.0, 102.0, 104.0, 105.0]
    gang.begin_grouping()
    gang.writes_ended(done=True)
    assert gang.enqueued
    gang.back_off(100.0, 1.0, 5.0)
    assert gang.next_s == 101.0


def test_the_next_time_is_the_first_of_requeue_group_check_and_reservation() -> None:
    gang = waiting()
    assert gang.next_s is None
    gang.reserve({"e"}, 30.0)
    gang.group_written(20.0)
    assert gang.next_s == 20.0
    gang.check_group(False, 20.0)
    assert not gang.group_made
    assert gang.next_s == 30.0
    gang.requeue_at(25.0)
    assert gang.next_s == 25.0
    assert not gang.reservation_over(29.0)
    assert gang.reservation_over(30.0)
    assert gang.end_reservation() == {"e"}
    assert gang.next_s == 25.0


def test_only_a_pod_that_is_new_is_an_arrival() -> None:
    gang = waiting()
    gang.ranked((0, "t"))
    assert not gang.observe({"p"}, 20.0)
    assert gang.last_arrival_s == 10.0
    assert gang.rank is None
    assert gang.observe({"p", "d"}, 21.0)
    assert gang.last_arrival_s == 21.0


def test_whom_the_plan_left_out_waits_for_newer_capacity() -> None:
    gang = waiting()
    gang.plan_left_out(7, None)
    assert gang.generation == 7
    assert gang.waiting_gang is None
    assert not gang.at_rest
    gang.plan_left_out_nobody()
    assert gang.generation is None
    assert gang.at_rest
