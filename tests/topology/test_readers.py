"""Every reader but that of the matrix: small texts of our own and real files, values worked out by eye."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import yaml

from tests.topology import samples
from tests.topology.data_files import data, files
from topology.bad_input import BadInput
from topology.graph.parts import GraphPart, PartKind, Topology, TopologyBuilder
from topology.graph.text import picture, tree
from topology.readers import documents
from topology.readers.formats import read


def part(topology: Topology, name: str) -> GraphPart:
    return next(part for part in topology.parts if part.name == name)


def links(topology: Topology) -> set[str]:
    """`a-b kind`, with the count where it is not one."""
    found = set()
    for link in topology.links:
        count = f" x{link.count}" if link.count > 1 else ""
        found.add(f"{'-'.join(sorted((link.a, link.b)))} {link.kind}{count}")
    return found


def counts(topology: Topology) -> dict[str, int]:
    return dict(Counter(part.kind.value for part in topology.parts))


def test_nccl_system() -> None:
    topology = read(samples.NCCL_SYSTEM.encode())
    assert [(gpu.name, gpu.device, gpu.numa) for gpu in topology.of_kind(PartKind.GPU)] == [
        ("0000:10:00.0", "GPU0", 0),
        ("0000:11:00.0", "GPU1", 0),
        ("0000:20:00.0", "GPU2", 1),
    ]
    assert links(topology) == {
        "0000:10:00.0-0000:c0:00.0 NV9",
        "0000:11:00.0-0000:c0:00.0 NV8",
        "0000:10:00.0-0000:11:00.0 NV8",  # through the switch: the smaller of 9 and 8
        "0000:10:00.0-0000:20:00.0 NV1",  # a bridge: one end says 2, the other 1
        "0000:11:00.0-0000:20:00.0 SYS",
        "0000:10:00.0-mlx5_0 PIX",
        "0000:11:00.0-mlx5_0 PIX",
        "0000:20:00.0-mlx5_0 SYS",
    }
    assert part(topology, "mlx5_0").inside == "ffff:ff:01.0"
    assert topology.warnings == (
        "0000:10:00.0 and 0000:20:00.0 disagree about the NVLinks between them; the smaller bond is taken",
    )


def test_nccl_graph() -> None:
    topology = read(samples.NCCL_GRAPH.encode())
    # The ring is net, 0, 1, 2 and back; of two limits for 0-1 the nearer holds.
    assert links(topology) == {
        "GPU0-GPU1 PIX",
        "GPU1-GPU2 PHB",
        "GPU0-GPU2 unknown",
        "GPU0-NET0 PIX",
        "GPU2-NET0 PIX",
        "GPU1-NET0 unknown",
    }


def test_a_file_without_nvlinks_says_that_nccl_would_look_for_them() -> None:
    """A file that a cloud ships has bare devices; a dump, where NCCL has looked, has a `gpu` in each of them."""
    dump = re.sub("<nvlink[^>]*/>", "", samples.NCCL_SYSTEM)
    assert read(dump.encode()).warnings == ()
    shipped = re.sub("</?gpu[^>]*>", "", dump)
    topology = read(shipped.encode())
    assert len(topology.of_kind(PartKind.GPU)) == 3
    assert topology.warnings == (
        "the file names no NVLinks; NCCL looks for them on the machine, so GPUs may be nearer than said here",
    )


def test_a_drawn_fabric_says_where_the_cables_go() -> None:
    assert list(picture(read(samples.IBNETDISCOVER.encode()))) == [
        "leaf1 (leaf)",
        "  cables to spine1 (2)",
        "  n1 (host)",
        "    n1/mlx5_0 (mlx5_0)",
        "spine1 (spine)",
    ]
    slurm = "\n".join(picture(read(samples.SLURM.encode())))
    assert "cables" not in slurm  # a tree says it all


def test_a_host_on_several_rails_says_which_and_many_cables_are_counted() -> None:
    build = TopologyBuilder("by hand")
    for rail in range(6):
        build.part(GraphPart(f"leaf{rail}", PartKind.LEAF))
    build.part(GraphPart("n1", PartKind.HOST))
    for rail in range(6):
        build.part(GraphPart(f"n1/mlx5_{rail}", PartKind.NIC, "n1", device=f"mlx5_{rail}"))
        build.link(f"leaf{rail}", f"n1/mlx5_{rail}", "hop")
    assert list(tree(build.build()))[6:8] == ["n1 (host)", "  cables to leaf0, leaf1, leaf2, leaf3 and 2 more switches"]


def test_ibnetdiscover() -> None:
    topology = read(samples.IBNETDISCOVER.encode())
    assert counts(topology) == {"leaf": 1, "spine": 1, "host": 1, "nic": 1}
    assert links(topology) == {"leaf1-n1/mlx5_0 hop", "leaf1-spine1 hop x2"}
    assert part(topology, "n1").inside == "leaf1"
    assert part(topology, "n1/mlx5_0").inside == "n1"


def test_slurm() -> None:
    topology = read(samples.SLURM.encode())
    assert counts(topology) == {"spine": 1, "leaf": 2, "host": 6}
    hosts = {host.name: (host.inside, host.domain) for host in topology.of_kind(PartKind.HOST)}
    assert hosts == {
        "n01": ("leaf1", "b1"),
        "n02": ("leaf1", "b1"),
        "n03": ("leaf1", "b1"),
        "n04": ("leaf2", ""),
        "m1": ("leaf2", ""),
        "m3": ("leaf2", ""),
    }


def test_topograph() -> None:
    topology = read(samples.TOPOGRAPH.encode())
    hosts = {host.name: (host.inside, host.domain, host.zone, host.region) for host in topology.of_kind(PartKind.HOST)}
    assert hosts == {
        "n1": ("sw1", "nvl1", "z1", "r1"),
        "n2": ("sw1", "nvl1", "z1", "r1"),
        "n9": ("sw1", "nvl1", "z1", "r1"),
        "n3": ("sw2", "", "", "r1"),
    }
    assert part(topology, "core").kind is PartKind.SPINE  # two tiers only: what is above the leaves is a spine


def test_netq() -> None:
    topology = read(samples.NETQ.encode())
    assert counts(topology) == {"leaf": 1, "spine": 1, "host": 1}
    assert links(topology) == {"leaf1-n1 hop x2", "leaf1-spine1 hop"}
    compute = read(samples.NETQ_COMPUTE.encode())
    assert [(gpu.name, gpu.inside) for gpu in compute.of_kind(PartKind.GPU)] == [
        ("g1", "n1"),
        ("g2", "n1"),
        ("g3", "n2"),
    ]
    assert compute.warnings == ("line 2: n2 is DEGRADED",)


def test_labels() -> None:
    topology = read(samples.LABELS.encode())
    host = part(topology, "n1")
    assert (host.inside, host.zone, host.domain) == ("leaf1", "z1", "6f4a.32766")
    assert part(topology, "leaf1").inside == "spine1"
    assert links(topology) == {"leaf1-n1 hop", "leaf1-spine1 hop", "GPU0-GPU1 unknown"}
    nodes = read(samples.NODES.encode())
    assert {host.name: host.inside for host in nodes.of_kind(PartKind.HOST)} == {"n1": "nn-3", "n2": "nn-4"}
    assert part(nodes, "nn-2").kind is PartKind.SPINE


def test_hypernodes() -> None:
    topology = read(samples.HYPERNODES.encode())
    assert links(topology) == {"n1-s0 hop", "s0-s1 hop"}
    assert part(topology, "s1").kind is PartKind.SPINE
    assert topology.warnings == (
        "line 8: 1 members are selected by pattern or label; which nodes that are only the cluster knows",
    )


@pytest.mark.parametrize(
    ("sample", "old", "new", "sentence"),
    [
        (
            "nccl-system",
            "<system",
            "<!DOCTYPE x [<!ENTITY a 'b'>]><system",
            "line 1: document type is 'x'; leave DOCTYPE",
        ),
        ("nccl-system", "</cpu>", "", "line 23: XML is 'mismatched tag'; it must be well-formed"),
        ("nccl-system", 'count="9"', 'count="900"', "line 6: count of nvlink is '900'; it is a number from 1 to 64"),
        ("nccl-system", "0000:11:00.0", "0000:10:00.0", "line 10: device is '0000:10:00.0'; it is there twice"),
        ("nccl-system", "0000:11:00.0", "eleven", "line 10: busid of pci is 'eleven'; it is an address like"),
        ("nccl-system", "0x030200", "0x01", "line 4: class of pci 0000:10:00.0 is '0x01'; it is six hexadecimal"),
        ("nccl-system", "<system", "<systems", "line 23: XML is 'mismatched tag'"),
        ("nccl-graph", "PHB", "PHX", "line 2: typeintra of graph is 'PHX'; it is one of LOC, NVL"),
        ("ibnetdiscover", '"S-a1"\t', '"H-a1"\t', "line 4: Switch id is 'H-a1'; a switch's begins with S-"),
        ("ibnetdiscover", "[3]", "[2]", "line 7: port of S-a1 is '2'; it is there twice; a port has one cable"),
        ("ibnetdiscover", "\n\nSwitch", "\nhello\nSwitch", "line 8: line is 'hello'; it is a Switch, a Ca, a port"),
        (
            "slurm",
            "Nodes=n[01-03]\nSwitch",
            "Nodes=n[03-01]\nSwitch",
            "line 3: host list is 'n[03-01]'; the range 03-01",
        ),
        ("slurm", "n[01-03]", "n[01-99999]", "line 3: host list is 'n[01-99999]'; the file names more than 65536"),
        ("slurm", "n04,m", "n01,m", "line 4: what n01 stands under is 'leaf2'; it is leaf1 already"),
        ("slurm", "leaf[1-2]", "leaf[1-3]", "line 2: switch is 'leaf3'; it has no SwitchName line of its own"),
        ("slurm", "Nodes=n[01-03]", "Switches=spine", "line 2: what contains is 'spine'; it contains itself"),
        ("slurm", "LinkSpeed", "Colour", "line 2: key after switchname is 'colour'; behind it may stand linkspeed"),
        ("topograph", "[sw1, sw2]", "[sw1, core]", "line 3: what contains is 'core'; it contains itself"),
        ("topograph", "nodes: [n3]", "nodes: [n1]", "line 12: host is 'n1'; it is in two blocks"),
        ("topograph", "blocks:", "racks:", "line 8: key of the model is 'racks'; it is switches or blocks"),
        ("topograph", "[sw1, sw2]", "&a [*a]", "line 4: alias is '*a'; write the value out"),
        ("topograph", "[sw1, sw2]", "!!python/object:os [sw1]", "line 4: tag is 'tag:yaml.org,2002:python/object:os'"),
        ("topograph", "[sw1, sw2]", "[sw1, sw2", "line 5: YAML is"),
        ("netq", '"2", "size"', '"9", "size"', "line 1: target of a link is '9'; no node has this id"),
        (
            "netq",
            '"src": "2"',
            '"src" "2"',
            "line 2: JSON is '\"2\"'; a comma, a colon or a bracket is missing before it",
        ),
        ("netq", '"leaf1"', '"spine1"', "line 5: node is 'spine1'; it is there twice"),
        ("netq", "-1}]}]}]", "-1}]}]}", "line 7: JSON is 'the end of the file'; a bracket is still open"),
        ("labels", "count=2", "count=many", "line 1: nvidia.com/gpu.count is 'many'; it is a number from 0 to 64"),
        (
            "labels",
            "topology.kubernetes.io/zone=",
            "nvidia.com/gpu.count=",
            "line 6: label is 'nvidia.com/gpu.count'; it is",
        ),
        ("nodes", "name: n2", "name: n1", "line 8: node is 'n1'; it is there twice"),
        ("hypernodes", "tier: 2", "tier: 0", "line 14: tier of s1 is '0'; it is a number from 1 to 30"),
        (
            "hypernodes",
            "exactMatch: {name: s0}",
            "exactMatch: {name: s1}",
            "line 15: member of s1 is 's1'; a HyperNode",
        ),
        ("hypernodes", "topology.volcano.sh/v1alpha1", "v1", "line 1: apiVersion of HyperNode is 'v1'; it begins with"),
    ],
)
def test_a_damaged_text_is_refused_with_its_line(sample: str, old: str, new: str, sentence: str) -> None:
    text = samples.ALL[sample]
    assert old in text
    with pytest.raises(BadInput) as refused:
        read(text.replace(old, new, 1).encode())
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize("sample", ["slurm", "ibnetdiscover", "labels"])
def test_a_last_line_without_an_end_may_be_cut(sample: str) -> None:
    cut = read(samples.ALL[sample].removesuffix("\n").encode())
    number = samples.ALL[sample].count("\n")
    assert cut.warnings[-1] == f"line {number}: the last line has no end; the file may be cut off there"
    assert cut.parts == read(samples.ALL[sample].encode()).parts


@pytest.mark.parametrize("loader", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
def test_yaml_reads_alike_with_and_without_libyaml(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_Loader", loader)
    text = "---\nkind: Node\nmetadata: {name: n1, labels: }\n---\n# nothing\n---\nkind: Node\n"
    text += "metadata: {name: ~2, labels: ~}\n"
    assert [part.name for part in read(text.encode()).of_kind(PartKind.HOST)] == ["n1", "~2"]
    assert [part.name for part in read(b"kind: Node\nmetadata: {name: 'null', labels: null}\n").parts] == ["null"]
    hosts = [len(read(samples.ALL[name].encode()).parts) for name in ("topograph", "nodes", "hypernodes")]
    assert hosts == [7, 5, 3]
    for wrong, line in (("a: [b", 2), ("blocks: *x", 1), ("blocks:\n- !!x y", 2), ("a: b: c", 1), ("a: 1\na: 2", 2)):
        with pytest.raises(BadInput) as refused:
            read(wrong.encode() + b"\n")
        assert str(refused.value).startswith(f"line {line}: ")


def test_the_graph_for_explaining_knows_the_way() -> None:
    graph = read(samples.SLURM.encode()).graph
    assert graph.nodes["leaf1"]["kind"] == "leaf"
    assert graph.edges["n01", "leaf1"]["kind"] == "hop"
    import networkx as nx

    assert nx.shortest_path(graph, "n01", "m3") == ["n01", "leaf1", "spine", "leaf2", "m3"]


# --- real files: what is in them was counted by eye and with grep, not with the readers -------------

REAL: dict[str, tuple[dict[str, int], set[str], int]] = {
    "nccl-xml/azure_ndv4-topo.xml": (
        {"gpu": 8, "nic": 8, "pcie-switch": 4, "numa": 4},
        {
            "0003:00:00.0-0103:00:00.0 PIX",
            "0003:00:00.0-0004:00:00.0 PIX",
            "0001:00:00.0-0003:00:00.0 SYS",
            "000b:00:00.0-0105:00:00.0 PIX",
        },
        1,  # no NVLinks in the file
    ),
    "nccl-xml/azure_ndv5-topo.xml": (
        {"gpu": 8, "nic": 8, "pcie-switch": 8, "numa": 2},
        {"0001:00:00.0-0101:00:00.0 PIX", "0001:00:00.0-0002:00:00.0 PHB", "0008:00:00.0-0009:00:00.0 SYS"},
        1,  # no NVLinks in the file
    ),
    "nccl-xml/azure_ndv2-topo.xml": (
        {"gpu": 8, "nic": 1, "numa": 2},
        {"0001:00:00.0-0002:00:00.0 PHB", "0004:00:00.0-0101:00:00.0 PHB", "0005:00:00.0-0101:00:00.0 SYS"},
        1,  # no NVLinks in the file
    ),
    "nccl-xml/azure_ncv4-topo.xml": (
        {"gpu": 4, "nic": 1, "numa": 4},
        {"0001:00:00.0-eth0 PHB", "0001:00:00.0-0002:00:00.0 SYS"},
        4,  # every GPU names itself as the far end of its NVLinks
    ),
    "nccl-xml/azure_ncv4-graph.xml": ({"gpu": 4}, {"GPU0-GPU1 SYS", "GPU0-GPU3 SYS", "GPU0-GPU2 unknown"}, 1),
    "nccl-xml/aws_p4d-24xl-topo.xml": (
        {"gpu": 8, "nic": 4, "pcie-switch": 4, "numa": 2},
        {
            "0000:10:1c.0-0000:10:1d.0 PIX",
            "0000:10:1b.0-0000:10:1c.0 PIX",
            "0000:10:1c.0-0000:20:1c.0 PHB",
            "0000:10:1c.0-0000:90:1c.0 SYS",
        },
        1,  # no NVLinks in the file
    ),
    "nccl-xml/oci_H100-topology.xml": (
        {"gpu": 8, "nic": 16, "pcie-switch": 24, "numa": 2, "nvswitch": 4},
        {
            "0000:0f:00.0-0000:2d:00.0 NV18",
            "0000:0f:00.0-0000:89:00.0 NV18",
            "0000:0f:00.0-0000:1c:00.0 NV5",
            "0000:0f:00.0-0000:1a:00.0 NV4",
            "0000:0f:00.0-mlx5_0 PXB",
            "0000:0f:00.0-mlx5_3 PHB",
            "0000:0f:00.0-mlx5_9 SYS",
            "mlx5_0-mlx5_1 PIX",
        },
        0,
    ),
    "cluster-topo/slurm-topology-tree-oci-sim.conf": (
        {"host": 96, "leaf": 12, "spine": 6, "core": 1},
        {
            "srv1101-switch.1.1 hop",
            "switch.1.1-switch.2.1 hop",
            "switch.1.12-switch.2.6 hop",
            "switch.2.6-switch.3.1 hop",
        },
        0,
    ),
    "cluster-topo/slurm-topology-block-dra.conf": ({"host": 96}, set(), 0),
    "cluster-topo/topograph-model-small-tree.yaml": (
        {"host": 6, "leaf": 2, "spine": 1},
        {"I21-S2 hop", "I25-S2 hop", "I36-S3 hop", "S1-S3 hop"},
        0,
    ),
    "cluster-topo/topograph-model-medium.yaml": (
        {"host": 8, "leaf": 4, "spine": 2, "core": 1},
        {"1101-sw11 hop", "1402-sw14 hop", "sw14-sw22 hop", "sw22-sw3 hop"},
        0,
    ),
    "cluster-topo/topograph-model-nvl72.yaml": (
        {"host": 72, "leaf": 4, "spine": 2, "core": 1},
        {"core-spine-2 hop"},
        0,
    ),
    "cluster-topo/topograph-model-dual-xclr-irregular.yaml": (
        {"host": 255, "leaf": 31, "spine": 2, "core": 1},
        {"node0032-rack-1-04 hop", "rack-1-03-sw-01 hop"},
        1,
    ),
    "cluster-topo/topograph-netq-topologyGraph.json": (
        {"host": 8, "leaf": 2, "spine": 1},
        {"dgx-05-net-unit-l2 hop x4", "net-unit-l1-net-unit-s1 hop x28", "net-unit-l2-net-unit-s1 hop x19"},
        0,
    ),
    "cluster-topo/topograph-netq-computeNodes.json": ({"host": 2, "gpu": 8}, set(), 0),
    "cluster-topo/superbench-ibnetdiscover.txt": (
        {"core": 1, "spine": 2, "leaf": 5, "host": 10, "nic": 10},
        {
            "RMD701091901003/ibp11s0f0-rmd70-0101-0919-01ib0 hop",
            "rmd70-0101-0908-01ib1-A/L01/U1-rmd70-0101-0919-03ib0 hop",
            "rmd70-0101-0908-01ib1-A/L02/U1-rmd70-0101-0908-01ib1-A/S01/U1 hop",
        },
        0,
    ),
    "cluster-topo/topograph-ibnetdiscover-example.out.gz": (
        {"leaf": 31, "spine": 9, "host": 122, "nic": 542},
        {"A09-P1-IBLEAF-04-04-A10-P1-IBSPINE-02 hop x2", "A09-P1-IBLEAF-04-04-a08-p1-dgx-04-c01/mlx5_5 hop"},
        1,  # 69 adapters with the maker's description
    ),
    "cluster-topo/volcano-hypernode-v1alpha1-leaf-and-root.yaml": (
        {"host": 1, "leaf": 1, "switch": 2, "core": 1},
        {"node-0-s0 hop", "s4-s6 hop", "s5-s6 hop"},
        3,
    ),
    "k8s-samples/gfd-labels-h100-migcapable.txt": ({"host": 1, "gpu": 8}, {"GPU0-GPU7 unknown"}, 0),
    "k8s-samples/gfd-labels-dgx2h-a100.yaml": ({"host": 1, "gpu": 1}, set(), 0),
}


@pytest.mark.parametrize("name", REAL)
def test_a_real_file_is_read_as_by_eye(name: str) -> None:
    kinds, some, warnings = REAL[name]
    topology = read(data(name))
    assert counts(topology) == kinds
    assert some <= links(topology), some - links(topology)
    assert len(topology.warnings) == warnings, topology.warnings


def test_the_large_fabric_has_every_cable() -> None:
    """1,064 port lines between switches, both ends of each cable; 542 to adapters that are no aggregation node."""
    topology = read(data("cluster-topo/topograph-ibnetdiscover-example.out.gz"))
    assert sum(link.count for link in topology.links) == 1064 // 2 + 542
    assert "69 adapters do not say which host they are in" in topology.warnings[0]


def test_nvlink_domains_of_the_real_files() -> None:
    expected = {"slurm-topology-block-dra.conf": 12, "topograph-model-nvl72.yaml": 4, "topograph-model-large.yaml": 12}
    for name, domains in expected.items():
        topology = read(data(f"cluster-topo/{name}"))
        assert len({host.domain for host in topology.of_kind(PartKind.HOST)} - {""}) == domains
    compute = read(data("cluster-topo/topograph-netq-computeNodes.json"))
    assert {host.domain for host in compute.of_kind(PartKind.HOST)} == {"3fbfc98b-7f95-4749-ab11-bd351a2aab3e"}


REFUSED = {
    "nccl-xml/aws_g5.48xl-topo.xml": "line 14: class of pci 0000:00:16.0 is 'missing'; 0x0302.. is a GPU",
    "cluster-topo/topograph-ibnetdiscover-example-bad.out": "line 10: ports is 'H-b8e92403009ca838'; the lines",
    "cluster-topo/superbench-ibstat.txt": "line 1: format is 'VM_hostname vma414bbc00005I'; it must be one of",
    "cluster-topo/volcano-hypernode-design-ex1-3tier-oldform.yaml": "line 1: apiVersion of HyperNode is 'missing'",
    "cluster-topo/volcano-hypernode-design-ex2-roce-nvlink-oldform.yaml": "line 1: apiVersion of HyperNode",
    "cluster-topo/volcano-hypernode-discovery-config.yaml": "line 2: kind is 'missing'; it must be one of",
    "k8s-samples/hami-node-annotations.yaml": "line 1: kind is 'missing'; it must be one of",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_real_file_that_cannot_be_read_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(data(name))
    assert str(refused.value).startswith(REFUSED[name])


@pytest.mark.parametrize("name", files("nccl-xml", "cluster-topo", "k8s-samples"))
def test_every_real_file_is_read_or_refused_with_its_line(name: str) -> None:
    try:
        outcome: str | Topology = read(data(name))
    except BadInput as refused:
        outcome = str(refused)
    assert outcome.startswith("line ") if isinstance(outcome, str) else outcome.parts
