"""EDGE: which container holds which device, from the kubelet's PodResources API on its unix socket.

Decides how long the kubelet may take and how much it may say. It must never decide which pod deserves a device. There
is no watch in this API: it is asked at every collection.

Public sources: kubernetes/kubelet pkg/apis/podresources/v1/api.proto; Kubernetes documentation, "Device Plugins",
section on monitoring.
"""

from __future__ import annotations

from typing import Any, Final

import grpc.aio

from topology.agent import podresources_pb2 as wire
from topology.facts.report import MOST_HOLDINGS, Holding, PodDevices
from topology.units import show_bytes

SOCKET: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
LIMIT_S: Final = 3.0
MAX_BYTES: Final = 16 * 2**20  # a node with 500 pods says some 200 KiB


class KubeletSilent(Exception):  # noqa: N818  # says what happened
    """The kubelet did not answer; the message is one sentence."""


class PodResources:
    """One channel for the life of the agent; gRPC finds the socket again when the kubelet made it anew."""

    def __init__(self, socket: str = SOCKET, *, limit_s: float = LIMIT_S, max_bytes: int = MAX_BYTES) -> None:
        self._socket, self._limit_s, self._max_bytes = socket, limit_s, max_bytes
        self._channel: Any = None
        self._allocatable_known = True

    async def read(self, now_s: float) -> PodDevices:
        """Who holds what, and what there is. Raises KubeletSilent."""
        listed = await self._call("List", wire.ListPodResourcesRequest(), wire.ListPodResourcesResponse)
        holdings = sorted(
            (holding for pod in listed.pod_resources for holding in _holdings(pod)),
            key=lambda h: (h.namespace, h.pod, h.container, h.resource),
        )
        if len(holdings) > MOST_HOLDINGS:
            raise KubeletSilent(f"the kubelet names {len(holdings)} holdings; at most {MOST_HOLDINGS} are taken")
        return PodDevices(collected_at_s=now_s, holdings=tuple(holdings), allocatable=await self._allocatable())

    async def close(self) -> None:
        """Ends the channel."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def _allocatable(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Capacity by resource; () from a kubelet that does not tell (before 1.23, or switched off)."""
        if not self._allocatable_known:
            return ()
        found = await self._call(
            "GetAllocatableResources",
            wire.AllocatableResourcesRequest(),
            wire.AllocatableResourcesResponse,
            optional=True,
        )
        if found is None:
            self._allocatable_known = False
            return ()
        by_resource: dict[str, set[str]] = {}
        for devices in found.devices:  # one entry for each device or NUMA node
            by_resource.setdefault(devices.resource_name, set()).update(devices.device_ids)
        return tuple((resource, tuple(sorted(by_resource[resource]))) for resource in sorted(by_resource))

    async def _call(self, method: str, request: Any, answer: Any, *, optional: bool = False) -> Any:
        if self._channel is None:
            options = [
                ("grpc.max_receive_message_length", self._max_bytes),
                ("grpc.default_authority", "localhost"),  # Go servers refuse a path as authority
                ("grpc.min_reconnect_backoff_ms", 1000),
                ("grpc.max_reconnect_backoff_ms", 10_000),
            ]
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        call = self._channel.unary_unary(
            f"/v1.PodResourcesLister/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return await call(request, timeout=self._limit_s)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            if code is grpc.StatusCode.UNIMPLEMENTED and optional:
                return None
            if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise KubeletSilent(f"the kubelet's answer is larger than {show_bytes(self._max_bytes)}") from None
            what = " ".join((error.details() or "").split())[:200]
            raise KubeletSilent(f"the kubelet did not answer {method}: {code.name}, {what}") from None


def _holdings(pod: wire.PodResources) -> list[Holding]:
    found = []
    for container in pod.containers:
        by_resource: dict[str, list[str]] = {}
        for devices in container.devices:
            by_resource.setdefault(devices.resource_name, []).extend(devices.device_ids)
        for claim in container.dynamic_resources:
            for device in claim.claim_resources:
                # A claim's device is named within its driver's pool, not by a plugin's id.
                by_resource.setdefault(device.driver_name, []).append(f"{device.pool_name}/{device.device_name}")
        found += [
            Holding(
                namespace=pod.namespace,
                pod=pod.name,
                container=container.name,
                resource=resource,
                device_ids=tuple(sorted(set(ids))),
            )
            for resource, ids in by_resource.items()
            if ids
        ]
    return found
