"""A body put together from pieces is the body, however it was announced, and memory is used again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.extender.body_room import Rooms


@given(pieces=st.lists(st.binary(max_size=5), max_size=6), announced=st.integers(0, 20))
def test_the_pieces_are_the_body(pieces: list[bytes], announced: int) -> None:
    rooms = Rooms(kept=1, kept_bytes=8)
    for _ in range(2):  # the second time in a used room
        with rooms.room_for(announced) as room:
            for piece in pieces:
                room.add(piece)
            assert room.size == sum(map(len, pieces))
            assert bytes(room.body()) == b"".join(pieces)


def test_a_room_of_the_announced_size_is_filled_in_place() -> None:
    rooms = Rooms(kept=1, kept_bytes=100)
    with rooms.room_for(6) as room:
        room.add(b"abc")
        room.add(b"def")
        first = room.body()
        assert isinstance(first, memoryview)
    with rooms.room_for(3) as room:
        room.add(b"xyz")
        second = room.body()
        assert isinstance(second, memoryview)
        assert (second.obj is first.obj, bytes(second)) == (True, b"xyz")


def test_two_bodies_at_a_time_have_rooms_of_their_own() -> None:
    rooms = Rooms(kept=2, kept_bytes=100)
    with rooms.room_for(3) as one, rooms.room_for(3) as two:
        one.add(b"one")
        two.add(b"two")
        assert (bytes(one.body()), bytes(two.body())) == (b"one", b"two")


def test_large_rooms_are_not_kept() -> None:
    rooms = Rooms(kept=2, kept_bytes=4)
    with rooms.room_for(5) as room:
        room.add(b"12345")
    assert rooms._free == []
