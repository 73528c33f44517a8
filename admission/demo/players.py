"""EDGE. Two neighbours of Isochrone, played for the demo: the API server's admission, and Volcano's scheduler.

Decides what each of them sends and what it does with the answer, as the real ones do: reviews over TLS with the
authority from the webhook configuration; nominated node first, allocateFunc for every pod, all of a gang or nobody,
then the binding. It must never know what a good answer is, nor print.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import jsonpatch
import msgspec

from admission.demo import volcano_shapes
from admission.demo.file_cluster import FileCluster
from scheduler.extender.wire import TaskStatus
from topology.clock import monotonic_s
from topology.labels import GROUP_NAME, VOLCANO_SCHEDULER
from topology.objects import Node, Pod
from topology.selectors import accepts

Object = dict[str, Any]

WEBHOOK_CONFIGURATION: Final = "zz-isochrone"
SERVICE_NAME: Final = "isochrone-webhook.isochrone-system.svc"
_CALL: Final = aiohttp.ClientTimeout(total=30.0)
_FIRST_CALL_S: Final = 30.0


class PlayError(Exception):
    """A service did not do what its neighbour may expect of it."""


def webhook_configuration() -> Object:
    """What the chart installs, as far as it is read here; the webhook writes its authority into it."""
    service = {"name": "isochrone-webhook", "namespace": "isochrone-system", "port": 443, "path": "/mutate/labelled"}
    hook = {"name": "labelled.isochrone.dev", "clientConfig": {"service": service}, "failurePolicy": "Ignore"}
    return {"metadata": {"name": WEBHOOK_CONFIGURATION}, "webhooks": [hook]}


class ApiServer:
    """Creates pods the way the API server does: review, patch, store."""

    def __init__(self, cluster: FileCluster, http: aiohttp.ClientSession, webhook_port: int) -> None:
        self._cluster, self._http, self._port = cluster, http, webhook_port
        self._reviews = 0

    async def create(self, pod: Object) -> Object:
        """The created pod as the webhook tagged it. Raises PlayError if the webhook refuses or fails."""
        self._reviews += 1
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": f"review-{self._reviews}",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
                "requestResource": {"group": "", "version": "v1", "resource": "pods"},
                "namespace": pod["metadata"]["namespace"],
                "operation": "CREATE",
                "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
                "object": pod,
                "oldObject": None,
                "dryRun": False,
                "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            },
        }
        response = (await self._post(review)).get("response", {})
        if not response.get("allowed"):
            raise PlayError(f"the webhook refused {pod['metadata']['generateName']}: {response.get('status')}")
        if response.get("patchType") != "JSONPatch":
            raise PlayError(f"the webhook left {pod['metadata']['generateName']} as it was: {response}")
        patched = jsonpatch.apply_patch(pod, base64.b64decode(response["patch"]))
        patched.pop("status", None)
        return self._cluster.create_pod(patched)

    async def _post(self, review: Object) -> Object:
        url = f"https://127.0.0.1:{self._port}/mutate/labelled?timeout=3s"
        end_s = monotonic_s() + _FIRST_CALL_S
        while True:
            try:
                async with self._http.post(
                    url, json=review, ssl=self._trust(), server_hostname=SERVICE_NAME, timeout=_CALL
                ) as answer:
                    content = await answer.read()
                    if answer.status != 200:
                        raise PlayError(f"the webhook answered {answer.status}: {content[:200]!r}")
                    decoded: Object = msgspec.json.decode(content)
                    return decoded
            except aiohttp.ClientConnectorError as error:  # ready, and about to listen
                if isinstance(error, aiohttp.ClientConnectorCertificateError) or monotonic_s() > end_s:
                    raise PlayError(f"the webhook cannot be called: {error}") from error
            await asyncio.sleep(0.05)

    def _trust(self) -> ssl.SSLContext:
        configuration = self._cluster.objects("mutatingwebhookconfigurations")[0]
        bundle = configuration["webhooks"][0]["clientConfig"].get("caBundle", "")
        if not bundle:
            raise PlayError("the webhook did not write its authority into the webhook configuration")
        return ssl.create_default_context(cadata=base64.b64decode(bundle).decode())


class Volcano:
    """One scheduling session after the other. `scores` keeps what prioritize answered, by pod name."""

    def __init__(self, cluster: FileCluster, http: aiohttp.ClientSession, extender_port: int) -> None:
        self._cluster, self._http, self._port = cluster, http, extender_port
        self.scores: dict[str, dict[str, float]] = {}

    async def session(self) -> None:
        """Places every job whose minimum is there. Raises PlayError if the extender fails."""
        jobs: dict[str, list[Object]] = {}
        for pod in self._cluster.objects("pods"):
            if pod["spec"]["schedulerName"] == VOLCANO_SCHEDULER:
                jobs.setdefault(volcano_shapes.job_of(pod), []).append(pod)
        for pods in jobs.values():
            waiting = [pod for pod in pods if "nodeName" not in pod["spec"] and not pod["spec"].get("schedulingGates")]
            minimum = self._minimum(pods[0])
            if waiting and minimum is not None:
                placed_before = sum("nodeName" in pod["spec"] for pod in pods)
                await self._place(waiting, minimum - placed_before)
        await self._call("onSessionClose", {})

    def _minimum(self, pod: Object) -> int | None:
        """The job's minMember; 1 without a group; None while its PodGroup is not there."""
        named = (pod["metadata"].get("annotations") or {}).get(GROUP_NAME)
        if not named:
            return 1
        for group in self._cluster.objects("podgroups"):
            if (group["metadata"]["namespace"], group["metadata"]["name"]) == (pod["metadata"]["namespace"], named):
                return int(group["spec"]["minMember"])
        return None

    async def _place(self, waiting: Sequence[Object], needed: int) -> None:
        """All or nobody, as Volcano's gang plugin commits."""
        taken: list[tuple[Object, str]] = []
        for pod in waiting:
            node = await self._choose(pod, taken)
            if not node:
                continue
            call = {"task": volcano_shapes.task(pod, node, TaskStatus.ALLOCATED)}
            if not (await self._call("allocateFunc", call)).get("errorMessage"):
                taken.append((pod, node))
        if len(taken) < needed:
            for pod, node in taken:
                await self._call("deallocateFunc", {"task": volcano_shapes.task(pod, node, TaskStatus.PENDING)})
            return
        for pod, node in taken:
            self._cluster.bind(pod["metadata"]["namespace"], pod["metadata"]["name"], node)

    async def _choose(self, pod: Object, taken: Sequence[tuple[Object, str]]) -> str:
        """The nominated node if the pod fits there, unscored; else the best of those where it fits, if any."""
        candidates = [info for info in self._nodes(taken) if _fits(pod, info)]
        names = [info["Name"] for info in candidates]
        if (nominated := pod.get("status", {}).get("nominatedNodeName", "")) in names:
            return str(nominated)
        if len(names) < 2:  # Volcano scores only where there is a choice
            return "".join(names)
        call = {"task": volcano_shapes.task(pod, "", TaskStatus.PENDING), "nodes": candidates}
        scores: dict[str, float] = (await self._call("prioritize", call))["nodeScore"]
        self.scores[pod["metadata"]["name"]] = scores
        return max(scores, key=lambda name: scores[name])

    def _nodes(self, taken: Sequence[tuple[Object, str]]) -> list[Object]:
        on: dict[str, list[Object]] = {}
        placed = [({**pod, "spec": {**pod["spec"], "nodeName": node}}) for pod, node in taken]
        for pod in [*self._cluster.objects("pods"), *placed]:
            on.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        nodes = self._cluster.objects("nodes")
        return [volcano_shapes.node_info(node, on.get(node["metadata"]["name"], ())) for node in nodes]

    async def _call(self, verb: str, body: Object) -> Object:
        url = f"http://127.0.0.1:{self._port}/{verb}"
        try:
            async with self._http.post(url, json=body, timeout=_CALL) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise PlayError(f"the extender does not answer {verb}: {error!r}") from error
        if answer.status != 200:
            raise PlayError(f"the extender answered {verb} with {answer.status}: {content[:200]!r}")
        decoded: Object = msgspec.json.decode(content) if content else {}
        return decoded


def _fits(pod: Object, info: Object) -> bool:
    """Volcano's predicates, as far as they matter here: the pod's own wishes, and room."""
    if not accepts(msgspec.convert(pod, Pod).spec, msgspec.convert(info["Node"], Node)):
        return False
    idle = info["Idle"]
    asked = volcano_shapes.resource(volcano_shapes.amounts_of(pod))
    have, need = idle["ScalarResources"] or {}, asked["ScalarResources"] or {}
    enough = all(have.get(name, 0) >= amount for name, amount in need.items())
    return enough and idle["MilliCPU"] >= asked["MilliCPU"] and idle["Memory"] >= asked["Memory"]
