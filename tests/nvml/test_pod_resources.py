"""The kubelet's answers over a real unix socket."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc
import pytest

from tests.nvml.kubelet import Kubelet, serving
from tests.topology.list_watch_server import LIMIT_S
from topology.agent.pod_resources import KubeletSilent, PodResources
from topology.facts import report as f

A, B = "GPU-0000000a", "GPU-0000000b"


async def test_holders_and_capacity(tmp_path: Path) -> None:
    kubelet = Kubelet()
    kubelet.held = {
        ("ml", "decode-0", "engine"): {"nvidia.com/gpu": [B, A], "rdma/hca": ["mlx5_0"]},
        ("ml", "shared-0", "engine"): {"nvidia.com/gpu": [f"{A}::3"]},
        ("ml", "sidecar-only", "proxy"): {},
    }
    kubelet.claims = {("ml", "sidecar-only", "proxy"): [("gpu.nvidia.com", "node-1", "gpu-2")]}
    kubelet.allocatable = {"nvidia.com/gpu": [B, A], "nvidia.com/mig-1g.10gb": ["MIG-1"]}
    socket = tmp_path / "k.sock"
    pods = PodResources(str(socket))
    async with serving(kubelet, socket):
        seen = await pods.read(7.0)
        await pods.close()
    assert seen.collected_at_s == 7.0
    assert [(h.pod, h.resource, h.device_ids) for h in seen.holdings] == [
        ("decode-0", "nvidia.com/gpu", (A, B)),
        ("decode-0", "rdma/hca", ("mlx5_0",)),
        ("shared-0", "nvidia.com/gpu", (f"{A}::3",)),
        ("sidecar-only", "gpu.nvidia.com", ("node-1/gpu-2",)),
    ]
    assert seen.allocatable == (("nvidia.com/gpu", (A, B)), ("nvidia.com/mig-1g.10gb", ("MIG-1",)))


async def test_a_kubelet_that_restarts_is_found_again_and_silence_is_told(tmp_path: Path) -> None:
    socket, kubelet = tmp_path / "k.sock", Kubelet()
    pods = PodResources(str(socket), limit_s=LIMIT_S)
    with pytest.raises(KubeletSilent, match="the kubelet did not answer List: UNAVAILABLE"):
        await pods.read(1.0)
    await pods.close()
    for _ in range(2):
        async with serving(kubelet, socket), asyncio.timeout(LIMIT_S):
            found = None
            while found is None:  # gRPC may still remember that nobody answered there a moment ago
                with contextlib.suppress(KubeletSilent):
                    found = await pods.read(1.0)
            assert found.holdings == ()
            await pods.close()


async def test_an_old_kubelet_without_capacity_is_asked_for_it_once(tmp_path: Path) -> None:
    kubelet, socket = Kubelet(), tmp_path / "k.sock"
    kubelet.fail["GetAllocatableResources"] = grpc.StatusCode.UNIMPLEMENTED
    kubelet.held = {("ml", "p", "c"): {"nvidia.com/gpu": [A]}}
    pods = PodResources(str(socket))
    async with serving(kubelet, socket):
        assert (await pods.read(1.0)).allocatable == ()
        kubelet.fail = {"GetAllocatableResources": grpc.StatusCode.INTERNAL}
        again = await pods.read(2.0)
        await pods.close()
    assert again.holdings == (
        f.Holding(namespace="ml", pod="p", container="c", resource="nvidia.com/gpu", device_ids=(A,)),
    )


async def test_an_answer_too_large_is_named(tmp_path: Path) -> None:
    kubelet, socket = Kubelet(), tmp_path / "k.sock"
    kubelet.padding = 70_000
    pods = PodResources(str(socket), max_bytes=65_536)
    async with serving(kubelet, socket):
        with pytest.raises(KubeletSilent, match="the kubelet's answer is larger than 64 KiB"):
            await pods.read(1.0)
        await pods.close()
