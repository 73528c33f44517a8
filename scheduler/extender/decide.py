"""`decide(pod, snapshot)`: one pod against the nodes Volcano asks about, given where its partners are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scheduler.evaluate.evaluate import PodFit, decision_of, evaluate, fit_of
from scheduler.evaluate.gpu_fit import gpu_slots
from scheduler.evaluate.partner_reach import reach_to
from scheduler.model.decision import NANO, Decision
from scheduler.model.policy import Policy
from scheduler.model.request import Partner, PodRequest, ReachBound
from topology.cluster.isochrone_sets import nearest_us
from topology.cluster.snapshot import NodeTable, Snapshot, capacity_for

_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Ranking:
    """The decision for people and the scores for Volcano: one per node asked, distinct, 0 to 100 x the weight."""

    decision: Decision
    scores: dict[str, float]


def decide(
    request: PodRequest,
    snapshot: Snapshot,
    asked: Sequence[str],
    partners: Sequence[Partner] = (),
    bound: ReachBound | None = None,
    policy: Policy | None = None,
) -> Ranking:
    """Judge and score the nodes asked. Partners are those of the other phase; without any, a node is as near as the
    nearest other room for a pod like this one.

    Nodes that the snapshot does not know get the lowest scores, distinct too: never nothing, never a negative number.
    """
    policy, bound = policy or Policy(), bound or ReachBound()
    table = snapshot.table
    places = _places(table, asked)
    among = np.zeros(len(table), dtype=bool)
    among[places[places != _UNKNOWN]] = True
    known = np.flatnonzero(among)
    need = fit_of(request, snapshot, policy)
    named = [(p.name, table.index[n]) for p in partners for n in p.nodes if n in table.index]
    reach = reach_to(table, named, bound) if named else _partner_capacity_us(snapshot, need, bound.size_bytes)
    evaluated = evaluate(snapshot, need, reach, bound, policy, known, {node for _, node in named})
    decision = decision_of(snapshot, request, need, evaluated, bound, named)
    points = evaluated.scored.total_nano / NANO * policy.volcano_weight
    if len(known) and places.min() != _UNKNOWN:
        # The names as they came: hashed once already.
        scores = dict(zip(asked, points[np.cumsum(among)[places] - 1].tolist(), strict=True))
    else:
        scores = dict(zip([table.names[node] for node in known.tolist()], points.tolist(), strict=True))
        unknown = sorted({name for name in asked if name not in table.index})
        lowest = min(scores.values(), default=1.0)
        for i, name in enumerate(unknown):
            scores[name] = lowest * (len(unknown) - i) / (len(unknown) + 1)
    return Ranking(decision=decision, scores=scores)


def _places(table: NodeTable, asked: Sequence[str]) -> NDArray[np.int64]:
    """Index of each name in the node table, (asked,); -1 for a node that is not there."""
    if len(asked) > 1:
        # Usually every name is known: one call then looks them all up.
        with suppress(KeyError):
            return np.array(itemgetter(*asked)(table.index), dtype=np.int64)
    return np.array([table.index.get(name, _UNKNOWN) for name in asked], dtype=np.int64)


def _partner_capacity_us(snapshot: Snapshot, need: PodFit, size_bytes: int) -> NDArray[np.float64]:
    """Per node the reach to the nearest room for one more pod like this one, (N,): itself only with room for two."""
    slots = capacity_for(snapshot.free, need.row)
    if need.devices is not None:
        slots = np.minimum(slots, gpu_slots(snapshot.gpus, need.devices))
    return nearest_us(snapshot.table, np.flatnonzero(slots > 1), size_bytes, np.flatnonzero(slots == 1))
