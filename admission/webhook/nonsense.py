"""What nobody could mean: the only things for which a pod, or the owner that would make it, is refused.

A value outside its set, a number that is none, a gang or PodGroup named with a namespace, a minimum above the number of
pods that the pod's own role has. Field, value and what is allowed are named. It must never refuse what merely looks
unwise: that is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from admission.recognition.pod_settings import not_one_of, read_settings
from topology import labels
from topology.bad_input import BadInput
from topology.objects import Metadata, Pod

_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
# How many pods of its role there are, where a pod says it (sgl-project/rbg api/workloads/constants).
_ROLE_SIZES: Final = ("rbg.workloads.x-k8s.io/role-size", "rolebasedgroup.workloads.x-k8s.io/role-size")


class _Template(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


class _WorkloadSpec(msgspec.Struct, frozen=True):
    replicas: int | None = None
    template: _Template = _Template()


class Owner(msgspec.Struct, frozen=True):
    """A workload as far as it is validated: how many pods, and what is on them."""

    metadata: Metadata = Metadata()
    spec: _WorkloadSpec = _WorkloadSpec()

    @property
    def template(self) -> Pod:
        """A pod with the template's labels and annotations and nothing else."""
        return Pod(self.spec.template.metadata)


def nonsense(pod: Pod) -> tuple[BadInput, ...]:
    """Everything that is wrong with our labels and annotations on this pod; nothing for a pod that has none."""
    given, notes = pod.metadata.labels or {}, pod.metadata.annotations or {}
    if not any(key.startswith(labels.PREFIX) for key in (*given, *notes)):
        return ()
    _, wrong = read_settings(notes, requests=True)
    return (*wrong_labels(pod), *wrong, *above_role_size(pod))


def wrong_labels(pod: Pod) -> Iterator[BadInput]:
    """Phase and gang: words outside their sets, and names that reach into another namespace."""
    given = pod.metadata.labels or {}
    if labels.PHASE in given and given[labels.PHASE] not in labels.PHASES:
        yield not_one_of(labels.PHASE, given[labels.PHASE], (labels.PREFILL, labels.DECODE))
    gang = given.get(labels.GANG)
    if gang == "":
        yield BadInput(labels.GANG, "", 'use one name for all pods of a service, such as "chat"')
    elif gang is not None and "/" in gang:
        yield BadInput(labels.GANG, gang, "a gang lives in its pods' own namespace: use a name without a namespace")
    elif gang is not None and not _LABEL_VALUE.fullmatch(gang):
        yield BadInput(labels.GANG, gang, "use at most 63 letters, digits, -, _ and .")
    group = pod.metadata.annotation(labels.GROUP_NAME)
    if "/" in group and (labels.PHASE in given or labels.GANG in given):
        allowed = "a PodGroup is looked up in its pods' own namespace: use a name without a namespace"
        yield BadInput(labels.GROUP_NAME, group, allowed)


def above_size(pod: Pod, size: int) -> Iterator[BadInput]:
    """The minimum of the pod's own phase above the number of pods of its role."""
    settings, _ = read_settings(pod.metadata.annotations, requests=True)
    phase = pod.metadata.label(labels.PHASE)
    key, minimum = (
        (labels.MIN_PREFILL, settings.min_prefill)
        if phase == labels.PREFILL
        else (labels.MIN_DECODE, settings.min_decode if phase == labels.DECODE else None)
    )
    if minimum is not None and minimum > size:
        yield BadInput(key, str(minimum), f"use at most {size}, the number of {phase} pods that there will be")


def above_role_size(pod: Pod) -> Iterator[BadInput]:
    """The same, where the pod itself says how many pods its role has."""
    for key in _ROLE_SIZES:
        text = pod.metadata.annotation(key)
        if text.isascii() and text.isdigit() and 0 < len(text) < 7 and int(text) > 0:
            yield from above_size(pod, int(text))
            return
