"""What the controller's loop remembers of a gang between two looks, and how long it waits for what.

Nothing here outlives the process: what was planned stands on the pods.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from admission.fairness.bypass_limit import WaitingGang
from admission.release.pod_writer import PodRelease
from topology.cluster.state import GangKey


@dataclass(slots=True)
class Track:
    """What the loop remembers of one gang. All times monotonic seconds."""

    last_arrival_s: float
    known: set[str] = field(default_factory=set)
    dirty: bool = True
    rank: tuple[int, str] | None = None  # how it stands among those that are due; None: its pods changed
    due_s: float | None = None
    waiting_growth: int | None = None  # growth at the last plan that left somebody out
    working: bool = False
    runs: bool = False  # nobody of it is held and nothing lacks: what its pods do is no news, but another pod is
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    releasing: set[str] = field(default_factory=set)  # let go by us, not yet seen so
    unconfirmed: list[PodRelease] = field(
        default_factory=list
    )  # of those going: nobody can say whether the write was done
    preempts: bool = False  # let go for Volcano to make room
    group_made: bool = False
    group_check_s: float | None = None  # made by us, and not yet shown by the watch: by then it should be
    awaits_group: str = ""
    awaits_queue: bool = False  # its queue cannot hold all of it
    behind: GangKey | None = None  # an older gang that must go first
    waiting_gang: WaitingGang | None = None  # at the last plan, too few of its pods had places for its minimum
    reserved: set[str] = field(default_factory=set)  # room kept for pods that do not exist yet
    reserved_until_s: float | None = None
    tries: int = 0

    @property
    def waiting(self) -> bool:
        """It waits for room or quota for its minimum, so that younger gangs may have to stay behind it."""
        return self.waiting_growth is not None and self.waiting_gang is not None

    @property
    def next_s(self) -> float | None:
        """When there is something to do even if nobody touches the gang."""
        return min(
            (at for at in (self.due_s, self.group_check_s, self.reserved_until_s) if at is not None), default=None
        )

    @property
    def at_rest(self) -> bool:
        """Nothing to do until somebody touches the gang."""
        return not (self.dirty or self.working or self.next_s is not None or self.waiting_growth is not None)


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """Times in seconds."""

    quiet_s: float = 0.5
    round_s: float = 0.25  # held gangs are asked again at most this often, however fast room appears
    batch_s: float = 2.0  # gangs that become ready while others are being let go wait for these at most so long,
    settle_s: float = 0.2  # and within that time until no pod came for so long (docs/decisions/0012)
    partner_s: float = 60.0  # one phase alone says so after this
    shown_s: float = 1.0  # how long a PodGroup waits for the watch to show its pods released
    other_watch_s: float = 0.2  # how far Volcano's watch may be behind ours on a busy machine
    group_shown_s: float = 5.0  # a PodGroup of ours that the watch has not shown by then is gone again
    reserve_s: float = 600.0  # how long room is kept for pods that come once the others are ready
    retry_s: float = 1.0
    retry_cap_s: float = 30.0
