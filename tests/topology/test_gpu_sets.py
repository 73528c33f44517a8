"""GPU sets inside a node: choices by hand, and the shipped choice against a plain reading of the rules."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.bad_input import BadInput
from topology.gpus.sets import SIZES, GpuLinks, GpuSet, best_set, evaluate_set, pair_points, plugin_set, sets_left
from topology.graph.link_types import PCIE_TYPES, rank


def node(link_types: dict[str, str], count: int, other: str = "SYS", **more: object) -> GpuLinks:
    """`link_types` names pairs as "01"; all others are joined by `other`."""

    def word(a: int, b: int) -> str:
        return "X" if a == b else link_types.get(f"{min(a, b)}{max(a, b)}", other)

    matrix = tuple(tuple(word(a, b) for b in range(count)) for a in range(count))
    return GpuLinks(matrix, **more)  # type: ignore[arg-type]


PCIE = node({"01": "PIX", "23": "PIX", "02": "PXB", "03": "PXB", "12": "PXB", "13": "PXB", "45": "PIX"}, 6)
"""Two pairs behind two switches of one host bridge, one pair across the socket."""
FREE = [True] * 6


def test_the_points_of_a_pair() -> None:
    assert [pair_points(w) for w in ("SYS", "NODE", "PHB", "PXB", "PIX")] == [10, 20, 30, 40, 50]
    assert pair_points("unknown") == 0
    assert pair_points("NV18") > pair_points("NV4") > pair_points("PIX")


def test_a_pair_is_taken_where_it_harms_least() -> None:
    # Three PIX pairs. Taking 4 and 5 leaves the four GPUs of the first socket whole; taking 0 and 1 would not.
    found = best_set(PCIE, FREE, 2)
    assert found is not None
    assert (found.gpus, found.worst) == ((4, 5), "PIX")
    # sets of 2 and 4, by tier: NVLink, C2C none; PIX 3 pairs; PXB, PHB, NODE: {0..3} two pairs and a four, {4, 5} one.
    assert sets_left(PCIE, FREE) == 3 + 3 * 4
    assert found.placement_cost == 1 + 3 * 1
    assert evaluate_set(PCIE, (0, 1), FREE).placement_cost == 1 + 3 * 2


def test_nvlink_cliques_come_first() -> None:
    # 0 to 3 are an NVLink clique, 4 to 7 another; 0 is taken. Four of the whole clique, three of the broken one.
    clique = {f"{a}{b}": "NV12" for half in (range(4), range(4, 8)) for a, b in itertools.combinations(half, 2)}
    links, free = node(clique, 8, "NODE"), [False] + [True] * 7
    four, three = best_set(links, free, 4), best_set(links, free, 3)
    assert four is not None
    assert three is not None
    assert (four.gpus, four.worst) == ((4, 5, 6, 7), "NV12")
    assert three.gpus == (1, 2, 3)
    five = best_set(links, free, 5)
    assert five is not None
    assert five.worst == "NODE"


def test_load_comes_before_locality() -> None:
    # Shares of one GPU: the least loaded one, wherever its NUMA node is.
    links = node({"01": "NODE", "23": "NODE"}, 4, numa=(0, 0, 1, 1))
    found = best_set(links, [True] * 4, 1, load_milli=(900, 700, 300, 100))
    assert found is not None
    assert (found.gpus, found.load_milli) == ((3,), 100)


def test_a_live_network_card_beside_each_gpu() -> None:
    links = node({}, 4, "PIX", rails=(0, 1, None, None), rails_known=True)
    found = best_set(links, [True] * 4, 2)
    assert found is not None
    assert (found.gpus, found.without_nic, found.nic_share) == ((0, 1), 0, 1.0)
    forced = best_set(links, [False, False, True, True], 2)
    assert forced is not None
    assert (forced.without_nic, forced.nic_share) == (2, 0.0)
    unknown = best_set(node({}, 4, "PIX"), [True] * 4, 2)
    assert unknown is not None
    assert (unknown.gpus, unknown.without_nic) == ((0, 1), 0)


def test_rails_of_the_partner() -> None:
    links = node({}, 4, "NV18", rails=(0, 1, 2, 3), rails_known=True)
    found = best_set(links, [True] * 4, 2, partner_rails=frozenset({2, 3}))
    assert found is not None
    assert (found.gpus, found.off_rail) == ((2, 3), 0)


def test_too_few_and_none() -> None:
    assert best_set(PCIE, [False] * 6, 1) is None
    assert best_set(PCIE, FREE, 7) is None
    assert best_set(PCIE, FREE, 0) is None
    assert plugin_set(PCIE, FREE, 7) is None
    with pytest.raises(BadInput):
        GpuLinks((("X", "SYS"),))


def test_what_the_plugin_would_take() -> None:
    # Pairs: every split into three PIX pairs has 150 points; the first pair of it.
    assert plugin_set(PCIE, FREE, 2) == (0, 1)
    # With 0 taken: {2,3} and {4,5} have 100 points together, {1,2} + {4,5} only 90.
    assert plugin_set(PCIE, [False, *FREE[1:]], 2) == (2, 3)
    switch = node({}, 8, "NV18")
    assert plugin_set(switch, [True] * 8, 4) == (0, 1, 2, 3)
    assert plugin_set(node({}, 16, "NV18"), [True] * 16, 8) == tuple(range(8))


WORD = st.sampled_from(["NV4", "NV18", *PCIE_TYPES, "unknown"])


@st.composite
def machines(draw: st.DrawFn) -> tuple[GpuLinks, list[bool]]:
    count = draw(st.integers(1, 6))
    pairs = {f"{a}{b}": draw(WORD) for a, b in itertools.combinations(range(count), 2)}
    rails = tuple(draw(st.lists(st.sampled_from([None, 0, 1]), min_size=count, max_size=count)))
    links = node(pairs, count, rails=rails, rails_known=draw(st.booleans()))
    return links, draw(st.lists(st.booleans(), min_size=count, max_size=count))


def _sets_left_plainly(links: GpuLinks, free: list[bool]) -> int:
    """Groups by walking links one at a time; sets of a group by counting."""
    total = 0
    for tier in (1, 2, 3, 4, 5, 6):
        seen: set[int] = set()
        for start in range(len(free)):
            if start in seen:
                continue
            group, todo = set[int](), [start]
            while todo:
                at = todo.pop()
                if at not in group:
                    group.add(at)
                    todo += [b for b in range(len(free)) if b != at and rank(links.link_types[at][b]) <= tier]
            seen |= group
            for size in SIZES:
                total += sum(1 for g in group if free[g]) // size
    return total


@settings(max_examples=80, deadline=None)
@given(machines(), st.integers(1, 4), st.frozensets(st.integers(0, 1)))
def test_the_best_set_against_every_set(
    machine: tuple[GpuLinks, list[bool]], count: int, partner_rails: frozenset[int]
) -> None:
    links, free = machine

    def cost(gpus: tuple[int, ...]) -> tuple[object, ...]:
        pairs = [links.link_types[a][b] for a, b in itertools.combinations(gpus, 2)]
        rails = [links.rails[g] for g in gpus] if links.rails_known else []
        after = [ok and g not in gpus for g, ok in enumerate(free)]
        return (
            max((rank(w) for w in pairs), default=0),
            rails.count(None),
            len([r for r in rails if r not in partner_rails]) if partner_rails else 0,
            _sets_left_plainly(links, free) - _sets_left_plainly(links, after),
            -sum(pair_points(w) for w in pairs),
            gpus,
        )

    able = [g for g, ok in enumerate(free) if ok]
    every = list(itertools.combinations(able, count))
    found = best_set(links, free, count, partner_rails=partner_rails)
    assert (found.gpus if found else None) == (min(every, key=cost) if every else None)
    if found is not None:
        assert isinstance(found, GpuSet)
        taken = plugin_set(links, free, count)
        assert taken is not None
        assert set(taken) <= set(able)
