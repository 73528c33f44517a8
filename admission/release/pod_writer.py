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
from typing import Any, Final

import msgspec

from admission.release.pod_group import API_VERSION
from admission.release.release_patch import annotate, gate_there, release_patch
from topology.cluster.isochrone_sets import NodeSet
from topology.kube.api import KubeApi, Retry
from topology.kube.errors import ApiError, ApiFailure, ApiUnreachable
from topology.labels import GATE
from topology.objects import Pod, PodGroup

log = logging.getLogger(__name__)

_PAUSES_S: Final = (0.2, 0.6, None)  # after each try of a release whose end nobody knows

POD_GROUPS = f"/apis/{API_VERSION}/namespaces/{{namespace}}/podgroups"


@dataclass(frozen=True, slots=True)
class PodRelease:
    """One pod about to go: where to ("" leaves that to Volcano), inside which set, with which annotations."""

    pod: Pod
    node: str
    node_set: NodeSet | None
    annotations: Mapping[str, str] = field(default_factory=dict)


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


class PodWriter:
    """Writes with a limit on how many are under way at once, so a large gang does not crowd out the watches."""

    def __init__(self, api: KubeApi, *, writes_at_once: int = 24, timeout_s: float = 10.0) -> None:
        self._api, self._timeout_s = api, timeout_s
        self._slots = asyncio.Semaphore(writes_at_once)
        self.nominated = 0
        self.released = 0
        self.failed = 0

    async def nominate(self, releases: Sequence[PodRelease]) -> set[str]:
        """Set status.nominatedNodeName of each pod that has a node. Returns the uids for which it holds."""

        async def one(released: PodRelease) -> None:
            if released.node and released.pod.status.nominated_node_name != released.node:
                body = {"metadata": {"uid": released.pod.metadata.uid}, "status": {"nominatedNodeName": released.node}}
                await self._api.patch_merge(
                    _path(released.pod),
                    body,
                    subresource="status",
                    timeout_s=self._timeout_s,
                    brief=True,
                )
            self.nominated += 1

        return await self._each(releases, one, "nominated")

    async def release(self, releases: Sequence[PodRelease]) -> tuple[set[str], set[str]]:
        """Open the gate of each pod. Returns the uids that are known to be let go, and those of which nobody can say.

        Doing it again for the latter is safe and tells: the `test` fails on our own success, and then the pod is read.
        """
        unconfirmed: set[str] = set()

        async def one(released: PodRelease) -> None:
            patch = release_patch(released.pod, released.node_set, released.annotations)
            try:
                await self._open(released.pod, patch)
            except ApiFailure as error:
                if _may_be_done(error):
                    unconfirmed.add(released.pod.metadata.uid)
                raise
            self.released += 1

        return await self._each(releases, one, "released"), unconfirmed

    async def _open(self, pod: Pod, patch: Sequence[Mapping[str, Any]]) -> None:
        for pause_s in _PAUSES_S:
            try:
                await self._api.patch_json(_path(pod), patch, timeout_s=self._timeout_s, retry=Retry.UNSENT, brief=True)
                return
            except ApiFailure as error:
                if not _may_be_done(error):
                    if isinstance(error, ApiError) and error.invalid and await self._is_open(pod):
                        return
                    raise
                if pause_s is None:
                    raise
                await asyncio.sleep(pause_s)

    async def _is_open(self, pod: Pod) -> bool:
        """Whether the pod as the API server has it now, the same one, is held by our gate no more."""
        now = msgspec.json.decode(await self._api.get(_path(pod), timeout_s=self._timeout_s), type=Pod)
        return now.metadata.uid == pod.metadata.uid and not now.has_gate(GATE)

    async def apply_pod_group(self, wanted: Mapping[str, Any]) -> bool:
        """Server-side apply of the gang's PodGroup. False if it failed; the caller tries again later."""
        meta = wanted["metadata"]
        path = POD_GROUPS.format(namespace=meta["namespace"]) + f"/{meta['name']}"
        try:
            async with self._slots:
                await self._api.apply(path, wanted, timeout_s=self._timeout_s, brief=True)
        except ApiFailure as error:
            self.failed += 1
            log.warning("PodGroup %s/%s was not applied: %s", meta["namespace"], meta["name"], error)
            return False
        return True

    async def complete_pod_group(self, group: PodGroup, needs: Mapping[str, str]) -> bool:
        """Write what its minimum needs on a PodGroup, the same one as was seen; False if that failed."""
        meta = group.metadata
        path = POD_GROUPS.format(namespace=meta.namespace) + f"/{meta.name}"
        body = {"metadata": {"uid": meta.uid}, "spec": {"minResources": dict(needs)}}
        try:
            async with self._slots:
                await self._api.patch_merge(path, body, timeout_s=self._timeout_s, brief=True)
        except ApiFailure as error:
            self.failed += 1
            log.info("PodGroup %s/%s was not completed: %s", meta.namespace, meta.name, error)
            return False
        return True

    async def withdraw(self, pod: Pod) -> None:
        """Take the nomination of a released pod back; a pod that is gone or another by now is left alone."""
        body = {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": None}}
        try:
            async with self._slots:
                await self._api.patch_merge(
                    _path(pod), body, subresource="status", timeout_s=self._timeout_s, brief=True
                )
        except ApiFailure as error:
            if not (isinstance(error, ApiError) and (error.not_found or error.conflict)):
                log.info("the nomination of pod %s was not taken back: %s", pod.key, error)

    async def remove(self, pod: Pod) -> bool:
        """Delete the pod exactly as it was seen; False if it changed meanwhile (it may have been bound) or is gone."""
        meta = pod.metadata
        try:
            async with self._slots:
                return await self._api.delete(
                    _path(pod), uid=meta.uid, resource_version=meta.resource_version, timeout_s=self._timeout_s
                )
        except ApiFailure as error:
            self.failed += 1
            log.info("pod %s was not deleted: %s", pod.key, error)
            return False

    async def remove_pod_group(self, group: PodGroup) -> bool:
        """Delete a PodGroup exactly as it was seen; False if it changed meanwhile, is gone, or that failed."""
        meta = group.metadata
        path = POD_GROUPS.format(namespace=meta.namespace) + f"/{meta.name}"
        try:
            async with self._slots:
                return await self._api.delete(
                    path, uid=meta.uid, resource_version=meta.resource_version, timeout_s=self._timeout_s
                )
        except ApiFailure as error:
            self.failed += 1
            log.info("PodGroup %s/%s was not deleted: %s", meta.namespace, meta.name, error)
            return False

    async def annotate(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod; a pod that is gone is no error, any other failure is logged and dropped.

        What was said of a held pod is not written once its gate is open: the release carried newer words.
        """
        operations: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid}]
        if pod.has_gate(GATE):
            operations.append(gate_there(pod))
        operations += annotate(pod, annotations)
        try:
            async with self._slots:
                await self._api.patch_json(_path(pod), operations, timeout_s=self._timeout_s, brief=True)
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
        self, releases: Iterable[PodRelease], one: Callable[[PodRelease], Awaitable[None]], what: str
    ) -> set[str]:
        done: set[str] = set()

        async def guarded(released: PodRelease) -> None:
            try:
                async with self._slots:
                    await one(released)
            except LookupError:
                done.add(released.pod.metadata.uid)  # the gate is gone already
            except ApiFailure as error:
                self.failed += 1
                log.info("pod %s was not %s: %s", released.pod.key, what, error)
            else:
                done.add(released.pod.metadata.uid)

        await asyncio.gather(*(guarded(released) for released in releases))
        return done


def _may_be_done(error: ApiFailure) -> bool:
    """The write may have been done all the same: the answer was lost, or the server failed after it began."""
    return error.status >= 500 if isinstance(error, ApiError) else isinstance(error, ApiUnreachable) and error.sent
