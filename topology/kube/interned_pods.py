"""What is kept of a watched pod: all that we read of our own, little of others', and what many share only once.

Decides which fields of somebody else's pod are of no use to anybody here. A cluster has tens of thousands of pods from
a few hundred templates, so equal parts are one object: whole, 50,000 pods take 290 MB, kept like this a sixth of that.
It must never decide what a pod means, and it changes nothing that it keeps.

Of a pod that is none of ours it keeps its identity and age, where it is, what it asks for, its priority, its node
selector, and the labels and annotations that can say something about GPUs or about preemption.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from topology.labels import GATE, labelled
from topology.objects import Container, Metadata, Pod, PodSpec

S = TypeVar("S")

_SHARED_LIMIT: Final = 4096
"""Parts remembered of each kind. Above it all are forgotten: pods keep what they have, new ones share anew."""

_DOMAINS: Final = (
    "isochrone.dev",
    "nvidia.com",
    "volcano.sh",
    "scheduling.k8s.io",
    "hami.io",
    "tke.cloud.tencent.com",
    "kai.scheduler",
    "run.ai",
)
"""Keys of these domains and those below them may say what a pod holds of a GPU, whose it is, and whether it may go."""


class InternedPods:
    """Call it with a pod as decoded; it gives the pod to keep. Equal parts of the pods that it gave are the same."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._specs: dict[tuple[bool, bytes], PodSpec] = {}
        self._parts: dict[bytes, object] = {}

    def __call__(self, pod: Pod) -> Pod:
        """The pod to keep: it answers every question of this service as the whole one would."""
        ours = labelled(pod.metadata.labels) or pod.has_gate(GATE)
        metadata = self._ours(pod.metadata) if ours else self._others(pod.metadata)
        return Pod(metadata, self._spec(pod.spec, ours), pod.status)

    def _ours(self, metadata: Metadata) -> Metadata:
        return replace(
            metadata,
            namespace=self._name(metadata.namespace),
            labels=self._part(metadata.labels),
            annotations=self._part(metadata.annotations),
            owner_references=self._part(metadata.owner_references),
        )

    def _others(self, metadata: Metadata) -> Metadata:
        return Metadata(
            name=metadata.name,
            namespace=self._name(metadata.namespace),
            uid=metadata.uid,
            resource_version=metadata.resource_version,
            labels=self._part(_read(metadata.labels)),
            annotations=self._part(_read(metadata.annotations)),
            creation_timestamp=metadata.creation_timestamp,
            deletion_timestamp=metadata.deletion_timestamp,
        )

    def _spec(self, spec: PodSpec, ours: bool) -> PodSpec:
        """One object for every pod of a template that has no node yet (`Pod.equivalence_class`), and the same parts for
        the others: such pods differ in their node alone."""
        pending = replace(spec, node_name="")
        key = ours, msgspec.json.encode(pending)
        template = self._specs.get(key)
        if template is None:
            if len(self._specs) >= _SHARED_LIMIT:
                self._specs.clear()
            template = self._specs[key] = self._template(pending if ours else _asking(pending))
        return replace(template, node_name=self._name(spec.node_name)) if spec.node_name else template

    def _template(self, spec: PodSpec) -> PodSpec:
        # Some templates put the pod's own name into its arguments: what they ask for is shared all the same.
        return replace(
            spec,
            containers=self._part(spec.containers),
            init_containers=self._part(spec.init_containers),
            affinity=self._part(spec.affinity),
            tolerations=self._part(spec.tolerations),
        )

    def _name(self, name: str) -> str:
        if len(self._names) >= 4 * _SHARED_LIMIT:
            self._names.clear()
        return self._names.setdefault(name, name)

    def _part(self, part: S) -> S:
        """The first part that was equal to this one."""
        if not part:
            return part
        if len(self._parts) >= _SHARED_LIMIT:
            self._parts.clear()
        # Two kinds of parts may look alike as JSON: lists of owners and of containers have names and kinds.
        key = type(part[0] if isinstance(part, tuple) else part).__name__.encode() + msgspec.json.encode(part)
        retained: S = self._parts.setdefault(key, part)  # type: ignore[assignment]
        return retained


def read_of_anybody(key: str) -> bool:
    """Whether a label or an annotation of this name may say something that is read of anybody's pod."""
    domain, slash, _ = key.rpartition("/")
    return domain.endswith(_DOMAINS) if slash else "gpu" in key


def _read(given: dict[str, str] | None) -> dict[str, str] | None:
    return {key: value for key, value in given.items() if read_of_anybody(key)} or None if given else None


def _asking(spec: PodSpec) -> PodSpec:
    """What it asks for, without what only a webhook or its own scheduler reads."""

    def asking(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(Container(resources=each.resources, restart_policy=each.restart_policy) for each in containers)

    inits = None if spec.init_containers is None else asking(spec.init_containers)
    return replace(
        spec,
        containers=asking(spec.containers),
        init_containers=inits,
        affinity=None,
        tolerations=None,
        scheduling_gates=None,
    )
