"""Whether another system holds the pod in a group already.

A group that is there is kept: we add to it, we never take it over. It must never know the pod's phase or our gang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from topology import labels
from topology.objects import Pod


@dataclass(frozen=True, slots=True)
class ExistingGroup:
    """A group that holds the pod already. Volcano's own PodGroup composes with our gate, the others do not."""

    system: str
    key: str
    value: str
    volcano: bool


def existing_group(pod: Pod) -> ExistingGroup | None:
    """The gang carrier that somebody else put on the pod; it is never replaced."""
    for system, key, read in _CARRIERS:
        value = read(pod, key)
        if value:
            return ExistingGroup(system, key, value, volcano=key == labels.GROUP_NAME)
    return None


def _annotation(pod: Pod, key: str) -> str:
    return pod.metadata.annotation(key)


def _label(pod: Pod, key: str) -> str:
    return pod.metadata.label(key)


def _gate(pod: Pod, key: str) -> str:
    return next((gate.name for gate in pod.spec.scheduling_gates or () if gate.name.startswith(key)), "")


_CARRIERS: Final[tuple[tuple[str, str, Callable[[Pod, str], str]], ...]] = (
    ("Volcano", labels.GROUP_NAME, _annotation),
    ("coscheduling", "scheduling.x-k8s.io/pod-group", _label),
    ("KAI", "pod-group-name", _annotation),
    ("KAI", "kai.scheduler/subgroup-name", _label),
    ("Godel", "godel.bytedance.com/pod-group-name", _annotation),
    ("Godel", "godel.bytedance.com/pod-group-name", _label),
    ("Koordinator", "gang.scheduling.koordinator.sh/name", _annotation),
    ("Koordinator", "gang.scheduling.koordinator.sh/groups", _annotation),
    ("Koordinator", "pod-group.scheduling.sigs.k8s.io", _label),
    ("Kueue", "kueue.x-k8s.io/queue-name", _label),
    ("Kueue", "kueue.x-k8s.io/pod-group-name", _label),
    ("Kueue", "kueue.x-k8s.io/", _gate),
    ("Grove", "grove.io/podgang", _label),
    ("Grove", "grove.io/", _gate),
)
