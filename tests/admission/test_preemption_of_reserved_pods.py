"""Who may be preempted is asked of everybody's pods, and those are kept slim: what decides it has to be kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from admission.fairness.preemption import PREEMPTABLE, without_inferiors
from admission.fairness.queue_quota import DEFAULT_QUEUE
from topology.cluster.snapshot import snapshot_of
from topology.kube.interned_pods import InternedPods
from topology.labels import GROUP_NAME
from topology.objects import Metadata, Node, Pod, PodGroup, PodGroupSpec

NODE = {"metadata": {"name": "n1"}, "status": {"allocatable": {"nvidia.com/gpu": "8", "pods": "110"}}}


def stranger(gpus: int, labels: dict[str, str], annotations: dict[str, str]) -> Pod:
    """The fewer GPUs, the younger."""
    metadata = {
        "name": f"p{gpus}",
        "namespace": "team",
        "uid": f"u{gpus}",
        "labels": {"app": "training", **labels},
        "annotations": {GROUP_NAME: "g", **annotations},
        "creationTimestamp": f"2026-11-30T06:18:0{9 - gpus}Z",
    }
    spec = {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


@pytest.mark.parametrize(
    ("labels", "annotations", "used"),
    [
        ({}, {}, [[6, 2]]),  # one of three may go, and the youngest has one GPU: 7 - 1 are left, and 3 - 1 pods
        ({PREEMPTABLE: "false"}, {}, None),
        ({}, {PREEMPTABLE: "false"}, None),
    ],
)
def test_the_same_may_leave(labels: dict[str, str], annotations: dict[str, str], used: Any) -> None:
    keep = InternedPods()
    whole = [stranger(gpus, labels, annotations) for gpus in (1, 2, 4)]
    snapshot = snapshot_of([msgspec.convert(NODE, Node)], [("n1", {"nvidia.com/gpu": 7, "pods": 3})])
    groups = {"team/g": PodGroup(metadata=Metadata(name="g", namespace="team"), spec=PodGroupSpec(min_member=2))}
    for pods in (whole, [keep(pod) for pod in whole]):
        after = without_inferiors(snapshot, pods, groups, DEFAULT_QUEUE, 1)
        assert (None if after is None else after.used.tolist()) == used
