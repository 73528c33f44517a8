"""The process as a whole: what it says while it starts, what it answers, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from admission.controller.serve import Listening, serve
from admission.demo import volcano_shapes
from admission.demo.file_cluster import FileCluster
from admission.settings import ControllerSettings
from scheduler.extender.wire import TaskStatus
from tests.admission.controllers import bind_released, create, gated, groups, reasons
from tests.admission.held_pods import NAMESPACE, held
from tests.admission.pods import Raw
from tests.topology.list_watch_server import LIMIT_S, until
from tests.topology.node_facts import two_gpus
from topology.agent.hub_client import HubClient
from topology.agent.settings import AgentSettings
from topology.bad_input import BadInput
from topology.environment import load
from topology.units import HostPort

NODES: list[dict[str, Any]] = [
    {"name": "n1", "zone": "a", "leaf": "l1", "gpus": 4},
    {"name": "n2", "zone": "a", "leaf": "l1", "gpus": 4},
]


@pytest.fixture
async def cluster() -> AsyncGenerator[FileCluster]:
    async with FileCluster(NODES) as made:
        yield made


ANY_PORT = HostPort("127.0.0.1", 0)


@dataclass
class Process:
    """A controller as `isochrone controller` runs it, in this event loop."""

    at: Listening
    http: aiohttp.ClientSession
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def health(self, path: str) -> tuple[int, str]:
        async with self.http.get(f"http://{self.at.health}{path}") as answer:
            return answer.status, await answer.text()

    async def ask(self, verb: str, call: Raw) -> Raw:
        async with self.http.post(f"http://{self.at.extender}/{verb}", json=call) as answer:
            assert answer.status == 200
            output: Raw = await answer.json()
            return output

    async def metrics(self) -> dict[str, float]:
        lines = [line for line in (await self.health("/metrics"))[1].splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def ready(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while (await self.health("/readyz"))[0] != 200:  # noqa: ASYNC110  # asked as the kubelet asks
                await asyncio.sleep(0.01)


def settings_for(cluster: FileCluster, folder: Path, **given: Any) -> ControllerSettings:
    there = {"extender_listen": ANY_PORT, "health_listen": ANY_PORT}
    return load(
        ControllerSettings, **{"kubeconfig": cluster.kubeconfig(folder / "config"), "settle": "30ms", **there, **given}
    )


@contextlib.asynccontextmanager
async def process(cluster: FileCluster, folder: Path, **given: Any) -> AsyncGenerator[Process]:
    stop, up = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(settings_for(cluster, folder, **given), up.set_result, stop=stop))
    async with aiohttp.ClientSession() as http:
        try:
            async with asyncio.timeout(LIMIT_S):
                at = await up
            yield Process(at, http, stop, task)
        finally:
            stop.set()
            await task


def scoring(cluster: FileCluster, name: str) -> Raw:
    infos = [volcano_shapes.node_info(node, ()) for node in cluster.objects("nodes")]
    return {"task": volcano_shapes.task(cluster.pod(NAMESPACE, name), "", TaskStatus.PENDING), "nodes": infos}


# --- starting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "check"),
    [
        ("/api/v1/pods", "pods"),
        ("/api/v1/nodes", "nodes"),
        ("/apis/scheduling.volcano.sh/v1beta1/podgroups", "podgroups"),
        ("/apis/topology.volcano.sh/v1alpha1/hypernodes", "hypernodes"),
        ("/apis/apps/v1/statefulsets", "owners"),
    ],
)
async def test_before_its_lists_are_complete_it_is_alive_not_ready_and_has_no_opinion(
    cluster: FileCluster, tmp_path: Path, path: str, check: str
) -> None:
    for _ in range(40):
        cluster.fail_next("GET", f"^{path}$", 500)
    create(cluster, held("p0"), held("d0"))
    async with process(cluster, tmp_path) as it:
        await until(lambda: sum(asked == path for _, asked in cluster.requests) >= 2)
        assert await it.health("/livez") == (200, "ok\n")
        assert await it.health("/readyz") == (503, f"{check}: first list not complete\n")
        status, text = await it.health("/readyz?verbose")
        assert status == 503
        assert f"[-] {check} first list not complete" in text
        assert text.count("[+]") == 5
        scores = await it.ask("prioritize", scoring(cluster, "d0"))
        assert scores["nodeScore"] == {"n1": 0.0, "n2": 0.0}
        assert not (await it.ask("allocateFunc", allocation(cluster, "d0", "n1"))).get("errorMessage")
        assert gated(cluster) == {"p0", "d0"}
        cluster._failures.clear()
        await it.ready()
        await until(lambda: "isochrone-chat" in groups(cluster))
        scores = await it.ask("prioritize", scoring(cluster, "d0"))
        assert len(set(scores["nodeScore"].values())) == 2


def allocation(cluster: FileCluster, name: str, node: str) -> Raw:
    return {"task": volcano_shapes.task(cluster.pod(NAMESPACE, name), node, TaskStatus.ALLOCATED)}


async def test_it_stays_ready_when_the_api_server_goes(cluster: FileCluster, tmp_path: Path) -> None:
    async with process(cluster, tmp_path) as it:
        await it.ready()
        await cluster.stop()
        assert await it.health("/readyz") == (200, "ok\n")


# --- running -----------------------------------------------------------------------------------


async def test_a_gang_goes_through_the_whole_process(cluster: FileCluster, tmp_path: Path) -> None:
    async with process(cluster, tmp_path) as it:
        await it.ready()
        create(
            cluster, held("p0", gpus=2), held("d0", gpus=2), held("p1", gang="huge", gpus=9), held("d1", gang="huge")
        )
        await until(lambda: "isochrone-chat" in groups(cluster))
        bind_released(cluster)
        await until(lambda: reasons(cluster, "p0") == reasons(cluster, "d0") == ["Placed"])
        await until(lambda: reasons(cluster, "d1") == ["InsufficientGPU"])
        output = await it.metrics()
    assert output["isochrone_gangs_held"] == 1
    assert output["isochrone_plans_total"] >= 2
    assert output['isochrone_pod_writes_total{kind="nominate"}'] == 2
    assert output['isochrone_pod_writes_total{kind="release"}'] == 2
    assert output['isochrone_pod_writes_total{kind="failed"}'] == 0
    assert output["isochrone_events_total"] >= 4
    assert 0 <= output["isochrone_facts_age_seconds"] < 5
    assert {
        name: output[f'isochrone_watch_restarts_total{{how="relist",kind="{name}"}}'] for name in ("pods", "nodes")
    } == {
        "pods": 0,
        "nodes": 0,
    }


async def test_the_extender_knows_what_is_planned(cluster: FileCluster, tmp_path: Path) -> None:
    """Three of the four GPUs of a node are promised to a gang: a scored pod of two is sent to the other node."""
    async with process(cluster, tmp_path) as it:
        await it.ready()
        create(cluster, held("p0", gpus=2), held("d0", gpus=1))
        await until(lambda: "isochrone-chat" in groups(cluster))
        (node,) = {pod["status"]["nominatedNodeName"] for pod in cluster.objects("pods")}
        other = next(n["name"] for n in NODES if n["name"] != node)
        create(cluster, held("d9", gang="code", gpus=2, annotations={"isochrone.dev/reach-mode": "preferred"}))
        scores = (await it.ask("prioritize", scoring(cluster, "d9")))["nodeScore"]
        assert scores[other] > scores[node]


# --- ending ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_everything(cluster: FileCluster, tmp_path: Path, number: signal.Signals) -> None:
    up = asyncio.get_running_loop().create_future()
    before = asyncio.all_tasks()
    task = asyncio.create_task(serve(settings_for(cluster, tmp_path), up.set_result))
    async with aiohttp.ClientSession() as http:
        async with asyncio.timeout(LIMIT_S):
            at = await up
        # Volcano keeps its connection open, watches stand, and a gang is on its way.
        async with http.get(f"http://{at.health}/livez") as answer:
            assert answer.status == 200
        create(cluster, held("p0"), held("d0"))
        await until(lambda: len(cluster._watches) >= 6)
        os.kill(os.getpid(), number)
        async with asyncio.timeout(LIMIT_S):
            await task
    await until(lambda: not cluster._watches and asyncio.all_tasks() <= before)


async def test_events_that_wait_are_written_before_the_end(cluster: FileCluster, tmp_path: Path) -> None:
    async with process(cluster, tmp_path) as it:
        await it.ready()
        create(cluster, *(held(f"d{i}", gang=f"g{i}", gpus=9) for i in range(5)))
        create(cluster, *(held(f"p{i}", gang=f"g{i}") for i in range(5)))
        await until(lambda: len(cluster.objects("events")) >= 1)
    assert len(cluster.objects("events")) == 10


async def test_it_can_be_stopped_before_it_ever_reached_an_api_server(cluster: FileCluster, tmp_path: Path) -> None:
    config = settings_for(cluster, tmp_path)
    await cluster.stop()
    stop = asyncio.Event()
    task = asyncio.create_task(serve(config, lambda _: stop.set(), stop=stop))
    async with asyncio.timeout(LIMIT_S):
        await task


async def test_a_bug_in_what_it_keeps_takes_the_process_with_it(
    cluster: FileCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that no longer hears of changes would book what is taken: it must be started anew."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("topology.cluster.state.ClusterState.apply_nodes", broken)
    with pytest.raises(ExceptionGroup) as error:
        async with asyncio.timeout(LIMIT_S):
            await serve(settings_for(cluster, tmp_path), stop=asyncio.Event())
    assert error.group_contains(ZeroDivisionError)


# --- settings that cannot work -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("settle", "soon"),
        ("settle", "0s"),
        ("partner_after", "2m"),
        ("extender_listen", "8800"),
        ("health_listen", "localhost:99999"),
        ("max_body", "much"),
        ("log_level", "loud"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=f"^ISOCHRONE_{name.upper()} is '?\"?{value}") as error:
        load(ControllerSettings, **{name: value})
    assert "\n" not in str(error.value)


async def test_an_old_name_in_the_environment_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ISOCHRONE_OVERTAKING", "3")
    with pytest.raises(BadInput, match="/nowhere"):
        await serve(load(ControllerSettings, kubeconfig="/nowhere"), stop=asyncio.Event())
    assert "ISOCHRONE_OVERTAKING is now called ISOCHRONE_BYPASS_LIMIT" in caplog.text


@pytest.mark.parametrize("name", ["extender_listen", "health_listen"])
async def test_an_address_that_is_taken_is_told(cluster: FileCluster, tmp_path: Path, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = settings_for(cluster, tmp_path, **{name: HostPort("127.0.0.1", taken.getsockname()[1])})
        with pytest.raises(BadInput, match=f"^ISOCHRONE_{name.upper()}.*cannot be used"):
            await serve(given, stop=asyncio.Event())


async def test_without_a_cluster_to_talk_to_it_says_so(cluster: FileCluster, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="/nowhere"):
        await serve(settings_for(cluster, tmp_path, kubeconfig="/nowhere"), stop=asyncio.Event())


def test_the_defaults_are_those_of_the_contract() -> None:
    output = load(ControllerSettings)
    assert (output.extender_listen.port, output.health_listen.port) == (8800, 8081)
    assert (output.settle, output.partner_after) == (500_000.0, 60_000_000.0)


# --- agents ------------------------------------------------------------------------------------


async def test_agents_report_to_it_and_their_number_and_age_are_measured(cluster: FileCluster, tmp_path: Path) -> None:
    async with process(cluster, tmp_path, hub_listen=ANY_PORT, hub_plaintext=True) as it:
        await it.ready()
        settings = AgentSettings(node_name="n1", hub=str(it.at.hub), plaintext=True)
        agent = HubClient(settings, boot_id="b", version="0.1.0", chance=lambda: 0.0)
        agent.report(two_gpus())
        telling = asyncio.ensure_future(agent.run())
        try:
            await until(lambda: agent.connected)
            measured = await it.metrics()
        finally:
            telling.cancel()
            await asyncio.wait([telling])
    assert measured['isochrone_hub_nodes{freshness="fresh"}'] == 1
    assert measured['isochrone_hub_facts{freshness="fresh",part="network"}'] == 1
    assert measured['isochrone_hub_oldest_facts_seconds{part="gpus"}'] < 300
    assert measured["isochrone_hub_streams"] == 1
    assert measured['isochrone_hub_reports_total{kind="full"}'] == 1


async def test_a_hub_without_certificates_must_be_wanted(cluster: FileCluster, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ISOCHRONE_HUB_TLS_DIR is ''; it must hold tls\.crt"):
        await serve(settings_for(cluster, tmp_path, hub_listen=ANY_PORT))
