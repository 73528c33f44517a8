"""The way between two pods by name, from agents' facts, a topology file and labels to what people read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from admission.controller.topology_watch import places_of
from scheduler.explain.annotation import gang_block, placement_block
from scheduler.explain.events import gang_event
from scheduler.model.decision import Plan
from scheduler.planning.pair_path import MOST_MACHINES
from scheduler.planning.plan import plan
from tests.scheduler.clusters import gang, node, partner
from tests.topology.node_facts import eight_gpus
from topology.cluster.agent_gpus import agent_gpus
from topology.cluster.state import ClusterState
from topology.facts.age import Aged, FactPart, Freshness
from topology.facts.report import NodeFacts
from topology.gpus.gpu_request import whole_gpus
from topology.graph.of_facts import of_facts
from topology.labels import NVLINK_CLIQUE

LEAF_1 = {"zone": "z1", "spine": "s1", "leaf": "a1", "rdma": True}
LEAF_2 = {**LEAF_1, "leaf": "b2"}
FAR = {**LEAF_1, "leaf": "c3", "spine": "s2"}


def cluster(nodes: Mapping[str, Mapping[str, Any]], facts: Mapping[str, NodeFacts], file: str = "") -> ClusterState:
    state = ClusterState()
    state.apply_nodes([(None, node(name, **{"nvswitch": True, **given})) for name, given in nodes.items()])
    for name, reported in facts.items():
        state.apply_facts(name, None, reported)
    if file:
        state.apply_file(places_of(file.encode())[0])
    return state


def planned(state: ClusterState, gpus: int = 8, **asked: Any) -> Plan:
    made = gang(gpus=gpus, **asked)
    made = replace(made, members=tuple(replace(m, gpu=whole_gpus(gpus)) for m in made.members))
    return plan(made, state.snapshot(0.0, 0.0))


def hops(made: Plan) -> str:
    assert made.worst is not None
    return " -> ".join(made.worst.hops)


BOTH = {"n1": eight_gpus(), "n2": eight_gpus()}


@pytest.mark.parametrize(
    ("nodes", "facts", "way"),
    [
        ((LEAF_1, LEAF_1), BOTH, "GPU0 -> PIX -> mlx5_0 -> leaf a1 -> mlx5_0 -> PIX -> GPU0"),
        (
            (LEAF_1, LEAF_2),
            BOTH,
            "GPU0 -> PIX -> mlx5_0 -> leaf a1 -> spine s1 -> leaf b2 -> mlx5_0 -> PIX -> GPU0",
        ),
        (
            (LEAF_1, FAR),
            BOTH,
            "GPU0 -> PIX -> mlx5_0 -> leaf a1 -> spine s1 -> core switches -> spine s2 -> leaf c3 -> mlx5_0 -> PIX"
            " -> GPU0",
        ),
        (({"zone": "z1", "rdma": True},) * 2, BOTH, "GPU0 -> PIX -> mlx5_0 -> core switches -> mlx5_0 -> PIX -> GPU0"),
        ((LEAF_1, LEAF_1), {"n2": eight_gpus()}, "GPU0 -> PIX -> mlx5_0 -> leaf a1 -> n1"),
        ((LEAF_1, {**LEAF_1, "rdma": False}), BOTH, "GPU0 -> n2 -> leaf a1 -> n1 -> GPU0"),
        ((LEAF_1, LEAF_1), {"n2": eight_gpus(nic_up=False)}, "GPU0 -> n2 -> leaf a1 -> n1"),
        (({**LEAF_1, "labels": {NVLINK_CLIQUE: "u.7"}},) * 2, BOTH, "GPU0 -> NVLink domain u.7 -> GPU0"),
        ((LEAF_1, {**LEAF_1, "zone": "z2"}), BOTH, ""),  # nothing between zones is known
        ((LEAF_1, LEAF_1), {}, ""),  # labels alone are no graph
        ((LEAF_1, LEAF_1), {"n2": eight_gpus(nic="n2")}, ""),  # a network card called as its node: no graph
    ],
)
def test_the_way_between_two_nodes(
    nodes: tuple[Mapping[str, Any], Mapping[str, Any]], facts: Mapping[str, NodeFacts], way: str
) -> None:
    made = planned(cluster(dict(zip(("n2", "n1"), nodes, strict=True)), facts), reach_us=1e7)
    assert made.places == {"uid-chat-prefill-0": "n2", "uid-chat-decode-0": "n1"}
    assert hops(made) == way
    assert all(d.partner is not None and " -> ".join(d.partner.hops) == way for d in made.decisions.values())


def test_the_way_inside_a_node_is_that_of_its_worst_pair() -> None:
    # Prefill gets 0 to 3 and decode 4 to 7: the first pair is as bad as any, and over PCIe each crosses the sockets.
    for switch, way in (("0000:c4:00.0", "GPU0 -> NVSwitch -> GPU4"), ("", "GPU0 -> SYS -> GPU4")):
        made = planned(cluster({"n1": LEAF_1}, {"n1": eight_gpus(switch)}), gpus=4)
        assert hops(made) == way
    # Of 2 and 2 on one socket the pairs differ: 0 and 1 against 2 and 3 are NODE each.
    made = planned(cluster({"n1": LEAF_1}, {"n1": eight_gpus("")}), gpus=2)
    assert hops(made) == "GPU0 -> NODE -> GPU2"


def test_a_file_names_switches_and_says_where_several_are_equal() -> None:
    bare = {"zone": "z1", "rdma": True}
    cables = "".join(
        f'Switch\t8 "S-{leaf}"\t\t# "MF0;{leaf}:M/U1" base port 0 lid 1 lmc 0\n'
        + "".join(f'[{i + 1}]\t"H-{leaf}{i}"[1](b)\t\t# "{host} mlx5_{i}" lid 5 4xNDR\n' for i in rails)
        + "".join(f'[{9 + s}]\t"S-c{s}"[1]\t\t# "MF0;c{s}:M/U1" lid 3 4xNDR\n' for s in range(2))
        for leaf, host, rails in (("a1", "n1", range(4)), ("a2", "n1", range(4, 8)), ("b1", "n2", range(8)))
    )
    made = planned(cluster({"n1": bare, "n2": bare}, BOTH, cables))
    assert hops(made) == ("GPU0 -> PIX -> mlx5_0 -> leaf b1 -> spine c0 (one of 2) -> leaf a1 -> mlx5_0 -> PIX -> GPU0")
    # Without agents nobody knows the adapter, and n1 has cables in two leaves.
    assert hops(planned(cluster({"n1": bare, "n2": bare}, {}, cables))) == ""
    tree = "SwitchName=s Switches=a[1-2]\nSwitchName=a1 Nodes=n1\nSwitchName=a2 Nodes=n2\n"
    assert hops(planned(cluster({"n1": bare, "n2": bare}, {}, tree))) == "n2 -> leaf a2 -> spine s -> leaf a1 -> n1"


def test_what_people_read() -> None:
    made = planned(cluster({"n1": LEAF_1, "n2": LEAF_1}, BOTH))
    way = "GPU0 -> PIX -> mlx5_0 -> leaf a1 -> mlx5_0 -> PIX -> GPU0"
    assert f", same leaf, RDMA, modelled; {way}); on n1, n2" in gang_event(made)[1]
    assert f"\npath     {way}\n" in gang_block(made)
    one = made.decisions["uid-chat-decode-0"]
    assert f"\npath     {way}\n" in placement_block(one, made)
    blind = planned(cluster({"n1": LEAF_1, "n2": LEAF_1}, {}))
    assert "path" not in gang_block(blind) + placement_block(blind.decisions[one.request.uid], blind)
    assert ", same leaf, RDMA, modelled); on n1, n2" in gang_event(blind)[1]


def test_facts_that_expired_name_nothing() -> None:
    state = cluster({"n1": LEAF_1, "n2": LEAF_1}, BOTH)
    expired = {FactPart.NETWORK: Aged(Freshness.EXPIRED, 0.0)}
    state.apply_ages({"n1": expired, "n2": expired})
    assert hops(planned(state)) == ""


def test_a_partner_that_is_there_already_begins_at_its_node() -> None:
    state = cluster({"n1": LEAF_1, "n2": {**LEAF_1, "gpus": 0}}, BOTH)
    made = planned(state, prefill=0, partners=[partner("chat-prefill-0", "prefill", "n2")])
    assert made.places == {"uid-chat-decode-0": "n1"}
    assert hops(made) == "n2 -> leaf a1 -> mlx5_0 -> PIX -> GPU0"


def test_a_plan_makes_few_graphs_of_machines() -> None:
    names = [f"n{i:02}" for i in range(MOST_MACHINES + 8)]
    state = cluster(dict.fromkeys(names, LEAF_1), dict.fromkeys(names, eight_gpus()))
    made = planned(state, prefill=1, decode=MOST_MACHINES + 7, minimum=(1, MOST_MACHINES + 7))
    ways = [d.partner.hops for d in made.decisions.values() if d.partner is not None]
    assert len(ways) == len(names)
    # The pod of the other phase has a machine of its own; the rest are of pods that have it for a partner, and of it.
    assert sum(way[:1] + way[-1:] == ("GPU0", "GPU0") for way in ways) == MOST_MACHINES
    assert sum(not way for way in ways) == len(names) - MOST_MACHINES


@pytest.mark.parametrize("facts", [eight_gpus(), eight_gpus(switch="")])
def test_cards_are_scored_by_the_words_of_the_graph(facts: NodeFacts) -> None:
    links, graph = agent_gpus(facts).links, of_facts("n1", facts).graph
    assert links is not None
    for a, row in enumerate(links.link_types):
        for b, word in enumerate(row):
            assert word == ("X" if a == b else graph.edges[f"GPU{a}", f"GPU{b}"]["kind"])
