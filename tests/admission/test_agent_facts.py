"""`isochrone topology show --node`: a controller with an agent, asked through an API server's proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from typer.testing import CliRunner, Result

from admission.cli import app as cli
from admission.demo.file_cluster import FileCluster
from tests.admission.test_controller_main import NODES, process
from tests.topology.list_watch_server import status, until, write_kubeconfig
from tests.topology.node_facts import GPU0, GPU1, state, two_gpus
from topology.agent.hub_client import HubClient
from topology.agent.settings import AgentSettings
from topology.bad_input import BadInput
from topology.facts import report as f
from topology.facts.age import AgeLimits, FactPart, part_ages
from topology.facts.node_json import read, written
from topology.units import HostPort

PROXY = "/api/v1/namespaces/isochrone-system/services/http:isochrone-controller:metrics/proxy"


@contextlib.asynccontextmanager
async def api_server(folder: Path, controller: HostPort | None, *, may: bool = True) -> AsyncGenerator[str]:
    """Node n1 and the proxy to a controller, as far as they are asked for; gives the kubeconfig."""

    async def node(_: web.Request) -> web.Response:
        labels = {"topology.kubernetes.io/zone": "z1", "network.topology.nvidia.com/leaf": "leaf-7"}
        return web.json_response({"metadata": {"name": "n1", "labels": labels | {"nvidia.com/gpu.count": "2"}}})

    async def proxied(request: web.Request) -> web.Response:
        if not may:
            return status(403, "Forbidden")
        if controller is None:
            return status(404, "NotFound")
        url = f"http://{controller}/{request.match_info['tail']}"
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    app = web.Application()
    app.router.add_get("/api/v1/nodes/n1", node)
    app.router.add_get(f"{PROXY}/{{tail:.*}}", proxied)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield str(write_kubeconfig(folder, f"http://{host}:{port}"))
    finally:
        await runner.cleanup()


async def show(kubeconfig: str, *more: str) -> Result:
    arguments = ["topology", "show", "--node", "n1", "--kubeconfig", kubeconfig, *more]
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments)


async def test_a_node_is_shown_with_what_its_agent_sees(tmp_path: Path) -> None:
    lost = replace(two_gpus(), state=state(problems=("sysfs is odd",)))
    async with FileCluster(NODES) as cluster:
        given = {"hub_listen": HostPort("127.0.0.1", 0), "hub_plaintext": True}
        async with process(cluster, tmp_path, **given) as it:
            settings = AgentSettings(node_name="n1", hub=str(it.at.hub), plaintext=True)
            agent = HubClient(settings, boot_id="b", version="0.1.0", chance=lambda: 0.0)
            agent.report(lost)
            telling = asyncio.ensure_future(agent.run())
            try:
                await until(lambda: agent.connected)
                async with api_server(tmp_path, it.at.health) as kubeconfig:
                    drawn = await show(kubeconfig)
                    value = json.loads((await show(kubeconfig, "-o", "json")).stdout)
                    absent = await it.health("/topology/n7")
                    raw = json.loads((await it.health("/topology/n1"))[1])
            finally:
                telling.cancel()
                await asyncio.wait([telling])
    assert drawn.exit_code == 0
    assert drawn.stdout.splitlines() == [
        "        GPU0  GPU1  mlx5_0  NUMA",
        "GPU0    X     NV1   PIX     0",
        "GPU1    NV1   X     PXB     0",
        "mlx5_0  PIX   PXB   X       N/A",
        "",
        "PXB  = through several PCIe switches, no host bridge",
        "PIX  = through at most one PCIe switch",
        "NV#  = a bond of # NVLinks",
        "",
        "leaf-7 (leaf)",
        "  n1 (host, zone z1)",
        "    NUMA 0",
        "      pci0000:00 (pci-root)",
        "        GPU0 (0000:07:00.0)",
        "        GPU1 (0000:08:00.0)",
        "    mlx5_0 (0000:0c:00.0)",
        "    0000:c4:00.0 (nvswitch)",
        "warning: sysfs is odd",
    ]
    assert {"gpus", "nics", "links", "warnings"} <= value.keys()
    assert value["format"] == "node labels and agent"
    assert [(gpu["name"], gpu["numa"], gpu["inside"]) for gpu in value["gpus"]] == [
        ("GPU0", 0, "pci0000:00"),
        ("GPU1", 0, "pci0000:00"),
    ]
    assert {"a": "GPU0", "b": "mlx5_0", "kind": "PIX"} in value["links"]
    assert [(host["name"], host["inside"]) for host in value["hosts"]] == [("n1", "leaf-7")]
    assert absent == (404, '{"error": "no agent of this node reports"}')
    assert raw["node"] == "n1"
    assert raw["ages"]["gpus"]["freshness"] == "fresh"
    assert "pods" not in raw["facts"]  # names of pods are nobody's business here
    assert [gpu["uuid"] for gpu in raw["facts"]["gpus"]] == [GPU0, GPU1]


@pytest.mark.parametrize(
    ("may", "value"),
    [
        (True, "n1: there is no Service isochrone-controller in isochrone-system, so no agent is asked"),
        (
            False,
            "n1: what its agent sees is not shown: no right to get services/proxy http:isochrone-controller:metrics "
            "in isochrone-system",
        ),
    ],
)
async def test_without_an_answer_the_labels_are_shown_and_the_reason(tmp_path: Path, may: bool, value: str) -> None:
    async with api_server(tmp_path, None, may=may) as kubeconfig:
        drawn = await show(kubeconfig, "-o", "json")
        wrong = await show(kubeconfig, "-n", "../kube-system")
    shown = json.loads(drawn.stdout)
    assert shown["warnings"][-1] == value
    assert [gpu["name"] for gpu in shown["gpus"]] == ["GPU0", "GPU1"]
    assert isinstance(wrong.exception, BadInput)
    assert "--namespace is '../kube-system'" in str(wrong.exception)


def test_what_is_written_is_read_back_and_nothing_else() -> None:
    facts = replace(two_gpus(), state=state(nvml=f.NvmlState.LOST, nvml_good_at_s=700.0))
    ages = part_ages(facts, 0.0, 2.0, AgeLimits())
    node, again, reported = read(written("n1", facts, ages))
    assert (node, again) == ("n1", replace(facts, pods=None, reach=()))
    assert reported == {part: ages[part] for part in (FactPart.GPUS, FactPart.NETWORK)}
    for odd in (b"", b"[]", b"{}", b'{"node": 1, "facts": {}, "ages": {}}', b'{"node": "n", "facts": [], "ages": {}}'):
        with pytest.raises(BadInput):
            read(odd)
    with pytest.raises(BadInput):
        read(b"[" * 100_000)
