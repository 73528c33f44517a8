"""Where nodes stand by labels, a topology file and agents together: who wins, by hand, and who disagrees."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.scheduler.clusters import node
from tests.topology.data_files import data
from topology.cluster.agent_links import AgentLinks
from topology.cluster.domain_sources import FilePlaces, Sources
from topology.cluster.state import ClusterState
from topology.facts.report import Fabric, FabricState, Gpu, NodeFacts, NodeState, NvmlState
from topology.graph.network_map import domain_chains
from topology.hypernodes.disagreements import disagreements
from topology.hypernodes.plan import plan_hypernodes
from topology.labels import ACCELERATOR, CORE, HOSTNAME, NVLINK_CLIQUE
from topology.objects import Metadata, Node
from topology.reach.domains import DomainChain
from topology.readers.formats import read

SLURM = b"SwitchName=l1 Nodes=n[1-2]\nSwitchName=l2 Nodes=n3\nSwitchName=s1 Switches=l[1-2]\n"


def of_file(text: bytes) -> FilePlaces:
    return FilePlaces(domain_chains(read(text)))


def where(sources: Sources, one: Node) -> tuple[str, str, str, str]:
    chain = sources.chain(one, {one.metadata.name: ("hn-low", "hn-high")})
    return chain.zone, chain.spine, chain.leaf, chain.fabric


def test_a_file_speaks_where_labels_are_silent_and_before_hypernodes() -> None:
    sources = Sources(file=of_file(SLURM))
    assert where(sources, node("n1")) == ("/", "//s1", "//l1", "")
    # The zone is the label's: the same switch name in another zone is another switch.
    assert where(sources, node("n3", zone="z1")) == ("/z1", "/z1/s1", "/z1/l2", "")
    # A label that names any switch: tiers of two sources do not line up, so the file is not asked.
    assert where(sources, node("n2", leaf="l9")) == ("/", "//hypernode:hn-high", "//l9", "")
    assert where(sources, node("n2", labels={CORE: "c1"})) == ("/", "//hypernode:hn-high", "//hypernode:hn-low", "")
    assert where(sources, node("n4")) == ("/", "//hypernode:hn-high", "//hypernode:hn-low", "")


def test_a_zone_of_the_file_counts_where_no_label_names_one() -> None:
    file = FilePlaces({"n1": DomainChain(zone="r1/z1", spine="", leaf="r1/z1/l1", fabric="")})
    assert where(Sources(file=file), node("n1"))[::2] == ("r1/z1", "r1/z1/l1")
    assert where(Sources(file=file), node("n1", zone="z7"))[::2] == ("/z7", "/z7/l1")


@pytest.mark.parametrize(
    ("label", "agent", "file", "domain"),
    [
        ("", None, "", ""),
        ("", None, "f.1", "f.1"),
        ("", "a.1", "f.1", "a.1"),
        ("x.1", "a.1", "f.1", "x.1"),
        ("x.1", "", "f.1", ""),
        ("", "", "f.1", ""),
        ("x.1", None, "f.1", "x.1"),
    ],
)
def test_whose_nvlink_domain_counts(label: str, agent: str | None, file: str, domain: str) -> None:
    sources = Sources({"n1": AgentLinks(fabric=agent)}, FilePlaces({"n1": DomainChain("/", fabric=file)}))
    assert where(sources, node("n1", labels={NVLINK_CLIQUE: label} if label else {}))[3] == domain


def test_hosts_are_found_by_name_label_or_the_first_part_of_a_name_that_is_unique() -> None:
    places = FilePlaces({name: DomainChain(leaf=name) for name in ("g1", "g2.a", "g3.a", "g3.b", "h4", "I5")})

    def found(name: str, hostname: str = "") -> str:
        reported = places.of(Node(metadata=Metadata(name=name, labels={HOSTNAME: hostname} if hostname else None)))
        return reported.leaf if reported is not None else ""

    assert found("g1") == found("g1.cluster.local") == "g1"
    assert found("g2") == found("g2.a") == "g2.a"
    assert found("g2.b") == ""  # another domain: another machine
    assert found("g3") == ""  # which of the two nobody knows
    assert found("10.0.0.4", "h4") == "h4"
    assert found("i5") == found("i5.cluster.local") == "I5"


def test_what_a_file_says_counts_in_reach_and_no_longer_when_it_is_taken_away() -> None:
    state = ClusterState()
    state.apply_nodes([(None, node(name)) for name in ("n1", "n2", "n3")])

    def path(a: int, b: int) -> str:
        return state.reach().between(a, b, 65_536).path

    apart = path(0, 1)
    assert state.apply_file(of_file(SLURM)) == 3
    assert path(0, 1) == "same leaf, TCP"
    assert path(0, 2) != path(0, 1)
    assert state.apply_file(FilePlaces({})) == 0
    assert path(0, 1) == apart


def test_what_a_silent_agent_saw_is_published_and_not_planned_with() -> None:
    fabric = Fabric(state=FabricState.COMPLETED, status=0, cluster_uuid="6f4a", clique_id=1)
    facts = NodeFacts(
        state=NodeState(collected_at_s=0, topology_generation=1, nvml=NvmlState.OK),
        gpus=(Gpu(uuid="GPU-1", fabric=fabric),),
    )
    state = ClusterState()
    state.apply_nodes([(None, node("n1"))])
    assert state.apply_facts("n1", None, facts)
    assert not state.apply_facts("n1", facts, facts)
    assert state.sources().chain(node("n1"), {}).fabric == "6f4a.1"
    state.apply_nodes([(node("n1"), None)])
    assert state.sources().chain(node("n1"), {}).fabric == ""  # a node of that name that comes later is another one


def test_those_who_disagree_are_named_with_the_one_that_counts() -> None:
    agents = {"n1": AgentLinks(fabric="u.1"), "n2": AgentLinks(fabric="u.2"), "n3": AgentLinks(fabric="u.2")}
    nodes = [node("n1", labels={ACCELERATOR: "x"}), node("n2", labels={ACCELERATOR: "x"}), node("n3")]
    assert disagreements(nodes, Sources(agents)) == (
        "nodes with the NVLink label 'x' have several values of the agents' NVLink domain; the label counts",
    )
    # Other words for the same groups are no disagreement.
    assert disagreements([node("n1", labels={ACCELERATOR: "a"}), nodes[2]], Sources(agents)) == ()
    labelled = [node("n1", spine="s1", leaf="l1"), node("n2", spine="s1", leaf="l2"), node("n3")]
    assert disagreements(labelled, Sources(file=of_file(SLURM))) == (
        "nodes with the file's leaf '//l1' have several values of the leaf label; the label counts",
    )


@pytest.mark.parametrize(
    ("name", "hosts", "tiers"),
    [
        # Two spines of two leaves of 18 hosts, each leaf an NVLink domain, all in one zone.
        ("topograph-model-nvl72.yaml", 72, {"clique": 4, "leaf": 4, "spine": 2, "zone": 1}),
        # Six spines of two leaves of eight hosts, and no NVLink domain.
        ("slurm-topology-tree-oci-sim.conf", 96, {"leaf": 12, "spine": 6}),
        # Ten hosts in capital letters on five leaves.
        ("superbench-ibnetdiscover.txt", 10, {"leaf": 5}),
    ],
)
def test_nodes_without_labels_get_the_tree_of_a_real_fabric(name: str, hosts: int, tiers: dict[str, int]) -> None:
    chains = domain_chains(read(data(f"cluster-topo/{name}")))
    nodes = [Node(metadata=Metadata(name=host.lower())) for host in chains]
    assert len(nodes) == hosts
    made = plan_hypernodes(nodes, (), Sources(file=FilePlaces(chains))).desired
    assert Counter(each.tier_name for each in made.values()) == tiers
    assert sum(len(each.members) for each in made.values() if each.of_nodes) == hosts
    assert not any(each.rest for each in made.values())
