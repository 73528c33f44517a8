"""What places mean once they are found: the isochrone sets, the worst pair, a decision for every pod of the gang.

It searches for nothing. Members that ask for the same are judged once, against the cluster with the whole gang in it;
each one's own node is then judged again without it, since a pod does not compete with itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scheduler.decision import KEEP, Decision, Outcome, PairReach, Plan
from scheduler.judge import (
    Judged,
    Need,
    candidate_of,
    counts_of,
    judge,
    nearest_misses,
    ranking_of,
    record_of,
    worst_reach_us,
)
from scheduler.policy import Policy
from scheduler.request import GangRequest, PodRequest, ReachBound
from scheduler.verdicts import VerdictCode
from topology.isochrone_sets import as_requirement, isochrone_masks
from topology.labels import DECODE, PHASES, PREFILL
from topology.snapshot import Assumed, Snapshot

Places = dict[str, int]  # pod uid to node index
Named = list[tuple[str, int]]  # pod name, node index


def planned(
    gang: GangRequest,
    snapshot: Snapshot,
    policy: Policy,
    needs: Mapping[str, Need],
    fixed: Mapping[str, NDArray[np.int64]],
    places: Places,
    expanded: int,
) -> Plan:
    """The plan that these places make. `fixed` are the nodes of partners by phase."""
    table, bound = snapshot.table, gang.bound
    mine = {phase: [places[m.uid] for m in gang.members if m.phase == phase and m.uid in places] for phase in PHASES}
    on_phase = {phase: [*fixed[phase].tolist(), *mine[phase]] for phase in PHASES}
    masks = isochrone_masks(table, on_phase[PREFILL], on_phase[DECODE], bound.us, bound.size_bytes)
    sets = {phase: as_requirement(table, mask, mine[phase]) for phase, mask in zip(PHASES, masks, strict=True)}
    after = snapshot.with_assumed(
        {m.uid: Assumed(table.names[places[m.uid]], m.amounts, m.hold) for m in gang.members if m.uid in places}
    )
    named = _named_places(gang, snapshot, places)
    kinds: dict[tuple[str, int], _Kind] = {}
    decisions: dict[str, Decision] = {}
    for member in sorted(gang.members, key=lambda m: (m.phase, m.name, m.uid)):
        need = needs[member.uid]
        key = member.phase, id(need)
        if key not in kinds:
            partners = named[DECODE if member.phase == PREFILL else PREFILL]
            kinds[key] = _Kind(after, need, partners, bound, policy)
        decisions[member.uid] = kinds[key].decision(member, places.get(member.uid))
    pairs = [d.partner for d in decisions.values() if d.partner]
    return Plan(
        request=gang,
        outcome=Outcome.PLANNED if places else Outcome.HELD,
        snapshot_id=snapshot.id,
        decisions=decisions,
        places={uid: table.names[node] for uid, node in sorted(places.items())},
        prefill_set=sets[PREFILL],
        decode_set=sets[DECODE],
        worst=max(pairs, key=_far) if pairs else None,
        expanded=expanded,
    )


class _Kind:
    """Members of one phase and need, judged once with everybody in place."""

    def __init__(self, after: Snapshot, need: Need, partners: Named, bound: ReachBound, policy: Policy) -> None:
        self._after, self._need, self._partners, self._bound, self._policy = after, need, partners, bound, policy
        self._reach_us = (
            worst_reach_us(after, [node for _, node in partners], bound.size_bytes)
            if partners
            else after.table.reach.self_us(bound.size_bytes)
        )
        self._judged = judge(after, need, self._reach_us, bound, policy)
        self._counts = counts_of(self._judged)
        self._nearest = nearest_misses(after, self._judged, need, bound, partners)
        ranking = ranking_of(self._judged, KEEP + 1)
        self._ranked = {
            int(self._judged.nodes[i]): candidate_of(after, self._judged, i, partners, bound) for i in ranking
        }

    def decision(self, member: PodRequest, node: int | None) -> Decision:
        """The record of one member; on a node of its own it is judged there as if it were not there yet."""
        now, counts, nearest = self._after, self._counts, self._nearest
        ranked = [candidate for at, candidate in self._ranked.items() if at != node]
        if node is not None:
            now = now.without_assumed([member.uid])
            own = judge(now, self._need, self._reach_us, self._bound, self._policy, np.array([node]))
            before, code = int(self._judged.codes[node]), int(own.codes[0])
            counts = counts.copy()
            counts[before] -= 1
            counts[code] += 1
            known = nearest.get(VerdictCode(before))
            if code != VerdictCode.ELIGIBLE or (known is not None and known.node == now.table.names[node]):
                nearest = nearest_misses(now, self._with(own, node), self._need, self._bound, self._partners)
            ranked.insert(0, candidate_of(now, own, 0, self._partners, self._bound))
        return record_of(now, member, counts, nearest, ranked[:KEEP], self._bound, self._partners, node)

    def _with(self, own: Judged, node: int) -> Judged:
        """All verdicts, with this node's own one; scores are of no use any more, reach is."""
        codes, short_of = self._judged.codes.copy(), self._judged.short_of.copy()
        codes[node], short_of[node] = own.codes[0], own.short_of[0]
        return Judged(self._judged.nodes, codes, short_of, self._judged.scored)


def _far(pair: PairReach) -> tuple[float, str, str]:
    return pair.reach.us, pair.prefill, pair.decode


def _named_places(gang: GangRequest, snapshot: Snapshot, places: Places) -> dict[str, Named]:
    """Per phase (pod name, node index) of partners and planned members; an unbound partner counts everywhere."""
    index = snapshot.table.index
    named: dict[str, Named] = {phase: [] for phase in PHASES}
    for partner in gang.partners:
        named[partner.phase] += [(partner.name, index[n]) for n in partner.nodes if n in index]
    for member in gang.members:
        if member.uid in places:
            named[member.phase].append((member.name, places[member.uid]))
    return named
