"""Who stands behind a pod: how many pods an owner wants, and who is at the top of the chain.

Kept from watch changes; no I/O. ReplicaSets belong to Deployments and go with every rollout, so what is to outlive a
rollout hangs on the top owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from admission.gangs.template_revision import Template
from admission.recognition.replica_group import unit_of
from topology.objects import OwnerReference, Pod, Workload

_MAX_CHAIN = 5


class Owners:
    """Workloads by uid. `replicas` counts those that make pods themselves."""

    def __init__(self) -> None:
        self._workloads: dict[str, Workload] = {}
        self._replicas: dict[str, int] = {}

    def apply(self, changes: Iterable[tuple[Workload | None, Workload | None]]) -> None:
        """Workloads that came, changed or went. One without a replica count wants one pod (the API's default)."""
        for old, new in changes:
            if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
                self._workloads.pop(old.metadata.uid, None)
                self._replicas.pop(old.metadata.uid, None)
            if new is not None:
                self._workloads[new.metadata.uid] = new
                self._replicas[new.metadata.uid] = 1 if new.spec.replicas is None else new.spec.replicas

    def replicas(self) -> Mapping[str, int]:
        """Owner uid to the number of pods that it wants."""
        return self._replicas

    def controller_of(self, pod: Pod) -> Workload | None:
        """The workload that made the pod; None where it is not known or there is none."""
        owner = pod.metadata.controller
        return self._workloads.get(owner.uid) if owner is not None else None

    def top_workload(self, pod: Pod) -> Workload | None:
        """The workload at the top of the pod's chain of owners, as far up as it is known."""
        found: Workload | None = None
        owner = pod.metadata.controller
        for _ in range(_MAX_CHAIN):
            workload = self._workloads.get(owner.uid) if owner is not None else None
            if workload is None:
                break
            found, owner = workload, workload.metadata.controller
        return found

    def template_of(self, pod: Pod) -> Template | None:
        """Which revision of its Deployment or StatefulSet the pod is; None where it has neither, or nobody can say.

        A StatefulSet may keep pods of an older one for good (`partition`, `OnDelete`). Pods of a group (LWS) are left
        out: the StatefulSet of the leaders knows nothing of the workers.
        """
        owner = pod.metadata.controller
        mine = self._workloads.get(owner.uid) if owner is not None else None
        if mine is not None and mine.status.update_revision and not unit_of(pod):
            made_of = pod.metadata.label("controller-revision-hash")
            return Template(mine.metadata.uid, int(made_of == mine.status.update_revision), retained=True)
        above = mine.metadata.controller if mine is not None else None
        if mine is None or above is None or above.kind != "Deployment":
            return None
        revision = _revision(mine)
        return Template(above.uid, revision) if revision > 0 else None

    def top_owner(self, pod: Pod) -> OwnerReference | None:
        """The last controlling owner that is known from the pod upwards; None for a pod that nobody controls."""
        owner = pod.metadata.controller
        for _ in range(_MAX_CHAIN):
            workload = self._workloads.get(owner.uid) if owner is not None else None
            above = workload.metadata.controller if workload is not None else None
            if above is None:
                break
            owner = above
        return owner


def wants(workload: Workload) -> tuple[int | None, int, str]:
    """What decides about pods: how many, and of which revision."""
    return workload.spec.replicas, _revision(workload), workload.status.update_revision


def _revision(workload: Workload) -> int:
    """The Deployment controller's own number; a rollback gives the old ReplicaSet a new one. 0 where there is none."""
    text = workload.metadata.annotation("deployment.kubernetes.io/revision")
    return int(text) if text.isascii() and text.isdigit() else 0
