"""MIG placements by hand: where instances may start, what is fragmented, what a good placer does first."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.gpus.mig_placement import (
    best_start,
    fragmentation,
    free_slices,
    free_starts,
    layout,
    most_instances,
    profile_fragmentation,
    stranded_share,
    taken,
)
from topology.gpus.mig_profiles import MIG_GPUS, MigGpu, Profile, known_profile, mig_gpu, profile_mib

H100 = next(gpu for gpu in MIG_GPUS if gpu.name == "H100-80GB")
A30 = next(gpu for gpu in MIG_GPUS if gpu.name == "A30")


@pytest.mark.parametrize(
    ("product", "memory_mib", "gpu"),
    [
        ("NVIDIA-H100-80GB-HBM3", 81559, "H100-80GB"),
        ("NVIDIA-H100-NVL", 95830, "H100-94GB"),
        ("NVIDIA-GH200-480GB", 97871, "H100-96GB"),
        ("NVIDIA-A100-SXM4-40GB", 40960, "A100-40GB"),
        ("A100-SXM4-80GB", 0, "A100-80GB"),
        ("NVIDIA-H200", 143771, "H200-141GB"),
        ("NVIDIA-B200", 183359, "B200-180GB"),
        ("NVIDIA-GB200", 0, "GB200-186GB"),
        ("NVIDIA-A30", 24576, "A30"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 97887, "RTX-PRO-6000"),
    ],
)
def test_the_card_of_a_product(product: str, memory_mib: int, gpu: str) -> None:
    found = mig_gpu(product, memory_mib)
    assert found is not None
    assert found.name == gpu


def test_cards_without_mig_and_products_without_size() -> None:
    assert mig_gpu("Tesla-T4") is None
    assert mig_gpu("NVIDIA-A10") is None
    assert mig_gpu("NVIDIA-H100") is None  # three sizes, and neither name nor memory says which


def test_the_table_as_nvidia_smi_prints_it() -> None:
    # nvidia-smi mig -lgipp on H100 80 GB: {0,1,2,3,4,5,6}:1 {0,2,4,6}:2 {0,2,4}:2 {0,4}:4 {0}:4 {0}:8
    assert [(p.name, p.starts, p.size) for p in H100.profiles] == [
        ("1g.10gb", (0, 1, 2, 3, 4, 5, 6), 1),
        ("1g.20gb", (0, 2, 4, 6), 2),
        ("2g.20gb", (0, 2, 4), 2),
        ("3g.40gb", (0, 4), 4),
        ("4g.40gb", (0,), 4),
        ("7g.80gb", (0,), 8),
    ]
    # The guide's "number of instances" column: as many as fit an empty card.
    assert [most_instances(H100, 0, p.name) for p in H100.profiles] == [7, 4, 3, 2, 1, 1]
    assert [most_instances(A30, 0, p.name) for p in A30.profiles] == [4, 2, 1]


def test_profile_names() -> None:
    assert known_profile("1g.10gb+me") == known_profile("1g.10gb.me") == "1g.10gb"
    assert known_profile("1g.24gb.me.all") == known_profile("1g.24gb-me") == known_profile("1g.24gb+gfx") == "1g.24gb"
    assert known_profile("5g.50gb") is None
    assert known_profile("") is None
    assert (profile_mib("3g.40gb"), profile_mib("9g.1gb")) == (40960, 0)


def test_free_starts() -> None:
    assert free_starts(H100, 0b00000001, "2g.20gb") == (2, 4)
    assert free_starts(H100, 0b00010000, "3g.40gb") == (0,)
    assert free_starts(H100, 0, "2g.24gb") == ()
    assert free_slices(H100, 0b00010001) == 6


# (used slices, profile, fragmentation), worked out by hand from 1 - U / min(floor(free / s), most):
# empty: everything fits. A 1g at 0: 2g keeps 2 of 3, 4g none of 1, 1g keeps 6 of 7 (slice 7 never hosts one).
# 1g at 0 and at 4: no 3g or 4g of 1 that 6 free slices could hold, 2g at 2 alone of 3. A 1g at 6 costs them nothing.
BY_HAND = [
    (0b0, "1g.10gb", 0.0),
    (0b0, "4g.40gb", 0.0),
    (0b0, "7g.80gb", 0.0),
    (0b1, "2g.20gb", 1 / 3),
    (0b1, "4g.40gb", 1.0),
    (0b1, "1g.10gb", 1 / 7),
    (0b10001, "3g.40gb", 1.0),
    (0b10001, "4g.40gb", 1.0),
    (0b10001, "2g.20gb", 2 / 3),
    (0b1000000, "2g.20gb", 0.0),
    (0b1000000, "3g.40gb", 0.0),
    (0b1000000, "4g.40gb", 0.0),
    (0b11111111, "1g.10gb", 0.0),
]


@pytest.mark.parametrize(("used", "profile", "expected"), BY_HAND)
def test_fragmentation_by_hand(used: int, profile: str, expected: float) -> None:
    assert profile_fragmentation(H100, used, profile) == pytest.approx(expected)


def test_a_mix_is_weighted_and_an_empty_one_is_whole() -> None:
    # A 1g at slice 0, half of the mix 2g (1/3) and half 4g (1): 2/3.
    assert fragmentation(H100, 0b1, {"2g.20gb": 3, "4g.40gb": 3}) == pytest.approx(2 / 3)
    assert fragmentation(H100, 0b1, {}) == 0.0
    assert fragmentation(H100, 0b1, {"no such": 1}) == 0.0


def test_stranded_slices() -> None:
    # A 3g at 0: slices 4 to 7 are free; a 4g fits nowhere, a 2g covers 4 and 5, a 1g.20gb also 6 and 7.
    used = taken(H100, [("3g.40gb", 0)])
    assert used == 0b1111
    assert stranded_share(H100, used, ["4g.40gb"]) == 1.0
    assert stranded_share(H100, used, ["2g.20gb"]) == 0.5
    assert stranded_share(H100, used, ["2g.20gb", "1g.20gb"]) == 0.0
    assert stranded_share(H100, 0xFF, ["1g.10gb"]) == 0.0


def test_a_small_instance_goes_to_slice_six_first() -> None:
    mix = {"1g.10gb": 1.0, "2g.20gb": 1.0, "3g.40gb": 1.0}
    assert best_start(H100, 0, "1g.10gb", mix) == 6
    assert best_start(H100, 0, "3g.40gb", {"4g.40gb": 1.0}) == 4  # leaves the only place of a 4g
    assert best_start(H100, 0xFF, "1g.10gb", mix) is None
    assert best_start(H100, 0, "5g.50gb", mix) is None


def test_a_layout_of_given_instances() -> None:
    placed = layout(H100, ["1g.10gb", "2g.20gb", "3g.40gb"])
    assert placed is not None
    assert sorted(name for name, _ in placed) == ["1g.10gb", "2g.20gb", "3g.40gb"]
    assert layout(H100, ["3g.40gb", "3g.40gb", "1g.10gb"]) is None
    assert layout(H100, ["4g.40gb", "4g.40gb"]) is None
    assert layout(H100, ["no such"]) is None
    assert layout(H100, []) == ()


def _most_by_trying(gpu: MigGpu, used: int, profile: Profile) -> int:
    """The largest set of placements that overlap nowhere: every subset tried."""
    best = 0
    for count in range(len(profile.masks) + 1):
        for chosen in itertools.combinations(profile.masks, count):
            if sum(chosen) & used == 0 and sum(m.bit_count() for m in chosen) == _union(chosen).bit_count():
                best = max(best, count)
    return best


def _union(masks: tuple[int, ...]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


@pytest.mark.parametrize("gpu", [H100, A30], ids=lambda gpu: gpu.name)
def test_most_instances_against_every_subset(gpu: MigGpu) -> None:
    for used in range(0, 1 << gpu.slices, 3):
        for profile in gpu.profiles:
            assert most_instances(gpu, used, profile.name) == _most_by_trying(gpu, used, profile)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MIG_GPUS), st.integers(0, 255), st.data())
def test_measures_stay_between_none_and_all(gpu: MigGpu, used: int, data: st.DataObject) -> None:
    used &= (1 << gpu.slices) - 1
    names = data.draw(st.lists(st.sampled_from([p.name for p in gpu.profiles]), max_size=4))
    assert 0.0 <= fragmentation(gpu, used, dict.fromkeys(names, 1.0)) <= 1.0
    assert 0.0 <= stranded_share(gpu, used, names) <= 1.0
    for name in names:
        start = best_start(gpu, used, name, dict.fromkeys(names, 1.0))
        assert (start is None) == (not free_starts(gpu, used, name))
