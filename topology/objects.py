"""Kubernetes objects as we read them: only the fields that a decision, a write or an explanation needs.

msgspec skips everything else while decoding, which is what makes 50,000 pods cheap (reference: about 3 us a pod).
The same structs decode watch events, admission bodies and the pods inside Volcano's extender calls. Nothing here is
ever sent back whole: writes are patches, so fields we do not know are never lost.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Slim(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Camel-case on the wire, unknown fields skipped, never changed after decoding.

    Decoded trees have no cycles, so the garbage collector need not walk the 50,000 pods that a controller keeps.
    """


class OwnerReference(_Slim, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False


class Metadata(_Slim, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    generate_name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls the object, if any."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)

    def label(self, key: str) -> str:
        """A label's value, or the empty string."""
        return self.labels.get(key, "") if self.labels else ""

    def annotation(self, key: str) -> str:
        """An annotation's value, or the empty string."""
        return self.annotations.get(key, "") if self.annotations else ""


# --- pods --------------------------------------------------------------------------------------


class Resources(_Slim, frozen=True):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class EnvVar(_Slim, frozen=True):
    name: str = ""
    value: str = ""


class Container(_Slim, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[dict[str, Any], ...] | None = None  # that there is one is all we need to know
    resources: Resources = Resources()
    restart_policy: str | None = None  # "Always" on an init container makes it a sidecar


class Toleration(_Slim, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Requirement(_Slim, frozen=True):
    """One match expression of a node selector term or a label selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(_Slim, frozen=True):
    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class NodeSelector(_Slim, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(_Slim, frozen=True):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(_Slim, frozen=True):
    node_affinity: NodeAffinity | None = None


class SchedulingGate(_Slim, frozen=True):
    name: str = ""


class ResourceClaim(_Slim, frozen=True):
    """That a pod claims devices (DRA) is all we know of it."""

    name: str = ""


class PodSpec(_Slim, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    resource_claims: tuple[ResourceClaim, ...] | None = None
    overhead: dict[str, str | int | float] | None = None
    host_network: bool = False


class PodStatus(_Slim, frozen=True):
    phase: str = ""
    nominated_node_name: str = ""


class Pod(_Slim, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def finished(self) -> bool:
        """Succeeded or Failed: it holds nothing any more."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def equivalence_class(self) -> tuple[int, int]:
        """The same for pods that request the same: the identity of what the watch interned (topology/kube/kept_pods).

        Pods that differ in it may still request the same. It says nothing once the pods are gone.
        """
        return id(self.metadata.annotations), id(self.spec)

    def has_gate(self, name: str) -> bool:
        """Whether the scheduling gate of this name still holds the pod."""
        for gate in self.spec.scheduling_gates or ():  # noqa: SIM110  # asked of every pod again and again
            if gate.name == name:
                return True
        return False


# --- nodes -------------------------------------------------------------------------------------


class Taint(_Slim, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(_Slim, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeCondition(_Slim, frozen=True):
    type: str = ""
    status: str = ""


class NodeStatus(_Slim, frozen=True):
    allocatable: dict[str, str | int | float] | None = None
    conditions: tuple[NodeCondition, ...] | None = None


class Node(_Slim, frozen=True):
    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """The Ready condition says True."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())


# --- owners ------------------------------------------------------------------------------------


class PodTemplate(_Slim, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class LeaderWorkerTemplate(_Slim, frozen=True):
    size: int | None = None
    worker_template: PodTemplate = PodTemplate()


class WorkloadSpec(_Slim, frozen=True):
    replicas: int | None = None
    pod_management_policy: str = ""  # StatefulSet: "" is OrderedReady
    startup_policy: str = ""  # LeaderWorkerSet: LeaderReady makes workers once the leader is ready
    leader_worker_template: LeaderWorkerTemplate | None = None


class WorkloadStatus(_Slim, frozen=True):
    update_revision: str = ""  # StatefulSet: the pod label `controller-revision-hash` of its newest template


class Workload(_Slim, frozen=True):
    """A Deployment, ReplicaSet, StatefulSet or LeaderWorkerSet: how many pods are to come, and who owns it."""

    metadata: Metadata = Metadata()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


# --- Volcano -----------------------------------------------------------------------------------


class PodGroupSpec(_Slim, frozen=True):
    min_member: int | None = None
    min_task_member: dict[str, int] | None = None
    min_resources: dict[str, str | int | float] | None = None
    queue: str = ""
    priority_class_name: str = ""


class PodGroupStatus(_Slim, frozen=True):
    phase: str = ""
    running: int = 0


class PodGroup(_Slim, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class QueueSpec(_Slim, frozen=True):
    capability: dict[str, str | int | float] | None = None
    parent: str = ""


class QueueStatus(_Slim, frozen=True):
    state: str = ""
    allocated: dict[str, str | int | float] | None = None


class Queue(_Slim, frozen=True):
    metadata: Metadata = Metadata()
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


class NameMatch(_Slim, frozen=True):
    name: str = ""


class PatternMatch(_Slim, frozen=True):
    pattern: str = ""


class LabelMatch(_Slim, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class MemberSelector(_Slim, frozen=True):
    exact_match: NameMatch | None = None
    regex_match: PatternMatch | None = None
    label_match: LabelMatch | None = None


class HyperNodeMember(_Slim, frozen=True):
    type: str = ""
    selector: MemberSelector = MemberSelector()


class HyperNodeSpec(_Slim, frozen=True):
    tier: int = 0
    tier_name: str = ""
    members: tuple[HyperNodeMember, ...] | None = None


class HyperNode(_Slim, frozen=True):
    metadata: Metadata = Metadata()
    spec: HyperNodeSpec = HyperNodeSpec()


class ListMeta(_Slim, frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ListPage(_Slim, frozen=True):
    """A list answer; items stay raw bytes until the reader decodes each into its own type."""

    metadata: ListMeta = ListMeta()
    items: tuple[msgspec.Raw, ...] | None = None


class WatchEvent(_Slim, frozen=True):
    """One line of a watch; `object` stays raw until its type is known."""

    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class StatusObject(_Slim, frozen=True):
    """The API server's own error object."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: dict[str, Any] | None = None
