"""EDGE. `make demo`: Isochrone's real services on loopback against a cluster from a file, and what a user then reads.

Decides which gangs are asked for, in which order, and what counts as the expected end of each. The webhook, the
controller and the extender are the shipped programs; the cluster file takes the place of the API server, and this
process plays the API server's admission and Volcano. It must never write a sentence about a placement itself.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from admission.demo.cluster_file import FOREIGN_NAMESPACE
from admission.demo.file_cluster import FileCluster
from admission.demo.gangs import BATCH, CHAT, CODE, REASON, Gang, gpus_of, pod_of, workload
from admission.demo.players import ApiServer, PlayError, Volcano, webhook_configuration
from admission.demo.report import Report, save_text
from admission.demo.services import NotReadyError, Services
from topology.clock import monotonic_s
from topology.labels import (
    GANG,
    LEAF,
    NVIDIA_GPU,
    PHASE,
    PLACEMENT,
    PREFILL,
    RDMA_CAPABLE,
    ZONE,
)

Object = dict[str, Any]

CLUSTER_FILE: Final = Path(__file__).with_name("cluster.yaml")
_STOPPED: Final = 130
_LIMIT_S: Final = 240.0  # a demo takes ten seconds; the limits are for machines with other work
_STEP_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.05
_SESSION_EVERY_S: Final = 0.2
_FREED_NODE: Final = "gpu-c1-2"  # somebody else's job holds a part of it, see the cluster file


class DemoError(Exception):
    """Something did not end as expected."""


class Demo:
    """One run: the cluster, its neighbours, the report."""

    def __init__(self, cluster: FileCluster, api: ApiServer, volcano: Volcano, report: Report) -> None:
        self._cluster, self._api, self._volcano, self._report = cluster, api, volcano, report
        self._nodes = {
            node["metadata"][
                "name"
            ]: f"zone {node['metadata']['labels'][ZONE]}, leaf {node['metadata']['labels'][LEAF]}"
            for node in cluster.objects("nodes")
        }

    async def show(self) -> None:
        """All gangs, one after the other. Raises DemoError, PlayError."""
        report = self._report
        await self._placed("1. One node holds the whole gang", CHAT)
        self._expect(len(self._where(CHAT)) == 1, "chat is on one node")

        await self._placed("2. Two nodes under one leaf switch", CODE)
        leaves = {self._nodes[node] for node in self._where(CODE)}
        self._expect(len(self._where(CODE)) == 2 and len(leaves) == 1, "code is on two nodes of one leaf")

        await self._placed("3. Preferred: not held, Volcano asks for scores", BATCH)
        decode = self._pods(BATCH)[-1]["metadata"]["name"]
        self._expect(decode in self._volcano.scores, "Volcano asked for scores")
        report.scores(decode, self._volcano.scores[decode])

        report.heading("4. Impossible, until a job elsewhere ends")
        report.show_line(f"asked: {REASON.name}: {REASON.asked}")
        await self._create(REASON)
        await self._until(lambda: all(map(self._reported_why, self._pods(REASON))), "reason is held, and told why")
        gated = all(pod["spec"].get("schedulingGates") for pod in self._pods(REASON))
        self._expect(gated and not self._groups(REASON), "reason is held as a whole")
        held = self._pods(REASON)[-1]
        report.pods(self._pods(REASON), self._nodes)
        report.annotations(held)
        report.events(self._events(held))
        self._expect(_FREED_NODE in str(self._events(held)), f"the Event says that {_FREED_NODE} would help")

        job = self._cluster.delete("pods", FOREIGN_NAMESPACE, f"on-{_FREED_NODE}")
        freed_s = monotonic_s()
        await self._bound(REASON)
        report.show_line(
            f"\nA job on {_FREED_NODE} ended and gave back {gpus_of(job)} GPUs. Nobody touched the gang: "
            f"its pods were bound {monotonic_s() - freed_s:.1f} s later.\n\n"
        )
        await self._show_placed(REASON)
        leaves = {self._nodes[node] for node in self._where(REASON)}
        self._expect(len(leaves) == 1, "reason is under one leaf")

    # --- one gang ------------------------------------------------------------------------------

    async def _placed(self, title: str, gang: Gang) -> None:
        self._report.heading(title)
        self._report.show_line(f"asked: {gang.name}: {gang.asked}")
        await self._create(gang)
        await self._bound(gang)
        await self._show_placed(gang)

    async def _show_placed(self, gang: Gang) -> None:
        """Waits until it is explained, too."""
        await self._until(
            lambda: (
                all(self._events(obj, "Placed") for obj in [*self._pods(gang), *self._groups(gang)])
                and all(_explained(obj) for obj in [*self._pods(gang), *self._groups(gang)])
            ),
            f"{gang.name} is explained",
        )
        pods = self._pods(gang)
        self._report.pods(pods, self._nodes)
        for group in self._groups(gang):
            self._report.annotations(group)
        self._report.annotations(pods[-1])
        self._report.events(self._events(pods[-1], "Placed"))

    async def _create(self, gang: Gang) -> None:
        """Two Deployments with their ReplicaSets, and the pods that those would make."""
        for half in gang.halves:
            deployment = self._cluster.create("deployments", workload(gang, half))
            replica_set = self._cluster.create("replicasets", workload(gang, half, owner=deployment))
            for _ in range(half.replicas):
                await self._api.create(pod_of(gang, half, replica_set))

    async def _bound(self, gang: Gang) -> None:
        await self._until(lambda: all("nodeName" in pod["spec"] for pod in self._pods(gang)), f"{gang.name} is bound")

    # --- the cluster ---------------------------------------------------------------------------

    def _pods(self, gang: Gang) -> list[Object]:
        """Prefill first."""
        pods = [
            pod for pod in self._cluster.objects("pods") if (pod["metadata"].get("labels") or {}).get(GANG) == gang.name
        ]
        return sorted(pods, key=lambda pod: (pod["metadata"]["labels"][PHASE] != PREFILL, pod["metadata"]["name"]))

    def _groups(self, gang: Gang) -> list[Object]:
        groups = self._cluster.objects("podgroups")
        return [group for group in groups if group["metadata"].get("labels", {}).get(GANG) == gang.name]

    def _where(self, gang: Gang) -> set[str]:
        return {pod["spec"]["nodeName"] for pod in self._pods(gang)}

    def _events(self, obj: Object, reason: str = "") -> list[Object]:
        events = self._cluster.events_of(obj["metadata"]["uid"])
        return [event for event in events if not reason or event["reason"] == reason]

    def _reported_why(self, pod: Object) -> bool:
        return bool(self._events(pod)) and _explained(pod)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Lets Volcano run its sessions until the condition holds."""
        end_s, session_s = monotonic_s() + _STEP_LIMIT_S, 0.0
        while not condition():
            if monotonic_s() > end_s:
                raise DemoError(f"waited {_STEP_LIMIT_S:g} s in vain until {what}")
            if monotonic_s() - session_s >= _SESSION_EVERY_S:
                await self._volcano.session()
                session_s = monotonic_s()
            await asyncio.sleep(_POLL_S)

    def _expect(self, true: bool, what: str) -> None:
        if not true:
            raise DemoError(f"expected and not found: {what}")


def _explained(obj: Object) -> bool:
    return PLACEMENT in (obj["metadata"].get("annotations") or {})


async def _run(report: Report) -> int:
    began_s = monotonic_s()
    with tempfile.TemporaryDirectory(prefix="isochrone-demo-") as folder:
        async with FileCluster.from_file(CLUSTER_FILE) as cluster, aiohttp.ClientSession() as http:
            cluster.create("mutatingwebhookconfigurations", webhook_configuration())
            services = Services(Path(folder), cluster.kubeconfig(Path(folder) / "kubeconfig"))
            try:
                async with asyncio.timeout(_LIMIT_S):
                    webhook = await services.start("webhook", "ISOCHRONE_LISTEN", {"ISOCHRONE_DRAIN": "1ms"})
                    controller = await services.start("controller", "ISOCHRONE_EXTENDER_LISTEN")
                    _introduce(report, cluster)
                    await services.wait_ready(http)
                    api, volcano = ApiServer(cluster, http, webhook.port), Volcano(cluster, http, controller.port)
                    await Demo(cluster, api, volcano, report).show()
            except (DemoError, PlayError, NotReadyError, TimeoutError) as error:
                report.show_line(f"\nThe demo failed: {error or f'it took longer than {_LIMIT_S:g} s'}")
                for service in services.running:
                    report.show_line(f"\nThe last lines of the {service.name}:\n{service.tail()}")
                return 1
            finally:
                await services.stop()
    report.heading("What was real")
    report.show_line(
        "Real: the webhook, the controller and the extender, unchanged, as processes on loopback; AdmissionReviews "
        "over TLS, list, watch and patch, Volcano's request shapes; every annotation, Event and score above.\n"
        "Replaced: the API server by the cluster file admission/demo/cluster.yaml, and Volcano's scheduler by one that "
        "follows nominations, calls the extender and binds. Reach values are modelled; no GPU was near.\n"
        f"All gangs ended as expected, in {monotonic_s() - began_s:.1f} s."
    )
    return 0


def _introduce(report: Report, cluster: FileCluster) -> None:
    nodes, pods = cluster.objects("nodes"), cluster.objects("pods")
    zones = {node["metadata"]["labels"][ZONE] for node in nodes}
    leaves = {node["metadata"]["labels"][LEAF] for node in nodes}
    rdma = {node["metadata"]["labels"][ZONE] for node in nodes if RDMA_CAPABLE in node["metadata"]["labels"]}
    gpus = sum(int(node["status"]["allocatable"][NVIDIA_GPU]) for node in nodes)
    report.show_line(
        f"Isochrone demo. {len(nodes)} nodes in {len(zones)} zones and {len(leaves)} leaves, {gpus} GPUs, "
        f"{sum(int(gpus_of(pod)) for pod in pods)} of them held by others. Zones {' and '.join(sorted(rdma))} have "
        f"RDMA, {' and '.join(sorted(zones - rdma))} plain TCP."
    )


async def _stoppable(report: Report) -> int:
    """SIGTERM ends the services too, as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await _run(report)


def run(output: str = "", svg: str = "") -> int:
    """Shows the demo, and keeps a copy in `output` and `svg` if they are named.

    0 if every gang ended as expected, 130 if it was stopped.
    """
    report = Report()
    try:
        code = asyncio.run(_stoppable(report))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _STOPPED
    if output:
        save_text(output, report.text)
    if svg:
        report.save_svg(svg)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m admission.demo.play`."""
    parser = argparse.ArgumentParser(prog="python -m admission.demo.play", description="Shows what Isochrone does.")
    parser.add_argument("--output", default="", metavar="FILE", help="write the plain text there too")
    parser.add_argument("--svg", default="", metavar="FILE", help="write a picture of it there")
    given = parser.parse_args(arguments)
    return run(given.output, given.svg)


if __name__ == "__main__":
    raise SystemExit(main())
