"""`isochrone agent` as a process: from a GPU library to the hub's facts."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nvml import profiles
from tests.nvml.agents import agent_process
from tests.nvml.kubelet import Kubelet, serving
from tests.nvml.library import ROOT
from tests.topology.list_watch_server import until
from topology.agent.settings import AgentSettings
from topology.bad_input import BadInput
from topology.clock import monotonic_s
from topology.environment import load
from topology.facts import report as f
from topology.facts.age import AgeLimits, FactPart, Freshness
from topology.hub.server import Hub, listening
from topology.hub.state import HubState


async def test_an_agent_reports_its_machine_and_what_becomes_of_it(tmp_path: Path) -> None:
    machine, known, kubelet = profiles.one_card_lost(), HubState(), Kubelet()
    profiles.write(machine, tmp_path)
    machine.nvml["error.gpu.6.nvmlDeviceGetBAR1MemoryInfo"] = 4
    profiles.write_nvml(machine, tmp_path)
    kubelet.allocatable = {"nvidia.com/gpu": [machine.uuid(n) for n in range(8)]}
    kubelet.held = {("ml", "decode-0", "engine"): {"nvidia.com/gpu": [machine.uuid(5)]}}

    def facts() -> f.NodeFacts | None:
        found = known.facts("gpu-1", 0.0)
        return found[0] if found else None

    def lost() -> bool:
        seen = facts()
        return seen is not None and any(gpu.health is f.Health.LOST for gpu in seen.gpus)

    async with serving(kubelet, tmp_path / "k.sock"), listening(Hub(known, bound=False), "127.0.0.1", 0, "") as port:
        settings = {"ISOCHRONE_HUB": f"127.0.0.1:{port}", "ISOCHRONE_PLAINTEXT": "true"}
        with agent_process(tmp_path, "gpu-1", settings | {"ISOCHRONE_COLLECT_EVERY": "1s"}) as agent:
            await until(lambda: facts() is not None)
            seen = facts()
            assert seen is not None
            assert (len(seen.gpus), len(seen.pairs), len(seen.nics)) == (8, 28, 8)
            assert {gpu.name for gpu in seen.gpus} == {"NVIDIA H100 80GB HBM3"}
            assert seen.state.gpudirect is True
            assert seen.state.problems == ()
            assert seen.pods is not None
            assert seen.pods.holdings[0].device_ids == (machine.uuid(5),)
            nearest = {uuid: far for uuid, far in seen.nics[3].gpus if far is f.Distance.PIX}
            assert list(nearest) == [machine.uuid(3)]
            generation = seen.state.topology_generation
            profiles.lose(machine, 3)
            profiles.write_nvml(machine, tmp_path)
            await until(lost)
            after = facts()
            assert after is not None
            assert sum(gpu.health is f.Health.HEALTHY for gpu in after.gpus) == 7
            assert after.state.topology_generation == generation + 1  # its pairs are gone
            assert after.state.problems == (
                "GPU 3 is lost: it does not answer any more",
                "nvidia.com/gpu has 8 devices, but 7 whole GPUs answer",
            )
            assert await asyncio.to_thread(agent.get, "/livez") == (200, "ok\n")
            assert (await asyncio.to_thread(agent.get, "/nothing"))[0] == 404
            assert await asyncio.to_thread(agent.metric, 'isochrone_agent_gpus{health="lost"}') == 1
            assert await asyncio.to_thread(agent.metric, "isochrone_agent_hub_connected") == 1
            for source in ("nvml", "sysfs", "kubelet"):
                age_s = await asyncio.to_thread(
                    agent.metric, f'isochrone_agent_source_age_seconds{{source="{source}"}}'
                )
                assert age_s >= 0
            assert agent.rss_mib() <= 100
            # C104: a refusal is said once for each GPU and field, however many collections there were.
            output = [line for line in agent.log.read_text().splitlines() if "does not tell" in line]
            assert len(output) == 1
            assert output[0].endswith(f"GPU {machine.uuid(6)} does not tell bar1_total_bytes: no_permission")
    assert agent.process.returncode == 0


def test_without_a_node_name_it_says_so_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "admission.cli", "agent"],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    output = "isochrone: ISOCHRONE_NODE_NAME is ''; name the Kubernetes node, in a pod from spec.nodeName\n"
    assert done.stderr == output


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ({"ISOCHRONE_HUB": "hub"}, "ISOCHRONE_HUB is 'hub'; use HOST:PORT"),
        ({"ISOCHRONE_HUB": "hub:1"}, "ISOCHRONE_TLS_DIR is ''; it must hold tls.crt"),
        ({"ISOCHRONE_COLLECT_EVERY": "10ms"}, 'use a duration from "1s" to "60s"'),
        ({"ISOCHRONE_COLLECT_EVERY": "often"}, "ISOCHRONE_COLLECT_EVERY is 'often'"),
        ({"ISOCHRONE_PLAINTEXT": "perhaps"}, "ISOCHRONE_PLAINTEXT is 'perhaps'; use true or false"),
        ({"ISOCHRONE_LOG_LEVEL": "loud"}, "use debug, info, warning or error"),
        ({"ISOCHRONE_HEALTH_LISTEN": "0.0.0.0:99999"}, "with a port up to 65535"),
    ],
)
def test_settings_that_cannot_be_are_named(given: dict[str, str], output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ISOCHRONE_NODE_NAME": "n1", **given}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput) as refused:
        load(AgentSettings)
    assert output in str(refused.value)


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "ISOCHRONE_NODE_NAME": "n1",
        "ISOCHRONE_HUB": "[fd00::1]:8830",
        "ISOCHRONE_TLS_DIR": "/tls",
        "ISOCHRONE_COLLECT_EVERY": "30s",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = load(AgentSettings)
    assert found == AgentSettings(node_name="n1", hub="[fd00::1]:8830", tls_dir="/tls", collect_every=30_000_000.0)
    assert (found.hub_host, found.collect_every_s) == ("fd00::1", 30.0)


@pytest.mark.full
async def test_killing_a_third_of_32_agents_ages_their_facts_and_changes_nothing_for_others(tmp_path: Path) -> None:
    known = HubState(AgeLimits(stale_s=6.0, expired_s=60.0))
    names = list(profiles.MACHINES)
    async with listening(Hub(known, bound=False), "127.0.0.1", 0, "") as port:
        settings = {"ISOCHRONE_HUB": f"127.0.0.1:{port}", "ISOCHRONE_PLAINTEXT": "true"}
        async with contextlib.AsyncExitStack() as stack:
            agents = []
            for number in range(32):
                machine = profiles.as_node(profiles.MACHINES[names[number % len(names)]](), number)
                folder = profiles.write(machine, tmp_path / str(number))
                given = settings | {"ISOCHRONE_COLLECT_EVERY": "2s"}
                agents.append(stack.enter_context(agent_process(folder, f"n{number:02d}", given)))
            async with asyncio.timeout(120):
                while known.count(monotonic_s())[FactPart.GPUS][Freshness.FRESH] < 32:  # noqa: ASYNC110  # it has no event
                    await asyncio.sleep(0.1)
            uuids = {gpu.uuid for name in known.nodes() for gpu in _gpus(known, name)}
            assert len(uuids) == sum(len(_gpus(known, name)) for name in known.nodes())
            before = {name: _gpus(known, name) for name in known.nodes()}
            for agent in agents[:11]:
                agent.process.kill()
            async with asyncio.timeout(60):
                while known.count(monotonic_s())[FactPart.GPUS][Freshness.STALE] < 11:  # noqa: ASYNC110  # it has no event
                    await asyncio.sleep(0.1)
            assert known.count(monotonic_s())[FactPart.GPUS] == {
                Freshness.FRESH: 21,
                Freshness.STALE: 11,
                Freshness.EXPIRED: 0,
            }
            assert {name: _gpus(known, name) for name in known.nodes()} == before


def _gpus(known: HubState, node: str) -> tuple[f.Gpu, ...]:
    found = known.facts(node, 0.0)
    assert found is not None
    return found[0].gpus
