"""32 nodes without labels about their network: agents and a file say where they are, and Volcano believes the tree.

Each agent is a real process that gets its certificate from the installed controller, by the token of a pod on its node.
"""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from e2e.checks import bound_after, counted, live_pods
from e2e.conftest import ClusterFactory, empty
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import CONTROLLER, NAMESPACE, install
from e2e.stack.nodes import GPU, GPU_MEMORY_MIB, HOSTNAME
from e2e.stack.processes import LIMIT_S
from e2e.stack.volcano_conf import scheduler_conf, with_extender_stanza
from e2e.workloads import pod, pod_group
from scheduler.extender.scheduler_config import stanza
from tests.nvml import profiles
from tests.nvml.agents import AgentProcess, agent_process
from tests.nvml.library import build

pytestmark = [pytest.mark.e2e, pytest.mark.full]

NODES = [f"tray-{i:02d}" for i in range(32)]
HYPERNODES = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
HUB_NAME = f"{CONTROLLER}.{NAMESPACE}.svc"
FABRIC = "SwitchName=sw1 Nodes=tray-[00-15]\nSwitchName=sw2 Nodes=tray-[16-31]\nSwitchName=top Switches=sw[1-2]\n"
CLIQUES = [(cluster, clique) for cluster in ("6f4a", "2244") for clique in (1, 2)]
"""Of eight trays each, in this order. The clique ids repeat: only with the cluster's id are they domains."""

Tree = dict[str, tuple[int, frozenset[str]]]


def machine(number: int) -> profiles.Machine:
    """A GB200 tray in its rack."""
    made = profiles.as_node(profiles.gb200_nvl72(), number)
    cluster, clique = CLIQUES[number // 8]
    for gpu in range(4):
        made.nvml |= {f"gpu.{gpu}.fabric.uuid": f"{cluster}{1:028d}", f"gpu.{gpu}.fabric.clique": clique}
    return made


def tray(name: str) -> dict[str, Any]:
    """A node that says what its GPUs are, and nothing about where it is."""
    labels = {HOSTNAME: name, "nvidia.com/gpu.product": "NVIDIA-GB200", "nvidia.com/gpu.memory": str(GPU_MEMORY_MIB)}
    resources = {"cpu": "128", "memory": "1Ti", "pods": "110", GPU: "4"}
    status = {"capacity": resources, "allocatable": resources}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


class Place:
    """The cluster, the controller that publishes, and an agent for each node."""

    def __init__(self, cluster: Cluster, folder: Path, stack: ExitStack) -> None:
        self.cluster, self.folder, self._stack = cluster, folder, stack
        self.hub_port, self.enrol_port = cluster.ports.take(), cluster.ports.take()
        (folder / "topology.conf").write_text(FABRIC)
        settings = ["agent.enabled=true", "controller.publishHyperNodes=true", "controller.publishNodeLabels=true"]
        env = {
            "ISOCHRONE_HUB_LISTEN": f"127.0.0.1:{self.hub_port}",
            "ISOCHRONE_ENROL_LISTEN": f"127.0.0.1:{self.enrol_port}",
            "ISOCHRONE_PROBE_EVERY": "off",
            "ISOCHRONE_FACTS_STALE": "25s",
            "ISOCHRONE_FACTS_EXPIRED": "50s",
            "ISOCHRONE_TOPOLOGY_FILE": str(folder / "topology.conf"),
        }
        self.isochrone = install(cluster, settings, env)
        cluster.set_scheduler_conf(
            with_extender_stanza(
                scheduler_conf(extra_plugins=["network-topology-aware"]), stanza(self.isochrone.extender_url)
            )
        )
        self.agents: dict[str, AgentProcess] = {}

    def start_agents(self) -> None:
        """One on each node, four at a time."""
        build()
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/isochrone-hub-ca"
        reported = self.cluster.wait_for(lambda: self.cluster.get(path), LIMIT_S, "the hub's authority")
        for i, name in enumerate(NODES):
            folder = profiles.write(machine(i), self.folder / name)
            (folder / "ca.crt").write_text(reported["data"]["ca.crt"])
            (folder / "token").write_text(self._token(name))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self.start_agent, NODES))

    def start_agent(self, name: str) -> None:
        """The agent of one node, on the machine that is written for it."""
        settings = {
            "ISOCHRONE_HUB": f"127.0.0.1:{self.hub_port}",
            "ISOCHRONE_HUB_NAME": HUB_NAME,
            "ISOCHRONE_ENROL": f"127.0.0.1:{self.enrol_port}",
            "ISOCHRONE_ENROL_DIR": str(self.folder / name),
            "ISOCHRONE_COLLECT_EVERY": "10s",
        }
        end = ExitStack()
        self.agents[name] = end.enter_context(agent_process(self.folder / name, name, settings))
        self._stack.enter_context(end)
        os.setpriority(os.PRIO_PROCESS, self.agents[name].process.pid, 5)

    def _token(self, node: str) -> str:
        """What the kubelet puts into the agent's pod; the pod is made here by hand, since nothing runs DaemonSets."""
        spec = {
            "serviceAccountName": "isochrone-agent",
            "automountServiceAccountToken": False,
            "nodeName": node,
            "containers": [{"name": "agent", "image": "isochrone"}],
        }
        meta = {"name": f"isochrone-agent-{node}"}
        made = self.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, NAMESPACE)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": made["metadata"]["uid"]}
        asked = {"audiences": ["isochrone-hub"], "expirationSeconds": 3600, "boundObjectRef": bound}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": asked}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/isochrone-agent/token"
        return str(self.cluster.api("POST", path, body)["status"]["token"])

    def tree(self) -> Tree:
        """HyperNodes by name: their tier, and the nodes somewhere below."""
        items = {item["metadata"]["name"]: item["spec"] for item in self.cluster.api("GET", HYPERNODES)["items"]}

        def below(name: str) -> frozenset[str]:
            members = [(m["type"], m["selector"]["exactMatch"]["name"]) for m in items[name]["members"]]
            own = frozenset(member for kind, member in members if kind == "Node")
            return own.union(*(below(member) for kind, member in members if kind == "HyperNode" and member in items))

        return {name: (int(spec["tier"]), below(name)) for name, spec in items.items()}

    def tiers(self) -> dict[int, set[frozenset[str]]]:
        """Groups of nodes by tier."""
        found: dict[int, set[frozenset[str]]] = {}
        for tier, nodes in self.tree().values():
            found.setdefault(tier, set()).add(nodes)
        return found

    def labels(self, node: str) -> dict[str, str]:
        """Our labels of a node."""
        labels = self.cluster.api("GET", f"/api/v1/nodes/{node}")["metadata"]["labels"]
        return {key: labels[key] for key in sorted(labels) if key.startswith("isochrone.dev/")}

    def versions(self) -> dict[str, str]:
        """Which writing of each HyperNode is there."""
        items = self.cluster.api("GET", HYPERNODES)["items"]
        return {
            item["metadata"]["name"]: f"{item['metadata']['uid']} {item['metadata']['generation']}" for item in items
        }

    def hub(self, freshness: str) -> float:
        """Nodes with agents, by the age of their facts, as the controller counts them."""
        return counted(self.isochrone.controller.metrics(), "isochrone_hub_nodes", freshness=freshness)

    def job(self, name: str, pods: int, tier: int) -> set[str]:
        """A gang of whole trays that Volcano must keep inside one HyperNode of a tier: where it went.

        Volcano itself says which HyperNode that is: it must be one of ours, of that tier, with those nodes.
        """
        namespace = self.cluster.create_namespace(name)
        group = pod_group(name, pods)
        group["spec"]["networkTopology"] = {"mode": "hard", "highestTierAllowed": tier}
        self.cluster.create(group, namespace)
        for number in range(pods):
            self.cluster.create(pod(f"{name}-{number}", gpus=4, group=name), namespace)
        bound_after(self.cluster, namespace, pods)
        where = {each.node for each in live_pods(self.cluster, namespace)}
        value = rf'"Allocate job to hyperNode success" job="{namespace}/{name}" hyperNode="([^"]+)"'
        log = self.cluster.log("vc-scheduler")
        at, nodes = self.tree()[re.findall(value, log)[-1]]
        assert at == tier
        assert where <= nodes
        empty(self.cluster, namespace)
        return where


@pytest.fixture(scope="module")
def place(cluster_factory: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    cluster = cluster_factory([tray(name) for name in NODES])
    with ExitStack() as stack:
        made = Place(cluster, tmp_path_factory.mktemp("published"), stack)
        made.start_agents()
        yield made


RACKS = [frozenset(NODES[i : i + 8]) for i in range(0, 32, 8)]
LEAVES = [frozenset(NODES[:16]), frozenset(NODES[16:])]


def test_volcano_places_by_the_tree_that_agents_and_a_file_give(place: Place) -> None:
    cluster = place.cluster
    cluster.wait_for(lambda: place.hub("fresh") == len(NODES), LIMIT_S, "every agent reports with its own certificate")
    wanted = {1: set(RACKS), 2: set(LEAVES), 3: {frozenset(NODES)}}
    cluster.wait_for(lambda: place.tiers() == wanted, LIMIT_S, "four cliques, two leaves and a spine are published")
    assert len(place.tree()) == 7
    cluster.wait_for(lambda: place.labels(NODES[-1]), LIMIT_S, "the last node is labelled")
    named = {name: nodes for name, (_, nodes) in place.tree().items()}
    for node in NODES:
        labels = place.labels(node)
        assert set(labels) == {"isochrone.dev/clique", "isochrone.dev/leaf", "isochrone.dev/spine"}
        assert all(node in named[value] for value in labels.values())
        assert labels["isochrone.dev/clique"].startswith("isochrone-clique-")
    # What fits a rack stays in one; what is larger stays under one leaf, in both of its racks.
    inside = place.job("in-a-rack", 6, 1)
    assert any(inside <= rack for rack in RACKS)
    across = place.job("under-a-leaf", 12, 2)
    assert any(across <= leaf for leaf in LEAVES)
    assert not any(across <= rack for rack in RACKS)


def test_a_broken_fabric_leaves_its_clique_and_silent_agents_stay(place: Place) -> None:
    cluster = place.cluster
    before = place.versions()
    silent, broken = NODES[24:28], NODES[0]
    for name in silent:
        place.agents[name].process.kill()
    cluster.wait_for(lambda: place.hub("expired") == len(silent), LIMIT_S, "the facts of four nodes are expired")
    made = machine(0)
    made.nvml |= {f"gpu.{gpu}.fabric.status": 22 for gpu in range(4)}
    profiles.write_nvml(made, place.folder / broken)
    wanted = {*RACKS[1:], RACKS[0] - {broken}, frozenset([broken])}
    cluster.wait_for(lambda: place.tiers()[1] == wanted, LIMIT_S, "the broken tray has left its clique")
    # Its clique lost it and its leaf gained a rest; nothing else was written.
    changed = [nodes for name, (_, nodes) in place.tree().items() if before.get(name) != place.versions()[name]]
    assert set(changed) == {RACKS[0] - {broken}, frozenset([broken]), LEAVES[0]}
    cluster.wait_for(lambda: "isochrone.dev/clique" not in place.labels(broken), LIMIT_S, "its label is gone")
    assert "isochrone.dev/leaf" in place.labels(broken)
    assert "isochrone.dev/clique" in place.labels(silent[0])
    for name in silent:
        place.start_agent(name)


def test_a_restart_writes_nothing_and_a_lost_node_leaves_the_tree(place: Place) -> None:
    cluster, lost = place.cluster, NODES[8]
    cluster.wait_for(lambda: place.hub("fresh") == len(NODES), LIMIT_S, "every agent reports")
    before = place.versions()
    cluster.kill(CONTROLLER)
    cluster.restart(CONTROLLER)
    place.isochrone.wait_ready()
    cluster.wait_for(lambda: place.hub("fresh") == len(NODES), LIMIT_S, "every agent is back")
    cluster.api("DELETE", f"/api/v1/nodes/{lost}")
    cluster.wait_for(lambda: RACKS[1] - {lost} in place.tiers()[1], LIMIT_S, "the lost node has left its clique")
    tree = place.tree()
    assert not any(lost in nodes for _, nodes in tree.values())
    assert [nodes for name, (_, nodes) in tree.items() if before[name] != place.versions()[name]] == [RACKS[1] - {lost}]
    where = place.job("after", 7, 1)
    assert any(where <= rack for rack in RACKS)
    assert lost not in where
