"""A cluster that is mostly full: nodes of 8 GPUs in leaves, spines and zones, held by a mix of whole-GPU pods."""

from dataclasses import replace
from random import Random
from typing import Final

import numpy as np

from scheduler.model.request import GangRequest, PodRequest
from topology.cluster.snapshot import NodeTable, Snapshot
from topology.fragmentation.pod_mix import PodMix
from topology.fragmentation.pod_shape import PodShape
from topology.labels import DECODE, GPU_PRODUCT, HOSTNAME, LEAF, PHASES, PREFILL, SPINE, TRANSPORT, ZONE
from topology.objects import Metadata, Node, NodeCondition, NodeStatus
from topology.resources import CPU, GPU, MEMORY, PODS, Amounts

GPUS: Final = 8
NODES_PER_LEAF: Final = 20
LEAVES_PER_SPINE: Final = 10
NODES_PER_ZONE: Final = 1_000
MIX: Final = ((1, 40), (2, 25), (4, 20), (8, 15))
"""GPUs of a pod and how often, of 100: many narrow pods, few that take a whole node."""


def nodes(count: int) -> list[Node]:
    """`count` nodes of 8 GPUs: 20 to a leaf, 10 leaves to a spine, 1,000 nodes to a zone; RDMA and NVSwitch."""
    return [
        Node(
            metadata=Metadata(
                name=(name := f"gpu-{i:05}"),
                labels={
                    HOSTNAME: name,
                    ZONE: f"z{i // NODES_PER_ZONE}",
                    SPINE: f"s{i // (NODES_PER_LEAF * LEAVES_PER_SPINE)}",
                    LEAF: f"l{i // NODES_PER_LEAF}",
                    TRANSPORT: "rdma",
                    GPU_PRODUCT: "NVIDIA-H100-SXM5-80GB",
                },
            ),
            status=NodeStatus(
                allocatable={CPU: "96", MEMORY: "1Ti", PODS: "110", GPU: GPUS},
                conditions=(NodeCondition(type="Ready", status="True"),),
            ),
        )
        for i in range(count)
    ]


class Filled:
    """A cluster whose pods come and go: `snapshot` is the state of the moment, `churn` moves it on."""

    def __init__(self, count: int, seed: int, full: float) -> None:
        self._random = Random(seed)
        self.table = NodeTable(nodes(count))
        self._used = np.zeros_like(self.table.allocatable)
        self._pods: list[tuple[int, Amounts]] = []
        self._target = int(full * count * GPUS)
        self._held = 0
        self._taken = 0
        self._mix = PodMix()
        self._fill()

    def _fill(self) -> None:
        """Pods to random nodes with room until the cluster is as full as it is to be."""
        random, column = self._random, self.table.column[GPU]
        sizes = [size for size, often in MIX for _ in range(often)]
        while self._held < self._target:
            size, node = random.choice(sizes), random.randrange(len(self.table))
            if self._used[node, column] + size > GPUS:
                continue
            amounts = {GPU: size, CPU: 4_000 * size, PODS: 1}
            self._used[node] += self.table.vector(amounts)[0]
            self._pods.append((node, amounts))
            self._mix.add(_shape(amounts))
            self._held += size

    def churn(self, share: float = 0.01) -> None:
        """A share of the pods leaves, and others come until the cluster is as full as before."""
        for _ in range(max(1, int(share * len(self._pods)))):
            node, amounts = self._pods.pop(self._random.randrange(len(self._pods)))
            self._used[node] -= self.table.vector(amounts)[0]
            self._held -= amounts[GPU]
            self._mix.remove(_shape(amounts))
        self._fill()

    def snapshot(self) -> Snapshot:
        """The state now: the node table is shared, what pods hold is an array of its own."""
        used = self._used.copy()
        used.setflags(write=False)
        self._taken += 1
        return Snapshot(id=f"s{self._taken}", taken_at_s=0.0, table=self.table, used=used, mix=self._mix.current())


def _shape(amounts: Amounts) -> PodShape:
    return PodShape(cpu_milli=amounts[CPU], gpus=amounts[GPU], milli=1000)


def gang(prefill: int, decode: int, gpus: int, name: str = "chat") -> GangRequest:
    """A gang of so many pods of `gpus` GPUs each; all of it is its minimum."""
    wanted = {PREFILL: prefill, DECODE: decode}
    members = tuple(
        PodRequest(f"{name}-{phase}-{i}", "prod", f"{name}-{phase}-{i}", phase, {GPU: gpus, CPU: 8_000, PODS: 1})
        for phase in PHASES
        for i in range(wanted[phase])
    )
    made = GangRequest("prod", name, members)
    return replace(made, min_prefill=prefill, min_decode=decode)
