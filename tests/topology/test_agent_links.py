"""Reach with known hardware: by hand from the link table, and that missing facts change nothing."""

from __future__ import annotations

import pytest

from topology.cluster.agent_links import agent_links
from topology.cluster.snapshot import NodeTable
from topology.facts.report import (
    Fabric,
    FabricState,
    Gpu,
    Nic,
    NicPort,
    NodeFacts,
    NodeState,
    NvLink,
    NvmlState,
    Remote,
)
from topology.labels import GPUDIRECT, NVLINK_CLIQUE, RDMA_CAPABLE
from topology.objects import Metadata, Node
from topology.reach.domains import DomainChain
from topology.reach.link_rows import ROWS, Hardware
from topology.reach.model import NodeLinks, ReachModel, links_of

PAGE = 65_536
CHAIN = DomainChain(zone="z1", spine="s1", leaf="l1")


def facts(*, peermem: bool | None = None, rate: int | None = None, nvlink: str | None = None) -> NodeFacts:
    state = NodeState(collected_at_s=0, topology_generation=1, nvml=NvmlState.OK, nvidia_peermem=peermem)
    link = NvLink(link=0, active=True, version=nvlink, remote=Remote.SWITCH)
    nics = (Nic(name="mlx5_0", rdma=True, ports=(NicPort(port=1, active=True, rate_mbps=rate),)),)
    return NodeFacts(state=state, gpus=(Gpu(uuid="GPU-1", nvlinks=(link,)),), nics=nics)


@pytest.mark.parametrize(
    ("seen", "inner", "outer"),
    [
        (facts(), None, None),
        (facts(nvlink="4.0"), Hardware.NVLINK4_SWITCH, None),
        (facts(nvlink="5.0"), None, None),  # nobody published a pair's times: the coarse row stays
        (facts(rate=400_000), None, Hardware.RDMA_400G),
        (facts(rate=100_000), None, Hardware.RDMA_100G),
        (facts(rate=25_000), None, None),
        (facts(peermem=True, rate=400_000), None, Hardware.RDMA_400G),
        (facts(peermem=False, rate=400_000), None, Hardware.RDMA_NO_GPUDIRECT),
    ],
)
def test_what_an_agent_saw_names_the_hardware(seen: NodeFacts, inner: Hardware | None, outer: Hardware | None) -> None:
    links = agent_links(seen).refine(NodeLinks(rdma=True, nvswitch=True))
    assert (links.inner, links.outer) == (inner, outer)
    assert agent_links(seen).refine(NodeLinks(rdma=False, nvswitch=True)).outer is None


def test_pages_without_gpudirect_take_more_than_a_millisecond() -> None:
    # 1,190 x 1.5 + 0.6 for one switch + 65,536 / 9,700 = 1,785 + 0.6 + 6.756 us
    direct, staged = NodeLinks(rdma=True, nvswitch=True), NodeLinks(True, True, outer=Hardware.RDMA_NO_GPUDIRECT)
    model = ReachModel([CHAIN] * 3, [direct, direct, staged])
    assert model.between(0, 1, PAGE).us == pytest.approx(24.42552)
    far = model.between(0, 2, PAGE)
    assert far.us == pytest.approx(1792.356, abs=0.001)
    assert far.path == "same leaf, RDMA without GPUDirect"
    assert model.between(2, 0, PAGE) == far
    assert model.kind[0] == model.kind[1] != model.kind[2]


def test_a_node_label_says_that_gpudirect_is_off() -> None:
    labels = {RDMA_CAPABLE: "true", GPUDIRECT: "false"}
    assert links_of(Node(metadata=Metadata(labels=labels))).outer is Hardware.RDMA_NO_GPUDIRECT
    assert links_of(Node(metadata=Metadata(labels={GPUDIRECT: "false"}))).outer is None  # TCP: staged anyway


def test_known_links_count_by_their_own_row() -> None:
    # NVLink 4: 7.27 x 1.5 + 65,536 / 361,000 = 10.905 + 0.182; RDMA 400: 18.7 x 1.5 + 0.6 + 65,536 / 36,500 = 30.446
    fast = NodeLinks(True, True, inner=Hardware.NVLINK4_SWITCH, outer=Hardware.RDMA_400G)
    # RDMA 100: 4.23 x 1.5 us and 12 GB/s; the slower latency and the narrower bandwidth of the two ends count
    slow = NodeLinks(True, True, outer=Hardware.RDMA_100G)
    model = ReachModel([CHAIN] * 3, [fast, fast, slow])
    assert model.self_us(PAGE)[0] == pytest.approx(11.0865, abs=0.0001)
    assert model.between(0, 1, PAGE).us == pytest.approx(30.4455, abs=0.0001)
    assert model.between(0, 2, PAGE).us == pytest.approx(28.05 + 0.6 + 65_536 / 12_000)


def test_every_hardware_has_a_row_with_a_source() -> None:
    assert list(ROWS) == list(Hardware)
    for row in ROWS.values():
        assert row.p99_us(PAGE) >= row.typical_us(PAGE) > 0
        assert "(" in row.source


def rack(cluster: str | None, *, status: int = 0, state: FabricState = FabricState.COMPLETED) -> NodeFacts:
    """A tray of two GPUs whose driver tells of a multi-node NVLink domain, always with clique id 32766."""
    fabric = Fabric(state=state, status=status, cluster_uuid=cluster, clique_id=32766)
    gpus = (Gpu(uuid="GPU-1", fabric=fabric), Gpu(uuid="GPU-2", fabric=fabric))
    return NodeFacts(state=NodeState(collected_at_s=0, topology_generation=1, nvml=NvmlState.OK), gpus=gpus)


def table(facts: dict[str, NodeFacts], labels: dict[str, dict[str, str]] | None = None) -> dict[str, str]:
    """Node to its NVLink domain, as the snapshot has it."""
    nodes = [Node(metadata=Metadata(name=name, labels=(labels or {}).get(name))) for name in facts]
    made = NodeTable(nodes, (), {name: agent_links(each) for name, each in facts.items()})
    return {name: chain.fabric for name, chain in zip(made.names, made.chains, strict=True)}


def test_c074_nodes_of_one_clique_id_but_two_clusters_are_two_domains() -> None:
    domains = table({"n1": rack("6f4a"), "n2": rack("2244"), "n3": rack("6f4a")})
    assert domains == {"n1": "6f4a.32766", "n2": "2244.32766", "n3": "6f4a.32766"}


def test_c076_a_fabric_that_is_not_usable_takes_the_domain_away_though_a_label_names_it() -> None:
    insufficient, starting = rack("6f4a", status=22), rack(None, state=FabricState.IN_PROGRESS)
    labels = {name: {NVLINK_CLIQUE: "6f4a.0"} for name in ("n1", "n2", "n3", "n4")}
    silent = facts()
    domains = table({"n1": insufficient, "n2": starting, "n3": silent, "n4": rack("6f4a")}, labels)
    assert domains == {"n1": "", "n2": "", "n3": "6f4a.0", "n4": "6f4a.0"}


def test_gpus_that_disagree_and_a_fabric_of_one_node_make_no_domain() -> None:
    one, other = rack("6f4a").gpus[0], rack("2244").gpus[1]
    mixed = NodeFacts(state=rack(None).state, gpus=(one, other))
    assert table({"mixed": mixed, "alone": rack(None)}) == {"mixed": "", "alone": ""}
    assert agent_links(rack(None)).fabric is None  # nothing is said of a cluster: labels count
