"""Domains of hosts and ways between them, read off the graph of a network."""

from __future__ import annotations

import networkx as nx

from tests.topology import samples
from tests.topology.data_files import data
from topology.graph.link_types import HOP
from topology.graph.network_map import NetworkMap, domain_chains
from topology.graph.parts import NETWORK_SWITCHES, GraphLink, GraphPart, PartKind, Topology
from topology.reach.model import NodeLinks, ReachModel
from topology.readers.formats import read


def test_hosts_become_chains_that_the_reach_model_takes() -> None:
    chains = domain_chains(read(samples.SLURM.encode()))
    model = ReachModel(list(chains.values()), [NodeLinks(rdma=True, nvswitch=True)] * len(chains))
    at = {name: index for index, name in enumerate(chains)}
    row = model.row_us(at["n04"], 65536)
    assert row[at["m1"]] < row[at["n01"]]  # one leaf, and across the spine
    assert chains["n01"].fabric == chains["n03"].fabric == "b1"


def test_machines_on_rails_share_a_leaf_if_they_share_one_cable() -> None:
    """n1 has a cable in leaf1 and leaf2, n2 in leaf2 and leaf3, n3 only in leaf4."""
    lines = []
    for leaf, hosts in {1: ["n1"], 2: ["n1", "n2"], 3: ["n2"], 4: ["n3"]}.items():
        lines.append(f'Switch 40 "S-{leaf}" # "MF0;leaf{leaf}:M/U1" base')
        lines += [f'[{port}] "H-{leaf}{port}"[1] # "{host} mlx5_{leaf}" lid 1' for port, host in enumerate(hosts, 1)]
    chains = domain_chains(read("\n".join(lines).encode()))
    assert chains["n1"].leaf == chains["n2"].leaf != chains["n3"].leaf
    assert chains["n3"].leaf == "//leaf4"


def test_the_real_fabric_falls_into_its_eight_groups() -> None:
    """Its machines are called a06-p1-dgx-02-c01: the fourth word is the group, each with leaves of its own."""
    chains = domain_chains(read(data("cluster-topo/topograph-ibnetdiscover-example.out.gz")))
    groups: dict[str, set[str]] = {}
    for name, chain in chains.items():
        if "-dgx-" in name:
            groups.setdefault(name.split("-")[3], set()).add(chain.leaf)
    assert sorted(groups) == [f"0{number}" for number in range(1, 9)]
    assert all(len(leaves) == 1 for leaves in groups.values())
    assert len(set.union(*groups.values())) == 8


def test_the_way_between_hosts_is_a_shortest_one() -> None:
    """Pairs of machines of a real fabric, each by one of its adapters, against networkx on the whole graph."""
    topology = read(data("cluster-topo/topograph-ibnetdiscover-example.out.gz"))
    network, graph = NetworkMap.of(topology), topology.graph
    switches = {part.name for part in topology.of_kind(*NETWORK_SWITCHES)}
    adapters = {part.inside: part for part in topology.of_kind(PartKind.NIC) if part.inside}
    hosts = sorted(adapters)[::5]
    assert len(hosts) > 20
    for a in hosts:
        for b in hosts:
            ends = adapters[a].name, adapters[b].name
            way = network.way(a, b, (adapters[a].device, adapters[b].device))
            if a != b:
                assert len(way) == nx.shortest_path_length(graph.subgraph({*switches, *ends}), *ends) - 1


def test_no_way_where_a_host_has_several_or_none() -> None:
    parts = [GraphPart("l1", PartKind.LEAF), GraphPart("l2", PartKind.LEAF), GraphPart("l3", PartKind.LEAF)]
    parts += [GraphPart(name, PartKind.HOST) for name in ("one", "two", "three", "alone")]
    links = [("l1", "one"), ("l1", "two"), ("l2", "two"), ("l3", "three"), ("one", "alone")]
    network = NetworkMap.of(Topology.of("test", parts, [GraphLink(a, b, HOP) for a, b in links]))
    assert network.way("one", "one") == ("leaf l1",)
    for other in ("two", "three", "alone", "nobody"):  # two leaves, no path, no switch, no such host
        assert network.way("one", other) == ()
