"""Phase and gang of a pod, read together: both look at its command lines."""

from __future__ import annotations

from dataclasses import dataclass

from admission.recognition.command_line import engine_calls
from admission.recognition.gang_identity import GangReading, read_gang
from admission.recognition.ray_groups import without_workers
from admission.recognition.signals import PhaseReading, Rules, read_phase
from topology.objects import Metadata, Pod, PodSpec


@dataclass(frozen=True, slots=True)
class Readings:
    phase: PhaseReading
    gang: GangReading
    alone: bool  # the leader of a copy whose workers nothing can tell


def readings_of(pod: Pod, rules: Rules) -> Readings:
    """What `read_phase` and `read_gang` say of this pod. Never raises."""
    meta = pod.metadata
    # What a controller appends to a name is another one for every pod and says nothing.
    name = (meta.generate_name or meta.name.rstrip("0123456789")).rstrip("-")
    read = Pod(
        Metadata(name=name, labels=meta.labels, annotations=meta.annotations), PodSpec(containers=pod.spec.containers)
    )
    calls = engine_calls(read)
    phase = read_phase(read, calls, rules)
    return Readings(phase, read_gang(read, calls), without_workers(read, calls, phase))
