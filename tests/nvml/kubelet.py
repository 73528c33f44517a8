"""A kubelet's PodResources server on a unix socket, as real as gRPC makes it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio

from topology.agent import podresources_pb2 as wire

Held = dict[tuple[str, str, str], dict[str, list[str]]]
"""(namespace, pod, container) to resource to device ids"""


class Kubelet:
    """Answers what `held` and `allocatable` say; `fail` with a code instead."""

    def __init__(self) -> None:
        self.held: Held = {}
        self.claims: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}  # (driver, pool, device)
        self.allocatable: dict[str, list[str]] = {}
        self.fail: dict[str, grpc.StatusCode] = {}
        self.padding = 0

    async def list(self, _request: Any, context: Any) -> wire.ListPodResourcesResponse:
        await self._maybe_fail("List", context)
        pods = []
        for (namespace, pod, container), resources in self.held.items():
            devices = [
                wire.ContainerDevices(
                    resource_name=resource,
                    device_ids=[device],
                    topology=wire.TopologyInfo(nodes=[wire.NUMANode(ID=0)]),
                )
                for resource, ids in resources.items()
                for device in ids
            ]
            claims = [
                wire.DynamicResource(
                    claim_name="claim",
                    claim_namespace=namespace,
                    claim_resources=[wire.ClaimResource(driver_name=driver, pool_name=pool, device_name=device)],
                )
                for driver, pool, device in self.claims.get((namespace, pod, container), [])
            ]
            made = wire.ContainerResources(name=container, devices=devices, dynamic_resources=claims)
            pods.append(wire.PodResources(name=pod, namespace=namespace, containers=[made]))
        if self.padding:
            pods.append(wire.PodResources(name="x" * self.padding, namespace="n"))
        return wire.ListPodResourcesResponse(pod_resources=pods)

    async def get_allocatable(self, _request: Any, context: Any) -> wire.AllocatableResourcesResponse:
        await self._maybe_fail("GetAllocatableResources", context)
        devices = [
            wire.ContainerDevices(resource_name=resource, device_ids=[device])
            for resource, ids in self.allocatable.items()
            for device in ids
        ]
        return wire.AllocatableResourcesResponse(devices=devices)

    async def _maybe_fail(self, method: str, context: Any) -> None:
        if method in self.fail:
            await context.abort(self.fail[method], "as the test wants it")


@contextlib.asynccontextmanager
async def serving(kubelet: Kubelet, socket: Path) -> AsyncIterator[None]:
    """Serves while the context lasts."""
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    methods: dict[str, Any] = {
        "List": grpc.unary_unary_rpc_method_handler(
            kubelet.list,
            request_deserializer=wire.ListPodResourcesRequest.FromString,
            response_serializer=wire.ListPodResourcesResponse.SerializeToString,
        ),
        "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(
            kubelet.get_allocatable,
            request_deserializer=wire.AllocatableResourcesRequest.FromString,
            response_serializer=wire.AllocatableResourcesResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
