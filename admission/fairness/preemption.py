"""The cluster as it would be if pods of lower priority left: whether a gang would fit then. Pure.

Held pods start no preemption: Volcano's preempt action skips gated tasks. So a gang that has no place now but would
have one among its inferiors is let go with its isochrone sets and without nomination, and Volcano makes the room.

Who may leave is Volcano's rule (plugins priority, gang and conformance of volcano-sh/volcano v1.14.1): a running pod of
another PodGroup in the same queue, of a lower priority, not marked `volcano.sh/preemptable: "false"`, not critical to
the system, and only as many of a PodGroup as run beyond its `minMember`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from admission.fairness.queue_quota import DEFAULT_QUEUE
from topology.cluster.snapshot import Snapshot
from topology.gpus.allocation_book import AllocationBook
from topology.labels import GROUP_NAME
from topology.objects import Pod, PodGroup
from topology.resources import readable_request

PREEMPTABLE = "volcano.sh/preemptable"
_CRITICAL = ("system-cluster-critical", "system-node-critical")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


def without_inferiors(
    snapshot: Snapshot,
    pods: Iterable[Pod],
    pod_groups: Mapping[str, PodGroup],
    queue: str,
    priority: int,
    *,
    leaving: bool = False,
) -> Snapshot | None:
    """The snapshot without the pods that may leave for this priority in this queue; None if nobody may.

    Of a PodGroup the youngest leave first, by name where they are of one age, as many as it can spare. With `leaving`
    pods that are terminating are gone already; else they stay where they are, and run no more.
    """
    gone: list[Pod] = []
    inferior: dict[str, list[Pod]] = {}
    running: dict[str, int] = {}
    for pod in pods:
        group = pod.metadata.annotation(GROUP_NAME)
        if not pod.spec.node_name or not group or pod.finished:
            continue
        if pod.metadata.deletion_timestamp is not None:
            gone.append(pod)
            continue
        key = f"{pod.metadata.namespace}/{group}"
        running[key] = running.get(key, 0) + 1
        if (pod.spec.priority or 0) < priority and _may_leave(pod):
            inferior.setdefault(key, []).append(pod)
    out = gone if leaving else []
    for key, theirs in sorted(inferior.items()):
        pod_group = pod_groups.get(key)
        if pod_group is not None and (pod_group.spec.queue or DEFAULT_QUEUE) == queue:
            out += _spared(theirs, running[key], pod_group)
    return _without(snapshot, out)


def _spared(inferior: list[Pod], running: int, pod_group: PodGroup) -> list[Pod]:
    """The youngest of a PodGroup's pods that may leave, as many as run beyond its minimum."""
    spare = running - (pod_group.spec.min_member or 1)
    youngest = sorted(inferior, key=lambda p: (p.metadata.creation_timestamp or "", p.metadata.name), reverse=True)
    return youngest[: max(0, spare)]


def _without(snapshot: Snapshot, out: Iterable[Pod]) -> Snapshot | None:
    """The snapshot without these pods; None where none of them is on a node of it."""
    used, holds = snapshot.used.copy(), AllocationBook(snapshot.holds)
    anybody = False
    for pod in out:
        if (node := snapshot.table.index.get(pod.spec.node_name)) is not None:
            holds.change(pod.spec.node_name, pod.metadata.uid, None)
            used[node] -= snapshot.table.vector(readable_request(pod.spec)[0])[0]
            anybody = True
    if not anybody:
        return None
    used.setflags(write=False)
    return replace(snapshot, used=used, holds=holds)


def _may_leave(pod: Pod) -> bool:
    meta = pod.metadata
    value = meta.annotation(PREEMPTABLE) or meta.label(PREEMPTABLE)
    if value in _FALSE or meta.namespace == "kube-system":
        return False
    return pod.spec.priority_class_name not in _CRITICAL
