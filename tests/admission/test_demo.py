"""The demo: from the outside as a newcomer runs it, and its two players alone against services that misbehave."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from admission.demo import volcano_shapes
from admission.demo.cluster_file import holder
from admission.demo.file_cluster import FileCluster
from admission.demo.players import ApiServer, PlayError, Volcano, webhook_configuration
from admission.demo.report import WIDTH, Report
from admission.demo.services import NotReadyError, Services
from scheduler.extender.wire import TaskStatus
from topology.labels import GROUP_NAME

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 250
POD = {"metadata": {"generateName": "p-", "namespace": "team"}, "spec": {"containers": [{"name": "c"}]}}

# --- as a newcomer runs it ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one run prints; it must be what --output keeps."""
    retained = tmp_path_factory.mktemp("demo") / "demo.txt"
    argv = [sys.executable, "-m", "admission.cli", "demo", "--output", str(retained)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout == retained.read_text()
    return done.stdout


def test_it_fits_a_terminal_and_needs_no_colour(shown: str) -> None:
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "\x1b" not in shown
    assert shown.isascii()


def test_each_gang_ends_as_the_demo_says(shown: str) -> None:
    sections = shown.split("\n--- ")
    single_node, one_leaf, preferred, impossible, _ = sections[1:]
    assert "same node, NVLink" in single_node
    assert "next best" in single_node
    assert "same leaf, RDMA" in one_leaf
    assert "POST /prioritize" in preferred
    assert "16 nodes" in preferred
    held, freed = impossible.split("Nobody touched the gang")
    assert held.count("SchedulingGated") == 2
    assert "ReachExceeded" in held
    assert "Free 3 GPUs on gpu-c1-2" in " ".join(held.split())
    assert "same leaf, TCP" in freed
    assert freed.count("Bound") == 2


def test_a_stopped_demo_leaves_no_process_behind() -> None:
    argv = [sys.executable, "-m", "admission.demo.play"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        try:
            assert demo.stdout is not None
            assert demo.stdout.readline().startswith("Isochrone demo")  # the services were started
            children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children")
            started = children.read_text().split() if children.exists() else []
            demo.terminate()
            assert demo.wait(timeout=LIMIT_S) == 130
        finally:
            demo.kill()
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


# --- the README --------------------------------------------------------------------------------


def test_the_readme_block_is_replaced_and_nothing_else() -> None:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "docs" / "update_readme.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = "intro\n\n--- 1. a ---\nA\n\n--- 2. b ---\nB\n\n--- 4. d ---\nD\n"
    assert script.chosen(text) == "intro\n\n--- 1. a ---\nA\n\n--- 4. d ---\nD"
    page = f"top\n{script.START}\nold\n{script.END}\nend\n"
    once = script.replaced(page, "new")
    assert once == f"top\n{script.START}\n```text\nnew\n```\n{script.END}\nend\n"
    assert script.replaced(once, "new") == once
    with pytest.raises(ValueError, match="once each"):
        script.replaced("no markers", "new")
    assert script.START in (ROOT / "README.md").read_text()


# --- the parts ---------------------------------------------------------------------------------


async def test_a_service_that_ends_is_noticed_and_quoted(tmp_path: Path) -> None:
    services = Services(tmp_path, str(tmp_path / "kubeconfig"))
    try:
        service = await services.start("no-such-service", "ISOCHRONE_LISTEN")
        async with aiohttp.ClientSession() as http:
            with pytest.raises(NotReadyError, match="ended with code 2"):
                await services.wait_ready(http)
        assert "no-such-service" in service.tail()
    finally:
        await services.stop()


def test_a_report_wraps_under_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    block = "pair  " + "word " * 30 + "\nnext  none"
    report.annotations({"kind": "Pod", "metadata": {"name": "p", "annotations": {"isochrone.dev/placement": block}}})
    lines = report.text.splitlines()
    assert lines[-3].startswith("    pair  word")
    assert lines[-2].startswith("          word")
    assert lines[-1] == "    next  none"
    assert capsys.readouterr().out == report.text


@pytest.fixture
async def http() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def _serving(answer: Any) -> tuple[web.AppRunner, int]:
    app = web.Application()
    app.router.add_post("/{verb}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, int(runner.addresses[0][1])


def _gang(cluster: FileCluster, minimum: int, names: tuple[str, ...]) -> None:
    cluster.create("podgroups", {"metadata": {"name": "g", "namespace": "team"}, "spec": {"minMember": minimum}})
    for name in names:
        pod = holder("n1", 1)
        pod["metadata"] = {"name": name, "namespace": "team", "annotations": {GROUP_NAME: "g"}}
        pod["spec"] = {**pod["spec"], "schedulerName": "volcano"}
        del pod["spec"]["nodeName"]
        cluster.create_pod(pod)


async def test_a_refused_member_takes_the_whole_gang_back(http: aiohttp.ClientSession) -> None:
    cluster = FileCluster([{"name": "n1"}])
    _gang(cluster, 2, ("a", "b"))
    calls: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        verb, name = request.match_info["verb"], body.get("task", {}).get("Name", "")
        calls.append((verb, name))
        return web.json_response({"errorMessage": "too far" if (verb, name) == ("allocateFunc", "b") else ""})

    runner, port = await _serving(answer)
    try:
        await Volcano(cluster, http, port).session()
    finally:
        await runner.cleanup()
    assert calls == [("allocateFunc", "a"), ("allocateFunc", "b"), ("deallocateFunc", "a"), ("onSessionClose", "")]
    assert not any("nodeName" in pod["spec"] for pod in cluster.objects("pods"))


async def test_a_pod_waits_for_its_gate_its_group_and_room(http: aiohttp.ClientSession) -> None:
    cluster = FileCluster([{"name": "n1", "gpus": 1}])
    _gang(cluster, 1, ("a", "b"))
    cluster.delete("podgroups", "team", "g")

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"errorMessage": ""})

    runner, port = await _serving(answer)
    volcano = Volcano(cluster, http, port)
    try:
        await volcano.session()
        assert not any("nodeName" in pod["spec"] for pod in cluster.objects("pods"))
        cluster.create("podgroups", {"metadata": {"name": "g", "namespace": "team"}, "spec": {"minMember": 1}})
        await volcano.session()
    finally:
        await runner.cleanup()
    assert [pod["spec"].get("nodeName") for pod in cluster.objects("pods")] == ["n1", None]


async def test_an_extender_that_fails_is_a_failure_of_the_demo(http: aiohttp.ClientSession) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=500)

    runner, port = await _serving(answer)
    with pytest.raises(PlayError, match="500"):
        await Volcano(FileCluster([]), http, port).session()
    await runner.cleanup()
    with pytest.raises(PlayError, match="does not answer"):
        await Volcano(FileCluster([]), http, port).session()


async def test_a_webhook_that_announced_nothing_is_not_called(http: aiohttp.ClientSession) -> None:
    cluster = FileCluster([])
    cluster.create("mutatingwebhookconfigurations", webhook_configuration())
    with pytest.raises(PlayError, match="authority"):
        await ApiServer(cluster, http, 1).create(POD)


def test_volcanos_amounts_are_in_its_own_units() -> None:
    amounts = {"cpu": 8000, "memory": 64 * 2**30, "nvidia.com/gpu": 2, "pods": 1}
    # As recorded from Volcano 1.14.1 for a pod with cpu 8, memory 64Gi and two GPUs.
    assert volcano_shapes.resource(amounts) == {
        "MilliCPU": 8000,
        "Memory": 68719476736,
        "ScalarResources": {"nvidia.com/gpu": 2000, "pods": 1},
        "MaxTaskNum": 0,
    }
    assert volcano_shapes.resource({})["ScalarResources"] is None


def test_a_node_of_volcanos_knows_what_is_free() -> None:
    cluster = FileCluster([{"name": "n1", "used": 3}])
    (node,), (pod,) = cluster.objects("nodes"), cluster.objects("pods")
    info = volcano_shapes.node_info(node, [pod])
    assert info["Idle"]["ScalarResources"]["nvidia.com/gpu"] == 5000
    assert info["Used"]["ScalarResources"] == {"nvidia.com/gpu": 3000, "pods": 1}
    task = info["Tasks"]["elsewhere/on-n1"]
    assert (task["NodeName"], task["Status"]) == ("n1", TaskStatus.RUNNING)
    assert msgspec.json.encode(info)
