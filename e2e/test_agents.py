"""A real agent process on each of 32 nodes: what they measure moves gangs, and those that die cost nobody else."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.checks import bound_after, counted, events, live_pods, wait_event
from e2e.conftest import ClusterFactory, empty
from e2e.slow_probes import ProbeWay
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import Isochrone, install
from e2e.stack.nodes import grid
from e2e.stack.processes import LIMIT_S
from e2e.workloads import PLACEMENT, occupant, phased
from tests.nvml import profiles
from tests.nvml.agents import AgentProcess, agent_process
from tests.nvml.library import build
from tests.topology.hub_certificates import Authority

pytestmark = [pytest.mark.e2e, pytest.mark.full]

NODES = [f"gpu-{i:03d}" for i in range(32)]
A0, A1, A2 = NODES[:2], NODES[2:4], NODES[4:6]
HUB_NAME = "isochrone-controller.isochrone-system.svc"
BOUND = "100ms"  # far above what a busy machine's loopback takes, far below a slow way's 300 ms
STALE, EXPIRED = "25s", "80s"
SILENT = NODES[16:27]


class Place:
    """32 nodes in sixteen leaves of one zone; the controller's hub takes agents with certificates alone."""

    def __init__(self, cluster: Cluster, folder: Path, stack: ExitStack) -> None:
        self.cluster, self.folder, self._stack = cluster, folder, stack
        self.authority = Authority()
        self.hub_port, self.probe_port = cluster.ports.take(), cluster.ports.take()
        env = {
            "ISOCHRONE_HUB_LISTEN": f"127.0.0.1:{self.hub_port}",
            "ISOCHRONE_HUB_TLS_DIR": str(self.authority.folder(folder / "hub", HUB_NAME, HUB_NAME)),
            "ISOCHRONE_PROBE_EVERY": "30s",
            "ISOCHRONE_FACTS_STALE": STALE,
            "ISOCHRONE_FACTS_EXPIRED": EXPIRED,
        }
        self.isochrone: Isochrone = install(cluster, [], env)
        self.agents: dict[str, AgentProcess] = {}
        self.ends: dict[str, ExitStack] = {}
        self.ways: dict[str, ProbeWay] = {}

    def start_agents(self) -> None:
        """An agent for each node, four at a time, unless they run. Probes to two leaves go through this process."""
        if self.agents:
            return
        build()
        for i, name in enumerate((*A0, *A1)):
            self.ways[name] = way = ProbeWay(f"127.0.1.{i + 1}", f"127.0.2.{i + 1}", self.probe_port)
            self._stack.callback(way.close)
        with ThreadPoolExecutor(4) as pool:
            for name, agent, end in pool.map(self._start, range(len(NODES))):
                self.agents[name], self.ends[name] = agent, end

    def _start(self, i: int) -> tuple[str, AgentProcess, ExitStack]:
        name = NODES[i]
        folder = profiles.write(profiles.as_node(profiles.hgx_h100(), i), self.folder / name)
        settings = {
            "ISOCHRONE_HUB": f"127.0.0.1:{self.hub_port}",
            "ISOCHRONE_HUB_NAME": HUB_NAME,
            "ISOCHRONE_TLS_DIR": str(self.authority.folder(folder / "tls", name, name)),
            "ISOCHRONE_COLLECT_EVERY": "10s",
            "ISOCHRONE_PROBE_LISTEN": f"127.0.2.{i + 1}:{self.probe_port}",
            "ISOCHRONE_PROBE_HOST": f"127.0.{1 if name in self.ways else 2}.{i + 1}",
        }
        end = ExitStack()
        agent = end.enter_context(agent_process(folder, name, settings))
        self._stack.enter_context(end)
        os.setpriority(os.PRIO_PROCESS, agent.process.pid, 5)
        return name, agent, end

    def hub(self, freshness: str) -> float:
        """Nodes with agents, by the age of their facts, as the controller counts them."""
        return counted(self.isochrone.controller.metrics(), "isochrone_hub_nodes", freshness=freshness)

    def gang(self, name: str, prefill_on: str, decode_on: str = "") -> "Gang":
        """A pair of whole nodes, the prefill pod on a given one."""
        return Gang(self.cluster, name, prefill_on, decode_on)


class Gang:
    """A bound pair: where its decode pod went, and what was said about that pod."""

    def __init__(self, cluster: Cluster, name: str, prefill_on: str, decode_on: str) -> None:
        self.cluster = cluster
        self.namespace = cluster.create_namespace(name)
        cluster.create(phased("prefill", gpus=8, reach=BOUND, hostname=prefill_on), self.namespace)
        cluster.create(phased("decode", gpus=8, reach=BOUND, hostname=decode_on), self.namespace)
        bound_after(cluster, self.namespace, 2)
        self.pods = {pod.phase: pod.name for pod in live_pods(cluster, self.namespace)}
        self.where = {pod.phase: pod.node for pod in live_pods(cluster, self.namespace)}["decode"]
        self.value = str(wait_event(cluster, self.namespace, self.pods["decode"], "Placed")["message"])
        [pod] = [p for p in cluster.pods(self.namespace) if p["metadata"]["name"] == self.pods["decode"]]
        self.block = str(pod["metadata"]["annotations"][PLACEMENT])
        self.affinity = str(pod["spec"].get("affinity"))

    @property
    def allowed(self) -> str:
        """Its decode pod's isochrone set."""
        return next(line for line in self.block.splitlines() if line.startswith("set "))

    def reported(self, reason: str) -> list[str]:
        """Events about its decode pod."""
        return [str(e["message"]) for e in events(self.cluster, self.namespace, self.pods["decode"], reason)]

    def end(self) -> "Gang":
        """Its room is free again."""
        empty(self.cluster, self.namespace)
        return self


@pytest.fixture(scope="module")
def place(cluster_factory: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    cluster = cluster_factory(grid(32, zones=1, leaves_per_zone=16))
    with ExitStack() as stack:
        yield Place(cluster, tmp_path_factory.mktemp("agents"), stack)


def eventually(attempt: Callable[[int], Gang], good: Callable[[Gang], bool], limit_s: float = LIMIT_S) -> Gang:
    """Places a gang after another until one is as it should be: agents take their turns in measuring."""
    until, tried = time.monotonic() + limit_s, 0
    while True:
        gang = attempt(tried).end()
        if good(gang):
            return gang
        assert time.monotonic() < until, f"on {gang.where}: {gang.value}\n{gang.block}"
        tried += 1
        time.sleep(4)


def test_what_agents_measure_wins_over_the_model(place: Place) -> None:
    modelled = place.gang("modelled", A0[0]).end()
    assert modelled.where in A0
    assert "same leaf, TCP, modelled" in modelled.value
    place.start_agents()
    for name in A0:
        place.ways[name].slow = True
    place.cluster.wait_for(lambda: place.hub("fresh") == len(NODES), LIMIT_S, "every agent reports")
    # By the model a leaf's own nodes are nearest to each other; by what its agents measure, these are not near at all.
    measured = eventually(
        lambda n: place.gang(f"measured-{n}", A0[0]),
        lambda g: g.where not in A0 and "measured" in g.value and "1 beyond reach" in g.block,
    )
    print(measured.value, measured.block, sep="\n")
    assert measured.allowed.endswith(", 31 nodes")
    assert A0[1] not in measured.affinity
    assert all(name in measured.affinity for name in NODES[2:])


def test_slowing_a_leaf_moves_the_next_gang(place: Place) -> None:
    place.start_agents()
    cluster = place.cluster
    namespace = cluster.create_namespace("occupied")
    with ExitStack() as stack:
        stack.callback(empty, cluster, namespace)
        for name in (*A0, *NODES[4:]):
            cluster.create(occupant(name, 8), namespace)
        eventually(lambda n: place.gang(f"in-leaf-{n}", A1[0]), lambda g: "measured" in g.value)
        running = place.gang("running", A1[0])
        assert running.where == A1[1]
        assert "measured" in running.value
        for name in A1:
            place.ways[name].slow = True
        cluster.wait_for(lambda: bool(running.reported("ReachBreached")), LIMIT_S, "the running pair is found too slow")
        [breach] = running.reported("ReachBreached")[:1]
        assert "measured" in breach
        assert {pod.node for pod in live_pods(cluster, running.namespace)} == {A1[0], running.where}
        running.end()
        for name in A2:
            cluster.api("DELETE", f"/api/v1/namespaces/{namespace}/pods/occupant-{name}?gracePeriodSeconds=0")
        moved = eventually(lambda n: place.gang(f"moved-{n}", A1[0]), lambda g: g.where in A2 and "measured" in g.value)
        print(moved.value, moved.block, sep="\n")


def test_agents_that_die_age_their_own_facts_alone(place: Place) -> None:
    place.start_agents()
    cluster = place.cluster
    cluster.wait_for(lambda: place.hub("fresh") == len(NODES), LIMIT_S, "every agent reports")
    on_silent = place.gang("on-silent", SILENT[0], SILENT[1])
    on_living = place.gang("on-living", NODES[30], NODES[31])
    killed = time.monotonic()
    for name in SILENT:
        place.agents[name].process.kill()
        place.ends[name].close()
    cluster.wait_for(lambda: place.hub("stale") == len(SILENT), LIMIT_S, "a third is stale")
    # Facts are looked at every five seconds.
    stale = eventually(lambda n: place.gang(f"stale-{n}", SILENT[2], SILENT[3]), lambda g: "old, stale" in g.block)
    assert "agent of gpu-01" in stale.block
    cluster.wait_for(lambda: place.hub("expired") == len(SILENT), LIMIT_S, "a third is expired")
    assert time.monotonic() - killed > 25
    assert place.hub("fresh") == len(NODES) - len(SILENT)
    cluster.wait_for(lambda: bool(on_silent.reported("FactsStale")), LIMIT_S, "the running pair hears of it")
    expired = place.gang("expired", SILENT[2], SILENT[3]).end()
    assert "expired: not used" in expired.block
    living = place.gang("living", NODES[28], NODES[29]).end()
    print(stale.block, expired.block, living.block, *on_silent.reported("FactsStale"), sep="\n")
    assert "agent of" not in living.block
    assert not on_living.reported("FactsStale")
    for gang in (on_silent, on_living):
        assert {pod.node for pod in live_pods(cluster, gang.namespace)} >= {gang.where}
        gang.end()
