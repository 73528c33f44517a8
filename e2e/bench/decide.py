"""`decide`: one scoring call of Volcano's for 1,000 candidate nodes, from the decoded call to the answer's bytes.

5,000 nodes of 8 GPUs, some 70 % full; gangs of 4 prefill and 4 decode pods whose partners have their places; other
gangs are in the session's ledger. Between two calls the cluster changes, so that no snapshot is met twice. Then the
same where every card is shared by Volcano's vGPU and 20,000 pods have a part of one. CALLS shortens the run.
"""

import gc
import random
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from e2e.bench.crowd import GPUS, Crowd, encoded
from e2e.bench.report import Figure, Goal
from e2e.bench.sizes import number
from e2e.stack.build import say
from scheduler.extender.session import SessionLedger, SessionPod
from scheduler.extender.verbs import score
from scheduler.extender.wire import Prioritize, Task
from scheduler.model.policy import Policy
from topology.cluster.state import ClusterState
from topology.gpus.devices import VOLCANO_REGISTER
from topology.gpus.forms import VOLCANO_VGPU
from topology.labels import DECODE, GANG, PHASE, PREFILL
from topology.objects import Container, Node, Pod, PodSpec, Resources

NODES: Final = 5_000
CANDIDATES: Final = 1_000
FULL: Final = 0.7
GANGS: Final = 40
"""Gangs of 8 that have their places; the calls are for one more pod of each in turn."""
IN_SESSION: Final = 20
"""Pods that Volcano has put somewhere in the session under way."""
CALLS: Final = 1_000
SHARERS: Final = 20_000
"""Pods that have a part of a card, where cards are shared."""
GOAL: Final = Goal("<=", 3)


def measure() -> Iterator[list[Figure]]:
    """Wall and CPU time of so many calls."""
    calls = number("CALLS", CALLS)
    for value, shared in (("", False), ("shared ", True)):
        say(f"bench decide: {calls} {value}calls for {CANDIDATES} of {NODES} nodes")
        world = _World(random.Random(42), shared=shared)
        for _ in range(20):
            world.call()
        gc.collect()
        gc.freeze()
        walls, cpus = zip(*(world.call() for _ in range(calls)), strict=True)
        wall, cpu = (1e3 * np.array(times) for times in (walls, cpus))
        name, took = f"1000 candidates {value}", float(np.percentile(wall, 99))
        source = f"{calls} calls, the cluster changed before each; median {np.median(wall):.2f} ms"
        burnt = float(np.percentile(cpu, 99))
        yield [
            Figure(f"{name}p99 ms", took, "ms", GOAL, "", source),
            Figure(f"{name}mean ms", float(wall.mean()), "ms", None, "", "the same calls"),
            Figure(f"{name}cpu p99 ms", burnt, "ms", None, "", "the same, CPU time alone"),
        ]


class _World:
    """A cluster that changes, and the calls about it."""

    def __init__(self, rng: random.Random, *, shared: bool) -> None:
        self.rng, self.shared = rng, shared
        self.crowd = Crowd(NODES, 0)
        self.state = ClusterState()
        self.state.apply_nodes((None, msgspec.json.decode(encoded(self.node(i)), type=Node)) for i in range(NODES))
        self.ledger = SessionLedger()
        self.policy = Policy()
        self.made, self.asked = 0, 0
        self.others: list[Pod] = []
        for _ in range(SHARERS if shared else int(NODES * GPUS * FULL) // 2):
            self.somebody_comes()
        for gang in range(GANGS):
            start = rng.randrange(NODES - 8)
            for i in range(8):
                pod = self.pod((PREFILL, DECODE)[i % 2], f"gang-{gang}", self.crowd.node_name(start + i))
                self.state.apply_pods([(None, pod)])
        asked = Resources(limits={VOLCANO_VGPU.count if shared else "nvidia.com/gpu": "1"})
        asking = Pod(spec=PodSpec(containers=(Container(resources=asked),)))
        for i in range(IN_SESSION):
            group, node = f"new-{i // 4}", self.crowd.node_name(rng.randrange(NODES))
            self.ledger.allocated(SessionPod(f"tried-{i}", f"tried-{i}", "team", group, PREFILL, node, 2, asking))

    def node(self, index: int) -> dict[str, Any]:
        """A node with whole GPUs, or with the same cards in the hands of Volcano's vGPU plugin."""
        node = self.crowd.node(index)
        if self.shared:
            devices = (f"GPU-{index}-{i},10,81559,NVIDIA H100,true,hami-core" for i in range(GPUS))
            node["metadata"]["annotations"][VOLCANO_REGISTER] = ":".join(devices) + ":"
            del node["status"]["allocatable"]["nvidia.com/gpu"]
            node["status"]["allocatable"][VOLCANO_VGPU.count] = str(10 * GPUS)
        return node

    def pod(self, phase: str, gang: str, node: str, gpus: int = 1) -> Pod:
        """A pod as the API server shows it."""
        content: dict[str, Any] = self.crowd.pod(1, 1, step="Running" if node else "Created")
        self.made += 1
        content["metadata"] |= {"name": f"pod-{self.made}", "uid": f"uid-{self.made}", "namespace": "team"}
        content["metadata"]["labels"] = {PHASE: phase, GANG: gang} if phase else {}
        content["spec"]["nodeName"] = node
        for amounts in content["spec"]["containers"][0]["resources"].values():
            amounts["nvidia.com/gpu"] = str(gpus)
            if self.shared:
                del amounts["nvidia.com/gpu"]
                mib = str(self.rng.choice((8192, 16384, 24576)))
                amounts |= {"cpu": "2", VOLCANO_VGPU.count: "1", VOLCANO_VGPU.memory: mib}
        return msgspec.json.decode(encoded(content), type=Pod)

    def somebody_comes(self) -> None:
        """Somebody else's pod of two GPUs, on any node."""
        pod = self.pod("", "", self.crowd.node_name(self.rng.randrange(NODES)), gpus=2)
        self.others.append(pod)
        self.state.apply_pods([(None, pod)])

    def snapshot(self) -> Any:
        """What the extender asks for."""
        return self.state.snapshot(0.0, 0.0)

    def table(self) -> Any:
        """What the extender asks for."""
        return self.state.table_at(0.0)

    def gang_pods(self, namespace: str, gang: str) -> Any:
        """What the extender asks for."""
        return self.state.gang_pods(namespace, gang)

    def call(self) -> tuple[float, float]:
        """One call about a changed cluster: seconds of wall and of CPU time."""
        gone = self.others.pop(self.rng.randrange(len(self.others)))
        self.state.apply_pods([(gone, None)])
        self.somebody_comes()
        self.asked += 1
        pod = self.pod(DECODE, f"gang-{self.asked % GANGS}", "")
        task = Task(uid=pod.metadata.uid, name=pod.metadata.name, namespace="team", pod=pod)
        nodes = self.rng.sample(range(NODES), CANDIDATES)
        call = Prioritize(task, tuple(self.crowd.node_name(i) for i in nodes))
        wall, cpu = time.perf_counter(), time.process_time()
        answer = score(call, self, self.ledger, self.policy)
        took = time.perf_counter() - wall, time.process_time() - cpu
        assert answer.decision is not None
        assert answer.body.count(b"gpu-") == CANDIDATES
        return took
