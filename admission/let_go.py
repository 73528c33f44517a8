"""EDGE: the writes that turn a plan into released pods: nominate, release, PodGroup. Each step may be repeated.

The order is what keeps promises when the process dies in between. Nominated and still gated: the successor plans
again. Released with its set and without PodGroup: Volcano waits for the group, the successor makes it. The PodGroup
comes last, because a pod that Volcano looks at before its nomination ignores the nomination.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from admission.pod_group import API_VERSION
from admission.release_patch import annotate, release_patch
from topology.isochrone_sets import NodeSet
from topology.kube_api import KubeApi, Retry
from topology.kube_errors import ApiError, ApiFailure
from topology.objects import Pod

log = logging.getLogger(__name__)

POD_GROUPS = f"/apis/{API_VERSION}/namespaces/{{namespace}}/podgroups"


@dataclass(frozen=True, slots=True)
class Letting:
    """One pod about to go: where to, inside which set, with which annotations."""

    pod: Pod
    node: str
    node_set: NodeSet | None
    annotations: Mapping[str, str] = field(default_factory=dict)


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


class Gatekeeper:
    """Writes with a limit on how many are under way at once, so a large gang does not crowd out the watches."""

    def __init__(self, api: KubeApi, *, writes_at_once: int = 24, timeout_s: float = 10.0) -> None:
        self._api, self._timeout_s = api, timeout_s
        self._slots = asyncio.Semaphore(writes_at_once)
        self.nominated = 0
        self.released = 0
        self.failed = 0

    async def nominate(self, lettings: Sequence[Letting]) -> set[str]:
        """Set status.nominatedNodeName of each pod. Returns the uids for which it holds."""

        async def one(letting: Letting) -> None:
            if letting.pod.status.nominated_node_name != letting.node:
                body = {"metadata": {"uid": letting.pod.metadata.uid}, "status": {"nominatedNodeName": letting.node}}
                await self._api.patch_merge(_path(letting.pod), body, subresource="status", timeout_s=self._timeout_s)
            self.nominated += 1

        return await self._each(lettings, one, "nominated")

    async def release(self, lettings: Sequence[Letting]) -> set[str]:
        """Open the gate of each pod. Returns the uids that are known to be let go."""

        async def one(letting: Letting) -> None:
            patch = release_patch(letting.pod, letting.node_set, letting.annotations)
            # Lost answers are not retried blindly: the `test` would fail on our own success. The watch tells.
            await self._api.patch_json(_path(letting.pod), patch, timeout_s=self._timeout_s, retry=Retry.UNSENT)
            self.released += 1

        return await self._each(lettings, one, "released")

    async def apply_pod_group(self, wanted: Mapping[str, Any]) -> bool:
        """Server-side apply of the gang's PodGroup. False if it failed; the caller tries again later."""
        meta = wanted["metadata"]
        path = POD_GROUPS.format(namespace=meta["namespace"]) + f"/{meta['name']}"
        try:
            async with self._slots:
                await self._api.apply(path, wanted, timeout_s=self._timeout_s)
        except ApiFailure as error:
            self.failed += 1
            log.warning("PodGroup %s/%s was not applied: %s", meta["namespace"], meta["name"], error)
            return False
        return True

    async def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod; a pod that is gone is no error, any other failure is logged and dropped."""
        try:
            async with self._slots:
                operations: list[dict[str, Any]] = [
                    {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
                    *annotate(pod, annotations),
                ]
                await self._api.patch_json(_path(pod), operations, timeout_s=self._timeout_s)
        except ApiFailure as error:
            if not (isinstance(error, ApiError) and error.not_found):
                log.info("pod %s was not annotated: %s", pod.key, error)

    async def annotate_pod_group(self, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of a PodGroup; failures are logged and dropped."""
        path = POD_GROUPS.format(namespace=namespace) + f"/{name}"
        try:
            async with self._slots:
                await self._api.patch_merge(
                    path, {"metadata": {"annotations": dict(annotations)}}, timeout_s=self._timeout_s
                )
        except ApiFailure as error:
            if not (isinstance(error, ApiError) and error.not_found):
                log.info("PodGroup %s/%s was not annotated: %s", namespace, name, error)

    async def _each(
        self, lettings: Iterable[Letting], one: Callable[[Letting], Awaitable[None]], what: str
    ) -> set[str]:
        done: set[str] = set()

        async def guarded(letting: Letting) -> None:
            try:
                async with self._slots:
                    await one(letting)
            except LookupError:
                done.add(letting.pod.metadata.uid)  # the gate is gone already
            except ApiFailure as error:
                self.failed += 1
                log.info("pod %s was not %s: %s", letting.pod.key, what, error)
            else:
                done.add(letting.pod.metadata.uid)

        await asyncio.gather(*(guarded(letting) for letting in lettings))
        return done
