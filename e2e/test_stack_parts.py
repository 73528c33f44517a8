"""The stack's pure parts and its process care: no Kubernetes needed, done in a second."""

import socket
import sys
from pathlib import Path

import pytest
import yaml

from e2e.stack.build import PINNED, binary_name, key, locate, sources
from e2e.stack.client import path_of
from e2e.stack.isochrone import routed
from e2e.stack.nodes import GPU, HOSTNAME, LEAF, SPINE, ZONE, gpu_node, grid
from e2e.stack.ports import Ports
from e2e.stack.processes import LIMIT_S, Group, Process, ProcessDiedError, wait_until
from e2e.stack.versions import Module, modules, render_go_mod
from e2e.stack.volcano_conf import scheduler_conf, with_extender_stanza


def tokens(go_mod: str) -> set[str]:
    """The requirements and replacements of a go.mod, whatever block they stand in."""
    lines = (line.split("//")[0].strip() for line in go_mod.splitlines())
    return {line.removeprefix("require ").removeprefix("replace ") for line in lines if " v" in line or "=>" in line}


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_pinned_modules_match_the_versions(module: Module) -> None:
    pinned = tokens((PINNED / module.name / "go.mod").read_text())
    missing = tokens(render_go_mod(module)) - pinned
    assert not missing, "run `python -m e2e.stack pin`"


def test_both_volcanos_share_everything_else() -> None:
    one, other = ({part.name: folder for part, folder in locate(v).folders} for v in ("1.14.1", "1.15.1"))
    assert {name for name in one if one[name] != other[name]} == {"volcano"}
    with pytest.raises(KeyError):
        locate("1.14.1").bin("kubelet")


def test_the_key_knows_all_that_is_built() -> None:
    component = locate("1.14.1").folders[0][0]
    made_from = sources(component.module)
    before = key(component, made_from)
    made_from.files["go.sum"] += "\n"
    assert key(component, made_from) != before


def test_binary_names() -> None:
    assert binary_name("go.etcd.io/etcd/server/v3") == "server"
    assert binary_name("volcano.sh/volcano/cmd/scheduler") == "scheduler"


def test_grid_spreads_nodes_evenly() -> None:
    nodes = grid(16)
    labels = [node["metadata"]["labels"] for node in nodes]
    assert [node["metadata"]["name"] for node in nodes][:2] == ["gpu-000", "gpu-001"]
    for label, count in ((ZONE, 4), (SPINE, 4), (LEAF, 8)):
        seen = [each[label] for each in labels]
        assert {seen.count(value) for value in seen} == {16 // count}
    assert all(each[HOSTNAME] == node["metadata"]["name"] for each, node in zip(labels, nodes, strict=True))
    assert len({node["metadata"]["name"] for node in grid(1200)}) == 1200
    assert grid(0) == []


def test_a_node_without_gpu_or_hostname() -> None:
    node = gpu_node("cpu-0", "zone-a", "leaf-a0", gpus=0, labels={"role": "router"}, hostname_label=False)
    assert GPU not in node["status"]["capacity"]
    assert HOSTNAME not in node["metadata"]["labels"]
    assert node["metadata"]["labels"]["role"] == "router"


def test_the_extender_stands_in_the_tier_of_predicates() -> None:
    stanza = ["  - name: extender", "    arguments:", "      extender.urlPrefix: http://127.0.0.1:1"]
    conf = yaml.safe_load(with_extender_stanza(scheduler_conf(), stanza))
    names = [plugin["name"] for plugin in conf["tiers"][-1]["plugins"]]
    assert names[-1] == "extender"
    assert "predicates" in names
    assert yaml.safe_load(scheduler_conf({"urlPrefix": "http://127.0.0.1:1"})) == conf


def test_webhooks_are_routed_by_port_alone() -> None:
    client = {"service": {"name": "w", "namespace": "n", "port": 443, "path": "/mutate"}}
    configuration = {"kind": "MutatingWebhookConfiguration", "webhooks": [{"name": "a", "clientConfig": client}]}
    changed = routed(configuration, 20_000)["webhooks"][0]
    assert changed["clientConfig"]["service"] == client["service"] | {"port": 20_000}
    assert client["service"]["port"] == 443


def test_paths_of_objects() -> None:
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}}
    assert path_of(group, "a") == "/apis/scheduling.volcano.sh/v1beta1/namespaces/a/podgroups"
    assert path_of({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}) == "/api/v1/nodes"


def test_ports_are_different_and_free() -> None:
    one, other = Ports(), Ports()
    taken = [ports.take() for ports in (one, other) for _ in range(20)]
    assert len(set(taken)) == 40
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", taken[0]))
    one.close()
    other.close()


def test_a_wait_ends_and_says_why() -> None:
    with pytest.raises(TimeoutError, match=r"the moon: not within 0\.1 s; last error: '1'"):
        wait_until(lambda: {"earth": 1}["1"], 0.1, "the moon", not_yet=(KeyError,))


def sleeper(name: str, log: Path, code: str = "import time; time.sleep(600)") -> Process:
    """A process that does nothing for long."""
    return Process(name, [sys.executable, "-c", code], log, {})


def test_a_death_is_told_with_the_log(tmp_path: Path) -> None:
    group = Group()
    process = group.start(sleeper("brief", tmp_path / "log", "print('no space'); raise SystemExit(3)"))
    with pytest.raises(ProcessDiedError, match=r"(?s)brief ended by itself with code 3.*no space"):
        wait_until(lambda: False, LIMIT_S, "its death", group.check)
    assert process.exit_code == 3
    group.close()


def test_a_group_stops_children_too(tmp_path: Path) -> None:
    code = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
    group = Group(tmp_path / "work")
    (tmp_path / "work").mkdir()
    process = group.start(sleeper("parent", tmp_path / "log", code))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    child = int(wait_until(children.read_text, LIMIT_S, "a child"))
    group.kill("parent")
    group.start(process)
    assert group.pids()["parent"] == process.pid
    group.close()
    wait_until(lambda: not Path(f"/proc/{child}/fd/0").exists(), LIMIT_S, "the child is gone")
    assert not (tmp_path / "work").exists()
