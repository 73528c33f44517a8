"""Measurements move gangs on the real stack: an imported run, probes of agents, and HyperNodes published meanwhile."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from e2e.checks import PodSeen, bound_after, live_pods, wait_event
from e2e.conftest import ClusterFactory, empty
from e2e.stack.build import CHECKOUT
from e2e.stack.cluster import Cluster
from e2e.stack.isochrone import Isochrone, install
from e2e.stack.nodes import grid
from e2e.stack.processes import LIMIT_S
from e2e.workloads import pair
from tests.topology.list_watch_server import until
from topology.agent.hub_client import HubClient
from topology.agent.prober import Prober
from topology.agent.settings import AgentSettings
from topology.facts.report import Nic, NicPort, NodeFacts, NodeState, NvmlState

pytestmark = [pytest.mark.e2e, pytest.mark.full]

HYPERNODES = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
RUN = "# OSU MPI-CUDA Latency Test v7.5\n# Size       Avg Latency(us)\n65536  {}\n"
DELAY_S = 0.03


class Place:
    """One cluster for the module: four leaves of two nodes, the controller with a hub and a file of measurements."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.file, self.hub_port = cluster, folder / "reach.json", cluster.ports.take()
        env = {
            "ISOCHRONE_MEASURED_REACH": str(self.file),
            "ISOCHRONE_HUB_LISTEN": f"127.0.0.1:{self.hub_port}",
            "ISOCHRONE_HUB_PLAINTEXT": "true",
            "ISOCHRONE_PROBE_EVERY": "15s",
            "ISOCHRONE_PUBLISH_HYPERNODES": "true",
        }
        self.isochrone: Isochrone = install(cluster, ["controller.publishHyperNodes=true"], env)

    def imported(self, folder: Path, leaf: str, us: float) -> None:
        """A run of osu_latency inside a leaf, imported as a person does it."""
        log = folder / f"{leaf}.log"
        log.write_text(RUN.format(us))
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ends = ["--from", f"leaf:{leaf}", "--to", f"leaf:{leaf}", "--time", now]
        argv = [sys.executable, "-m", "admission.cli", "reach", "import", str(log), "--save", str(self.file), *ends]
        subprocess.run(argv, check=True, timeout=LIMIT_S, cwd=CHECKOUT, env={"PYTHONPATH": str(CHECKOUT)})

    def gang(self, name: str) -> tuple[set[str], str]:
        """A pair of whole nodes within 100 us: where it went, and what was said about it."""
        namespace, pods = self.running(name)
        value = wait_event(self.cluster, namespace, pods[0].name, "Placed")
        empty(self.cluster, namespace)
        return {pod.node for pod in pods}, str(value)

    def running(self, name: str) -> tuple[str, list[PodSeen]]:
        """A pair of whole nodes within 100 us, bound: its namespace and its pods."""
        namespace = self.cluster.create_namespace(name)
        for item in pair(gpus=8, reach="100us"):
            self.cluster.create(item, namespace)
        bound_after(self.cluster, namespace, 2)
        return namespace, live_pods(self.cluster, namespace)


@pytest.fixture(scope="module")
def place(cluster_factory: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(cluster_factory(grid(8, zones=1, leaves_per_zone=4)), tmp_path_factory.mktemp("reach"))


def test_an_imported_run_moves_the_next_gang_and_is_named(place: Place, tmp_path: Path) -> None:
    where, value = place.gang("before")
    assert where == {"gpu-000", "gpu-001"}
    assert "79.2 us" in value
    assert "same leaf, TCP, modelled" in value
    place.imported(tmp_path, "leaf-a0", 4000.0)
    place.imported(tmp_path, "leaf-a1", 40.0)
    # The file is looked at every five seconds, and what is new in it counts five seconds later.
    places = (place.gang(f"after-{n}") for n in count())
    until_s = time.monotonic() + LIMIT_S
    where, value = next((where, value) for where, value in places if "measured" in value or time.monotonic() > until_s)
    assert where == {"gpu-002", "gpu-003"}
    # Nearer than the model says of any leaf: a mean of 40 us, widened by 1.5.
    assert "60 us" in value
    assert "same leaf, TCP, measured" in value
    assert "within the leaf" in value


@contextmanager
def slow_way(port: int) -> Iterator[int]:
    """A proxy that holds back what comes from `port`."""
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = [listener]

    def pump(source: socket.socket, sink: socket.socket, hold_s: float) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                time.sleep(hold_s)
                sink.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                ends.extend((near, far))
                for source, sink, hold_s in ((near, far, 0.0), (far, near, DELAY_S)):
                    threading.Thread(target=pump, args=(source, sink, hold_s), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        for each in ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


async def test_a_slow_way_between_two_agents_moves_the_next_gang(place: Place) -> None:
    nics = (Nic(name="eth0", rdma=False, ports=(NicPort(port=1, active=True, rate_mbps=400_000),)),)
    clients: dict[str, HubClient] = {}
    samples: list[NodeFacts] = []

    def facts() -> NodeFacts:
        state = NodeState(collected_at_s=time.time(), topology_generation=1, nvml=NvmlState.OK)
        return NodeFacts(state=state, nics=nics)

    def telling(name: str) -> Callable[[NodeFacts], None]:
        def report(now: NodeFacts) -> None:
            samples.append(now)
            clients[name].report(now)

        return report

    namespace, pods = await asyncio.to_thread(place.running, "running")
    assert {pod.node for pod in pods} == {"gpu-002", "gpu-003"}
    with ExitStack() as stack:
        tasks = []
        for name in ("gpu-002", "gpu-003"):
            settings = AgentSettings(
                node_name=name,
                hub=f"127.0.0.1:{place.hub_port}",
                plaintext=True,
                probe_listen="127.0.0.1:0",
                probe_host="127.0.0.1",
            )
            prober = Prober(settings, facts, telling(name))
            stack.callback(prober.close)
            slow = stack.enter_context(slow_way(int(prober.address.rpartition(":")[2])))
            clients[name] = HubClient(
                settings,
                boot_id=name,
                version="e2e",
                on_orders=prober.take,
                probe_address=f"127.0.0.1:{slow}",
                chance=lambda: 0.0,
            )
            clients[name].report(facts())
            tasks += [asyncio.create_task(clients[name].run()), asyncio.create_task(prober.run())]
        try:
            await until(lambda: bool(samples), LIMIT_S)
            [sample] = samples[0].reach
            # Every answer waits 30 ms, there and back alike: a page takes half of that at least, one way.
            assert sample.p50_us > 14_000
            breach = await asyncio.to_thread(wait_event, place.cluster, namespace, pods[0].name, "ReachBreached")
            assert "measured" in str(breach)
            await asyncio.to_thread(empty, place.cluster, namespace)
            where, value = await asyncio.to_thread(place.gang, "slowed")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=LIMIT_S)
    # leaf-a0 is slow by the imported run, leaf-a1 by what its two agents measured just now.
    assert where == {"gpu-004", "gpu-005"}
    assert "modelled" in value


def test_hypernodes_follow_the_nodes(place: Place) -> None:
    cluster = place.cluster

    def members() -> dict[str, list[str]]:
        found = cluster.api("GET", HYPERNODES)["items"]
        return {
            item["metadata"]["name"]: [m["selector"]["exactMatch"]["name"] for m in item["spec"]["members"]]
            for item in found
        }

    cluster.wait_for(lambda: len(members()) == 6, LIMIT_S, "four leaves, a spine and a zone are published")
    leaves = sorted(nodes for name, nodes in members().items() if name.startswith("isochrone-leaf-"))
    assert leaves == [[f"gpu-00{i}", f"gpu-00{i + 1}"] for i in (0, 2, 4, 6)]
    for name in ("gpu-006", "gpu-007"):
        cluster.api("DELETE", f"/api/v1/nodes/{name}")
    cluster.wait_for(lambda: len(members()) == 5, LIMIT_S, "the leaf without nodes is gone")
    assert not any("gpu-006" in nodes for nodes in members().values())
