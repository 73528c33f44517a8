"""Why a gang has no places: one decision per pod with a true verdict for every node, and the gap of the whole gang."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.decision import Decision, PairReach, Shortfall
from scheduler.judge import Judged, Need, decision_of, has_room, judge, worst_reach_us
from scheduler.policy import Policy
from scheduler.request import GangRequest, PodRequest, ReachBound
from scheduler.verdicts import VerdictCode
from topology.isochrone_sets import as_requirement, near_all, nearest_us
from topology.labels import DECODE, PHASES, PREFILL
from topology.snapshot import Mask, NodeTable, Snapshot, room_for


def _other(phase: str) -> str:
    return DECODE if phase == PREFILL else PREFILL


Kind = tuple[str, bytes, bytes]  # phase, need, acceptance: what tells members apart here


@dataclass(frozen=True, slots=True)
class _Room:
    """Nodes where one member of a phase has room, and nodes with room for a member of a kind and one of the other phase
    at once."""

    of: Mapping[str, Mask]
    both: Mapping[Kind, Mask]

    def shared(self) -> Mask:
        """Nodes with room for some member of each phase at once."""
        every: Mask = np.logical_or.reduce(list(self.both.values()))
        return every


def _kind(member: PodRequest, need: Need) -> Kind:
    return member.phase, need.row.tobytes(), need.accepts.tobytes()


def _room(gang: GangRequest, snapshot: Snapshot, needs: Mapping[str, Need]) -> _Room:
    nowhere = np.zeros(len(snapshot.table), dtype=bool)
    of = dict.fromkeys(PHASES, nowhere)
    kinds = {_kind(m, needs[m.uid]): needs[m.uid] for m in gang.members}
    both = dict.fromkeys(kinds, nowhere)
    for kind, need in kinds.items():
        of[kind[0]] = of[kind[0]] | has_room(snapshot, need)
        for other, more in kinds.items():
            if kind[0] != other[0] and not need.missing and not more.missing:
                accepted = need.accepts & more.accepts
                both[kind] = both[kind] | (accepted & (room_for(snapshot.free, need.row + more.row) > 0))
    return _Room(of, both)


def _reach_to_others(
    snapshot: Snapshot,
    phase: str,
    bound: ReachBound,
    others: Mask,
    both: Mask,
    fixed: Mapping[str, NDArray[np.int64]],
) -> NDArray[np.float64]:
    """How far each node is from the other phase, (N,): its farthest place if it has some, else its nearest room.

    `others` are the nodes with room for the other phase; a node is its own neighbour only with room for `both`.
    """
    if len(fixed[_other(phase)]):
        return worst_reach_us(snapshot, fixed[_other(phase)].tolist(), bound.size_bytes)
    single = np.flatnonzero(others & ~both)
    return nearest_us(snapshot.table, np.flatnonzero(others & both), bound.size_bytes, single)


def held_decisions(
    gang: GangRequest,
    snapshot: Snapshot,
    policy: Policy,
    needs: Mapping[str, Need],
    fixed: Mapping[str, NDArray[np.int64]],
) -> dict[str, Decision]:
    """A decision per member of a gang that has no plan: no node is eligible, and each says why."""
    room, index = _room(gang, snapshot, needs), snapshot.table.index
    partners = {
        phase: [(p.name, index[n]) for p in gang.partners if p.phase == phase for n in p.nodes if n in index]
        for phase in PHASES
    }
    judged: dict[tuple[Kind, tuple[str, ...]], Judged] = {}
    decisions = {}
    for member in sorted(gang.members, key=lambda m: (m.phase, m.name, m.uid)):
        need, phase = needs[member.uid], member.phase
        kind = _kind(member, need)
        if (known := judged.get((kind, need.missing))) is None:
            others = room.of[_other(phase)]
            reach = _reach_to_others(snapshot, phase, gang.bound, others, room.both[kind], fixed)
            known = judged[kind, need.missing] = _judge_held(snapshot, need, reach, gang.bound, policy)
        decisions[member.uid] = decision_of(snapshot, member, need, known, gang.bound, partners[_other(phase)])
    return decisions


def _judge_held(
    snapshot: Snapshot, need: Need, reach_us: NDArray[np.float64], bound: ReachBound, policy: Policy
) -> Judged:
    judged = judge(snapshot, need, reach_us, bound, policy)
    codes = judged.codes.copy()
    # A node that passes alone is out because all that must come together does not fit around it. So is one where the
    # other phase has room nowhere: that is not a matter of distance.
    nowhere = (codes == VerdictCode.REACH_EXCEEDED.value) & np.isinf(reach_us)
    codes[(codes == VerdictCode.ELIGIBLE.value) | nowhere] = VerdictCode.GANG_TOO_LARGE
    return Judged(judged.nodes, codes, judged.short_of, judged.scored)


def _closest(
    gang: GangRequest, snapshot: Snapshot, room: _Room, fixed: Mapping[str, NDArray[np.int64]]
) -> PairReach | None:
    """The nearest pair of nodes: room for a member on one, the farthest partner or room for one on the other.

    Of two phases that need places the worse off counts: its nearest pair is what keeps the gang apart.
    """
    table, size = snapshot.table, gang.bound.size_bytes
    found: list[PairReach] = []
    both = room.shared()
    for phase in [phase for phase in PHASES if gang.still_needed(phase)]:
        here = np.flatnonzero(room.of[phase])
        reach = _reach_to_others(snapshot, phase, gang.bound, room.of[_other(phase)], both, fixed)
        if not len(here) or not np.isfinite(reach[here]).any():
            continue
        node = int(here[int(np.argmin(reach[here]))])
        partners = fixed[_other(phase)]
        others = partners if len(partners) else np.flatnonzero(room.of[_other(phase)])
        if not len(partners) and not both[node]:
            others = others[others != node]
        row = table.reach.row_us(node, size)[others]
        other = int(others[int(np.argmax(row) if len(partners) else np.argmin(row))])
        pair = (node, other) if phase == PREFILL else (other, node)
        found.append(PairReach(table.names[pair[0]], table.names[pair[1]], table.reach.between(node, other, size)))
    return min(found, key=lambda p: (-p.reach.us, p.prefill, p.decode)) if found else None


def shortfall_of(
    gang: GangRequest, snapshot: Snapshot, needs: Mapping[str, Need], fixed: Mapping[str, NDArray[np.int64]]
) -> Shortfall:
    """The gap of the whole gang: the closest pair with room, and the most free GPUs within the bound of one node."""
    room = _room(gang, snapshot, needs)
    core = [member for phase in PHASES for member in _narrowest(gang, phase)]
    best_gpus, best_where = _most_gpus(gang, snapshot, {m.phase for m in core}, room, fixed)
    return Shortfall(
        needed_gpus=sum(m.gpus for m in core),
        closest=_closest(gang, snapshot, room, fixed),
        best_gpus=best_gpus,
        best_where=best_where,
    )


def _narrowest(gang: GangRequest, phase: str) -> list[PodRequest]:
    """The members that would make up the minimum of a phase with the fewest GPUs."""
    return sorted((m for m in gang.members if m.phase == phase), key=lambda m: m.gpus)[: gang.still_needed(phase)]


def _most_gpus(
    gang: GangRequest,
    snapshot: Snapshot,
    phases: Collection[str],
    room: _Room,
    fixed: Mapping[str, NDArray[np.int64]],
) -> tuple[int, str]:
    """The most free GPUs, on nodes with room for a member, within the bound of one node, and that surrounding in words.

    With partners it is the nodes that they allow, since their places are given; those have no words.
    """
    table, bound, gpu = snapshot.table, gang.bound, snapshot.gpu_column
    if gpu is None or not phases:
        return 0, ""
    usable = np.logical_or.reduce([room.of[phase] for phase in phases])
    free = np.where(usable, np.maximum(snapshot.free[:, gpu], 0), 0)
    partners = np.unique(np.concatenate([fixed[phase] for phase in PHASES]))
    if len(partners):
        # A phase that comes is bound to the partners of the other one only.
        allowed = [near_all(table, fixed[_other(p)], bound.us, bound.size_bytes) & room.of[p] for p in sorted(phases)]
        return int(free[np.logical_or.reduce(allowed)].sum()), ""
    best, where = 0, None
    for centre in _centres(table, np.flatnonzero(usable), free):
        near = near_all(table, np.array([centre]), bound.us, bound.size_bytes)
        if (gpus := int(free[near].sum())) > best:
            best, where = gpus, as_requirement(table, near, [centre] if near[centre] else [])
            # The words may cover less than the nodes (whole domains only, or too many names): then there are none.
            if where is not None and where.nodes < int(near.sum()):
                where = None
    return best, where.show() if where is not None else ""


def _centres(table: NodeTable, nodes: NDArray[np.int64], free: NDArray[np.int64]) -> list[int]:
    """Nodes whose surroundings cover every case: of each kind the fullest and the emptiest, since nodes of one kind
    have the same surroundings but for themselves."""
    kinds = table.reach.kind[nodes]
    centres: set[int] = set()
    for kind in np.unique(kinds):
        alike = nodes[kinds == kind]
        centres |= {int(alike[np.argmin(free[alike])]), int(alike[np.argmax(free[alike])])}
    return sorted(centres)
