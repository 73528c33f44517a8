"""Keeps the measurements of a cluster and what they make of a node table's reach, renewed now and again.

It decides when: a new measurement counts within RENEW_S, ages and fading are told at least every AGE_S. Laying costs
milliseconds and throws cached rows away, so it is not done for each of the hundreds of samples a second that agents
may send. No clock: time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topology.cluster.snapshot import NodeTable
from topology.facts.report import ReachSample
from topology.measured.reach import Known, MeasuredReach
from topology.measured.store import MAX_PAIRS, MeasurementStore, Pair
from topology.reach.measured_values import NODE, PROBE_FRESH_S, MeasuredPlace, Sample
from topology.reach.model import ReachModel

RENEW_S: Final = 5.0
AGE_S: Final = 30.0
EXPIRE_EVERY_S: Final = 120.0
MANY: Final = 5000
"""Beyond so many pairs a new measurement counts later: laying 20,000 pairs takes 0.4 s."""


def probe_sample(reported: ReachSample) -> Sample:
    """What an agent's probe measured: p99 of one page, set-up left out."""
    return Sample(
        size_bytes=reported.size_bytes,
        reach_us=reported.p99_us,
        percentile="p99",
        count=reported.count,
        measured_at_s=reported.measured_at_s,
        fresh_s=PROBE_FRESH_S,
        transport=reported.transport,
    )


class MeasuredLayer:
    """Probes of agents and imported runs, and the table they were last laid over."""

    def __init__(self) -> None:
        self.probed = MeasurementStore()
        self.imported = MeasurementStore()
        self._table: NodeTable | None = None
        self._reach: MeasuredReach | None = None  # over that table; None while nothing measured counts
        self._version = (0, 0)
        self._at_s = 0.0
        self._swept_s = 0.0
        self._known: dict[tuple[int, int], Known] = {}

    def probe(self, node: str, samples: Iterable[ReachSample]) -> None:
        """What the agent of one node measured to others. Samples that cannot be are left out."""
        by_peer: dict[str, list[Sample]] = {}
        for reported in samples:
            if reported.size_bytes > 0 and 0 < reported.p99_us < 3.6e9 and reported.peer:
                by_peer.setdefault(reported.peer, []).append(probe_sample(reported))
        for peer, each in sorted(by_peer.items()):
            self.probed.add(MeasuredPlace(NODE, node), MeasuredPlace(NODE, peer), each)

    def import_all(self, given: Mapping[Pair, Iterable[Sample]]) -> None:
        """What the file of imported runs holds now; what it held before no longer counts."""
        self.imported.replace_all(given)

    def forget_node(self, name: str) -> None:
        """The node is gone: what was probed from and to it is no longer true of a node that takes its name."""
        self.probed.forget_node(name)

    def reach_over(self, table: NodeTable) -> ReachModel:
        """The reach between the nodes of the table as last renewed: another object only once another reach counts."""
        return self._reach if table is self._table and self._reach is not None else table.reach

    def renew(self, table: NodeTable, now_s: float) -> bool:
        """Renew the reach over the table if it is due; whether anything else than ages may have changed."""
        version = (self.probed.version, self.imported.version)
        anew = table is not self._table
        if not anew:
            changed, age = version != self._version, now_s - self._at_s
            renew_s = RENEW_S * (1 + len(self.probed) // MANY)
            if age < (renew_s if changed else AGE_S) or not (changed or self._reach is not None):
                return False
        if anew or len(self._known) > 2 * MAX_PAIRS:
            self._known.clear()
        if now_s - self._swept_s >= EXPIRE_EVERY_S:
            self.probed.expire(now_s)
            self._swept_s = now_s
        pairs = self.probed.both_ways()
        for pair, samples in self.imported.both_ways().items():
            pairs[pair] = (*pairs.get(pair, ()), *samples)
        base, known = table.reach, self._known
        self._reach = MeasuredReach(base, table.names, table.chains, pairs, now_s, known) if pairs else None
        changed = version != self._version
        self._table, self._version, self._at_s = table, version, now_s
        return changed
