"""A cluster in which everything happens that may, by seed: its owners of pods, its Volcano, its failures.

It acts on the API server's objects alone, as the real neighbours do, and knows nothing of the controller.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from admission.demo.file_cluster import FileCluster
from admission.recognition.replica_group import LWS_GROUP, LWS_WORKER
from tests.admission.controllers import groups, pods_of
from tests.admission.held_pods import NAMESPACE, held
from tests.admission.pods import Raw
from tests.admission.test_fairness import queue
from tests.admission.test_units import lws, stateful_set
from topology.labels import (
    GANG,
    GATE,
    GPU_MEMORY,
    GROUP_NAME,
    MIN_DECODE,
    NEAREST,
    NVIDIA_GPU,
    PAIRING,
    QUEUE_NAME,
)
from topology.objects import Node, Pod
from topology.selectors import selects_node

MIG = "nvidia.com/mig-1g.10gb"
NODES: list[Raw] = [
    {"name": f"n{i}", "zone": "ab"[i // 3], "leaf": f"l{i // 2}", "gpus": 1 + i % 3, "product": "NVIDIA-H100-80GB-HBM3"}
    for i in range(6)
]
KINDS = ("plain", "near", "memory", "mig", "lws", "vip", "small", "kid", "ord")
QUEUES = {"small": 6, "top": 7}  # `top` is above `small` and `kids`; `kids` itself has no limit
QUEUE_OF = {"small": "small", "kid": "kids"}


class World:
    """The cluster, what may happen to it, Volcano, and the owners of pods."""

    def __init__(self, cluster: FileCluster, seed: int) -> None:
        self.cluster, self.rng, self.born, self.mine = cluster, random.Random(seed), 0, False
        self.kinds = self.rng.sample(KINDS, 5)  # few enough that gangs become whole and stand in each other's way
        queue(cluster, "default", None)
        for name, gpus in QUEUES.items():
            queue(cluster, name, gpus)
        queue(cluster, "kids", None)
        for child in ("small", "kids"):
            cluster.change("queues", "", child, {"spec": {"parent": "top"}})
        meta = {"name": "rs", "namespace": NAMESPACE}
        made = cluster.create("replicasets", {"metadata": meta, "spec": {"replicas": 1}})
        self.owner = {**made, "apiVersion": "apps/v1", "kind": "ReplicaSet"}
        self.sets = {f"ord-{x}": stateful_set(cluster, f"ord-{x}", 2) for x in "ab"}
        template = {"containers": [{"name": "w", "resources": {"requests": {NVIDIA_GPU: "1"}}}]}
        spec = {
            "replicas": 9,
            "startupPolicy": "LeaderReady",
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": template}},
        }
        lws_made = cluster.create("leaderworkersets", {"metadata": {"name": "w", "namespace": NAMESPACE}, "spec": spec})
        self.lws = {**lws_made, "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        for node in cluster.objects("nodes"):
            if node["metadata"]["name"] in ("n2", "n5"):
                cluster.change("nodes", "", node["metadata"]["name"], {"status": {"allocatable": {MIG: "3"}}})
        self.away: list[Raw] = []
        self.chosen: set[str] = set()  # pods that Volcano chose the node of
        self.did: list[str] = []  # for whoever looks for a cause

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Deleted by somebody, not by the controller."""
        self.mine = True
        try:
            self.cluster.delete(kind, namespace, name)
        finally:
            self.mine = False

    # --- what happens --------------------------------------------------------------------------

    def step(self) -> bool:
        things: list[tuple[int, Callable[[], object]]] = [
            (14, self.comes),
            (3, self.goes),
            (8, self.volcano),
            (4, self.owners_act),
            (3, self.ends),
            (4, self.fails),
            (1, self.cluster.cut_watches),
            (1, self.cluster.forget_history),
            (1, self.group_goes),
            (1, self.queue_turns),
            (1, self.node_turns),
        ]
        what = self.rng.choices([what for _, what in things], [weight for weight, _ in things])[0]
        self.did.append(what.__name__)
        what()
        return self.rng.random() < 0.03

    def comes(self) -> None:
        self.make(self.rng.choice(("prefill", "decode")), f"{self.rng.choice(self.kinds)}-{self.rng.choice('ab')}")

    def make(self, phase: str, gang: str) -> None:
        self.born += 1
        name, kind = f"{gang}-{self.born}", gang.partition("-")[0]
        notes: dict[str, str] = {}
        more: Raw = {}
        if kind == "near":
            notes[PAIRING] = NEAREST
        if kind in QUEUE_OF:
            notes[QUEUE_NAME] = QUEUE_OF[kind]
        if kind == "memory":
            notes[GPU_MEMORY] = "30Gi"
        if kind == "vip":
            more["priority"] = 10
        if kind == "lws" and phase == "decode":
            alone = self.rng.random() < 0.3  # the worker comes when the leader runs
            for worker in range(1 if alone else 2):
                pod = lws(self.born, worker, 2, "w", owner=self.lws)
                pod["metadata"]["labels"][GANG] = gang
                self.cluster.create_pod(pod)
            return
        if kind == "ord":
            notes[MIN_DECODE] = "2"
            if phase == "decode":
                self.ordered(gang, 0, notes)
                return
        owner = self.owner if self.rng.random() < 0.6 else None
        pod = held(name, phase, gang, gpus=self.rng.choice((1, 1, 2)), annotations=notes, owner=owner, **more)
        if kind == "mig":
            pod["spec"]["containers"][0]["resources"] = {"requests": {MIG: "1"}, "limits": {MIG: "1"}}
        self.cluster.create_pod(pod)

    def ordered(self, gang: str, number: int, notes: Raw) -> None:
        """One pod of a StatefulSet, unless it is there."""
        name = f"{gang}-d{number}"
        if name not in {pod["metadata"]["name"] for pod in pods_of(self.cluster)}:
            self.cluster.create_pod(held(name, "decode", gang, annotations=notes, owner=self.sets[gang]))

    def owners_act(self) -> None:
        """Owners make the pods that wait for others to run."""
        for pod in pods_of(self.cluster):
            meta = pod["metadata"]
            if "nodeName" not in pod["spec"] or pod["status"].get("phase") == "Succeeded":
                continue
            labels = meta["labels"]
            if meta["name"].endswith("-d0"):
                self.ordered(labels[GANG], 1, {MIN_DECODE: "2"})
            if labels.get(LWS_WORKER) == "0":
                self.worker(int(labels[LWS_GROUP]), labels[GANG])

    def worker(self, group: int, gang: str) -> None:
        pod = lws(group, 1, 2, "w", owner=self.lws)
        pod["metadata"]["labels"][GANG] = gang
        if pod["metadata"]["name"] not in {each["metadata"]["name"] for each in pods_of(self.cluster)}:
            self.cluster.create_pod(pod)

    def goes(self) -> None:
        if pods := pods_of(self.cluster):
            self.remove("pods", NAMESPACE, self.rng.choice(pods)["metadata"]["name"])

    def ends(self) -> None:
        if on := [pod for pod in pods_of(self.cluster) if "nodeName" in pod["spec"]]:
            name = self.rng.choice(on)["metadata"]["name"]
            self.cluster.change("pods", NAMESPACE, name, {"status": {"phase": "Succeeded"}})

    def volcano(self) -> None:
        """Binds released pods whose PodGroup is there: nominated ones where they are nominated, others where no promise
        is broken, if need be after somebody of a lower priority left."""
        for pod in pods_of(self.cluster):
            meta = pod["metadata"]
            grouped = meta["annotations"].get(GROUP_NAME) in groups(self.cluster)
            if is_held(pod) or "nodeName" in pod["spec"] or not grouped:
                continue
            if (node := pod["status"].get("nominatedNodeName")) and node in self.free():
                self.cluster.bind(NAMESPACE, meta["name"], node)
                continue
            if node:
                continue
            if (where := self.a_place(pod)) or (self.evicts(pod) and (where := self.a_place(pod))):
                self.chosen.add(meta["uid"])
                self.cluster.bind(NAMESPACE, meta["name"], where)

        self.counts()

    def counts(self) -> None:
        """Volcano writes what its queues hold, with those below them."""
        held_gpus = dict.fromkeys(QUEUES, 0)
        for pod in live(self.cluster):
            name = pod["metadata"].get("annotations", {}).get(QUEUE_NAME, "")
            if "nodeName" in pod["spec"] and name:
                for queue_name in {name, "top"} & held_gpus.keys():
                    held_gpus[queue_name] += requests(pod).get(NVIDIA_GPU, 0)
        for name, gpus in held_gpus.items():
            self.cluster.change("queues", "", name, {"status": {"allocated": {NVIDIA_GPU: str(gpus)}}})

    def free(self) -> dict[str, dict[str, int]]:
        left = {
            n["metadata"]["name"]: {k: int(n["status"]["allocatable"].get(k, 0)) for k in (NVIDIA_GPU, MIG)}
            for n in self.cluster.objects("nodes")
        }
        for pod in self.cluster.objects("pods"):
            node = pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName")
            if node in left and pod["status"].get("phase") != "Succeeded":
                for what, amount in requests(pod).items():
                    left[node][what] -= amount
        return left

    def a_place(self, pod: Raw) -> str:
        known = msgspec.convert(pod, Pod, strict=False)
        nodes = {n["metadata"]["name"]: msgspec.convert(n, Node, strict=False) for n in self.cluster.objects("nodes")}
        fits = [
            name
            for name, left in self.free().items()
            if selects_node(known.spec, nodes[name]) and all(left[k] >= v for k, v in requests(pod).items())
        ]
        return self.rng.choice(fits) if fits else ""

    def evicts(self, pod: Raw) -> bool:
        mine = pod["spec"].get("priority", 0)
        below = [p for p in pods_of(self.cluster) if "nodeName" in p["spec"] and p["spec"].get("priority", 0) < mine]
        if below:
            self.remove("pods", NAMESPACE, self.rng.choice(below)["metadata"]["name"])
        return bool(below)

    def fails(self) -> None:
        what = self.rng.choice(("/pods/[^/]*$", "/pods/[^/]*/status$", "/podgroups/", "/api/v1/pods$"))
        method = "WATCH" if what.startswith("/api") else "PATCH"
        after = method == "PATCH" and self.rng.random() < 0.5
        status = self.rng.choice((0, 500) if after else (0, 500, 422, 404, 409))
        self.cluster.fail_next(method, what, status, after=after)

    def group_goes(self) -> None:
        if there := sorted(groups(self.cluster)):
            self.remove("podgroups", NAMESPACE, self.rng.choice(there))

    def queue_turns(self) -> None:
        self.cluster.change("queues", "", "small", {"status": {"state": self.rng.choice(("Open", "Open", "Closed"))}})

    def node_turns(self) -> None:
        if self.away:
            node = self.away.pop()
            meta = {k: v for k, v in node["metadata"].items() if k in ("name", "labels", "annotations")}
            self.cluster.create("nodes", {**node, "metadata": meta})
        else:
            node = self.rng.choice(self.cluster.objects("nodes"))
            self.away.append(node)
            self.remove("nodes", "", node["metadata"]["name"])


def requests(pod: Raw) -> dict[str, int]:
    amounts = pod["spec"]["containers"][0].get("resources", {}).get("requests", {})
    return {k: int(v) for k, v in amounts.items() if k in (NVIDIA_GPU, MIG)}


def live(cluster: FileCluster) -> list[Raw]:
    """Pods that did not end."""
    return [pod for pod in pods_of(cluster) if pod["status"].get("phase") != "Succeeded"]


def is_held(pod: Raw) -> bool:
    return GATE in [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]
