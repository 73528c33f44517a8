"""`isochrone topology`: what it prints, and which code it leaves."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import networkx as nx
import pytest
from aiohttp import web

from admission.cli import main
from tests.topology.list_watch_server import status, write_kubeconfig
from tests.topology.samples import TOPO_MATRIX as SMALL
from tests.topology.scripted_server import ScriptedServer
from topology.bad_input import BadInput
from topology.graph.export import as_dot
from topology.graph.link_types import HOP
from topology.graph.parts import GraphLink, GraphPart, PartKind, Topology
from topology.graph.text import picture
from topology.kube.api import KubeApi
from topology.kube.cluster_topology import cluster_topology


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["isochrone", "topology", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.txt"
    path.write_text(SMALL)
    return str(path)


@pytest.mark.parametrize("command", ["import", "show"])
def test_json_has_the_four_keys(
    command: str, small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, command, small, "-o", "json") == 0
    value = json.loads(capsys.readouterr().out)
    assert [(gpu["name"], gpu["numa"]) for gpu in value["gpus"]] == [("GPU0", 0), ("GPU1", 1)]
    assert [nic["name"] for nic in value["nics"]] == ["NIC0"]
    assert value["links"] == [
        {"a": "GPU0", "b": "GPU1", "kind": "NV4"},
        {"a": "GPU0", "b": "NIC0", "kind": "PIX"},
        {"a": "GPU1", "b": "NIC0", "kind": "SYS"},
    ]
    assert value["warnings"] == []


@pytest.mark.parametrize("command", ["import", "show"])
def test_json_is_networkx_node_link_data(
    command: str, small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, command, small, "-o", "json") == 0
    graph = nx.node_link_graph(json.loads(capsys.readouterr().out), edges="edges")
    assert graph.graph == {"source": "nvidia-smi topo -m"}
    assert graph.nodes["GPU1"] == {"kind": "gpu", "numa": 1, "inside": "NUMA 1", "cpus": "8-15"}
    assert graph.nodes["NIC0"] == {"kind": "nic", "device": "mlx5_7"}
    assert graph.edges["NIC0", "GPU0"] == {"kind": "PIX", "count": 1}
    assert graph.edges["NUMA 1", "GPU1"] == {"kind": "in"}


def test_dot_has_a_line_for_every_part_and_edge(
    small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, "show", small, "-o", "dot") == 0
    assert capsys.readouterr().out == (
        'graph "nvidia-smi topo -m" {\n'
        '  "NUMA 0" [label="NUMA 0\\nnuma"];\n'
        '  "NUMA 1" [label="NUMA 1\\nnuma"];\n'
        '  "GPU0" [label="GPU0\\ngpu"];\n'
        '  "GPU1" [label="GPU1\\ngpu"];\n'
        '  "NIC0" [label="NIC0\\nnic"];\n'
        '  "NUMA 0" -- "GPU0" [style=dashed];\n'
        '  "NUMA 1" -- "GPU1" [style=dashed];\n'
        '  "GPU0" -- "GPU1" [label="NV4"];\n'
        '  "GPU0" -- "NIC0" [label="PIX"];\n'
        '  "GPU1" -- "NIC0" [label="SYS"];\n'
        "}\n"
    )


def test_dot_escapes_what_would_end_a_string() -> None:
    parts = [GraphPart('a"b', PartKind.LEAF), GraphPart("c\\", PartKind.HOST, 'a"b')]
    assert as_dot(Topology.of("x", parts, [GraphLink('a"b', "c\\", HOP, 2)])) == (
        'graph "x" {\n'
        '  "a\\"b" [label="a\\"b\\nleaf"];\n'
        '  "c\\\\" [label="c\\\\\\nhost"];\n'
        '  "a\\"b" -- "c\\\\" [label="hop x 2"];\n'
        "}"
    )


def test_show_draws_matrix_and_tree(
    small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, "show", small) == 0
    assert capsys.readouterr().out == (
        "      GPU0  GPU1  NIC0  NUMA\n"
        "GPU0  X     NV4   PIX   0\n"
        "GPU1  NV4   X     SYS   1\n"
        "NIC0  PIX   SYS   X     N/A\n"
        "\n"
        "SYS  = through PCIe and the interconnect between NUMA nodes\n"
        "PIX  = through at most one PCIe switch\n"
        "NV#  = a bond of # NVLinks\n"
        "\n"
        "NUMA 0\n"
        "  GPU0\n"
        "NUMA 1\n"
        "  GPU1\n"
        "NIC0 (mlx5_7)\n"
    )


def test_import_says_what_it_holds(
    small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(small).write_bytes(gzip.compress(SMALL.replace("GPU1\tNV4", "GPU1\tNV3").encode()))
    assert leave(monkeypatch, "import", small) == 0
    assert capsys.readouterr().out == (
        "nvidia-smi topo -m: 2 GPUs, 1 NIC, 2 NUMA nodes, links: 1 NV3, 1 PIX, 1 SYS\n"
        "warning: line 3: GPU1 to GPU0 is NV4 and NV3; NV3 is taken\n"
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (SMALL.replace("NV4\tPIX", "NV4\tPIZ").encode(), "line 2: cell 3 of GPU0 is 'PIZ'; a cell is X, NV1 to NV64"),
        (b"hello\n", "line 1: format is 'hello'; it must be one of: nvidia-smi topo -m"),
        (b"", "line 1: format is ''; it must be one of:"),
        (b"GPU0\n\xff", "line 2: byte is b'\\xff'; the file must be UTF-8"),
        (b"\xff\xfeG\0P", "line 1: byte is b'P'; the file must be UTF-8, or UTF-16 with its mark"),
        (b"GPU0\n\0", "line 2: character is '\\x00'; the file must be text"),
        (gzip.compress(b"x" * 100, mtime=0)[:-9], "gzip data is 'cut off'; it must be whole"),
        (gzip.compress(bytes(40_000_000)), "size is '33554433 bytes'; at most 33554432 are read"),
    ],
)
def test_a_bad_file_is_one_sentence_and_code_2(
    content: bytes,
    sentence: str,
    small: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path(small).write_bytes(content)
    assert leave(monkeypatch, "import", small) == 2
    value = capsys.readouterr()
    assert value.err.startswith(f"isochrone: {small}: {sentence}")
    assert value.err.count("\n") == 1
    assert value.out == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["import", "/does/not/exist"], "FILE is '/does/not/exist'; it must be a readable file: No such file"),
        (["import", "/"], "FILE is '/'; it must be a readable file: Is a directory"),
        (["import", "/does/not/exist", "-o", "yaml"], "-o is 'yaml'; it is text, json or dot"),
        (["show", "--node", "../x"], "--node is '../x'; it is the name of a node: letters, digits, - and ."),
        (["show", "--kubeconfig", "/does/not/exist"], "kubeconfig is '/does/not/exist'"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_code_2(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave(monkeypatch, *arguments) == 2
    assert capsys.readouterr().err.startswith(f"isochrone: {sentence}")


async def test_a_node_is_shown_from_the_cluster(tmp_path: Path) -> None:
    node = {
        "metadata": {
            "name": "n1",
            "labels": {
                "nvidia.com/gpu.count": "2",
                "topology.kubernetes.io/zone": "z1",
                "nvidia.com/gpu.clique": "u.7",
            },
        }
    }
    member = {"type": "Node", "selector": {"exactMatch": {"name": "n1"}}}
    hypernode = {"metadata": {"name": "s0"}, "spec": {"tier": 1, "members": [member]}}
    async with ScriptedServer(tmp_path) as server:
        server.answers += [
            lambda: web.json_response(node),
            lambda: web.json_response({"metadata": {}, "items": [hypernode]}),
        ]
        async with await KubeApi.connect(write_kubeconfig(tmp_path, server.url)) as api:
            topology = await cluster_topology(api, "n1")
        assert [seen.path for seen in server.seen] == [
            "/api/v1/nodes/n1",
            "/apis/topology.volcano.sh/v1alpha1/hypernodes",
        ]
    assert list(picture(topology)) == [
        "      GPU0  GPU1  NUMA",
        "GPU0  X     N/A   N/A",
        "GPU1  N/A   X     N/A",
        "",
        "N/A  = not said by the source",
        "",
        "s0 (leaf)",
        "  n1 (host, NVLink domain u.7, zone z1)",
        "    GPU0",
        "    GPU1",
    ]


async def test_a_node_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    async with ScriptedServer(tmp_path) as server:
        server.answers += [lambda: status(404, "NotFound")]
        async with await KubeApi.connect(write_kubeconfig(tmp_path, server.url)) as api:
            with pytest.raises(BadInput) as bad:
                await cluster_topology(api, "nope")
    assert str(bad.value) == "--node is 'nope'; the cluster has no node of this name: see kubectl get nodes"


async def test_a_cluster_is_read_in_pages_and_without_hypernodes(tmp_path: Path) -> None:
    pages = [
        {"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "n1"}}]},
        {"metadata": {}, "items": [{"metadata": {"name": "n2"}}]},
    ]
    async with ScriptedServer(tmp_path) as server:
        server.answers += [
            lambda: web.json_response(pages[0]),
            lambda: web.json_response(pages[1]),
            lambda: status(404, "NotFound"),
        ]
        async with await KubeApi.connect(write_kubeconfig(tmp_path, server.url)) as api:
            topology = await cluster_topology(api)
    assert [part.name for part in topology.parts] == ["n1", "n2"]
    assert server.seen[1].query == {"limit": "500", "continue": "more"}
