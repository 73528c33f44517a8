"""A cluster written down compactly, as the API objects it stands for: nodes, and the pods that hold GPUs on them.

Decides what every field of the file means and says in one sentence which one is wrong. It must never know who serves
the objects or why. The format:

    defaults: {gpus: 8, product: NVIDIA-H100-80GB-HBM3}     # for every node below; optional
    nodes:
      - {name: gpu-a1-1, zone: a, spine: a, leaf: a1, used: 2, rdma: true, labels: {team: x}}
    pods: []                                                # whole Pod objects; optional

`used` is GPUs held by a pod of somebody else's (`elsewhere/on-<node>`). An entry with `metadata` is a whole Node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from topology.bad_input import BadInput
from topology.labels import GPU_PRODUCT, HOSTNAME, LEAF, NVIDIA_GPU, RDMA_CAPABLE, SPINE, ZONE

Object = dict[str, Any]

FOREIGN_NAMESPACE: Final = "elsewhere"

_DEFAULTS: Final[Mapping[str, Any]] = {
    "zone": "",
    "spine": "",
    "leaf": "",
    "gpus": 8,
    "used": 0,
    "cpu": 192,
    "memory": "2Ti",
    "product": "NVIDIA-H100-80GB-HBM3",
    "rdma": False,
    "ready": True,
    "labels": {},
}
_WHOLE_NUMBERS: Final = ("gpus", "used", "cpu")


def read(text: str) -> tuple[list[Object], list[Object]]:
    """The nodes and the pods of a cluster file. Raises BadInput."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput("cluster file", " ".join(str(error).split())[:80], "it must be YAML") from None
    if not isinstance(content, dict) or not isinstance(content.get("nodes"), list):
        raise BadInput("cluster file", type(content).__name__, "it must be a map with a list `nodes`")
    unknown = sorted(set(map(str, content)) - {"defaults", "nodes", "pods"})
    if unknown:
        raise BadInput("cluster file", unknown[0], "use defaults, nodes and pods")
    return expand(content["nodes"], content.get("defaults") or {}, content.get("pods") or ())


def expand(
    nodes: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any] | None = None, pods: Sequence[Object] = ()
) -> tuple[list[Object], list[Object]]:
    """Node entries, compact or whole, to (nodes, pods); pods made from `used` come first. Raises BadInput."""
    made_nodes: list[Object] = []
    made_pods: list[Object] = []
    for number, entry in enumerate(nodes):
        if not isinstance(entry, Mapping):
            raise BadInput(f"nodes[{number}]", entry, "use a map such as {name: n1, gpus: 8}")
        if "metadata" in entry:
            made_nodes.append(dict(entry))
            continue
        given = _checked(entry, defaults or {}, f"nodes[{number}]")
        made_nodes.append(_node(given))
        if given["used"]:
            made_pods.append(holder(given["name"], given["used"]))
    return made_nodes, [*made_pods, *pods]


def holder(node: str, gpus: int) -> Object:
    """Somebody else's pod that holds GPUs on a node."""
    amount = {NVIDIA_GPU: str(gpus)}
    container = {"name": "job", "image": "training", "resources": {"requests": amount, "limits": amount}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"on-{node}", "namespace": FOREIGN_NAMESPACE},
        "spec": {"schedulerName": "default-scheduler", "nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }


def _checked(entry: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = {**_DEFAULTS, **defaults, **entry}
    unknown = sorted(set(map(str, given)) - {*_DEFAULTS, "name"})
    if unknown:
        raise BadInput(where, unknown[0], f"use name, {', '.join(_DEFAULTS)}")
    if not isinstance(given.get("name"), str) or not given["name"]:
        raise BadInput(f"{where}.name", given.get("name"), "every node needs one, as text")
    for field in _WHOLE_NUMBERS:
        if not isinstance(given[field], int) or isinstance(given[field], bool) or given[field] < 0:
            raise BadInput(f"{where}.{field}", given[field], "use a whole number of 0 or more")
    if given["used"] > given["gpus"]:
        raise BadInput(f"{where}.used", given["used"], f"the node has {given['gpus']} GPUs")
    return given


def _node(given: Mapping[str, Any]) -> Object:
    labels = {
        HOSTNAME: given["name"],
        ZONE: given["zone"],
        SPINE: given["spine"],
        LEAF: given["leaf"],
        GPU_PRODUCT: given["product"],
        RDMA_CAPABLE: "true" if given["rdma"] else "",
    }
    amounts = {"cpu": str(given["cpu"]), "memory": str(given["memory"]), "pods": "110"}
    if given["gpus"]:
        amounts[NVIDIA_GPU] = str(given["gpus"])
    ready = {"type": "Ready", "status": "True" if given["ready"] else "False"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": given["name"],
            "labels": {key: str(value) for key, value in {**labels, **given["labels"]}.items() if value != ""},
        },
        "spec": {},
        "status": {"capacity": amounts, "allocatable": dict(amounts), "conditions": [ready]},
    }
