"""What whoever creates a pod is warned of: the pod is taken, but not everything about it is as it was meant.

One function for each warning; their order is the answer's. Each says what is, and what to do. It must never refuse
anything, nor know what is written on the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from admission.recognition.key_places import hints, unread_claims
from admission.recognition.signals import PhaseReading
from admission.webhook.tagged_pod import TaggedPod
from topology import labels
from topology.bad_input import BadInput
from topology.objects import Pod

_MAX_WARNING_CHARS: Final = 240  # the API server cuts warnings above 256 bytes
SET_PHASE: Final = f"set label {labels.PHASE} to {labels.PREFILL} or {labels.DECODE}"


def shortened(warnings: Iterable[str]) -> tuple[str, ...]:
    """As long as the API server passes them on."""
    return tuple(
        text if len(text) <= _MAX_WARNING_CHARS else text[: _MAX_WARNING_CHARS - 3] + "..." for text in warnings
    )


def sentence(error: BadInput) -> str:
    """A refusal's reason, ended."""
    text = str(error)
    return text if text.endswith("?") else text + "."


def of_tagged(tagged: TaggedPod, wrong: Iterable[BadInput]) -> list[str]:
    """All of a pod that gets tags. `wrong` are settings that count as their default."""
    found = [*_forged(tagged), *tagged.conflicts, *map(sentence, wrong)]
    return found + [text for warning in _WARNINGS for text in warning(tagged)]


def of_untagged(pod: Pod, reading: PhaseReading, own: bool, opted_in: bool) -> list[str]:
    """All of a pod without a phase; nothing where no phase is to be expected. `own`: a person labelled it."""
    return [*_why_no_phase(pod, reading, own, opted_in), *(hints(pod) if opted_in else ())]


def of_gangless(pod: Pod, reading: PhaseReading, missing: str, opted_in: bool) -> list[str]:
    """All of a pod with a phase and no gang; `missing` says what would name one."""
    why = f"phase {reading.phase} ({reading.signal}) but no gang; {missing}"
    return [why, *(hints(pod) if opted_in else ())]


def _why_no_phase(pod: Pod, reading: PhaseReading, own: bool, opted_in: bool) -> list[str]:
    if reading.conflicts:
        return list(reading.conflicts)
    if not reading.engine:
        return []
    if reading.mixed:
        return [f"{reading.signal} serves both phases: not tagged; {SET_PHASE}"] if own else []
    if reading.signal and opted_in:
        return [f"{reading.signal} does not tell the phase: not tagged; {SET_PHASE}"]
    if own and labels.GANG in (pod.metadata.labels or {}):
        return [f"{labels.GANG} is set but no phase was recognised: not tagged; {SET_PHASE}"]
    return []


def _forged(tagged: TaggedPod) -> Iterable[str]:
    """Annotations of the controller's that somebody else brought."""
    return (f"{key} is written by Isochrone alone: removed" for key in tagged.forged)


def _misplaced(tagged: TaggedPod) -> Iterable[str]:
    """Keys of ours that are misspelt or in the wrong place, and devices that are not read."""
    return (*hints(tagged.pod), *unread_claims(tagged.pod)) if tagged.opted_in else ()


def _another_task(tagged: TaggedPod) -> Iterable[str]:
    """Volcano counts a task's pods by a name that is not the phase."""
    meta = tagged.pod.metadata
    task = meta.label(labels.TASK_SPEC) or meta.annotation(labels.TASK_SPEC)
    if tagged.gated and tagged.group is None and task not in ("", tagged.phase):
        yield f"{labels.TASK_SPEC} is {task!r}: Volcano does not count the pod as {tagged.phase}; remove it"


def _not_gated(tagged: TaggedPod) -> Iterable[str]:
    """It could wait for its gang, and does not."""
    if tagged.not_gated_because and tagged.opted_in:
        yield tagged.not_gated_because


def _mode_without_opt_in(tagged: TaggedPod) -> Iterable[str]:
    """The annotation wants it gated, and nobody wants Isochrone to hold it."""
    if tagged.wanted_mode == "required" and not tagged.opted_in:
        yield f"{labels.REACH_MODE} is required, but a pod is held only if it asks; {SET_PHASE}"


def _only_labelled(tagged: TaggedPod) -> Iterable[str]:
    """Another scheduler, or another system's gang, has it."""
    if not tagged.opted_in or tagged.for_volcano:
        return
    if tagged.third_scheduler:
        yield (
            f"schedulerName is {tagged.scheduler!r}: labelled only, not held or placed by Isochrone; "
            f"set schedulerName to {labels.VOLCANO_SCHEDULER}"
        )
    elif tagged.group is not None:
        group = f"{tagged.group.system} group ({tagged.group.key})"
        yield f"the pod is in a {group}: labelled only, not held or placed by Isochrone"


_WARNINGS: Final[tuple[Callable[[TaggedPod], Iterable[str]], ...]] = (
    _misplaced,
    _another_task,
    _not_gated,
    _mode_without_opt_in,
    _only_labelled,
)
"""What follows from the pod alone, in the order of the answer."""
