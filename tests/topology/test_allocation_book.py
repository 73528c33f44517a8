"""Holds by node, copied and compared: as plain dictionaries would be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.gpus import allocation_book as hold_book
from topology.gpus.allocation_book import AllocationBook
from topology.gpus.allocations import GpuAllocation, NodeAllocations
from topology.gpus.gpu_request import GpuRequest

OTHER = GpuAllocation(GpuRequest("Volcano vGPU", memory_mib=8))
HOLD = GpuAllocation(GpuRequest("Volcano vGPU", memory_mib=9))
STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.booleans(), st.booleans()), max_size=40)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(0, 3))
def test_a_book_is_a_dictionary_that_remembers(steps: list[tuple[str, str, bool, bool]], most: int) -> None:
    """Changes on one node for a pod that comes or goes; now and then a copy is kept, which must stay as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hold_book, "MOST_CHANGED", most)
        book, plain = AllocationBook(), dict[str, NodeAllocations]()
        retained = [(AllocationBook(book), dict(plain))]
        for node, uid, comes, copied in steps:
            book.change(node, uid, HOLD if comes else None)
            after = plain.pop(node, NodeAllocations()).with_hold(uid, HOLD if comes else None)
            plain |= {node: after} if after.holds else {}
            if copied:
                retained.append((AllocationBook(book), dict(plain)))
        for copy, was in (*retained, (book, plain)):
            assert dict(copy) == was
            assert len(copy) == len(was)
            for other, before in retained:
                changed = {node for node in "abcd" if copy.get(node) is not other.get(node)}
                assert set(copy.differing(other)) == changed
                assert {node for node in "abcd" if was.get(node) != before.get(node)} <= changed


def test_a_pod_added_again_gives_the_same_value_and_another_hold_another() -> None:
    before = NodeAllocations({"x": HOLD})
    after = before.with_hold("y", HOLD)
    assert before.with_hold("y", HOLD) is after
    assert before.with_hold("y", OTHER).holds == {"x": HOLD, "y": OTHER}
    assert before.with_hold("z", HOLD).holds == {"x": HOLD, "z": HOLD}
    assert before.with_hold("x", None).holds == {}
