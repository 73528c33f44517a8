"""Pods and nodes in the shapes that Volcano's scheduler sends to its extender (1.14 and 1.15), from API objects.

Decides which field of Volcano's TaskInfo, NodeInfo and Resource holds what. It must never know who asks or what is
answered. Go structs without tags keep their field names; scalar resources are in thousandths, `pods` excepted; a nil
map or pointer is null (volcano-sh/volcano pkg/scheduler/plugins/extender/argument.go, pkg/scheduler/api).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from scheduler.extender.wire import TaskStatus
from topology.labels import GROUP_NAME, TASK_SPEC
from topology.objects import Pod
from topology.resources import CPU, MEMORY, PODS, Amounts, parse_amounts, pod_request, sum_amounts

Object = dict[str, Any]

_NUMA: Final[Object] = {"Policy": "", "ResMap": {}}


def resource(amounts: Mapping[str, int]) -> Object:
    """A Resource."""
    scalars = {
        name: amount if name == PODS else amount * 1000
        for name, amount in amounts.items()
        if name not in (CPU, MEMORY) and amount
    }
    return {
        "MilliCPU": amounts.get(CPU, 0),
        "Memory": amounts.get(MEMORY, 0),
        "ScalarResources": scalars or None,
        "MaxTaskNum": 0,
    }


def amounts_of(pod: Object) -> Amounts:
    """What a pod asks for."""
    return pod_request(msgspec.convert(pod, Pod).spec)


def job_of(pod: Object) -> str:
    """The job of a pod: `namespace/PodGroup`; a pod without one gets its own from Volcano."""
    meta = pod["metadata"]
    group = (meta.get("annotations") or {}).get(GROUP_NAME) or f"podgroup-{meta['uid']}"
    return f"{meta['namespace']}/{group}"


def task(pod: Object, node: str, status: int) -> Object:
    """A TaskInfo; its pod has the node in its spec as soon as Volcano tries it there."""
    meta = pod["metadata"]
    asked = resource(amounts_of(pod))
    shown = {**pod, "spec": {**pod["spec"], "nodeName": node}} if node else pod
    return {
        "UID": meta["uid"],
        "Job": job_of(pod),
        "Name": meta["name"],
        "Namespace": meta["namespace"],
        "TaskRole": (meta.get("annotations") or {}).get(TASK_SPEC, ""),
        "Resreq": asked,
        "InitResreq": asked,
        "NodeName": node,
        "EvictionOccurred": False,
        "JobAllocatedHyperNode": "",
        "Status": status,
        "LastTransaction": None,
        "Priority": 0,
        "VolumeReady": False,
        "Preemptable": True,
        "BestEffort": False,
        "HasRestartableInitContainer": False,
        "SchGated": False,
        "RevocableZone": "",
        "NumaInfo": _NUMA,
        "Pod": shown,
        "CustomBindErrHandlerSucceeded": False,
    }


def node_info(node: Object, pods: Iterable[Object]) -> Object:
    """A NodeInfo with the pods that are on it."""
    there = list(pods)
    capacity = parse_amounts(node["status"]["allocatable"], "status.allocatable")
    used = sum_amounts(amounts_of(pod) for pod in there)
    nothing = resource({})
    return {
        "Name": node["metadata"]["name"],
        "Node": node,
        "State": {"Phase": 1, "Reason": ""},
        "Releasing": nothing,
        "Pipelined": nothing,
        "Idle": resource({name: amount - used.get(name, 0) for name, amount in capacity.items()}),
        "Used": resource(used),
        "Allocatable": resource(capacity),
        "Capacity": resource(capacity),
        "ResourceUsage": {"MetricsTime": "0001-01-01T00:00:00Z", "CPUUsageAvg": {}, "MEMUsageAvg": {}},
        "Tasks": {
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": task(
                pod, pod["spec"]["nodeName"], TaskStatus.RUNNING
            )
            for pod in there
        },
        "NumaInfo": None,
        "NumaChgFlag": 0,
        "NumaSchedulerInfo": None,
        "RevocableZone": "",
        "Others": None,
        "OversubscriptionNode": False,
        "OfflineJobEvicting": False,
        "OversubscriptionResource": nothing,
        "ImageStates": {},
        "Generation": 1,
        "BindGeneration": 0,
    }
