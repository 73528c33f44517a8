"""Why a gang has no places: one decision per pod with a true verdict for every node, and the gap of the whole gang."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scheduler.decision import Decision, PairReach, Shortfall
from scheduler.judge import Judged, Need, decision_of, has_room, judge, worst_reach_us
from scheduler.policy import Policy
from scheduler.request import GangRequest, ReachBound
from scheduler.verdicts import VerdictCode
from topology.isochrone_sets import as_requirement, near_all, nearest_us
from topology.labels import DECODE, PHASES, PREFILL
from topology.snapshot import Mask, Snapshot


def _other(phase: str) -> str:
    return DECODE if phase == PREFILL else PREFILL


def _room_by_phase(gang: GangRequest, snapshot: Snapshot, needs: Mapping[str, Need]) -> dict[str, Mask]:
    """Per phase the nodes where one member has room."""
    room = {phase: np.zeros(len(snapshot.table), dtype=bool) for phase in PHASES}
    for member in gang.members:
        room[member.phase] |= has_room(snapshot, needs[member.uid])
    return room


def _reach_to_others(
    snapshot: Snapshot,
    phase: str,
    bound: ReachBound,
    room: Mapping[str, Mask],
    fixed: Mapping[str, NDArray[np.int64]],
) -> NDArray[np.float64]:
    """How far each node is from the other phase, (N,): its farthest place if it has some, else its nearest room."""
    other = _other(phase)
    if len(fixed[other]):
        return worst_reach_us(snapshot, fixed[other].tolist(), bound.size_bytes)
    return nearest_us(snapshot.table, np.flatnonzero(room[other]), bound.size_bytes)


def held_decisions(
    gang: GangRequest,
    snapshot: Snapshot,
    policy: Policy,
    needs: Mapping[str, Need],
    fixed: Mapping[str, NDArray[np.int64]],
) -> dict[str, Decision]:
    """A decision per member of a gang that has no plan: no node is eligible, and each says why."""
    room = _room_by_phase(gang, snapshot, needs)
    reach = {phase: _reach_to_others(snapshot, phase, gang.bound, room, fixed) for phase in PHASES}
    decisions = {}
    for member in sorted(gang.members, key=lambda m: (m.phase, m.name, m.uid)):
        need = needs[member.uid]
        judged = judge(snapshot, need, reach[member.phase], gang.bound, policy)
        codes = judged.codes.copy()
        # A node that passes alone is out because all that must come together does not fit around it.
        codes[codes == VerdictCode.ELIGIBLE] = VerdictCode.GANG_TOO_LARGE
        judged = Judged(judged.nodes, codes, judged.short_of, judged.scored)
        decisions[member.uid] = decision_of(snapshot, member, need, judged, gang.bound, ())
    return decisions


def _closest(
    gang: GangRequest, snapshot: Snapshot, room: Mapping[str, Mask], fixed: Mapping[str, NDArray[np.int64]]
) -> PairReach | None:
    """The pair of nodes nearest to the bound: room for a member on one, a partner or room for one on the other."""
    table, size = snapshot.table, gang.bound.size_bytes
    found: list[PairReach] = []
    for phase in PHASES:
        here = np.flatnonzero(room[phase])
        reach = _reach_to_others(snapshot, phase, gang.bound, room, fixed)
        if not len(here) or not np.isfinite(reach[here]).any():
            continue
        node = int(here[int(np.argmin(reach[here]))])
        others = fixed[_other(phase)] if len(fixed[_other(phase)]) else np.flatnonzero(room[_other(phase)])
        row = table.reach.row_us(node, size)[others]
        other = int(others[int(np.argmax(row) if len(fixed[_other(phase)]) else np.argmin(row))])
        pair = (node, other) if phase == PREFILL else (other, node)
        found.append(PairReach(table.names[pair[0]], table.names[pair[1]], table.reach.between(node, other, size)))
    return min(found, key=lambda p: (p.reach.us, p.prefill, p.decode)) if found else None


def shortfall_of(
    gang: GangRequest, snapshot: Snapshot, needs: Mapping[str, Need], fixed: Mapping[str, NDArray[np.int64]]
) -> Shortfall:
    """The gap of the whole gang: the closest pair with room, and the most free GPUs inside one isochrone."""
    table, bound = snapshot.table, gang.bound
    room = _room_by_phase(gang, snapshot, needs)
    core = [
        m for phase in PHASES for m in [m for m in gang.members if m.phase == phase][: gang.still_needed(phase)]
    ] or list(gang.members)
    needed = sum(m.gpus for m in core)
    best_gpus, best_where = 0, ""
    gpu = snapshot.gpu_column
    if gpu is not None and needed:
        usable = np.zeros(len(table), dtype=bool)
        for member in core:
            usable |= has_room(snapshot, needs[member.uid])
        free = np.where(usable, np.maximum(snapshot.free[:, gpu], 0), 0)
        partners = np.unique(np.concatenate([fixed[phase] for phase in PHASES]))
        around = np.flatnonzero(usable)
        first = np.unique(table.reach.kind[around], return_index=True)[1]
        for centre in partners.tolist() or around[np.sort(first)].tolist():
            near = near_all(table, np.append(partners, centre), bound.us, bound.size_bytes)
            gpus = int(free[near].sum())
            if gpus > best_gpus:
                best_gpus = gpus
                where = as_requirement(table, near, [centre] if near[centre] else [])
                best_where = where.show() if where else table.names[centre]
    return Shortfall(
        needed_gpus=needed, closest=_closest(gang, snapshot, room, fixed), best_gpus=best_gpus, best_where=best_where
    )
