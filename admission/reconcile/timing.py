"""How long the loop over gangs, its planner and its release workflow wait for what: one set for all three. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """Times in seconds."""

    quiet_s: float = 0.5
    round_s: float = 0.25  # held gangs are asked again at most this often, however fast room appears
    batch_s: float = 2.0  # gangs that become ready while others are being released wait for these at most so long,
    settle_s: float = 0.2  # and within that time until no pod came for so long (docs/decisions/0012)
    partner_s: float = 60.0  # one phase alone says so after this
    shown_s: float = 1.0  # how long a PodGroup waits for the watch to show its pods released
    other_watch_s: float = 0.2  # how far Volcano's watch may be behind ours on a busy machine
    group_shown_s: float = 5.0  # a PodGroup of ours that the watch has not shown by then is gone again
    reserve_s: float = 600.0  # how long room is kept for pods that come once the others are ready
    retry_s: float = 1.0
    retry_cap_s: float = 30.0
