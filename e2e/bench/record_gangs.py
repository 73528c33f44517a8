"""Random gangs of the behaviour record: 500 clusters and gangs, drawn by number, written as Kubernetes objects.

Every cluster has nodes of one or two forms (whole GPUs, GPUs shared by Volcano's plugin, MIG instances) in a random
tree of zones, spines and leaves, some of them cordoned, tainted, not ready or unnamed by labels, and pods that hold a
part. Gangs have 1 to 5 pods a phase, some with places already, minimums, selectors, and one of three bounds; about half
of them find places. Only `_planned` and `_partner` know how a gang is asked about.
"""

from random import Random
from typing import Any, Final

import msgspec

from e2e.bench.record_values import Data, card_data, plan_data, ranking_data
from scheduler.extender.decide import decide
from scheduler.model.request import GangRequest, Partner, ReachBound, pod_request_of
from scheduler.planning.plan import plan
from tests.scheduler.test_cases_roots import facts
from topology.cluster.state import ClusterState
from topology.objects import Node, Pod

Json = dict[str, Any]

GANGS: Final = 500
_BOUNDS_US: Final = (15.0, 100.0, 1000.0)
_PRODUCTS: Final = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-40GB", "NVIDIA-L40S")
_MIG: Final = ({"1g.10gb": 7}, {"3g.40gb": 1, "1g.10gb": 4}, {"2g.20gb": 2, "1g.10gb": 3}, {"3g.40gb": 2})
_FORMS: Final = ("whole", "whole", "whole", "whole", "memory", "vgpu", "mig", "fraction")
_PREFILL, _DECODE = "prefill", "decode"


def gang_records() -> dict[str, Data]:
    """By number: the plan, one pod of it against all nodes, and what was left of the cards before."""
    return {f"gang {number:03}": _planned(number) for number in range(GANGS)}


def _planned(number: int) -> Data:
    random = Random(number)
    form = random.choice(_FORMS)
    state = ClusterState()
    nodes = [_node(random, f"n{i:02}", form) for i in range(random.choice((2, 4, 6, 8, 12, 24)))]
    state.apply_nodes([(None, msgspec.convert(node, Node)) for node in nodes])
    holders = [_pod(f"old-{i}", "", form, _width(random, form), random.choice(nodes)) for i in range(_crowd(random))]
    there, asking = _gang_pods(random, form, nodes)
    bound_pods = [msgspec.convert(pod, Pod) for pod in (*holders, *there)]
    state.apply_pods([(None, pod) for pod in bound_pods])
    if form == "whole" and random.random() < 0.25:
        for node in nodes[::2]:
            halves = [0, 0, 0, 0, 1, 1, 1, 1]
            state.apply_facts(
                node["metadata"]["name"], None, facts(node["metadata"]["name"], halves, [random.randrange(8)])
            )
    snapshot = state.snapshot(0.0, 0.0)
    partners = tuple(_partner(random, pod, nodes) for pod in there)
    members = tuple(pod_request_of(msgspec.convert(pod, Pod)) for pod in asking)
    pairing, mode = random.choice(("all", "all", "nearest")), random.choice(("required",) * 5 + ("preferred",))
    size = random.choice((2**20, 16 * 2**20, 64 * 2**20))
    bound = ReachBound(
        us=random.choice(_BOUNDS_US), size_bytes=size if random.random() < 0.3 else ReachBound().size_bytes
    )
    minimum = [_minimum(random, phase, there, asking) for phase in (_PREFILL, _DECODE)]
    gang = GangRequest("prod", "chat", members, partners, bound, pairing, mode, *minimum)
    found = {"form": form, "cards": card_data(snapshot), "plan": plan_data(plan(gang, snapshot))}
    if members:
        others = [partner for partner in partners if partner.phase != members[0].phase]
        found["alone"] = ranking_data(decide(members[0], snapshot, snapshot.table.names, others, bound))
    return found


def _crowd(random: Random) -> int:
    return random.choice((0, 2, 4, 8, 16, 30))


def _node(random: Random, name: str, form: str) -> Json:
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": random.choice(("z1", "z1", "z1", "z2")),
        "network.topology.nvidia.com/spine": random.choice(("s1", "s1", "s2")),
        "network.topology.nvidia.com/leaf": random.choice(("l1", "l2", "l3")),
        "isochrone.dev/transport": random.choice(("rdma", "rdma", "tcp")),
        "nvidia.com/gpu.product": random.choice(_PRODUCTS),
        "pool": random.choice("ab"),
    }
    for key in ("network.topology.nvidia.com/leaf", "kubernetes.io/hostname"):
        if random.random() < 0.04:
            del labels[key]
    if random.random() < 0.1:
        labels["nvidia.com/gpu.clique"] = random.choice(("c1.0", "c1.1"))
    taints = [{"key": "team", "value": "b", "effect": "NoSchedule"}] if random.random() < 0.06 else None
    ready = "True" if random.random() > 0.05 else "False"
    offered: Json = {"cpu": random.choice(("128", "128", "24")), "memory": "1Ti", "pods": "110"}
    annotations = _offer(random, name, form, offered, labels)
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, "annotations": annotations},
        "spec": {"unschedulable": random.random() < 0.04, "taints": taints},
        "status": {"allocatable": offered, "conditions": [{"type": "Ready", "status": ready}]},
    }


def _offer(random: Random, name: str, form: str, offered: Json, labels: dict[str, str]) -> dict[str, str]:
    """Adds what the node offers of GPUs; the annotations of its plugin. One node in six is plain whatever the form."""
    if form == "mig" and random.random() < 5 / 6:
        labels |= {"nvidia.com/gpu.product": _PRODUCTS[0], "nvidia.com/gpu.count": "1"}
        offered |= {f"nvidia.com/mig-{profile}": count for profile, count in random.choice(_MIG).items()}
        return {}
    if form == "vgpu" and random.random() < 5 / 6:
        devices = random.choice((1, 2, 4))
        offered["volcano.sh/vgpu-number"] = 10 * devices
        memory_mib = random.choice((81920, 40960))
        register = "".join(f"GPU-{name}-{i},10,{memory_mib},H100,true,hami-core:" for i in range(devices))
        return {"volcano.sh/node-vgpu-register": register}
    if gpus := random.choice((8, 8, 8, 4, 4, 2, 0)):
        offered["nvidia.com/gpu"] = gpus
    return {}


def _width(random: Random, form: str) -> Json:
    """What one pod asks of GPUs: limits, and annotations under `notes`."""
    match form:
        case "mig":
            return {"nvidia.com/mig-" + random.choice(("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb")): 1}
        case "vgpu":
            return {
                "volcano.sh/vgpu-number": random.choice((1, 1, 2)),
                "volcano.sh/vgpu-memory": random.choice((8192, 20480, 40960)),
            }
        case "fraction":
            return {"notes": {"gpu-fraction": random.choice(("0.2", "0.3", "0.5"))}}
        case "memory":
            given = {"isochrone.dev/gpu-memory": random.choice(("20Gi", "30Gi", "60Gi"))}
            if random.random() < 0.3:
                given["isochrone.dev/gpu-memory-peak"] = "64Gi"
            return {"nvidia.com/gpu": random.choice((1, 2)), "notes": given}
        case _:
            return {"nvidia.com/gpu": random.choice((1, 1, 2, 2, 4, 8))}


def _pod(name: str, phase: str, form: str, asked: Json, node: Json | None, **spec: Any) -> Json:
    limits = {"cpu": "4", "memory": "16Gi"} | {key: amount for key, amount in asked.items() if key != "notes"}
    ours = {"isochrone.dev/phase": phase, "isochrone.dev/gang": "chat"} if phase else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "prod",
            "uid": f"uid-{name}",
            "labels": {"form": form} | ours,
            "annotations": asked.get("notes", {}),
        },
        "spec": {
            "nodeName": node["metadata"]["name"] if node else "",
            "containers": [{"name": "engine", "resources": {"limits": limits, "requests": limits}}],
            **spec,
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


def _gang_pods(random: Random, form: str, nodes: list[Json]) -> tuple[list[Json], list[Json]]:
    """Pods of the gang that have places, and those that want one. Most phases are of one width."""
    there, asking = [], []
    for phase in (_PREFILL, _DECODE):
        asked, spec = _width(random, form), dict[str, Any]()
        if random.random() < 0.12:
            spec["nodeSelector"] = {"pool": random.choice("ab")}
        if random.random() < 0.1:
            spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
        for i in range(random.choice((0, 0, 0, 0, 1, 2))):
            there.append(_pod(f"chat-{phase}-{i}", phase, form, asked, random.choice(nodes), **spec))
        for i in range(0 if random.random() < 0.05 else random.choice((1, 1, 2, 2, 3, 5))):
            mine = _width(random, form) if random.random() < 0.1 else asked
            asking.append(_pod(f"chat-{phase}-{10 + i}", phase, form, mine, None, **spec))
    return there, asking


def _partner(random: Random, pod: Json, nodes: list[Json]) -> Partner:
    """A pod that is bound, or, one in six, one that was released and may go to a second node too."""
    read, where = msgspec.convert(pod, Pod), [pod["spec"]["nodeName"]]
    if random.random() < 1 / 6:
        where = sorted({*where, random.choice(nodes)["metadata"]["name"]})
    meta = read.metadata
    phase = pod["metadata"]["labels"]["isochrone.dev/phase"]
    return Partner(meta.uid, meta.name, phase, tuple(where), len(where) == 1, read.spec)


def _minimum(random: Random, phase: str, *pods: list[Json]) -> int:
    """All pods of the phase, one, or now and then one more than there are."""
    count = sum(1 for some in pods for pod in some if pod["metadata"]["labels"]["isochrone.dev/phase"] == phase)
    return random.choice((max(1, count),) * 16 + (1,) * 16 + (count + 1,))
