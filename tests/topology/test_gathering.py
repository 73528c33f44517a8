"""How long a watch is left alone: shortly after a silence, longer once a stream does not pause."""

from topology.kube.gathering import Gathering


def test_a_gang_that_comes_alone_is_taken_as_it_comes() -> None:
    gathering = Gathering(0.01, 0.03)
    # Eight creations, eight nominations, eight releases, two lines each, and a moment of work between them.
    pauses = [gathering.pause_s(waited_s) for waited_s in [60.0, 0.01, 0.01, 0.01, 0.02, 0.0, 0.0, 0.0, 0.05, 0.0]]
    assert pauses == [0.01] * 10


def test_a_stream_that_does_not_pause_is_left_alone_for_longer() -> None:
    gathering = Gathering(0.01, 0.03)
    pauses = [gathering.pause_s(0.005) for _ in range(40)]
    assert (pauses[0], pauses[-1]) == (0.01, 0.03)
    assert pauses == sorted(pauses)


def test_after_a_silence_it_starts_anew() -> None:
    gathering = Gathering(0.01, 0.03)
    for _ in range(40):
        gathering.pause_s(0.0)
    assert gathering.pause_s(0.2) == 0.01
    assert gathering.pause_s(0.0) == 0.01


def test_the_busy_pause_is_never_the_shorter_one() -> None:
    gathering = Gathering(0.4, 0.03)
    assert {gathering.pause_s(0.0) for _ in range(40)} == {0.4}
    assert {Gathering(0.0, 0.0).pause_s(0.0) for _ in range(40)} == {0.0}
